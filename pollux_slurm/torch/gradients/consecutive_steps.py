"""Measure gradient noise from two consecutive steps: the last resort of a replica with one micro-batch.

The weights move between the two. So their change counts as noise, and φ is overestimated. Differences of
higher order remove slow changes only: along steep directions each step overshoots, and they add to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pollux_slurm.torch.gradients.preconditioning import GradientMetric
from pollux_slurm.torch.gradients.step_norms import StepNorms

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket


class ConsecutiveSteps:
    """Keeps the previous step's gradients, by bucket, and compares them with the present ones.

    Pairs do not overlap, so they are independent: a gradient that was compared is not kept.
    """

    def __init__(self, metric: GradientMetric) -> None:
        self._metric = metric
        self._previous: dict[int, torch.Tensor] = {}
        # The number of examples of the kept step; None where none is kept.
        self._previous_size: int | None = None
        self._is_pair_whole = True
        self._num_backwards = 0

    def begin_run(self) -> None:
        """Forget the kept gradients: the buckets are laid out anew."""
        self._previous.clear()
        self._previous_size, self._num_backwards = None, 0

    @property
    def is_kept(self) -> bool:
        """True where the coming step has one to be compared with."""
        return self._previous_size is not None

    def begin_backward(self) -> None:
        """Begin a backward pass."""
        self._num_backwards += 1
        self._is_pair_whole = True

    def forget(self) -> None:
        """Forget the kept step: the next step has none to be compared with."""
        self._previous_size = None

    def compare(self, bucket: GradBucket, size: int, norms: StepNorms) -> None:
        """Compare a bucket of a step of `size` examples with the previous step's, or keep it for the next."""
        index, gradient = bucket.index(), bucket.buffer()
        norms.is_single_part = True
        previous = self._previous.get(index)
        # DDP regroups its buckets between the first two backward passes.
        if previous is None or previous.numel() != gradient.numel() or self._num_backwards <= 2:
            self._previous[index] = gradient.clone()
            self._is_pair_whole = False
        elif self._previous_size is None:
            previous.copy_(gradient)
        else:
            on_bucket = self._metric.on(bucket)
            norms.mean[index] = on_bucket.squared(gradient)
            norms.previous.append(on_bucket.squared(previous))
            torch.sub(gradient, previous, out=previous)
            norms.difference.append(on_bucket.squared(previous))
        if bucket.is_last():
            is_pair = self._previous_size is not None
            norms.previous_size = self._previous_size if self._is_pair_whole else None
            self._previous_size = None if is_pair and self._is_pair_whole else size
