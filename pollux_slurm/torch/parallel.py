"""`AdaptiveDataParallel`: DistributedDataParallel whose steps know the global batch they belong to."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from pollux_slurm.torch.gradients import GradientReducer
from pollux_slurm.torch.metric import GradientMetric
from pollux_slurm.torch.noise import NoiseEstimator, parts_of_consecutive
from pollux_slurm.torch.scaling import ScalingMoment, ScalingRule, default_rule, gain
from pollux_slurm.torch.tensorboard import ScalarWriter, write_scalars
from pollux_slurm.torch.timing import HostCopy, cuda_instant, host_instant


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
        metric = GradientMetric(optimizer)
        self._pollux = Adaptation(
            name=name or session.next_name("model"),
            # Of a compiled model the one that was compiled: its weights have the same names either way.
            model=getattr(model, "_orig_mod", model),
            optimizer=optimizer,
            lr_scheduler=lr_scheduler,
            mp_scaler=mp_scaler,
            rule=scaling_rule or default_rule(type(optimizer).__name__),
            metric=metric,
            reducer=GradientReducer(
                world_size=session.world_size,
                group=self.process_group,
                instant=cuda_instant if device.type == "cuda" else host_instant,
                metric=metric,
                finds_unused=self.find_unused_parameters,
            ),
            epoch_key=lambda: session.epoch_key,
        )
        self.register_comm_hook(None, self._pollux.reducer.hook)
        session.add_model(self._pollux)

    @property
    def gain(self) -> float:
        """How many steps at the initial batch size the present step is worth (1 at that size)."""
        return self._pollux.gain

    def to_tensorboard(self, writer: ScalarWriter, global_step: int, tag_prefix: str = "") -> None:
        """Write what was measured to a TensorBoard writer (or another with its `add_scalar`)."""
        statistics = self.statistics
        scalars = {
            "Gradient_Norm_Sqr": None if statistics is None else statistics.sqr,
            "Gradient_Variance": None if statistics is None else statistics.var,
            "Gain": self.gain,
            "Learning_Rate_Factor": self._pollux.last_factor,
            "Progress": current_session().progress,
        }
        write_scalars(writer, scalars, global_step, tag_prefix)

    @property
    def statistics(self) -> GradientStatistics | None:
        """The smoothed gradient statistics at the initial batch size; None before they were measured.

        Those of preconditioned gradients where the optimizer is Adam-like.
        """
        return self._pollux.noise.statistics()

    @property
    def group_statistics(self) -> tuple[GradientStatistics, ...]:
        """The same of each of the optimizer's parameter groups; empty before they were measured."""
        return self._pollux.noise.group_statistics()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate by hand, as with `DistributedDataParallel`: backward passes inside reduce nothing.

        It has no effect where the loader itself splits a global batch into passes: those do not reduce.
        """
        if self._pollux.reducer.is_split:
            yield
            return
        with super().no_sync():
            yield
        self._pollux.reducer.local_pass_done(self.module.parameters())

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Zero the gradients."""
        super().zero_grad(set_to_none)
        self._pollux.reducer.zeroed()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Taken:
    """One step's norms as they were taken, perhaps not yet read: M and C, and what `StepNorms` says else.

    `values` are `StepNorms.packed`, None where the step said nothing.
    """

    values: HostCopy | None = None
    size: int = 0
    num_cells: int = 0
    num_by_hand: int = 1
    is_alone: bool = False
    previous_size: int | None = None


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
        metric: GradientMetric,
        reducer: GradientReducer,
        epoch_key: Callable[[], int],
    ) -> None:
        self.name, self.reducer, self.noise = name, reducer, NoiseEstimator()
        self._metric = metric
        self._model, self._optimizer, self._rule = model, optimizer, rule
        self._lr_scheduler, self._mp_scaler = lr_scheduler, mp_scaler
        self._batch_scale, self._batch_size, self._progress = 1.0, 1, 0.0
        # The gradient scale of the step before, where that step was measured alone.
        self._previous_scale: float | None = None
        self._reads_later = next(model.parameters()).device.type != "cpu"
        self._held = _Taken()
        self._scale: torch.Tensor | None = None
        # Examples since the last step whose norms were taken in.
        self._unmeasured = 0
        # Calls of the LR scheduler between loops, by epoch: in its state, and by this process.
        self._epoch_key = epoch_key
        self._scheduled: dict[int, int] = {}
        self._called: dict[int, int] = {}
        self.has_stepped = False
        self.last_gain = 1.0
        self.last_factor = 1.0
        self._patch(optimizer, "step", self._step)
        self._patch(optimizer, "zero_grad", self._zero_grad)
        if lr_scheduler is not None:
            self._patch_class(lr_scheduler, "step", self._schedule)
        if mp_scaler is not None:
            for method in ("step", "update", "unscale_"):
                self._patch(mp_scaler, method, self._unless_accumulating)

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

    def absorb(
        self, parts_sum: Sequence[float], mean_sqr: Sequence[float], num_examples: int, num_parts: int
    ) -> None:
        """Take in the sums over all replicas of one step's norms, by parameter group."""
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
        norms = self.reducer.take_norms()
        num_by_hand = 1 if norms is None else norms.num_by_hand
        size = step.size * num_by_hand
        self._unmeasured += size
        taken = _Taken()
        if norms is not None:
            taken = _Taken(
                values=HostCopy(norms.packed(self._scale)),
                size=size,
                num_cells=step.num_cells * num_by_hand,
                num_by_hand=num_by_hand,
                is_alone=norms.is_alone,
                previous_size=norms.previous_size,
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

    def _read(self, taken: _Taken) -> tuple[tuple[float, ...], tuple[float, ...], int, int]:
        """Return S, |ḡ|², M and C of one step; with one replica and one pass, of it and the one before."""
        size = self._metric.num_groups
        nothing = (0.0,) * size, (0.0,) * size, 0, 0
        previous_scale, self._previous_scale = self._previous_scale, None
        if taken.values is None:
            return nothing
        *norms, scale = taken.values.read()
        if len(norms) != 4 * size or not scale > 0:
            # A parameter group was added since, or mixed precision has no scale.
            return nothing
        parts, mean, previous, difference = (
            tuple(value / scale**2 for value in norms[start : start + size])
            for start in range(0, 4 * size, size)
        )
        if not taken.is_alone:
            mean = tuple(value / taken.num_by_hand**2 for value in mean)
            return parts, mean, taken.size, taken.num_cells
        if taken.previous_size is None or previous_scale != scale:
            self._previous_scale = scale
            return nothing
        pairs = [
            parts_of_consecutive(
                previous_sqr=before,
                previous_size=taken.previous_size,
                sqr=now,
                size=taken.size,
                difference_sqr=between,
            )
            for before, now, between in zip(previous, mean, difference, strict=True)
        ]
        both = taken.previous_size + taken.size
        return tuple(parts for parts, _ in pairs), tuple(mean for _, mean in pairs), both, 2

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
        self.reducer.restore_unused()
        if self._mp_scaler is not None:
            # By what mixed precision has multiplied the gradients, asked for without waiting for the device.
            self._scale = self._mp_scaler.scale(torch.ones((), device=next(self._model.parameters()).device))
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
