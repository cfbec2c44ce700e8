"""`AdaptiveDataParallel`: DistributedDataParallel whose steps know the global batch they belong to."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from pollux_slurm.model import GradientStatistics
from pollux_slurm.torch.batching import StepPlan
from pollux_slurm.torch.boundary import ModelStep
from pollux_slurm.torch.current import current_session
from pollux_slurm.torch.gradients import GradientReducer, StepNorms
from pollux_slurm.torch.noise import NoiseEstimator, parts_of_consecutive
from pollux_slurm.torch.scaling import ScalingRule, default_rule, gain
from pollux_slurm.torch.timing import cuda_instant, host_instant


class AdaptiveDataParallel(DistributedDataParallel):
    """Wrap a model with its optimizer, LR scheduler and gradient scaler, and restore them after a restart.

    While an `AdaptiveDataLoader` hands out the micro-batches of one global batch, `optimizer.step`,
    `lr_scheduler.step` and `mp_scaler.step`, `update` and `unscale_` take effect after the last one only, so
    the loop is the plain one: zero_grad, forward, backward, step, for each batch.

    `scaling_rule` says how the learning rate follows the batch size: `AdaScale` by default, `SqrtScale` for
    Adam-like optimizers. Further keyword arguments go to `DistributedDataParallel`.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: Optimizer,
        lr_scheduler: Any = None,
        mp_scaler: Any = None,
        scaling_rule: ScalingRule | None = None,
        *,
        name: str | None = None,
        **ddp_options: Any,
    ) -> None:
        session = current_session()
        ddp_options.setdefault("gradient_as_bucket_view", True)
        super().__init__(model, **ddp_options)
        device = next(model.parameters()).device
        self._pollux = Adaptation(
            name=name or session.next_name("model"),
            model=model,
            optimizer=optimizer,
            lr_scheduler=lr_scheduler,
            mp_scaler=mp_scaler,
            rule=scaling_rule or default_rule(type(optimizer).__name__),
            reducer=GradientReducer(
                world_size=session.world_size,
                group=self.process_group,
                instant=cuda_instant if device.type == "cuda" else host_instant,
                finds_unused=self.find_unused_parameters,
            ),
        )
        self.register_comm_hook(None, self._pollux.reducer.hook)
        session.add_model(self._pollux)

    @property
    def gain(self) -> float:
        """How many steps at the initial batch size the present step is worth (1 at that size)."""
        return self._pollux.gain

    @property
    def statistics(self) -> GradientStatistics | None:
        """The smoothed gradient statistics at the initial batch size; None before they were measured."""
        return self._pollux.noise.statistics()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Taken:
    """One step's norms as they were taken, perhaps not yet read: of `size` examples in `num_cells` cells."""

    norms: StepNorms | None
    size: int
    num_cells: int
    scale: torch.Tensor | None


