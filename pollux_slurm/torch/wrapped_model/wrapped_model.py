"""A wrapped model in adaptive training: noise scale, learning rate, deferred steps, checkpointed state."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from pollux_slurm.errors import UsageError
from pollux_slurm.torch.boundary.step_boundary import ModelStep
from pollux_slurm.torch.checkpoint.given_values import GivenValues
from pollux_slurm.torch.coordination.replica_comparison import WeightComparison
from pollux_slurm.torch.data.micro_batches import StepPlan
from pollux_slurm.torch.gradients.noise_scale import NoiseEstimator
from pollux_slurm.torch.gradients.preconditioning import GradientMetric
from pollux_slurm.torch.gradients.reducer import GradientReducer
from pollux_slurm.torch.gradients.scaling_rules import ScalingMoment, ScalingRule, gain
from pollux_slurm.torch.gradients.step_norms import NormReader, NormSums
from pollux_slurm.torch.measurement.precision import computed_dtype
from pollux_slurm.torch.wrapped_model.lr_schedulers import LrSchedulers
from pollux_slurm.torch.wrapped_model.optimizer_states import OptimizerStates
from pollux_slurm.torch.wrapped_model.parameter_groups import ParameterGroups, restore
from pollux_slurm.torch.wrapped_model.patching import patch
from pollux_slurm.torch.wrapped_model.shape_check import ShapeCheck

_logger = logging.getLogger(__name__)
# Until then a split may still replace them.
_SAID_AFTER = 2
_DRIFTS = (
    "the gradient noise of %r is measured from consecutive steps, which overestimates it: allow "
    "autoscale_batch_size(..., gradient_accumulation=True), or let the model return one tensor with a row "
    "for each example, compute the loss outside of it, and do without hooks, activation checkpoints and "
    "autograd functions of your own (docs/training.md, Gradient noise)"
)


class DataParallel(Protocol):
    """The wrapper around the model."""

    def leave_group(self) -> None:
        """Let go of the process group."""

    def join_group(self) -> dist.ProcessGroup:
        """Reduce gradients over the present default group from now on, and return it."""


class WrappedModel:
    """One model with its optimizers, LR schedulers and gradient scaler, whose methods are patched.

    `rules` are those of the `optimizers`, one each. `data_parallel` is what reduces its gradients.
    """

    def __init__(
        self,
        *,
        name: str,
        model: torch.nn.Module,
        optimizers: Sequence[Optimizer],
        lr_schedulers: Sequence[Any],
        mp_scaler: Any,
        rules: Sequence[ScalingRule],
        metric: GradientMetric,
        reducer: GradientReducer,
        shape: ShapeCheck,
        comparison: WeightComparison,
        optimizer_states: OptimizerStates,
        epoch_key: Callable[[], int],
        data_parallel: DataParallel,
        given: GivenValues,
    ) -> None:
        self._given, self._given_rates = given, [_first_rates(optimizer) for optimizer in optimizers]
        self._data_parallel = data_parallel
        self.name, self.reducer, self.noise = name, reducer, NoiseEstimator()
        self.shape, self.comparison = shape, comparison
        self._optimizer_states = optimizer_states
        self._metric = metric
        self.module, self.optimizers, self._rules = model, optimizers, rules
        self._mp_scaler = mp_scaler
        self._lr_schedulers = LrSchedulers(
            lr_schedulers, optimizers, reducer=reducer, shape=shape, epoch_key=epoch_key
        )
        self._groups = [ParameterGroups(optimizer, model) for optimizer in optimizers]
        # Parameters that the checkpoint had frozen, until they are frozen here.
        self._frozen: set[str] | None = None
        # The number of optimizers within `step`: each may call others of its own.
        self.num_stepping = 0
        self._batch_scale, self._batch_size, self._progress = 1.0, 1, 0.0
        self.device = next(model.parameters()).device
        self._reader = NormReader(later=self.device.type != "cpu")
        self._scale: torch.Tensor | None = None
        # Examples since the last step whose norms were measured; what other steps add to the noise scale.
        self._unmeasured = 0
        self._without_norms: ModelStep | None = None
        self._has_said_drifts = False
        self.has_stepped = False
        self.precision: str | None = None
        # False after a regroup until it steps: one that has joined may lack a model of an earlier epoch.
        self.is_on_all_replicas = True
        self.last_gain = 1.0
        self.last_factor = 1.0
        # The weights as they were wrapped or restored, until training begins.
        self._unchanged = self._versions()
        for index, optimizer in enumerate(optimizers):
            patch(optimizer, "step", functools.partial(self._step, index))
            patch(optimizer, "zero_grad", functools.partial(self._zero_grad, index))
        if mp_scaler is not None:
            patch(mp_scaler, "step", self._scaled_step)
            for method in ("update", "unscale_"):
                patch(mp_scaler, method, self._unless_accumulating)

    @property
    def gain(self) -> float:
        return gain(self.noise.statistics(), self._batch_scale)

    def set_batch(
        self,
        *,
        initial_batch_size: int,
        global_batch_size: int,
        progress: float = 0.0,
        schedule_steps: int = 1,
        may_split: bool = False,
        may_vary: bool = False,
    ) -> None:
        """Set the batch of the coming step, the progress so far (in steps at M0), and how many batches of M0
        end with this one; whether the loader may split it into micro-batches, and vary it, now or later.
        """
        self._lr_schedulers.steps_per_batch, self.reducer.may_split = schedule_steps, may_split
        self.reducer.measured.may_vary = may_vary
        self.noise.set_initial_batch_size(initial_batch_size)
        self._batch_scale, self._batch_size = global_batch_size / initial_batch_size, global_batch_size
        self._progress = progress

    def add_lr_scheduler(self, lr_scheduler: Any) -> None:
        """Add an LR scheduler that was made later than the wrapper, and restore it."""
        self._lr_schedulers.add(lr_scheduler)

    def parameter_ids(self) -> set[int]:
        """Return the `id` of each of the model's parameters."""
        return {id(parameter) for parameter in self.module.parameters()}

    def begin_forward(self) -> None:
        """Note what type of numbers a forward pass computes with: autocast is the script's, and around it."""
        if self.precision is None:
            first = next(self.module.parameters())
            self.precision = str(computed_dtype(first)).removeprefix("torch.")

    @property
    def can_measure(self) -> bool:
        """False while the norms of gradients mean nothing yet."""
        return self._metric.begin_step()

    @property
    def may_split(self) -> bool:
        """Whether a batch may be split to measure noise: no layer of the model depends on the local batch."""
        return not self.reducer.measured.accumulates_manually and not any(
            isinstance(module, _BatchNorm) and module.training for module in self.module.modules()
        )

    @property
    def needs_pairs(self) -> bool:
        """Whether a replica's forward pass fails with a single example: by a BatchNorm that trains."""
        return any(
            isinstance(module, _BatchNorm)
            and module.training
            and not isinstance(module, torch.nn.SyncBatchNorm)
            for module in self.module.modules()
        )

    def take_stepped(self) -> bool:
        """Return whether an optimizer has stepped since the last call."""
        stepped, self.has_stepped = self.has_stepped, False
        self.is_on_all_replicas |= stepped
        return stepped

    def take_step(self, step: StepPlan) -> ModelStep:
        """Return this replica's norms of a finished step, for the ranks to add up."""
        norms = self.reducer.take_norms()
        self._unmeasured += step.size * (1 if norms is None else norms.num_manual)
        sums = self._reader.read(norms, step, self._scale, num_groups=self._metric.num_groups)
        if not sums.num_parts:
            # The same in most steps.
            if self._without_norms is None or self._without_norms.sums is not sums:
                self._without_norms = ModelStep(
                    sums=sums, update_noise=functools.partial(self.update_noise, 0)
                )
            return self._without_norms
        span, self._unmeasured = self._unmeasured, 0
        return ModelStep(sums=sums, update_noise=functools.partial(self.update_noise, span))

    def update_noise(self, span: int, sums: NormSums) -> None:
        """Update the noise scale by the sums of one step's norms; the step stands for `span` examples."""
        if not self.noise.update(
            parts_sum=sums.parts_sum,
            mean_sqr=sums.mean_sqr,
            num_examples=sums.num_examples,
            num_parts=sums.num_parts,
            drifts=sums.drifts,
            span=max(span, sums.num_examples),
        ):
            # The next measured step stands for these examples, too.
            self._unmeasured += span
        is_told = self._has_said_drifts or not self.reducer.measured.may_vary
        if self.noise.drifts and not is_told and self.noise.num_updates >= _SAID_AFTER:
            self._has_said_drifts = True
            _logger.warning(_DRIFTS, self.name)

    def leave_run(self) -> None:
        """Let go of the replicas' process group, between two steps."""
        self.reducer.leave_run()
        self._reader.begin_run()
        self._data_parallel.leave_group()

    def begin_run(self) -> None:
        """Go on with the replicas of the present process group."""
        group = self._data_parallel.join_group()
        self.reducer.begin_run(world_size=dist.get_world_size(group), group=group)
        self.comparison.begin_run()
        self._optimizer_states.begin_run()
        self.is_on_all_replicas = False

    # ------------------------------------------------------------------------------ checkpointed state

    def sync(self) -> None:
        """Compare the replicas' weights and optimizer states."""
        self.comparison.compare()
        self._optimizer_states.sync()

    def state_dict(self) -> dict[str, Any]:
        measured = self.reducer.measured
        state = {
            "model": self.module.state_dict(),
            "frozen": [name for name, p in self.module.named_parameters() if not p.requires_grad],
            "groups": [groups.state_dict() for groups in self._groups],
            "optimizers": self._optimizer_states.state_dicts(),
            "noise": self.noise.state_dict(),
            "measuring": [*measured.state(), self._unmeasured],
            "given": {"num_replicas": self._given.num_replicas, "rates": self._given_rates},
            "probes": [measured.whole_schedule.state(), measured.split_schedule.state()],
            **self._lr_schedulers.state_dict(),
        }
        if self._mp_scaler is not None:
            state["mp_scaler"] = self._mp_scaler.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._compare_rates(state.get("given"))
        self.module.load_state_dict(state["model"])
        self._frozen = set(state["frozen"])
        for groups, added in zip(self._groups, state["groups"], strict=True):
            groups.load_state_dict(added)
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            restore(optimizer, saved)
        self._optimizer_states.restored()
        self._metric.restored()
        self.noise.load_state_dict(state["noise"])
        measured = self.reducer.measured
        *counters, self._unmeasured = state.get("measuring", (0, 0, 0))
        measured.load_state(counters)
        for schedule, saved in zip(
            (measured.whole_schedule, measured.split_schedule), state.get("probes", ()), strict=False
        ):
            schedule.load_state(saved)
        self._lr_schedulers.load_state_dict(state)
        if self._mp_scaler is not None:
            self._mp_scaler.load_state_dict(state["mp_scaler"])
        self._unchanged = self._versions()

    def _compare_rates(self, saved: Mapping[str, Any] | None) -> None:
        """Compare the learning rates that the script gives with those it gave before."""
        if saved is None:
            return
        for index, (now, before) in enumerate(zip(self._given_rates, saved["rates"], strict=False)):
            for group, (own, other) in enumerate(zip(now, before, strict=False)):
                self._given.compare(
                    f"the learning rate of group {group} of {type(self.optimizers[index]).__name__}",
                    own,
                    other,
                    saved["num_replicas"],
                    cure="The global batch stays the same, and so does its rate: write lr=args.lr, without "
                    "world_size. A script that restores its optimizer itself leaves that out: the checkpoint "
                    "has its rate",
                    holds="the checkpoint's rate holds; to train on with another one, set "
                    "optimizer.param_groups[i]['lr'] after AdaptiveDataParallel(...)",
                )

    def _versions(self) -> list[tuple[torch.Tensor, int]]:
        """Return each parameter with a number that grows when it is written."""
        return [(parameter, parameter._version) for parameter in self.module.parameters()]

    def finish_restore(self) -> None:
        """Freeze parameters as at the checkpoint, once the script has made its model.

        The script may have frozen them in an epoch that does not run again. Raises `CheckpointError` where
        the checkpoint has more LR schedulers than the script, `UsageError` where the script has written the
        weights since they were wrapped: after a move it would do so again, over those of the checkpoint.
        """
        unchanged, self._unchanged = self._unchanged, []
        if any(parameter._version != version for parameter, version in unchanged):
            raise UsageError(
                f"the weights of {self.name!r} were changed after AdaptiveDataParallel(...), before the "
                "training loop: after each move that would overwrite what the job's checkpoint has restored. "
                "Load or initialize them before they are wrapped"
            )
        self._lr_schedulers.check_all_made(self.name)
        if self._frozen is not None:
            for name, parameter in self.module.named_parameters():
                parameter.requires_grad_(name not in self._frozen)
            self._frozen = None

    # ----------------------------------------------------------------------------- the patched methods

    def _unless_accumulating(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return None if self.reducer.is_accumulating else original(*args, **kwargs)

    def _scaled_step(
        self, original: Callable[..., Any], optimizer: Optimizer, *args: Any, **kwargs: Any
    ) -> Any:
        self.reducer.gradients.check_reduced()
        own = [index for index, one in enumerate(self.optimizers) if one is optimizer]
        if self.reducer.is_accumulating:
            self.reducer.steps_each = True
            for index in own:
                self.reducer.put_off(index)
            return None
        for index in own:
            # Also where it finds an overflow, and does not ask the optimizer to step.
            self.reducer.gradients.mark_used(index)
        result = original(optimizer, *args, **kwargs)
        self.reducer.gradients.stepped_in_batch.update(own)
        return result

    def _step(self, index: int, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.reducer.gradients.check_reduced()
        if self.reducer.is_accumulating:
            self.reducer.steps_each = True
            closure = args[0] if args else kwargs.get("closure")
            loss = None
            if closure is not None:
                with torch.enable_grad():  # as the optimizer would: the closure computes this gradient
                    loss = closure()
            self.reducer.put_off(index)
            return loss
        self.has_stepped = True
        self.reducer.gradients.mark_used(index)
        if self._mp_scaler is not None:
            # The factor of the scaled gradients, read without waiting for the device.
            self._scale = self._mp_scaler.scale(torch.ones((), device=self.device))
        self.last_gain = self.gain
        groups, factors = self.optimizers[index].param_groups, self._factors(index)
        if index == 0:
            self.last_factor = factors[0]
        self._metric.stepped(index)
        # Changed for this step only: the LR scheduler continues from its own value.
        own = [group["lr"] for group in groups]
        is_scaled = any(factor != 1.0 for factor in factors)
        self.num_stepping += 1
        try:
            if is_scaled:
                for group, rate, factor in zip(groups, own, factors, strict=True):
                    group["lr"] = rate * factor
            result = original(*args, **kwargs)
            self.reducer.gradients.stepped_in_batch.add(index)
            return result
        finally:
            self.num_stepping -= 1
            if is_scaled:
                for group, rate in zip(groups, own, strict=True):
                    group["lr"] = rate

    def _factors(self, index: int) -> list[float]:
        """Return the rule's factor for each group of an optimizer, by the gain of its own gradients."""
        first = sum(len(optimizer.param_groups) for optimizer in self.optimizers[:index])
        count = len(self.optimizers[index].param_groups)
        groups = self.noise.group_statistics()
        gains = [gain(group, self._batch_scale) for group in groups[first : first + count]]
        if len(groups) != self._metric.num_groups:
            gains = [self.last_gain] * count
        return [
            self._rules[index].factor_at(
                ScalingMoment(
                    scale=self._batch_scale,
                    gain=own,
                    progress=self._progress,
                    batch_size=self._batch_size,
                )
            )
            for own in gains
        ]

    def _zero_grad(self, index: int, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.reducer.zeroed(index, keeps_zeros=not (args[0] if args else kwargs.get("set_to_none", True)))
        return original(*args, **kwargs)


def _first_rates(optimizer: Optimizer) -> list[float]:
    """Return each group's learning rate as the script gave it, before a schedule."""
    return [float(group.get("initial_lr", group["lr"])) for group in optimizer.param_groups]
