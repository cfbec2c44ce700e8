"""Warn of training in which no wrapped optimizer steps in a loop over an adaptive loader.

A trainer of another library over our loader, or our model over an ordinary loader, trains to its end, but
nothing of that is measured, scaled or in a checkpoint. Where it has neither our loader nor our model, each
replica trains by itself. A hook sees every `torch.optim.Optimizer` until a wrapped one has stepped in such a
loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from pollux_slurm.model import JobWarning
from pollux_slurm.torch.coordination.training_faults import TrainingFaults

_CURE = (
    "so nothing is measured, scaled or checkpointed, and the job cannot be moved. Give model and optimizer "
    "to AdaptiveDataParallel and train in a loop of your own (README); for Lightning, Hugging Face's Trainer "
    "and Accelerate see docs/frameworks.md"
)


class UnsteppedLoopCheck:
    """Watches the optimizers' steps. `is_wrapped` is True for a wrapped optimizer, `is_in_loop` in a loop."""

    def __init__(
        self,
        faults: TrainingFaults,
        *,
        is_wrapped: Callable[[Optimizer], bool],
        is_in_loop: Callable[[], bool],
    ) -> None:
        self._faults, self._is_own, self._is_in_loop = faults, is_wrapped, is_in_loop
        self._stepped_by: str | None = None
        self._has_own = self._has_others = False
        self._handle: RemovableHandle | None = register_optimizer_step_post_hook(self._stepped)

    def check(self) -> None:
        """Report a loop that ended with steps of other optimizers only. Call it between loops.

        Raises `TrainingError` under `strict`.
        """
        if self._has_own:
            self.remove()
        elif self._stepped_by is not None:
            kind, self._stepped_by = self._stepped_by, None
            self._faults.report(
                JobWarning.NEVER_STEPPED,
                "a loop over an AdaptiveDataLoader ended without one step of a wrapped optimizer, but "
                f"{kind} stepped in it: {_CURE}",
            )

    def check_end(self, *, has_gradients: bool) -> None:
        """The same at the end of training, also where others stepped in no such loop, or none did."""
        self.check()
        if not self._has_own and (has_gradients or self._has_others):
            self._faults.report(
                JobWarning.NEVER_STEPPED, f"training ended without one step of a wrapped optimizer: {_CURE}"
            )

    def remove(self) -> None:
        """Stop watching."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _stepped(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._has_own:
            return
        if not self._is_own(optimizer):
            self._has_others = True
            if self._is_in_loop():
                self._stepped_by = type(optimizer).__name__
        elif self._is_in_loop():
            self._has_own = True
        else:
            self._faults.report(
                JobWarning.NEVER_STEPPED,
                f"{type(optimizer).__name__} steps the wrapped model outside of a loop over an "
                "AdaptiveDataLoader: every replica trains on all examples that it reads, and nothing is "
                "measured or checkpointed. Make the training loader an AdaptiveDataLoader(dataset, "
                "batch_size=...)",
            )
