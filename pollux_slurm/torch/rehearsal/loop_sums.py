"""Find sums that a script computes in a loop without training, and whether it combines them over replicas.

A sum is a number (an array, a list, a dict of numbers) in one of the script's variables that is zero, or
empty, when the loop begins.
"""

from __future__ import annotations

import math
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from pollux_slurm.torch.api.accumulator import Accumulator
from pollux_slurm.torch.regroup.user_frames import user_frames
from pollux_slurm.torch.rehearsal.snapshot import is_user_object, numbers_of
from pollux_slurm.torch.wrapped_model.patching import patch_everywhere

Sums = dict[str, tuple[float, float]]
"""By variable: the sum of its numbers, and the number of things that it may have counted."""

_PACKAGE = str(Path(__file__).resolve().parents[2])
_BELOW = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))
_TORCH = str(Path(torch.__file__).parent)
# The collectives that can combine replicas' numbers; a broadcast cannot.
_COMBINING = (
    "allreduce",
    "reduce",
    "allgather",
    "_allgather_base",
    "gather",
    "reduce_scatter",
    "_reduce_scatter_base",
    "alltoall",
    "alltoall_base",
    "send",
)


def take_sums() -> Sums:
    """Return the numbers in variables of the script's running functions."""
    found: Sums = {}
    for frame in user_frames():
        for name, value in list(frame.f_locals.items()):
            if not name.startswith("_"):
                for label, sums in _sums_of(name, value, deep=True):
                    found.setdefault(f"{frame.f_code.co_name}:{label}", sums)
    return found


def zeros_of(sums: Sums) -> set[str]:
    """Return the names of sums that are still zero."""
    return {name for name, (total, count) in sums.items() if total == 0 and count == 0}


def variable_of(value: Any) -> str | None:
    """Return the script's name for an object, from its outermost function on; None if it has none."""
    for frame in [*user_frames()][::-1]:
        for name, local in list(frame.f_locals.items()):
            if local is value:
                return name
            parts = vars(local).items() if is_user_object(local) else ()
            for attribute, part in list(parts):
                if part is value:
                    return f"{name}.{attribute}"
    return None


def _sums_of(name: str, value: Any, *, deep: bool) -> Iterator[tuple[str, tuple[float, float]]]:
    if isinstance(value, bool):
        return
    if isinstance(value, int | float | np.ndarray | np.number | torch.Tensor):
        total = _total(value)
        if total is not None and math.isfinite(total):
            yield name, (total, total)
    elif isinstance(value, list):
        yield name, (sum(numbers_of(value)), float(len(value)))
    elif isinstance(value, Mapping) and deep:
        for key, part in list(value.items()):
            yield from _sums_of(f"{name}[{key!r}]", part, deep=False)
    elif deep and is_user_object(value):
        for attribute, part in list(vars(value).items()):
            yield from _sums_of(f"{name}.{attribute}", part, deep=False)


def _total(value: Any) -> float | None:
    if isinstance(value, torch.Tensor):
        is_plain = not (value.is_complex() or value.is_meta or value.is_sparse) and value.dtype != torch.bool
        return float(value.detach().sum()) if is_plain else None
    if isinstance(value, np.ndarray | np.number):
        return float(np.sum(value)) if value.dtype.kind in "iuf" else None
    return float(value)


def on_each_collective(callback: Callable[[], None]) -> None:
    """Call `callback` whenever the script, or a package that it uses, combines numbers of replicas.

    It does so by an `Accumulator` or a collective of `torch.distributed`; this package's own do not count.
    """

    def combine(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not _is_ours(sys._getframe(1)):
            callback()
        return original(*args, **kwargs)

    def synchronize(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        callback()
        return original(*args, **kwargs)

    for name in _COMBINING:
        if hasattr(dist.ProcessGroup, name):
            patch_everywhere(dist.ProcessGroup, name, combine)
    patch_everywhere(Accumulator, "synchronized", synchronize)


def _is_ours(frame: FrameType | None) -> bool:
    """Return whether the innermost code, but for Python's, torch's and this file's, is this package's."""
    while frame is not None:
        file = frame.f_code.co_filename
        is_site = "site-packages" in file or "dist-packages" in file
        is_below = file.startswith(("<frozen", _TORCH)) or (file.startswith(_BELOW) and not is_site)
        if not is_below and not _is_wrapper(file):
            return file.startswith(_PACKAGE)
        frame = frame.f_back
    return True


def _is_wrapper(file: str) -> bool:
    return file == __file__ or file.endswith("/pollux_slurm/torch/wrapped_model/patching.py")
