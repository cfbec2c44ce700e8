"""Where a script calls collectives, so that a refusal can name the line.

Each function of `torch.distributed` comes to a method of `ProcessGroup`, by whatever name the script has
imported it. What DDP and this package send is not the script's, and is not noted here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch.distributed as dist

from pollux_slurm.torch.regroup.user_frames import calling_line
from pollux_slurm.torch.wrapped_model.patching import patch_everywhere

# Some are not in every torch.
_METHODS = (
    "_allgather_base",
    "_reduce_scatter_base",
    "all_gather_single",
    "all_to_all_single",
    "allgather",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "allreduce",
    "allreduce_coalesced",
    "alltoall",
    "alltoall_base",
    "barrier",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor_coalesced",
    "scatter",
)


class CollectiveCall(NamedTuple):
    """A line of the script that communicates, and what it calls."""

    name: str
    file: str
    line: int

    def __str__(self) -> str:
        path = Path(self.file)
        if path.is_relative_to(Path.cwd()):
            path = path.relative_to(Path.cwd())
        return f"{self.name} ({path}, line {self.line})"


class CollectiveCalls:
    """The script's calls since the last `take`, with how often each was made."""

    def __init__(self, *, watches: bool) -> None:
        self._calls: Counter[CollectiveCall] = Counter()
        for name in _METHODS if watches else ():
            if hasattr(dist.ProcessGroup, name):
                patch_everywhere(dist.ProcessGroup, name, self._called)

    def take(self) -> Counter[CollectiveCall]:
        """Return the calls since the last one of this."""
        calls, self._calls = self._calls, Counter()
        return calls

    def note(self, name: str | None = None) -> None:
        """Note a call: of `name` by way of this package, else of a function of `torch.distributed`."""
        found = calling_line(dist.distributed_c10d.__file__, by_way_of_package=name is not None)
        if found is not None:
            function, file, line = found
            self._calls[CollectiveCall(name or function, file, line)] += 1

    def _called(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.note()
        return original(*args, **kwargs)
