"""What keeps a script from regrouping: state that belongs to the former ranks and cannot be replaced."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from types import FrameType, SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

from pollux_slurm.torch.regroup.user_frames import has_user_class
from pollux_slurm.torch.wrapped_model.patching import patch_everywhere

# The default group and the side channel's.
_NUM_OWN_GROUPS = 2
_SIZE = re.compile(r"(?i)^(n_?|num_?)?(world_?size|replicas|ranks|procs)$")
_RANK = re.compile(r"(?i)^(global_?|dist_?|ddp_?|my_?)?rank$")
_IS_FIRST = re.compile(
    r"(?i)^(is_?(global_?)?(main|master|chief|leader|first|rank_?(0|zero))(_?(process|proc|rank|worker))?"
    r"|(main|master|chief|first)_?(process|proc|rank|worker)|rank_?(0|zero))$"
)
# How deep variables are looked for in objects: `self.trainer.args.world_size`.
_DEPTH = 3
_CURE = (
    "ask for it where it is used, or set it anew in a function that is given to pollux_slurm.torch.on_regroup"
)


class Obstacles:
    """Finds what keeps this process's script from regrouping.

    `add` is for parts of the package, such as a framework's, that cannot go on with other ranks.
    """

    def __init__(self, *, watches: bool) -> None:
        self._reasons: list[str] = []
        graph: Any = getattr(torch.cuda, "CUDAGraph", None)
        if watches and hasattr(graph, "capture_begin"):
            patch_everywhere(graph, "capture_begin", self._captured)

    def add(self, reason: str) -> None:
        """Add a reason for which this process cannot regroup."""
        self._reasons.append(reason)

    @property
    def known_reason(self) -> str | None:
        """The first reason that was added; None without one."""
        return self._reasons[0] if self._reasons else None

    def _captured(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.add("it has captured a CUDA graph, which keeps the former ranks' buffers")
        return original(*args, **kwargs)

    def find(self, frames: Sequence[FrameType], *, rank_changes: bool, hears: bool) -> str | None:
        """Return a reason against a regroup, None where none is known.

        `frames` are the script's. `rank_changes`: some that stay get another rank. `hears`: the script is
        told of regroups, so that it can change its own variables.
        """
        if self.known_reason is not None:
            return self.known_reason
        if len(dist.distributed_c10d._world.pg_map) > _NUM_OWN_GROUPS:
            return "it has made process groups of its own (torch.distributed.new_group, a device mesh)"
        if hears:
            return None
        size, rank = dist.get_world_size(), dist.get_rank()
        for name, value in _variables(frames):
            own = name.rpartition(".")[2]
            is_size = type(value) is int and value == size and _SIZE.match(own)
            is_rank = type(value) is int and value == rank and _RANK.match(own) and rank_changes
            is_first = value is (rank == 0) and _IS_FIRST.match(own) and rank_changes
            if is_size or is_rank or is_first or isinstance(value, dist.ProcessGroup):
                what = ", a process group," if isinstance(value, dist.ProcessGroup) else f" = {value}"
                return f"it keeps {name}{what} in a variable: {_CURE}"
            if _divides_by_rank(value):
                return (
                    f"it keeps {name}, whose DistributedSampler has the present rank and number of replicas: "
                    f"use AdaptiveDataLoader(dataset, ...), or {_CURE}"
                )
        return None


def _divides_by_rank(value: object) -> bool:
    if isinstance(value, DataLoader):
        value = getattr(value.batch_sampler, "sampler", None) or value.sampler
    return isinstance(value, DistributedSampler)


def _variables(frames: Sequence[FrameType]) -> Iterator[tuple[str, Any]]:
    """Yield the script's variables, and what its own objects and namespaces in them have."""
    seen: set[int] = set()
    for frame in frames:
        variables = {**frame.f_globals, **frame.f_locals}
        for name, value in variables.items():
            if not name.startswith("__"):
                yield name, value
                yield from _parts(name, value, _DEPTH, seen)


def _parts(name: str, value: Any, depth: int, seen: set[int]) -> Iterator[tuple[str, Any]]:
    # Not dicts: most with such a key are records that are written to a log.
    if not (isinstance(value, Namespace | SimpleNamespace) or has_user_class(value)) or id(value) in seen:
        return
    seen.add(id(value))
    for part, inner in list(vars(value).items()):
        yield f"{name}.{part}", inner
        if depth > 1:
            yield from _parts(f"{name}.{part}", inner, depth - 1, seen)
