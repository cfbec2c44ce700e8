"""`Variables`: a dict of a script's own values that is part of every checkpoint."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from pollux_slurm.torch.api.state import State


class Variables(State, dict[str, Any]):
    """Keep a dict of values in the job's checkpoints, and restore it as soon as the script makes it again.

    For values that every replica sets alike, or that only rank 0 uses: a best loss, epochs without progress.
    They are plain data: numbers, texts, tensors, lists and dicts of them. Sums belong in an `Accumulator`. A
    copy, also in a file of `torch.save`, is an `OrderedDict`.

    Args:
        name: Its name in checkpoints, by position. A second dict needs one of its own.
        **values: The first values, which those of a checkpoint replace.

    Examples:
        >>> kept = pollux.Variables(best=float("inf"))
        >>> kept["best"] = min(kept["best"], 0.5)
    """

    def __init__(self, name: str = "variables", /, **values: Any) -> None:
        State.__init__(self, name)
        self.update(values)

    def state_dict(self) -> Mapping[str, Any]:
        """Return the values."""
        return dict(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the values of a checkpoint; what it does not have stays."""
        self.update(state)

    def __reduce__(self) -> tuple[Any, ...]:
        # Used by `copy` and `pickle`: to make another one would register it. torch.load takes this kind.
        return OrderedDict, (), None, None, iter(self.items())
