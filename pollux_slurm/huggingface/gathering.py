"""Gather tensors whose first dimension differs between replicas, as shares of one global batch do."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from accelerate.utils import gather_object, recursively_apply


def gather_rows(data: Any, *, num_rows: int | None, is_padding: bool) -> Any:
    """Return the rows of all replicas, in rank order; a tensor without dimensions counts as one row.

    Of each tensor at most `num_rows` rows are taken (None: all), and none where the replica has padding.
    """

    def gather_one(tensor: torch.Tensor) -> torch.Tensor:
        rows = tensor.detach()[None] if tensor.ndim == 0 else tensor.detach()
        rows = rows[:0] if is_padding else rows if num_rows is None or tensor.ndim == 0 else rows[:num_rows]
        return _gathered(rows.contiguous())

    return recursively_apply(gather_one, data, error_on_other_type=True)


def gather_objects(data: Any, *, num_rows: int | None) -> Any:
    """Return the objects of all replicas, at most `num_rows` of each (None: all)."""
    return gather_object(data[:num_rows])


def _gathered(rows: torch.Tensor) -> torch.Tensor:
    num_replicas = dist.get_world_size()
    if num_replicas == 1:
        return rows
    own = torch.tensor([len(rows)], device=rows.device)
    counts = [torch.empty_like(own) for _ in range(num_replicas)]
    dist.all_gather(counts, own)
    numbers = [int(count) for count in counts]
    most = max(numbers)
    if len(rows) < most:
        rows = torch.cat([rows, rows.new_zeros(most - len(rows), *rows.shape[1:])])
    parts = [torch.empty_like(rows) for _ in range(num_replicas)]
    dist.all_gather(parts, rows)
    return torch.cat([part[:number] for part, number in zip(parts, numbers, strict=True)])
