"""The state of a model's gradients between two backward passes: computed, reduced, used by a step, zeroed."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pollux_slurm.errors import UsageError
from pollux_slurm.torch.gradients.preconditioning import GradientMetric

_UNREDUCED = (
    "a backward pass has left gradients that are not summed over the replicas: call the wrapped model, not "
    "model.module; call backward once for each forward pass (add the losses, instead of a second backward "
    "with retain_graph); leave no_sync() before the last backward pass of a step"
)


class GradientState:
    """The state of the gradients in `param.grad`. Optimizers are given by their indices.

    `reduced` are the parameters whose gradients DDP's hook reduces. `is_used` is True once an optimizer has
    stepped with the gradients, or a gradient scaler has skipped its step.
    """

    def __init__(self, metric: GradientMetric, reduced: Sequence[torch.Tensor]) -> None:
        self._metric = metric
        self.is_used = self._may_be_nonzero = self._sees_zeroing = self._is_unreduced = False
        # The optimizers that have stepped or zeroed theirs.
        self._done: set[int] = set()
        # Those whose step came in the present micro-batch, made to its end or put off.
        self.stepped_in_batch: set[int] = set()
        # A backward pass through a model reaches its first or its last parameter.
        for parameter in {reduced[0], reduced[-1]} if reduced else ():
            parameter.register_post_accumulate_grad_hook(self._reached)

    def _reached(self, parameter: torch.Tensor) -> None:
        self._is_unreduced = True

    def mark_reduced(self) -> None:
        """Record that the hook has got all gradients."""
        self._is_unreduced = False

    def check_reduced(self) -> None:
        """Raise `UsageError` where a backward pass has added to the gradients without the hook."""
        if self._is_unreduced:
            raise UsageError(_UNREDUCED)

    def mark_computed(self) -> None:
        """Record that a backward pass has computed gradients or added to them."""
        self._may_be_nonzero, self.is_used = True, False
        self._done.clear()

    def mark_used(self, optimizer: int) -> None:
        """Record that an optimizer has stepped, or its step was skipped."""
        self.is_used = True
        self._done.add(optimizer)

    def mark_dropped(self) -> None:
        """Record that there are none left: they were dropped between two steps."""
        self._may_be_nonzero = self._is_unreduced = False

    def mark_zeroed(self, optimizer: int | None) -> bool:
        """Record that one optimizer's gradients were zeroed, or all (None). True where none is left."""
        self._sees_zeroing, self._is_unreduced = True, False
        self._done.update(range(self._metric.num_optimizers) if optimizer is None else (optimizer,))
        self._may_be_nonzero = self.has_unused
        return not self._may_be_nonzero

    def has_stepped_in_batch(self, optimizer: int | None) -> bool:
        """Return whether one optimizer's step (None: each one's) came in the present micro-batch."""
        if optimizer is None:
            return len(self.stepped_in_batch) == self._metric.num_optimizers
        return optimizer in self.stepped_in_batch

    @property
    def may_be_nonzero(self) -> bool:
        """True while there may be gradients that were not zeroed."""
        return self._may_be_nonzero

    @property
    def has_unused(self) -> bool:
        """True while an optimizer has gradients that it has neither stepped with nor zeroed."""
        return self._metric.has_gradients(besides=self._done)

    @property
    def is_pending(self) -> bool:
        """True while the gradients wait for a step."""
        return self._may_be_nonzero and not self.is_used

    @property
    def has_leftover(self) -> bool:
        """True where an earlier batch's gradients are still there when a backward pass begins.

        A script that steps and never calls `zero_grad` is assumed to remove them in its own way.
        """
        return self._may_be_nonzero and (self._sees_zeroing or not self.is_used)
