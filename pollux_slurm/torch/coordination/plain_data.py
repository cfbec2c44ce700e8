"""Plain data: what a checkpoint may have, and how ranks exchange it. Tensors and containers, never pickles.

`torch.load(weights_only=True)` takes exactly this, so a checkpoint cannot run code when it is read.
"""

from __future__ import annotations

import io
from collections import Counter, OrderedDict
from typing import Any

import torch

from pollux_slurm.errors import CheckpointError

_LEAVES = (bool, int, float, complex, str, bytes, type(None))


def to_plain(value: Any, path: str, *, copies: bool = False) -> Any:
    """Return a copy of `value` on the CPU, made of plain types; `path` names it in the error.

    Tensors are detached. Those on a device are copied to the host, those on the CPU only with `copies`, for
    use while training changes them. Raises `CheckpointError` for anything that could not be read back safely.
    """
    if isinstance(value, torch.Tensor):
        detached = value.detach()
        return detached.clone() if copies and detached.device.type == "cpu" else detached.cpu()
    if type(value) in _LEAVES:
        return value
    if type(value) in (torch.Size, torch.dtype, torch.device):
        return value
    if isinstance(value, Counter):
        return Counter({_key(key, path): count for key, count in value.items()})
    if isinstance(value, dict):
        kind = OrderedDict if isinstance(value, OrderedDict) else dict
        return kind(
            (_key(key, path), to_plain(item, f"{path}[{key!r}]", copies=copies))
            for key, item in value.items()
        )
    if type(value) in (list, tuple, set):
        return type(value)(
            to_plain(item, f"{path}[{index}]", copies=copies) for index, item in enumerate(value)
        )
    # numpy's and torch's scalars
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "shape", None) == ():
        return to_plain(item(), path)
    raise CheckpointError(
        f"{path}: a {type(value).__module__}.{type(value).__qualname__} cannot be kept in a checkpoint; "
        "use numbers, texts, tensors, and lists or dicts of them"
    )


def _key(key: Any, path: str) -> Any:
    if type(key) is tuple and all(type(part) in (str, int) for part in key):
        return key
    if type(key) not in (str, int, float, bool):
        raise CheckpointError(f"{path}: {key!r} cannot be a key in a checkpoint; use a text or a number")
    return key


def encode(value: Any) -> torch.Tensor:
    """Return plain data as a flat tensor of bytes."""
    buffer = io.BytesIO()
    torch.save(to_plain(value, "value"), buffer)
    return torch.frombuffer(bytearray(buffer.getbuffer()), dtype=torch.uint8)


def decode(data: torch.Tensor) -> Any:
    """Return what `encode` was given."""
    return torch.load(io.BytesIO(data.numpy().tobytes()), weights_only=True, map_location="cpu")
