"""The sums of a split batch: each micro-batch adds its weighted gradient, the last one takes them all.

A parameter that no micro-batch of a step has used, on any replica, must have no gradient: an optimizer would
move it. Where DDP looks for unused parameters it knows this of one backward pass, and leaves their
`param.grad` None. So what each pass has set is noted, and the last one's gradients are completed by it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import torch

from pollux_slurm.torch.gradients.autograd_engine import call_after_backward

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket


class MicroBatchSums:
    """The sums of one step's micro-batches, and the `parameters` that any of them has used.

    They are kept by parameter, because DDP regroups its buckets after the first backward pass.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], *, finds_unused: bool) -> None:
        self._parameters, self._finds_unused = parameters, finds_unused
        self._sums: dict[int, torch.Tensor] = {}
        self._summed: set[int] = set()
        self._reduced: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._used: set[int] = set()

    def begin_step(self) -> None:
        """Empty the sums. Their memory is kept for the next step."""
        self._summed.clear()
        self._reduced.clear()
        self._used.clear()

    def begin_batch(self) -> None:
        """Empty the sums for another batch of a step that the script accumulates itself."""
        self._summed.clear()

    def note_zeros(self, parameter: torch.Tensor) -> None:
        """Take note that a parameter without gradients is to have zeros."""
        self._used.add(id(parameter))

    def add(self, bucket: GradBucket, weight: float, *, without: Collection[int] = ()) -> None:
        """Add a micro-batch's weighted gradient, but for parameters whose ids are in `without`."""
        pairs = [(id(p), g) for p, g in zip(bucket.parameters(), bucket.gradients(), strict=True)]
        if without:
            pairs = [(key, gradient) for key, gradient in pairs if key not in without]
        first = [(key, gradient) for key, gradient in pairs if key not in self._summed]
        further = [(self._sums[key], gradient) for key, gradient in pairs if key in self._summed]
        if further:
            torch._foreach_add_([sums for sums, _ in further], [g for _, g in further], alpha=weight)
        if first:
            for key, _ in first:
                # Freed before as much memory is allocated again.
                self._sums.pop(key, None)
            self._sums.update(
                zip([key for key, _ in first], torch._foreach_mul([g for _, g in first], weight), strict=True)
            )
            self._summed.update(key for key, _ in first)

    def add_to(self, bucket: GradBucket) -> None:
        """Add the sums to the last micro-batch's gradient."""
        if not self._summed:
            return
        pairs = [
            (gradient, self._sums[id(parameter)])
            for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True)
            if id(parameter) in self._summed
        ]
        if pairs:
            torch._foreach_add_([g for g, _ in pairs], [h for _, h in pairs])
        if self._finds_unused:
            self._reduced += zip(bucket.parameters(), bucket.gradients(), strict=True)

    def complete_backward(self, *, is_last: bool) -> None:
        """Let the backward pass note what it has used, or, the last one, set what earlier ones have used."""
        if self._finds_unused:
            call_after_backward(self._restore_unused if is_last else self._note_used)

    def _note_used(self) -> None:
        """Note which parameters this micro-batch has used on any replica: DDP has set their gradients."""
        self._used.update(id(parameter) for parameter in self._parameters if parameter.grad is not None)

    def _restore_unused(self) -> None:
        """Set the gradients of parameters that the last micro-batch did not use, but earlier ones did."""
        for parameter, gradient in self._reduced:
            if parameter.grad is None and id(parameter) in self._used:
                parameter.grad = gradient.clone()
        self._reduced.clear()