class Adaptation:
    """One model's part in adaptive training: checkpointed state, noise scale, patched optimizer."""

    def __init__(
        self,
        *,
        name: str,
        model: torch.nn.Module,
        optimizer: Optimizer,
        lr_scheduler: Any,
        mp_scaler: Any,
        rule: ScalingRule,
        reducer: GradientReducer,
    ) -> None:
        self.name, self.reducer, self.noise = name, reducer, NoiseEstimator()
        self._model, self._optimizer, self._rule = model, optimizer, rule
        self._lr_scheduler, self._mp_scaler = lr_scheduler, mp_scaler
        self._batch_scale = 1.0
        # |g|² and the gradient scale of the step before, where that step was measured alone.
        self._previous_norm: tuple[float, float] | None = None
        self._reads_later = next(model.parameters()).device.type != "cpu"
        self._held = _Taken(norms=None, size=0, num_cells=0, scale=None)
        self._scale: torch.Tensor | None = None
        # Examples since the last step whose norms were taken in.
        self._unmeasured = 0
        self.has_stepped = False
        self.last_gain = 1.0
        self._patch(optimizer, "step", self._step)
        if lr_scheduler is not None:
            self._patch_class(lr_scheduler, "step", self._unless_accumulating)
        if mp_scaler is not None:
            for method in ("step", "update", "unscale_"):
                self._patch(mp_scaler, method, self._unless_accumulating)

    @property
    def gain(self) -> float:
        return gain(self.noise.statistics(), self._batch_scale)

    def set_batch(self, *, initial_batch_size: int, global_batch_size: int) -> None:
        """Tell the batch of the coming steps."""
        self.noise.set_initial_batch_size(initial_batch_size)
        self._batch_scale = global_batch_size / initial_batch_size

    def take_stepped(self) -> bool:
        """Tell whether the optimizer has stepped since the last call."""
        stepped, self.has_stepped = self.has_stepped, False
        return stepped

    def absorb(self, parts_sum: float, mean_sqr: float, num_examples: int, num_parts: int) -> None:
        """Take in the sums over all replicas of one step's norms."""
        if self.noise.update(
            parts_sum=parts_sum,
            mean_sqr=mean_sqr,
            num_examples=num_examples,
            num_parts=num_parts,
            span=max(self._unmeasured, num_examples),
        ):
            self._unmeasured = 0

    def take_step(self, step: StepPlan) -> ModelStep:
        """Return this replica's norms of the step done, for the ranks to add up.

        On a GPU those of the step before: reading them then does not wait for the device.
        """
        self._unmeasured += step.size
        taken = _Taken(
            norms=self.reducer.take_norms(), size=step.size, num_cells=step.num_cells, scale=self._scale
        )
        if self._reads_later:
            taken, self._held = self._held, taken
        parts_sum, mean_sqr, num_examples, num_parts = self._read(taken)
        return ModelStep(
            parts_sum=parts_sum,
            mean_sqr=mean_sqr,
            num_examples=num_examples,
            num_parts=num_parts,
            absorb=self.absorb,
        )

    def _read(self, taken: _Taken) -> tuple[float, float, int, int]:
        """Return S, |ḡ|², M and C of one step; with one replica and one pass, of it and the one before."""
        norms = taken.norms
        before, self._previous_norm = self._previous_norm, None
        if norms is None:
            return 0.0, 0.0, 0, 0
        scale = 1.0 if taken.scale is None else float(taken.scale.item())
        mean_sqr = sum(value.item() for value in norms.mean.values()) / scale**2
        if not norms.is_alone:
            parts_sum = sum(value.item() for value in norms.parts) / scale**2
            return parts_sum, mean_sqr, taken.size, taken.num_cells
        self._previous_norm = mean_sqr, scale
        if not norms.difference or norms.previous_size is None or before is None or before[1] != scale:
            return 0.0, 0.0, 0, 0
        parts_sum, both_sqr = parts_of_consecutive(
            previous_sqr=before[0],
            previous_size=norms.previous_size,
            sqr=mean_sqr,
            size=taken.size,
            difference_sqr=sum(value.item() for value in norms.difference) / scale**2,
        )
        return parts_sum, both_sqr, norms.previous_size + taken.size, 2

    # ------------------------------------------------------------------------------ checkpointed state

    def sync(self) -> None:
        """Nothing to do: every replica holds the same."""

    def state_dict(self) -> dict[str, Any]:
        state = {
            "model": self._model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "noise": self.noise.state_dict(),
        }
        if self._lr_scheduler is not None:
            state["lr_scheduler"] = self._lr_scheduler.state_dict()
        if self._mp_scaler is not None:
            state["mp_scaler"] = self._mp_scaler.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.noise.load_state_dict(state["noise"])
        if self._lr_scheduler is not None:
            self._lr_scheduler.load_state_dict(state["lr_scheduler"])
        if self._mp_scaler is not None:
            self._mp_scaler.load_state_dict(state["mp_scaler"])

    # ----------------------------------------------------------------------------- the patched methods

    def _patch(self, owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
        """Put `wrapper(original, *args)` in place of one object's method.

        It stays a bound method that carries the original's attributes: LR schedulers look for both.
        """
        original = getattr(owner, name)

        @functools.wraps(original)
        def method(_owner: Any, *args: Any, **kwargs: Any) -> Any:
            return wrapper(original, *args, **kwargs)

        setattr(owner, name, MethodType(method, owner))

    def _patch_class(self, owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
        """Like `_patch`, but in a subclass for this one object: a scheduler's state is its `__dict__`."""
        kind = type(owner)
        original = getattr(kind, name)

        @functools.wraps(original)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            return wrapper(functools.partial(original, self), *args, **kwargs)

        owner.__class__ = type(kind.__name__, (kind,), {name: method, "__module__": kind.__module__})

    def _unless_accumulating(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return None if self.reducer.is_accumulating else original(*args, **kwargs)

    def _step(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self.reducer.is_accumulating:
            return None
        self.has_stepped = True
        self.reducer.restore_unused()
        if self._mp_scaler is not None:
            # By what mixed precision has multiplied the gradients, asked for without waiting for the device.
            self._scale = self._mp_scaler.scale(torch.ones((), device=next(self._model.parameters()).device))
        self.last_gain = self.gain
        factor = self._rule.factor(scale=self._batch_scale, gain=self.last_gain)
        if factor == 1.0:
            return original(*args, **kwargs)
        # Changed for this one step only: the LR scheduler goes on from its own value.
        own = [group["lr"] for group in self._optimizer.param_groups]
        try:
            for group, rate in zip(self._optimizer.param_groups, own, strict=True):
                group["lr"] = rate * factor
            return original(*args, **kwargs)
        finally:
            for group, rate in zip(self._optimizer.param_groups, own, strict=True):
                group["lr"] = rate
