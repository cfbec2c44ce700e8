"""Losses that are means over items such as tokens, of which examples have different numbers.

Legend: a micro-batch has t items, a step T over all micro-batches and replicas, g is a micro-batch's mean
gradient over its items. The step's gradient is Σ t·g / T. T is known in the step's last micro-batch only: so
gradients are added up as t·g, and their sum is divided by T before it is reduced.
"""

from __future__ import annotations

from collections.abc import Callable

from pollux_slurm.errors import UsageError
from pollux_slurm.torch.data.micro_batches import MicroBatchPlan

_IN_SOME = (
    "average_over() in some micro-batches of a step only: call it in each of them, on each replica, before "
    "the backward pass"
)


class ItemAverage:
    """The items of one step's micro-batches. `total` adds up a number over the replicas."""

    def __init__(self, total: Callable[[float], float]) -> None:
        self._total = total
        self._items: float | None = None
        self._sum, self._count = 0.0, 0
        self._divisor = 1.0

    def begin_micro_batch(self, plan: MicroBatchPlan | None) -> None:
        """Begin a micro-batch; None leaves the loop."""
        self._items = None
        if plan is None or plan.index == 0:
            self._sum, self._count = 0.0, 0

    def count(self, plan: MicroBatchPlan, num_items: float) -> float | None:
        """Set the items of the present micro-batch. Returns T in the last one, on all replicas alike."""
        if self._items is not None:
            raise UsageError("average_over() twice in one micro-batch")
        if self._count != plan.index:
            raise UsageError(_IN_SOME)
        self._items = 0.0 if plan.is_padding else float(num_items)
        self._sum += self._items
        self._count += 1
        if not plan.is_last:
            return None
        self._divisor = max(self._total(self._sum), 1.0)
        return self._divisor

    def check(self) -> None:
        """Raise `UsageError` in a backward pass without items after one with them."""
        if self._count and self._items is None:
            raise UsageError(_IN_SOME)

    def weight(self, plan: MicroBatchPlan | None) -> float | None:
        """Return the weight of the present micro-batch's gradient; None where it is that of its examples."""
        if self._items is None or plan is None:
            return None
        return self._items / self._divisor if plan.is_last and plan.index == 0 else self._items

    @property
    def divisor(self) -> float:
        """What the sum of a step's gradients is to be divided by."""
        return 1.0 if self._items is None or self._count < 2 else self._divisor
