"""Manual accumulation: gradients that a script adds up itself under `no_sync`, where no hook is called.

Legend: micro-batch j has n_j examples of a global batch of B_j. Its gradient g_j belongs into the sum with
the weight w_j = n_j/B_j of its own batch. That differs from the last one's, w, where a batch is short or a
replica has padding.

`param.grad` is kept in units of the newest micro-batch, as Σ_j (w_j/w)·g_j. The hook multiplies it by w when
the last micro-batch is reduced, which leaves Σ_j w_j·g_j. Where all w_j are equal nothing is multiplied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from pollux_slurm.torch.data.micro_batches import MicroBatchPlan

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket


class ManualAccumulation:
    """The micro-batches that the script has accumulated since its gradients were zeroed or reduced.

    `is_even` is False once they belong to batches of different sizes: their norms are then not comparable.
    """

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self._parameters = parameters
        # Whether a `no_sync` block is open, and the gradients' versions when its newest micro-batch began.
        self.is_open = False
        self._marks: list[tuple[int, int]] = []
        self.forget()

    def forget(self) -> None:
        """Forget all micro-batches: their gradients were zeroed or reduced."""
        self.num_micro_batches = 0
        self.is_even = True
        self.weight = 0.0
        self._step_size = 0
        # By parameter: gradients before the backward pass of padding, which must not change them.
        self._before: dict[int, torch.Tensor] | None = None
        # By parameter: gradients after the newest micro-batch, where norms are measured.
        self.newest: dict[int, torch.Tensor] = {}

    def zeroed(self, plan: MicroBatchPlan | None) -> None:
        """Forget all: the script zeroed the gradients in `plan` (None outside of an adaptive loop)."""
        self.forget()
        self._marks = []
        if plan is not None and self.is_open:
            self.weight, self._step_size, self._before = plan.weight, plan.step_size, {}

    def open(self) -> None:
        """Begin a `no_sync` block, or another micro-batch within it."""
        self.is_open = True
        self._marks = self._mark()

    @property
    def has_added(self) -> bool:
        """True where a backward pass has added to the gradients since `open`."""
        return self._mark() != self._marks

    def _mark(self) -> list[tuple[int, int]]:
        return [(id(p.grad), p.grad._version) for p in self._parameters if p.grad is not None]

    def begin_micro_batch(self, plan: MicroBatchPlan) -> None:
        """Begin a micro-batch of another batch, under `no_sync` or the one that reduces."""
        self._before = None
        if plan.is_padding:
            if self.is_open or self.num_micro_batches:
                self._before = {id(p): p.grad.clone() for p in self._parameters if p.grad is not None}
        else:
            self._weigh(plan.weight)
        self.is_even = self.is_even and self._step_size in (0, plan.step_size)
        self._step_size = plan.step_size

    def leave_loop(self, weight: float) -> None:
        """Leave a loop in the middle of a step: further micro-batches have the plain `weight`."""
        if self.num_micro_batches:
            self._before, self.is_even = None, False
            self._weigh(weight)

    def _weigh(self, weight: float) -> None:
        """Convert the gradients to units of a micro-batch of another weight."""
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        if gradients and self.weight > 0 and weight != self.weight:
            torch._foreach_mul_([*gradients, *self.newest.values()], self.weight / weight)
        self.weight = weight

    def end_micro_batch(self, plan: MicroBatchPlan) -> None:
        """Count a micro-batch under `no_sync`, and remove the gradients of padding."""
        self.num_micro_batches += 1
        before, self._before = self._before, None
        if plan.is_padding and before is not None:
            for parameter in self._parameters:
                parameter.grad = before.get(id(parameter))

    def put_back(self, bucket: GradBucket) -> float:
        """Restore the gradients before padding into its zeroed bucket; return their weight."""
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            before = (self._before or {}).get(id(parameter))
            if before is not None:
                gradient.copy_(before)
        return self.weight if self._before else 0.0
