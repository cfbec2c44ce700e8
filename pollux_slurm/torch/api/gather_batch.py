"""`gather_batch`: a global batch's rows on each replica, for losses that compare its examples.

Legend: replica k has n_k of the batch's B examples, its rows z_k, and the loss L_k of its own. Its gradient
counts with the weight w_k = n_k/B.

The training's loss is L = Σ_k w_k·L_k, so replica k's rows need Σ_j w_j·∂L_j/∂z_k. What its backward pass
computes is multiplied by w_k later. So the backward pass here returns (Σ_j w_j·∂L_j/∂z_k)/w_k. That holds for
uneven shares, and whether replicas compute the whole loss each or that of their own rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from pollux_slurm.errors import UsageError
from pollux_slurm.torch.api.data_loader import AdaptiveDataLoader

_SPLIT = (
    "gather_batch(...) in a batch that the loader splits into micro-batches: its loss would compare the "
    "examples of one micro-batch only. Allow no accumulation in autoscale_batch_size, and let each replica's "
    "share fit into memory: pollux sbatch --min-gpus N"
)


def gather_batch(rows: torch.Tensor, loader: AdaptiveDataLoader) -> torch.Tensor:
    """Return the rows of all replicas for the global batch under way, in the batch's order.

    For a loss over the whole batch, such as a contrastive one: the same candidates, and the same gradient,
    with any number of replicas and uneven shares. Each replica must call it equally often.

    Args:
        rows: Tensor of shape `(n, ...)`, a row for each of the n examples of this replica's part of the
            batch.
        loader: The loader whose loop is under way. Outside of its loop, `rows` are returned.

    Returns:
        Tensor of shape `(M, ...)`, a row for each example of the global batch.

    Raises:
        UsageError: The loader splits the batch into micro-batches, or n is not the number of its examples.

    Examples:
        >>> loader = pollux.AdaptiveDataLoader(dataset, batch_size=32)
        >>> for inputs, targets in loader:
        ...     images, texts = pollux.gather_batch(inputs, loader), pollux.gather_batch(2 * inputs, loader)
        ...     loss = torch.nn.functional.cross_entropy(images @ texts.T, torch.arange(len(images)))
        >>> images.shape
        torch.Size([32, 4])
    """
    plan, rank = loader.current_plan, dist.get_rank()
    if plan is None:
        return rows
    if plan.index > 0 or not plan.is_last:
        raise UsageError(_SPLIT)
    expected = plan.size or plan.num_padding
    if len(rows) != expected:
        raise UsageError(
            f"gather_batch(...) got {len(rows)} rows for a batch of {expected} examples: give it one row for "
            "each, and call it for each view or tower by itself"
        )
    if len(plan.shares) == 1:
        return rows
    gathered: torch.Tensor = _Gather.apply(rows, plan.shares, rank, plan.weight)  # type: ignore[no-untyped-call]
    return gathered


class _Gather(torch.autograd.Function):
    """Concatenates rows of all replicas, of which replica k has `sizes[k]` (none: its row is padding)."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, sizes: Sequence[int], rank: int, weight: float) -> torch.Tensor:
        ctx.sizes, ctx.rank, ctx.weight, ctx.num_rows = sizes, rank, weight, len(rows)
        # All of one size: collectives need that.
        padded = rows.new_zeros((max(sizes), *rows.shape[1:]))
        padded[: sizes[rank]] = rows[: sizes[rank]]
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        total = gradients[0] * ctx.weight
        dist.all_reduce(total)
        start, size = sum(ctx.sizes[: ctx.rank]), ctx.sizes[ctx.rank]
        own = total.new_zeros((ctx.num_rows, *total.shape[1:]))
        if size:
            own[:size] = total[start : start + size] / ctx.weight
        return own, None, None, None
