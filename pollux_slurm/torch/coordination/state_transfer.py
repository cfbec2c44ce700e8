"""Send the content of a checkpoint to other ranks: its structure as plain data, then tensor by tensor.

The tensors' bytes go as they are, from memory into memory. One archive of all would be written, sent and read
one after the other, which takes an order of magnitude longer.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

# Smaller tensors travel within the structure: a message for each costs more than its bytes.
_SMALL_BYTES = 4096


def send_state(value: Any, *, to: Sequence[int], group: dist.ProcessGroup | None) -> None:
    """Send a plain value to some ranks of a gloo group, each of which calls `receive_state`."""

    def move(tensor: torch.Tensor) -> list[dist.Work | None]:
        return [dist.isend(tensor, rank, group=group) for rank in to]

    large: list[torch.Tensor] = []

    def take_out(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.numel() * tensor.element_size() < _SMALL_BYTES or tensor.layout is not torch.strided:
            # Its own bytes, not those of all that it may be a view of.
            return tensor.clone()
        large.append(tensor)
        return torch.empty_like(tensor, device="meta", memory_format=torch.contiguous_format)

    buffer = io.BytesIO()
    torch.save(_map_tensors(value, take_out), buffer)
    structure = torch.frombuffer(bytearray(buffer.getbuffer()), dtype=torch.uint8)
    parts = [torch.tensor([structure.numel()], dtype=torch.int64), structure, *map(_bytes_of, large)]
    # `parts` is kept until all are sent.
    _wait([work for part in parts for work in move(part)])


def receive_state(*, src: int, group: dist.ProcessGroup | None) -> Any:
    """Return the plain value that rank `src` sends."""

    def move(tensor: torch.Tensor) -> dist.Work | None:
        return dist.irecv(tensor, src, group=group)

    size = torch.zeros(1, dtype=torch.int64)
    _wait([move(size)])
    structure = torch.empty(int(size.item()), dtype=torch.uint8)
    _wait([move(structure)])
    value = torch.load(io.BytesIO(structure.numpy().tobytes()), weights_only=True)
    under_way: list[dist.Work | None] = []

    def put_in(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_meta:
            return tensor
        whole = torch.empty(tensor.shape, dtype=tensor.dtype)
        under_way.append(move(_bytes_of(whole)))
        return whole

    value = _map_tensors(value, put_in)
    _wait(under_way)
    return value


def _wait(under_way: Sequence[dist.Work | None]) -> None:
    for work in under_way:
        if work is not None:
            work.wait()


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor's bytes, of shape `(n,)`: gloo does not know every type of number."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _map_tensors(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return plain data with each tensor changed, in the order of the structure."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, Mapping):
        made = type(value)()
        for key, item in value.items():
            made[key] = _map_tensors(item, change)  # type: ignore[index]
        return made
    if type(value) in (list, tuple):
        return type(value)(_map_tensors(item, change) for item in value)
    return value
