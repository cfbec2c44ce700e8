"""One replica, one pass: the noise is measured by comparing the gradients of neighbouring steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pollux_slurm.torch.gradients.preconditioning import GradientMetric
from pollux_slurm.torch.gradients.step_norms import StepNorms

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket


class Consecutive:
    """Keeps gradients from step to step, by bucket.

    Pairs do not overlap: a gradient that was compared is not kept, so that pairs are independent.
    """

    def __init__(self, metric: GradientMetric) -> None:
        self._metric = metric
        self._previous: dict[int, torch.Tensor] = {}
        # The examples of the step that is kept; None where none is.
        self._previous_size: int | None = None
        self._is_pair_whole = True
        self._num_backwards = 0

    def begin_backward(self) -> None:
        """Tell that a backward pass begins, of whatever step."""
        self._num_backwards += 1
        self._is_pair_whole = True

    def forget(self) -> None:
        """Tell that the next step has no neighbour before it."""
        self._previous_size = None

    def compare(self, bucket: GradBucket, size: int, norms: StepNorms) -> None:
        """Compare a bucket of a step of `size` examples with the step before, or keep it for the next."""
        index, gradient = bucket.index(), bucket.buffer()
        norms.is_alone = True
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
