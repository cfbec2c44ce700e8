"""One model's part in adaptive training: noise scale, learning rate, deferred steps, checkpointed state."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from pollux_slurm.torch.batching import StepPlan
from pollux_slurm.torch.boundary import ModelStep
from pollux_slurm.torch.gradients import GradientReducer
from pollux_slurm.torch.metric import GradientMetric
from pollux_slurm.torch.noise import NoiseEstimator
from pollux_slurm.torch.patching import patch, patch_class
from pollux_slurm.torch.scaling_rules import ScalingMoment, ScalingRule, gain
from pollux_slurm.torch.stepnorms import NormReader, NormSums


class Adaptation:
    """What `AdaptiveDataParallel` adds to one model and its optimizer, LR scheduler and gradient scaler."""

    def __init__(
        self,
        *,
        name: str,
        model: torch.nn.Module,
        optimizer: Optimizer,
        lr_scheduler: Any,
        mp_scaler: Any,
        rule: ScalingRule,
        metric: GradientMetric,
        reducer: GradientReducer,
        epoch_key: Callable[[], int],
    ) -> None:
        self.name, self.reducer, self.noise = name, reducer, NoiseEstimator()
        self._metric = metric
        self._model, self._optimizer, self._rule = model, optimizer, rule
        self._lr_scheduler, self._mp_scaler = lr_scheduler, mp_scaler
        self._batch_scale, self._batch_size, self._progress = 1.0, 1, 0.0
        self.device = next(model.parameters()).device
        self._reader = NormReader(later=self.device.type != "cpu")
        self._scale: torch.Tensor | None = None
        # Examples since the last step whose norms were taken.
        self._unmeasured = 0
        # Calls of the LR scheduler between loops, by epoch: in its state, and by this process.
        self._epoch_key = epoch_key
        self._scheduled: dict[int, int] = {}
        self._called: dict[int, int] = {}
        self.has_stepped = False
        self.last_gain = 1.0
        self.last_factor = 1.0
        patch(optimizer, "step", self._step)
        patch(optimizer, "zero_grad", self._zero_grad)
        if lr_scheduler is not None:
            patch_class(lr_scheduler, "step", self._schedule)
        if mp_scaler is not None:
            patch(mp_scaler, "step", self._scaled_step)
            for method in ("update", "unscale_"):
                patch(mp_scaler, method, self._unless_accumulating)

    @property
    def gain(self) -> float:
        return gain(self.noise.statistics(), self._batch_scale)

    def set_batch(self, *, initial_batch_size: int, global_batch_size: int, progress: float = 0.0) -> None:
        """Tell the batch of the coming steps, and how far training has come (in steps at M0)."""
        self.noise.set_initial_batch_size(initial_batch_size)
        self._batch_scale, self._batch_size = global_batch_size / initial_batch_size, global_batch_size
        self._progress = progress

    def take_stepped(self) -> bool:
        """Tell whether the optimizer has stepped since the last call."""
        stepped, self.has_stepped = self.has_stepped, False
        return stepped

    def take_step(self, step: StepPlan) -> ModelStep:
        """Return this replica's norms of a step done, for the ranks to add up."""
        norms = self.reducer.take_norms()
        self._unmeasured += step.size * (1 if norms is None else norms.num_by_hand)
        sums = self._reader.read(norms, step, self._scale, num_groups=self._metric.num_groups)
        span = 0
        if sums.num_parts:
            span, self._unmeasured = self._unmeasured, 0
        return ModelStep(sums=sums, absorb=functools.partial(self.absorb, span))

    def absorb(self, span: int, sums: NormSums) -> None:
        """Take in the sums over all replicas of one step's norms, which stands for `span` examples."""
        if not self.noise.update(
            parts_sum=sums.parts_sum,
            mean_sqr=sums.mean_sqr,
            num_examples=sums.num_examples,
            num_parts=sums.num_parts,
            span=max(span, sums.num_examples),
        ):
            # The next one stands for these, too.
            self._unmeasured += span

    # ------------------------------------------------------------------------------ checkpointed state

    def sync(self) -> None:
        """Nothing to do: every replica holds the same."""

    def state_dict(self) -> dict[str, Any]:
        state = {
            "model": self._model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "noise": self.noise.state_dict(),
            "measuring": [*self.reducer.schedule, self._unmeasured],
        }
        if self._lr_scheduler is not None:
            state["lr_scheduler"] = self._lr_scheduler.state_dict()
            state["scheduled"] = self._scheduled
        if self._mp_scaler is not None:
            state["mp_scaler"] = self._mp_scaler.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._metric.restored()
        self.noise.load_state_dict(state["noise"])
        *self.reducer.schedule, self._unmeasured = state.get("measuring", (0, 0, 0))
        if self._lr_scheduler is not None:
            self._lr_scheduler.load_state_dict(state["lr_scheduler"])
            self._scheduled = dict(state.get("scheduled", {}))
        if self._mp_scaler is not None:
            self._mp_scaler.load_state_dict(state["mp_scaler"])

    # ----------------------------------------------------------------------------- the patched methods

    def _unless_accumulating(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return None if self.reducer.is_accumulating else original(*args, **kwargs)

    def _scaled_step(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self.reducer.is_accumulating:
            return None
        # Also where it finds an overflow, and does not ask the optimizer to step.
        self.reducer.spent()
        return original(*args, **kwargs)

    def _schedule(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Step the LR scheduler, unless the pass only accumulates or the step is in its state already.

        Code between loops runs again after a restart, and the checkpoint may have been written after it.
        """
        if self.reducer.is_in_loop:
            return self._unless_accumulating(original, *args, **kwargs)
        epoch = self._epoch_key()
        # Epochs that are over do not come again; −1 stands for all code outside of the epochs' loop.
        self._scheduled = {key: value for key, value in self._scheduled.items() if key in (epoch, -1)}
        self._called = {key: value for key, value in self._called.items() if key in (epoch, -1)}
        self._called[epoch] = self._called.get(epoch, 0) + 1
        if self._called[epoch] <= self._scheduled.get(epoch, 0):
            return None
        self._scheduled[epoch] = self._called[epoch]
        return original(*args, **kwargs)

    def _step(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self.reducer.is_accumulating:
            closure = args[0] if args else kwargs.get("closure")
            if closure is None:
                return None
            with torch.enable_grad():  # as the optimizer would: this pass's gradient is computed in there
                return closure()
        self.has_stepped = True
        self.reducer.spent()
        self.reducer.restore_unused()
        if self._mp_scaler is not None:
            # By what mixed precision has multiplied the gradients, asked for without waiting for the device.
            self._scale = self._mp_scaler.scale(torch.ones((), device=self.device))
        self.last_gain = self.gain
        factors = self._factors()
        self.last_factor = factors[0]
        self._metric.stepped()
        if all(factor == 1.0 for factor in factors):
            return original(*args, **kwargs)
        # Changed for this one step only: the LR scheduler goes on from its own value.
        own = [group["lr"] for group in self._optimizer.param_groups]
        try:
            for group, rate, factor in zip(self._optimizer.param_groups, own, factors, strict=True):
                group["lr"] = rate * factor
            return original(*args, **kwargs)
        finally:
            for group, rate in zip(self._optimizer.param_groups, own, strict=True):
                group["lr"] = rate

    def _factors(self) -> list[float]:
        """Return the rule's factor for each parameter group, by the gain of its own gradients."""
        count = self._metric.num_groups
        groups = self.noise.group_statistics()
        gains = [gain(group, self._batch_scale) for group in groups]
        if len(gains) != count:
            gains = [self.last_gain] * count
        return [
            self._rule.factor_at(
                ScalingMoment(
                    scale=self._batch_scale,
                    gain=own,
                    progress=self._progress,
                    batch_size=self._batch_size,
                )
            )
            for own in gains
        ]

    def _zero_grad(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.reducer.zeroed()
        return original(*args, **kwargs)
