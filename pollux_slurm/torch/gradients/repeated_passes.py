"""Several backward passes over each micro-batch of a split batch, whose gradients add up before the step.

Autograd adds pass after pass in `param.grad`, so that the hook's bucket has the sum of all so far. Before the
last micro-batch that sum replaces what the micro-batch has contributed. In the last one a pass finds what the
one before has reduced, R, and its own gradient g: R is taken out, g is weighed and reduced, R put back.

So R is kept, where several passes are expected: where the batch's first micro-batch had them. Passes cannot
be split where the script changes weights or gradients between them, as SAM and L-BFGS do: they need the whole
batch's gradient in each pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from pollux_slurm.errors import UsageError
from pollux_slurm.torch.data.micro_batches import MicroBatchPlan

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
        # A few are enough: whatever changes weights between two passes changes most of them.
        self._watched = parameters[:: max(1, len(parameters) // _NUM_WATCHED)]
        self._is_expected = self._is_zeroed = False
        self._plan: MicroBatchPlan | None = None
        self._versions: list[int] = []
        # The weighed gradients of the present micro-batch by parameter, where it is not the first.
        self._own: dict[int, torch.Tensor] = {}
        # What the passes over the last micro-batch have reduced, by bucket.
        self._reduced: dict[int, torch.Tensor] = {}

    def begin_micro_batch(self, plan: MicroBatchPlan | None) -> dict[int, torch.Tensor]:
        """Set the plan of the coming micro-batch. Return what was kept of the one before, by parameter."""
        if plan is not None and plan.index == 0:
            self._is_expected = False
        self._plan, self._is_zeroed = plan, False
        own, self._own = self._own, {}
        self._reduced.clear()
        return own

    def zeroed(self) -> None:
        """Record that gradients were zeroed that are not stepped with."""
        self._is_zeroed = True

    def begin_pass(self, number: int, *, is_over: bool) -> None:
        """Begin the pass of this number over the micro-batch. `is_over`: all optimizers have stepped in it.

        Raises `UsageError` where its gradient cannot be added to that of the passes before.
        """
        plan = self._plan
        if plan is None or (plan.index == 0 and plan.is_last):
            return
        versions = [parameter._version for parameter in self._watched]
        if number == 1:
            self._versions, self._is_zeroed = versions, False
            return
        if is_over:
            return
        if plan.index == 0:
            self._is_expected = True
        if versions != self._versions:
            raise UsageError(_REFUSED.format(what="weights were changed between them (as by SAM or L-BFGS)"))
        if self._is_zeroed:
            raise UsageError(_REFUSED.format(what="gradients were zeroed between them"))
        if not self._is_expected:
            raise UsageError(_REFUSED.format(what="only one over its first micro-batch"))

    @property
    def is_separate(self) -> bool:
        """True where the micro-batch's gradients are kept apart until the next one begins."""
        return self._is_expected and self._plan is not None and self._plan.index > 0

    def keep(self, gradients: Sequence[tuple[int, torch.Tensor]], weight: float) -> None:
        """Keep the micro-batch's gradients so far, by parameter, in place of those of its earlier passes."""
        weighed = torch._foreach_mul([gradient for _, gradient in gradients], weight) if gradients else []
        self._own.update(zip([key for key, _ in gradients], weighed, strict=True))

    def take_out(self, bucket: GradBucket) -> torch.Tensor | None:
        """Take what earlier passes over the last micro-batch have reduced out of its bucket; return it."""
        reduced = self._reduced.get(bucket.index())
        if reduced is not None:
            bucket.buffer().sub_(reduced)
        return reduced

    def put_back(self, index: int, gradient: torch.Tensor, reduced: torch.Tensor | None) -> None:
        """Add what `take_out` returned to a pass's reduced gradient; keep the sum where more may come."""
        if reduced is not None:
            gradient.add_(reduced)
        if self._is_expected and self._plan is not None and self._plan.is_last:
            self._reduced[index] = gradient.clone()
