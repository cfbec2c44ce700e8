"""What becomes of a model's gradients between a backward pass and the next: summed, stepped with, zeroed."""

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


class HeldGradients:
    """Follows the gradients in `param.grad`. Optimizers are named by their places.

    `reduced` are the parameters whose gradients the hook is handed. `is_spent` is whether an optimizer has
    stepped with the gradients, or a gradient scaler has skipped its step.
    """

    def __init__(self, metric: GradientMetric, reduced: Sequence[torch.Tensor]) -> None:
        self._metric = metric
        self.is_spent = self._is_held = self._sees_zeroing = self._is_unreduced = False
        # The optimizers that have stepped or zeroed theirs.
        self._done: set[int] = set()
        # A pass that reaches a model reaches its first or its last parameter.
        for parameter in {reduced[0], reduced[-1]} if reduced else ():
            parameter.register_post_accumulate_grad_hook(self._reached)

    def _reached(self, parameter: torch.Tensor) -> None:
        self._is_unreduced = True

    def reduced(self) -> None:
        """A backward pass has handed all that stands in the gradients to the hook."""
        self._is_unreduced = False

    def check_reduced(self) -> None:
        """Raise `UsageError` where a backward pass has added to the gradients unseen by the hook."""
        if self._is_unreduced:
            raise UsageError(_UNREDUCED)

    def computed(self) -> None:
        """A backward pass has computed new ones, or added to them."""
        self._is_held, self.is_spent = True, False
        self._done.clear()

    def spent(self, optimizer: int) -> None:
        """An optimizer has stepped with its own, or its step was skipped."""
        self.is_spent = True
        self._done.add(optimizer)

    def zeroed(self, optimizer: int | None) -> bool:
        """An optimizer's were zeroed, or all (None). True where none is left."""
        self._sees_zeroing, self._is_unreduced = True, False
        self._done.update(range(self._metric.num_optimizers) if optimizer is None else (optimizer,))
        self._is_held = self.are_left
        return not self._is_held

    @property
    def is_held(self) -> bool:
        """Whether there may be any that were not zeroed."""
        return self._is_held

    @property
    def are_left(self) -> bool:
        """Whether an optimizer has some that it has neither stepped with nor zeroed."""
        return self._metric.has_gradients(besides=self._done)

    @property
    def is_pending(self) -> bool:
        """Whether they wait for a step."""
        return self._is_held and not self.is_spent

    @property
    def are_added_to(self) -> bool:
        """True where those of an earlier batch are still there when a pass begins.

        A script that steps and never calls `zero_grad` is taken to do away with them in a way of its own.
        """
        return self._is_held and (self._sees_zeroing or not self.is_spent)
