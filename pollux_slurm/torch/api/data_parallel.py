"""`AdaptiveDataParallel`: DistributedDataParallel that steps once for each global batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, SupportsIndex

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from pollux_slurm.errors import UsageError
from pollux_slurm.model import GradientStatistics
from pollux_slurm.torch.coordination.replica_comparison import WeightComparison
from pollux_slurm.torch.gradients.preconditioning import GradientMetric
from pollux_slurm.torch.gradients.reducer import GradientReducer
from pollux_slurm.torch.gradients.scaling_rules import ScalingRule, default_rule
from pollux_slurm.torch.measurement.tensorboard import ScalarWriter, write_scalars
from pollux_slurm.torch.session.current_session import current_session
from pollux_slurm.torch.wrapped_model.optimizer_states import OptimizerStates
from pollux_slurm.torch.wrapped_model.shape_check import ShapeCheck
from pollux_slurm.torch.wrapped_model.wrapped_model import WrappedModel

if TYPE_CHECKING:
    from pollux_slurm.torch.session.session import Session

_WRAPPERS = {"DistributedDataParallel", "DataParallel"}
_SHARDING = {"FullyShardedDataParallel", "FSDPModule", "DeepSpeedEngine"}
_ONE_WRAPPER = (
    "two of them would sum the gradients twice: leave the other wrapper out; with accelerate use "
    "pollux_slurm.huggingface.PolluxAccelerator"
)

WHOLE_MODEL = (
    "each replica needs the whole model, because a job that is moved changes its number of GPUs. If it fits "
    "on one GPU (by smaller micro-batches, bfloat16 or activation checkpointing), leave the sharding out; "
    "otherwise run it as an ordinary job, without pollux_slurm"
)
"""Why a model that is divided over the GPUs is refused, and what to do."""

# What `torch.nn.Module.__init__` would reset: the mode, hooks and submodules that a script has set.
_KEPT = tuple(torch.nn.Module().__dict__)
# Of torch.nn.functional.batch_norm, in torch 2.13.
_ONE_VALUE = "Expected more than 1 value per channel"
_LONE_EXAMPLE = (
    "a BatchNorm layer got a single example, as this replica's part of a global batch, and needs two to "
    "train. Where that is an epoch's short last batch, write AdaptiveDataLoader(..., drop_last=True). Else "
    "take a larger batch, or at most half as many GPUs as it has examples (pollux sbatch --max-gpus)"
)

_TWO_WRAPPERS = (
    "the optimizer was given to another AdaptiveDataParallel already, and would scale its learning rate once "
    "for each: give each model an optimizer of its own, or wrap one module that has both"
)


def _listed(given: Any) -> list[Any]:
    return [] if given is None else list(given) if isinstance(given, Sequence) else [given]


def _check_model(model: torch.nn.Module) -> None:
    """Refuse a model whose gradients cannot be reduced: divided, wrapped, sparse, or not on a GPU."""
    for module_name, module in model.named_modules():
        kinds = {kind.__name__ for kind in type(module).__mro__}
        if kinds & _WRAPPERS:
            wrapper = type(module).__name__
            raise UsageError(
                f"{module_name or 'the model'} is in a wrapper {wrapper} already; {_ONE_WRAPPER}"
            )
        own = module.parameters(recurse=False)
        if kinds & _SHARDING or any(type(one).__name__ == "DTensor" for one in own):
            raise UsageError(f"{module_name or 'the model'} is divided over the GPUs: {WHOLE_MODEL}")
        if isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag) and module.sparse:
            raise UsageError(f"{module_name or 'the model'}: sparse gradients; make it with sparse=False")
    if next(model.parameters()).device.type == "cpu" and dist.get_backend() == "nccl":
        raise UsageError(
            "the model is on the CPU, and NCCL reduces gradients on GPUs only: call model.cuda() before "
            "its optimizer is made, or init_process_group('gloo')"
        )


def _check_optimizers(optimizers: Sequence[Optimizer], model: torch.nn.Module) -> None:
    if not optimizers:
        raise UsageError("AdaptiveDataParallel needs the optimizer that steps the model")
    own = {id(parameter) for parameter in model.parameters()}
    for one in optimizers:
        if not hasattr(one, "param_groups"):
            raise UsageError(
                f"{type(one).__name__} is not an optimizer: "
                "AdaptiveDataParallel(model, optimizer, lr_scheduler)"
            )
        if any(kind.__name__ == "ZeroRedundancyOptimizer" for kind in type(one).__mro__):
            raise UsageError(
                "ZeroRedundancyOptimizer divides the parameters by the present ranks, so its state fits no "
                "other number of GPUs: give the optimizer itself, as torch.optim.AdamW(model.parameters())"
            )
        if own.isdisjoint(id(p) for group in one.param_groups for p in group["params"]):
            raise UsageError(
                f"{type(one).__name__} has none of the model's parameters, so it would not train: make "
                "the optimizer from model.parameters() after the model is made and moved to its device"
            )
    parameters = [id(p) for one in optimizers for group in one.param_groups for p in group["params"]]
    if len(set(parameters)) < len(parameters):
        raise UsageError(
            "a parameter is in two optimizers: give each its own part of the parameters; of an optimizer "
            "around another (SAM) give the one inside, which steps"
        )


def _wrapped_model(
    parallel: AdaptiveDataParallel,
    session: Session,
    *,
    name: str,
    optimizers: Sequence[Optimizer],
    lr_schedulers: Sequence[Any],
    mp_scaler: Any,
    scaling_rule: ScalingRule | None,
    parameters: Sequence[torch.Tensor],
    reduced: Sequence[torch.Tensor],
    exempt: Sequence[str],
) -> WrappedModel:
    """Return a model with its hook, and with what is compared over the replicas but for the `exempt` names.

    `reduced` are those of the trainable `parameters` that DDP has in its buckets.
    """
    # The original of a compiled model, so that its weights have the same names either way.
    model = getattr(parallel.module, "_orig_mod", parallel.module)
    side_channel, faults = session.side_channel, session.faults
    metric = GradientMetric(optimizers)
    reducer = GradientReducer(
        world_size=session.world_size,
        group=parallel.process_group,
        stamp=session.measurements.clock.stamp,
        metric=metric,
        parameters=parameters,
        reduced=reduced,
        finds_unused=parallel.find_unused_parameters or parallel.static_graph,
    )
    return WrappedModel(
        name=name,
        model=model,
        optimizers=optimizers,
        lr_schedulers=lr_schedulers,
        mp_scaler=mp_scaler,
        rules=[scaling_rule or default_rule(type(one).__name__) for one in optimizers],
        metric=metric,
        reducer=reducer,
        shape=ShapeCheck(
            model, name=name, gradients=reducer.gradients, side_channel=side_channel, faults=faults
        ),
        comparison=WeightComparison(
            model, known=reduced, exempt=exempt, side_channel=side_channel, faults=faults
        ),
        optimizer_states=OptimizerStates(
            optimizers,
            model,
            exempt=exempt,
            side_channel=side_channel,
            faults=faults,
            on_spread=session.regrouping.refuse,
        ),
        epoch_key=lambda: session.progress_state.epoch_key,
        data_parallel=parallel,
        given=session.given,
    )


class CopiedModel(torch.nn.Module):
    """A copy of an `AdaptiveDataParallel`'s model, with the same names of its weights.

    It has no optimizer and does not communicate: it can be called on one replica alone.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Call the model."""
        return self.module(*inputs, **kwargs)


class AdaptiveDataParallel(DistributedDataParallel):
    """Wrap a model with its optimizers, LR schedulers and gradient scaler, and restore them after a restart.

    While an `AdaptiveDataLoader` yields the micro-batches of one global batch, `optimizer.step`,
    `lr_scheduler.step` and `mp_scaler.step`, `update` and `unscale_` take effect after the last one only. So
    the loop is the plain one: zero_grad, forward, backward, step, for each micro-batch.

    An optimizer that steps the model and was not given is refused at its first step. Where an optimizer keeps
    each parameter's state on one replica, checkpoints have all of it. The weights are compared over the
    replicas now and then.

    A copy (`copy.deepcopy`, `torch.save`, `AveragedModel`) is a `CopiedModel`: it takes no part in training.

    Args:
        model: The model, on this replica's device.
        optimizer: The model's optimizer; a list where each has its own part of the parameters.
        lr_scheduler: The LR scheduler, a list of several, or None.
        mp_scaler: The gradient scaler of mixed precision, such as `torch.amp.GradScaler`; None without one.
        scaling_rule: Scales the learning rate with the batch. None: `SqrtScale` for Adam-like optimizers,
            else `AdaScale`.
        name: Its name in checkpoints; None: one by the order in which models are wrapped.
        exempt_from_comparison: Names of parameters or modules that may differ between replicas.
        **ddp_options: Further arguments of `torch.nn.parallel.DistributedDataParallel`.

    Raises:
        UsageError: The model has sparse gradients, is on the CPU under NCCL, or is wrapped already; an
            optimizer is a `ZeroRedundancyOptimizer`, or another wrapped model has it. In `forward`: another
            data-parallel wrapper is around it.

    Examples:
        >>> model = pollux.AdaptiveDataParallel(model, optimizer)
        >>> loader = pollux.AdaptiveDataLoader(dataset, batch_size=32, shuffle=True)
        >>> for epoch in pollux.remaining_epochs_until(2):
        ...     for inputs, targets in loader:
        ...         optimizer.zero_grad()
        ...         loss_fn(model(inputs), targets).backward()
        ...         optimizer.step()
        >>> model.gain  # the batch is the initial one
        1.0
    """

    # Whether `no_sync`, or a framework in a forward pass, sets `require_backward_grad_sync`, not the script.
    _is_set_within = False

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        lr_scheduler: Any | Sequence[Any] = None,
        mp_scaler: Any = None,
        scaling_rule: ScalingRule | None = None,
        *,
        name: str | None = None,
        exempt_from_comparison: Sequence[str] = (),
        **ddp_options: Any,
    ) -> None:
        session, optimizers = current_session(), _listed(optimizer)
        if isinstance(mp_scaler, str):
            raise UsageError(
                f"mp_scaler={mp_scaler!r} is not a gradient scaler: give a name as name={mp_scaler!r}"
            )
        _check_optimizers(optimizers, model)
        if any(session.models.is_wrapped(one) for one in optimizers):
            raise UsageError(_TWO_WRAPPERS)
        _check_model(model)
        ddp_options.setdefault("gradient_as_bucket_view", True)
        if session.regrouping.is_joining:
            # Nobody is there to compare with, and the weights are still to come.
            ddp_options["init_sync"] = False
        super().__init__(model, **ddp_options)
        self._ddp_options = ddp_options
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self._trainable = [parameter for name, parameter in named if name not in self.parameters_to_ignore]
        self._pollux = _wrapped_model(
            self,
            session,
            name=name or session.next_default_name("model"),
            optimizers=optimizers,
            lr_schedulers=_listed(lr_scheduler),
            mp_scaler=mp_scaler,
            scaling_rule=scaling_rule,
            parameters=[parameter for _, parameter in named],
            reduced=self._trainable,
            exempt=[*exempt_from_comparison, *self.parameters_to_ignore],
        )
        self._regrouping = session.regrouping
        self.register_comm_hook(None, self._pollux.reducer.hook)
        session.add_model(self._pollux)

    def leave_group(self) -> None:
        """Let go of the process group. For the package's own use, between two steps."""
        for name in ("reducer", "logger", "process_group"):
            setattr(self, name, None)

    def join_group(self) -> dist.ProcessGroup:
        """Reduce gradients over the present default group from now on, and return it.

        For the package's own use. The weights of all replicas must be the same.
        """
        kept = {name: self.__dict__[name] for name in _KEPT}
        frozen = [parameter for parameter in self._trainable if not parameter.requires_grad]
        # The buckets must be the same on all replicas, whatever each has frozen by now.
        for parameter in frozen:
            parameter.requires_grad_(True)
        super().__init__(self.module, **{**self._ddp_options, "init_sync": False})
        for parameter in frozen:
            parameter.requires_grad_(False)
        self.__dict__.update(kept)
        self.register_comm_hook(None, self._pollux.reducer.hook)
        group: dist.ProcessGroup = self.process_group
        return group

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Call the model. Raises `UsageError` from within another data-parallel wrapper."""
        if getattr(DistributedDataParallel, "_active_ddp_module", None) is not None:
            raise UsageError(f"DistributedDataParallel is around AdaptiveDataParallel; {_ONE_WRAPPER}")
        if torch.is_grad_enabled():
            current_session().same_calls.begin_step()
            self._pollux.begin_forward()
        elif not self.training and self.will_sync_module_buffers():  # type: ignore[no-untyped-call]
            current_session().same_calls.evaluate()
        self._pollux.reducer.begin_forward()
        before = self._pollux.shape.before_forward()
        output = self._forward(*inputs, **kwargs)
        self._pollux.shape.after_forward(before, output)
        self._pollux.reducer.end_forward(output)
        return output

    def _forward(self, *inputs: Any, **kwargs: Any) -> Any:
        replay = self._regrouping.replay
        has_buffers = self.broadcast_buffers and len(self.modules_buffers) > 0
        watched = (
            replay.forward(has_gradients=torch.is_grad_enabled(), has_buffers=has_buffers)
            if replay.watches
            else nullcontext()
        )
        self._is_set_within = True
        try:
            with watched:
                return super().forward(*inputs, **kwargs)  # type: ignore[no-untyped-call]
        except ValueError as error:
            loader = current_session().loops.outermost
            if str(error).startswith(_ONE_VALUE) and loader is not None and loader.current_share < 1.0:
                raise UsageError(_LONE_EXAMPLE) from error
            raise
        finally:
            self._is_set_within = False

    def _replicate_for_data_parallel(self) -> Any:
        raise UsageError(f"DataParallel is around AdaptiveDataParallel; {_ONE_WRAPPER}")

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        # Used by `copy` and `pickle`. `training` keeps the mode that `eval()` or `train()` has set.
        return CopiedModel, (self.module,), {"training": self.training}

    @property
    def gain(self) -> float:
        """The progress of the present step, in units of M0 (1 at the initial batch size)."""
        return self._pollux.gain

    def to_tensorboard(self, writer: ScalarWriter, global_step: int, tag_prefix: str = "") -> None:
        """Write the measurements to a TensorBoard writer.

        Args:
            writer: A `SummaryWriter`, or another object with its `add_scalar`.
            global_step: The step at which they are written.
            tag_prefix: What their names begin with.

        Examples:
            >>> class Printer:
            ...     def add_scalar(self, tag, value, global_step):
            ...         print(tag, value, global_step)
            >>> model = pollux.AdaptiveDataParallel(model, optimizer)
            >>> model.to_tensorboard(Printer(), pollux.finished_steps(), "train/")  # doctest: +ELLIPSIS
            train/...
        """
        statistics = self.statistics
        scalars = {
            "Gradient_Norm_Sqr": None if statistics is None else statistics.sqr,
            "Gradient_Variance": None if statistics is None else statistics.var,
            "Gain": self.gain,
            "Learning_Rate_Factor": self._pollux.last_factor,
            "Progress": current_session().progress_state.progress,
        }
        write_scalars(writer, scalars, global_step, tag_prefix)

    @property
    def statistics(self) -> GradientStatistics | None:
        """The smoothed gradient statistics at the initial batch size; None before they were measured.

        Those of preconditioned gradients where the optimizer is Adam-like.
        """
        return self._pollux.noise.statistics()

    @property
    def noise_source(self) -> str | None:
        """From what `statistics` are: "parts of a step", or "consecutive steps", which overestimate
        the noise.

        None before they were measured.
        """
        return self._pollux.noise.source

    @property
    def group_statistics(self) -> tuple[GradientStatistics, ...]:
        """The same of each of the optimizer's parameter groups; empty before they were measured."""
        return self._pollux.noise.group_statistics()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate manually, as with `DistributedDataParallel`: backward passes inside reduce nothing.

        It has no effect where the loader itself splits a global batch into micro-batches.

        Examples:
            >>> model = pollux.AdaptiveDataParallel(model, optimizer)
            >>> for number, (inputs, targets) in enumerate(pollux.AdaptiveDataLoader(dataset, batch_size=32)):
            ...     if number % 2 == 0:
            ...         with model.no_sync():
            ...             loss_fn(model(inputs), targets).backward()
            ...     else:
            ...         loss_fn(model(inputs), targets).backward()
            ...         optimizer.step()
            >>> pollux.finished_steps()
            1
        """
        reducer = self._pollux.reducer
        if reducer.is_split:
            yield
            return
        reducer.begin_manual_accumulation()
        self._is_set_within = True
        try:
            with super().no_sync():
                yield
            reducer.end_manual_micro_batch()
        finally:
            self._is_set_within = False
            reducer.end_manual_accumulation()

    @property
    def require_backward_grad_sync(self) -> bool:
        """Whether a backward pass reduces gradients: False within `no_sync`, or while a script says so."""
        return self._reduces

    @require_backward_grad_sync.setter
    def require_backward_grad_sync(self, value: bool) -> None:
        reducer = self._pollux.reducer if "_pollux" in self.__dict__ else None
        if reducer is None or self._is_set_within:
            self._reduces = value
            return
        # Where the loader splits a batch it decides when to reduce.
        self._reduces = value or reducer.is_split
        if reducer.is_manual is not self._reduces:
            return
        if not self._reduces:
            reducer.begin_manual_accumulation()
            return
        try:
            reducer.end_manual_micro_batch()
        finally:
            reducer.end_manual_accumulation()

    @property
    def is_accumulating(self) -> bool:
        """True in a micro-batch after which the optimizer does not step yet. For the package's own use."""
        return self._pollux.reducer.is_accumulating

    def note_micro_batches(self) -> None:
        """Take note that the script steps by micro-batches, not by a count. For the package's own use."""
        self._pollux.reducer.steps_each = True

    def average_over(self, num_items: float) -> float | None:
        """Count the present micro-batch's loss as a mean over `num_items`, such as tokens, not its examples.

        The step's gradient is then the mean over all items of the global batch, however they are spread. Call
        it before `backward`, on each replica, in each micro-batch of the step or in none.

        Args:
            num_items: The number of items in this replica's micro-batch. Padding counts as none.

        Returns:
            In the step's last micro-batch the number of items of the global batch, else None.

        Examples:
            >>> model = pollux.AdaptiveDataParallel(model, optimizer)
            >>> for inputs, targets in pollux.AdaptiveDataLoader(dataset, batch_size=32):
            ...     loss = loss_fn(model(inputs), targets)  # a mean over inputs.numel() items
            ...     num_items = model.average_over(inputs.numel())
            ...     loss.backward()
            ...     optimizer.step()
            >>> num_items
            128.0
        """
        return self._pollux.reducer.average_over(num_items)

    def add_lr_scheduler(self, lr_scheduler: Any) -> None:
        """Add an LR scheduler that was made later than this wrapper, and restore it.

        One that an epoch makes belongs to that epoch: a restart in a later one does not expect it.

        Args:
            lr_scheduler: The LR scheduler, of one of the wrapper's optimizers.

        Examples:
            >>> model = pollux.AdaptiveDataParallel(model, optimizer)
            >>> model.add_lr_scheduler(torch.optim.lr_scheduler.StepLR(optimizer, step_size=10))
        """
        self._pollux.add_lr_scheduler(lr_scheduler)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Zero the gradients of all parameters.

        Args:
            set_to_none: Set them to None instead of to tensors of zeros.

        Examples:
            >>> model = pollux.AdaptiveDataParallel(model, optimizer)
            >>> model.zero_grad()
        """
        super().zero_grad(set_to_none)
        self._pollux.reducer.zeroed()
