"""A snapshot of a script's state, as numbers and text. Two of them show what a restart has lost.

It reads the variables of the script's own frames, and all optimizers, schedulers, gradient scalers and
modules of the process, given to the library or not. Only a rehearsal uses it: one takes a tenth of a second.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from pollux_slurm.torch.regroup.user_frames import has_user_class, user_frames
from pollux_slurm.torch.rehearsal.live_objects import live_objects

_MAX_TEXT = 80
_MAX_ITEMS = 20
_KINDS = ((Optimizer, "optimizer"), (LRScheduler, "scheduler"), (torch.amp.GradScaler, "scaler"))


def take_snapshot() -> dict[str, Any]:
    """Return `objects` (name to kind, type and numbers of its state), `variables` and `tensors`.

    `variables` are the script's plain values as text; `tensors`, also those within lists and dicts, are given
    by size and checksum.
    """
    names, variables, tensors = _read_variables()
    objects: dict[str, Any] = {}
    for kind, value in _stateful():
        number = sum(known.startswith(f"{type(value).__name__} ") for known in objects)
        label = names.get(id(value), f"{type(value).__name__} {number}")
        objects[label] = {
            "kind": kind,
            "type": type(value).__name__,
            "numbers": numbers_of(value.state_dict()),
        }
    return {"objects": objects, "variables": variables, "tensors": tensors}


def take_variables() -> dict[str, Any]:
    """Return a snapshot of the script's plain values only, which takes little time."""
    return {"objects": {}, "variables": _read_variables()[1], "tensors": {}}


def _read_variables() -> tuple[dict[int, str], dict[str, str], dict[str, str]]:
    """Return the script's names of objects by their `id`, its plain values, and its tensors."""
    names: dict[int, str] = {}
    variables: dict[str, str] = {}
    tensors: dict[str, str] = {}
    for frame in user_frames():
        for name, value in list(frame.f_locals.items()):
            if not name.startswith("_"):
                _note(frame.f_code.co_name, name, value, names, variables, tensors)
    return names, variables, tensors


def numbers_of(value: Any) -> list[float]:
    """Return the numbers in a nested state: of each tensor its sum and its norm."""
    found: list[float] = []
    _add_numbers(value, found)
    return found


def _add_numbers(value: Any, found: list[float]) -> None:
    if isinstance(value, torch.Tensor):
        if value.numel() and not value.is_complex() and not value.is_meta and not value.is_sparse:
            found.append(float(torch.sum(value.detach(), dtype=torch.float64)))
            if value.is_floating_point():
                norm = torch.linalg.vector_norm(value.detach().reshape(-1), dtype=torch.float64)
                found.append(float(norm))
    elif isinstance(value, bool | int | float):
        found.append(float(value))
    elif isinstance(value, Mapping):
        for part in value.values():
            _add_numbers(part, found)
    elif isinstance(value, list | tuple):
        for part in value:
            _add_numbers(part, found)


def _stateful() -> list[tuple[str, Any]]:
    """Return objects with a state, and their kinds: scalers, optimizers, schedulers, outermost modules."""
    found: list[tuple[str, Any]] = []
    modules: list[torch.nn.Module] = []
    for value in live_objects(torch.nn.Module, *(kind for kind, _ in _KINDS)):
        kind = type(value)
        if issubclass(kind, torch.nn.Module):
            modules.append(value)
        else:
            found += [(name, value) for known, name in _KINDS if issubclass(kind, known)]
    inner = {id(child) for module in modules for child in module.modules() if child is not module}
    outermost = [module for module in modules if id(module) not in inner]
    outermost.sort(key=lambda module: -sum(1 for _ in module.parameters()))
    seen: set[int] = set()
    for module in outermost:
        tensors = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}
        if tensors - seen:  # else it has only parts of modules that were found already
            found.append(("module", module))
        seen |= tensors
    return found


def _note(
    function: str,
    name: str,
    value: Any,
    names: dict[int, str],
    variables: dict[str, str],
    tensors: dict[str, str],
    *,
    deep: bool = True,
) -> None:
    names.setdefault(id(value), name)
    words, checksum = _words(value), _checksum(value)
    if checksum is not None:
        tensors.setdefault(f"{function}:{name}", checksum)
    elif words is not None:
        variables.setdefault(f"{function}:{name}", words)
    elif deep and is_user_object(value):
        for attribute, part in list(vars(value).items()):
            if not attribute.startswith("_"):
                _note(function, f"{name}.{attribute}", part, names, variables, tensors, deep=False)


def is_user_object(value: Any) -> bool:
    """Return whether it is an instance of one of the script's own classes, other than a `State`."""
    from pollux_slurm.torch.api.state import State

    return has_user_class(value) and not isinstance(value, State)


def _words(value: Any) -> str | None:
    """Return a plain value as short text, None for other kinds."""
    if isinstance(value, torch.Tensor) or type(value).__module__ == "numpy":
        is_one = getattr(value, "size", 0) == 1 or (isinstance(value, torch.Tensor) and value.numel() == 1)
        if not is_one or getattr(value, "is_meta", False):
            return None
        value = value.item()
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, bool | int | str):
        return repr(value)[:_MAX_TEXT]
    if isinstance(value, torch.Generator):
        return f"at {zlib.crc32(value.get_state().numpy().tobytes()):08x}"
    if isinstance(value, list | tuple | set | dict):
        parts = list(value.values()) if isinstance(value, dict) else list(value)
        if len(parts) <= _MAX_ITEMS and all(isinstance(part, bool | int | float) for part in parts):
            return repr(value)[:_MAX_TEXT]
        return f"a {type(value).__name__} of {len(parts)}"
    return None


def _checksum(value: Any) -> str | None:
    """Return size and checksum of an array or several, None for other kinds."""
    parts = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else [value]
    if not parts or not all(_is_array(part) for part in parts):
        return None
    checksum = 0
    for part in parts:
        array = (
            part.detach().contiguous().cpu() if isinstance(part, torch.Tensor) else np.ascontiguousarray(part)
        )
        data = array.reshape(-1).view(torch.uint8).numpy() if isinstance(array, torch.Tensor) else array
        checksum = zlib.crc32(data.data, checksum)
    total = sum(part.numel() if isinstance(part, torch.Tensor) else part.size for part in parts)
    return f"{total} numbers #{checksum:08x}"


def _is_array(value: Any) -> bool:
    if isinstance(value, torch.nn.Parameter):
        return False  # it belongs to a module, which is read as a whole
    if isinstance(value, torch.Tensor):
        return value.numel() > 1 and not (value.is_meta or value.is_sparse or value.is_quantized)
    return isinstance(value, np.ndarray) and value.size > 1 and value.dtype.kind in "iufb"
