"""Gradients that a script accumulates itself under `no_sync`, where no hook is called.

Legend: pass j has n_j examples of a global batch of B_j; its gradient g_j belongs into the sum with the
weight w_j = n_j/B_j of its own batch, which differs from the last pass's where a batch is short or a replica
idle.

`param.grad` is kept in units of the newest pass: it holds Σ_j (w_j/w)·g_j, so that the hook, which multiplies
by w when the last pass is reduced, leaves Σ_j w_j·g_j. Where all w_j are equal nothing is multiplied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from pollux_slurm.torch.data.micro_batches import PassPlan

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket


class ByHand:
    """The passes that one replica has accumulated by hand since its gradients were zeroed or reduced.

    `is_even` is False once they belong to batches of different sizes: their norms are then not comparable.
    """

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self._parameters = parameters
        # Whether a `no_sync` block is open, and what the gradients were like when its newest pass began.
        self.is_open = False
        self._marks: list[tuple[int, int]] = []
        self.forget()

    def forget(self) -> None:
        """There are none (any more)."""
        self.num_passes = 0
        self.is_even = True
        self.weight = 0.0
        self._step_size = 0
        # By parameter: gradients before a stand-in's pass, which must leave no trace.
        self._before: dict[int, torch.Tensor] | None = None
        # By parameter: gradients as the newest pass has left them, where norms are taken.
        self.newest: dict[int, torch.Tensor] = {}

    def zeroed(self, plan: PassPlan | None) -> None:
        """The gradients are zeroed, in the pass `plan` (None outside of an adaptive loop)."""
        self.forget()
        self._marks = []
        if plan is not None and self.is_open:
            self.weight, self._step_size, self._before = plan.weight, plan.step_size, {}

    def open(self) -> None:
        """A `no_sync` block, or another pass within it, begins."""
        self.is_open = True
        self._marks = self._mark()

    @property
    def has_added(self) -> bool:
        """True where a backward pass has added to the gradients since `open`."""
        return self._mark() != self._marks

    def _mark(self) -> list[tuple[int, int]]:
        return [(id(p.grad), p.grad._version) for p in self._parameters if p.grad is not None]

    def begin_pass(self, plan: PassPlan) -> None:
        """Make ready for a pass of another batch, by hand or the one that reduces."""
        self._before = None
        if plan.is_padding:
            if self.is_open or self.num_passes:
                self._before = {id(p): p.grad.clone() for p in self._parameters if p.grad is not None}
        else:
            self._weigh(plan.weight)
        self.is_even = self.is_even and self._step_size in (0, plan.step_size)
        self._step_size = plan.step_size

    def leave_loop(self, weight: float) -> None:
        """The loop over the loader is over, the step is not: what follows has the plain `weight`."""
        if self.num_passes:
            self._before, self.is_even = None, False
            self._weigh(weight)

    def _weigh(self, weight: float) -> None:
        """Bring the gradients to units of passes of another weight."""
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        if gradients and self.weight > 0 and weight != self.weight:
            torch._foreach_mul_([*gradients, *self.newest.values()], self.weight / weight)
        self.weight = weight

    def end_pass(self, plan: PassPlan) -> None:
        """Count a pass under `no_sync`, and take out what a stand-in has added."""
        self.num_passes += 1
        before, self._before = self._before, None
        if plan.is_padding and before is not None:
            for parameter in self._parameters:
                parameter.grad = before.get(id(parameter))

    def put_back(self, bucket: GradBucket) -> float:
        """Fill a zeroed bucket of a stand-in's pass with what there was before it; return its weight."""
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            before = (self._before or {}).get(id(parameter))
            if before is not None:
                gradient.copy_(before)
        return self.weight if self._before else 0.0
