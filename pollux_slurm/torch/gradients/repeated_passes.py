"""Several backward passes over each micro-batch of a split batch, whose gradients add up before the step.

Autograd adds pass after pass in `param.grad`, so that the hook's bucket has the sum of all so far. Each pass
has a forward pass of its own through the wrapped model. Where there was a backward pass over the micro-batch
before, that forward pass keeps the gradients so far, R. The next backward pass takes R out, weighs and
reduces its own gradient, and puts R back. So a pass may be made over some micro-batches only.

Passes cannot be split where the script changes weights or gradients between them, as SAM and L-BFGS do: they
need the whole batch's gradient in each pass.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

import torch

from pollux_slurm.errors import UsageError
from pollux_slurm.torch.data.micro_batches import MicroBatchPlan
from pollux_slurm.torch.gradients.preconditioning import views

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket

KEEP_WHOLE = (
    "To keep batches whole, leave out gradient_accumulation=True, and let batch_size / (number of GPUs) "
    "examples fit on a GPU: after an OutOfMemoryError take a smaller batch_size or more GPUs (--min-gpus)"
)
_NUM_WATCHED = 8
_REFUSED = (
    "two backward passes over one batch, which is split into micro-batches, and {what}: each pass would need "
    f"the gradient of the whole batch. {KEEP_WHOLE}"
)


class RepeatedPasses:
    """The passes over the present micro-batch of a batch that is split."""

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self._parameters = parameters
        # A few are enough: whatever changes weights between two passes changes most of them.
        self._watched = parameters[:: max(1, len(parameters) // _NUM_WATCHED)]
        self._is_split = self._is_zeroed = False
        self._versions: list[int] = []
        # R by parameter.
        self._before: dict[int, torch.Tensor] = {}

    def begin_micro_batch(self, plan: MicroBatchPlan | None) -> None:
        """Set the plan of the coming micro-batch."""
        self._is_split = plan is not None and not (plan.index == 0 and plan.is_last)
        self._is_zeroed, self._before = False, {}

    def zeroed(self, parameters: Callable[[], Collection[int]], *, is_stepped: bool) -> None:
        """Record that gradients were zeroed; `is_stepped`: the micro-batch's were stepped with."""
        self._is_zeroed = self._is_zeroed or not is_stepped
        for key in parameters() if self._before else ():
            self._before.pop(key, None)

    def begin_forward(self, num_passes: int, *, is_over: bool) -> None:
        """Begin a forward pass after so many backward passes. `is_over`: all optimizers have stepped."""
        self._before = {}
        if self._is_split and num_passes > 0 and not is_over:
            self._before = {id(p): p.grad.clone() for p in self._parameters if p.grad is not None}
            # By hand.
            self._is_zeroed = self._is_zeroed or not self._before

    def begin_pass(self, number: int, *, is_over: bool) -> None:
        """Begin the backward pass of this number over the micro-batch. `is_over` as in `begin_forward`.

        Raises `UsageError` where its gradient cannot be added to that of the passes before.
        """
        if not self._is_split:
            return
        versions = [parameter._version for parameter in self._watched]
        if number == 1:
            self._versions, self._is_zeroed = versions, False
            return
        if is_over:
            return
        if versions != self._versions:
            raise UsageError(_REFUSED.format(what="weights were changed between them (as by SAM or L-BFGS)"))
        if self._is_zeroed:
            raise UsageError(_REFUSED.format(what="gradients were zeroed between them"))

    def take_out(self, bucket: GradBucket) -> None:
        """Take what earlier passes have left out of a bucket."""
        pairs = self._pairs(bucket, bucket.buffer())
        if pairs:
            torch._foreach_sub_([gradient for gradient, _ in pairs], [before for _, before in pairs])

    def put_back(self, bucket: GradBucket, gradient: torch.Tensor) -> None:
        """Add what `take_out` has taken to the bucket's `gradient`."""
        pairs = self._pairs(bucket, gradient)
        if pairs:
            torch._foreach_add_([gradient for gradient, _ in pairs], [before for _, before in pairs])

    def _pairs(self, bucket: GradBucket, gradient: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return each parameter's part of `gradient` with R, where there is one."""
        if not self._before:
            return []
        return [
            (view, self._before[id(parameter)])
            for parameter, view in zip(bucket.parameters(), views(gradient, bucket), strict=True)
            if id(parameter) in self._before
        ]
