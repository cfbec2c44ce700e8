"""`PolluxAccelerator`: accelerate's loop over adaptive loaders, steps and checkpoints."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.scheduler import AcceleratedScheduler
from accelerate.utils import DistributedType, GradientAccumulationPlugin, recursively_apply

from pollux_slurm.errors import UsageError
from pollux_slurm.huggingface.gathering import gather_objects, gather_rows
from pollux_slurm.huggingface.loaders import EvaluationLoader, TrainingLoader, make_training_loader
from pollux_slurm.torch.api.data_parallel import WHOLE_MODEL, AdaptiveDataParallel
from pollux_slurm.torch.api.option_names import refuse_unknown_options
from pollux_slurm.torch.api.state import State
from pollux_slurm.torch.scaling_rules import ScalingRule
from pollux_slurm.torch.session.current_session import current_session, has_session
from pollux_slurm.torch.start import init_process_group
from pollux_slurm.torch.wrapped_model.patching import patch

_PLAIN = (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU)
_ONE_CALL = "give a model, its optimizers and its training loader to one call of prepare()"


class PolluxAccelerator(Accelerator):
    """Make a training with Accelerate adaptive.

    The first `DataLoader` that `prepare` gets is the training loader. It becomes an `AdaptiveDataLoader`,
    whose micro-batches have at most the loader's batch size. Other loaders are for evaluation: each replica
    gets a share of each batch, and `gather_for_metrics` returns each example once, in order.

    A model that `prepare` gets together with its optimizers is wrapped in an `AdaptiveDataParallel`; one
    without is prepared for evaluation only. All other methods are those of `Accelerator`.

    Args:
        global_batch_size: The global batch size, in examples, on any number of GPUs. None: the loader's batch
            size times `gradient_accumulation_steps`.
        max_batch_size: The largest global batch size, in examples. None: it never changes.
        scaling_rule: Scales the learning rate with the batch. None: `SqrtScale` for Adam-like optimizers,
            else `AdaScale`.
        gradient_accumulation_steps: Of `Accelerator`: the batches of the loader that make one global batch.
        gradient_accumulation_plugin: Of `Accelerator`: its `num_steps` replaces the argument above.
        cpu: Of `Accelerator`: train on the CPU.
        **options: Further arguments of `Accelerator`.

    Raises:
        UsageError: Unknown options; DeepSpeed, FSDP and other ways to split a model.

    Examples:
        >>> accelerator = PolluxAccelerator(cpu=True, max_batch_size=128)
        >>> loader = torch.utils.data.DataLoader(dataset, batch_size=32, shuffle=True)
        >>> model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        >>> for inputs, targets in loader:
        ...     with accelerator.accumulate(model):
        ...         loss = loss_fn(model(inputs), targets)
        ...         accelerator.backward(loss)
        ...         optimizer.step()
        ...         optimizer.zero_grad()
        >>> accelerator.gather_for_metrics(torch.ones(3))
        tensor([1., 1., 1.])
        >>> accelerator.end_training()
    """

    def __init__(
        self,
        *,
        global_batch_size: int | None = None,
        max_batch_size: int | None = None,
        scaling_rule: ScalingRule | None = None,
        gradient_accumulation_steps: int = 1,
        gradient_accumulation_plugin: GradientAccumulationPlugin | None = None,
        cpu: bool = False,
        **options: Any,
    ) -> None:
        refuse_unknown_options("PolluxAccelerator", options, PolluxAccelerator.__init__, Accelerator.__init__)
        for name in ("deepspeed_plugin", "deepspeed_plugins", "fsdp_plugin", "megatron_lm_plugin"):
            _refuse_splitting(name, options.get(name))
        for name in ("parallelism_config", "torch_tp_plugin"):
            _refuse_splitting(name, options.get(name))
        if not has_session():
            init_process_group("gloo" if cpu else None)
        session = current_session()
        session.regrouping.refuse("Accelerate keeps the rank and the world size")
        if gradient_accumulation_plugin is not None:
            gradient_accumulation_steps = gradient_accumulation_plugin.num_steps
        elif (steps := os.environ.get("ACCELERATE_GRADIENT_ACCUMULATION_STEPS")) is not None:
            gradient_accumulation_steps = int(steps)
        super().__init__(
            # Without a GPU accelerate sees a group of processes only if told so.
            cpu=cpu or not torch.cuda.is_available(),
            # The loader splits batches. accelerate must neither divide losses nor count micro-batches.
            gradient_accumulation_plugin=GradientAccumulationPlugin(
                num_steps=1, adjust_scheduler=False, sync_with_dataloader=False
            ),
            **options,
        )
        if self.distributed_type not in _PLAIN or self.mixed_precision == "fp8":
            _refuse_splitting("the configuration", self.state)
        if (self.num_processes, self.process_index) != (session.world_size, session.rank):
            raise UsageError(
                f"accelerate has {self.num_processes} processes and the job {session.world_size}: make "
                "PolluxAccelerator (or call pollux_slurm.torch.init_process_group) before anything else of "
                "accelerate, and start the script with `pollux run`"
            )
        if self.dispatch_batches:
            raise UsageError("dispatch_batches: each replica loads its own share; leave it out")
        handler = self.ddp_handler
        if handler is not None and getattr(handler.comm_hook, "value", handler.comm_hook) != "no":
            raise UsageError("a communication hook: AdaptiveDataParallel has its own; leave it out")
        self._global_batch_size, self._max_batch_size = global_batch_size, max_batch_size
        self._scaling_rule = scaling_rule
        self._num_batches = gradient_accumulation_steps
        self.expects_training_loader = True
        self._num_registered = 0
        self._scheduled: list[int] = []

    # -------------------------------------------------------------------------------------------- preparing

    def prepare(self, *args: Any, device_placement: Sequence[bool | None] | None = None) -> Any:
        """Prepare models, optimizers, schedulers and loaders, in any order; return them in that order."""
        placements = [None] * len(args) if device_placement is None else list(device_placement)
        if len(placements) != len(args):
            raise UsageError(f"device_placement has {len(placements)} elements for {len(args)} objects")
        prepared: dict[int, Any] = {}
        fresh = [
            (one, placement)
            for one, placement in zip(args, placements, strict=True)
            if not getattr(one, "_is_accelerate_prepared", False) or _is_for_evaluation(one)
        ]
        optimizers = [one for one, _ in fresh if isinstance(one, torch.optim.Optimizer)]
        schedulers = [one for one, _ in fresh if _is_scheduler(one)]
        models = [(one, placement) for one, placement in fresh if isinstance(one, torch.nn.Module)]
        for model, placement in models:
            own = [optimizer for optimizer in optimizers if _steps(optimizer, model)]
            of_own = [one for one in schedulers if any(_optimizer_of(one) is other for other in own)]
            prepared[id(model)] = self._prepare_one_model(model, placement, own, of_own)
            self._scheduled += [id(one) for one in of_own]
        for optimizer in optimizers:
            prepared[id(optimizer)] = self.prepare_optimizer(optimizer)
        for scheduler in schedulers:
            prepared[id(scheduler)] = self.prepare_scheduler(scheduler)
        for one, placement in fresh:
            if isinstance(one, torch.utils.data.DataLoader):
                prepared[id(one)] = self.prepare_data_loader(one, placement)
        result = tuple(prepared.get(id(one), one) for one in args)
        return result if len(result) != 1 else result[0]

    def _prepare_one_model(
        self, model: Any, placement: bool | None, optimizers: list[Any], schedulers: list[Any]
    ) -> Any:
        if isinstance(model, AdaptiveDataParallel):
            raise UsageError("the model is in an AdaptiveDataParallel already: prepare() makes that itself")
        prepared = super().prepare_model(model, placement, evaluation_mode=True)
        if not optimizers:
            return prepared
        if self.scaler is not None and self._wrapped:
            raise UsageError("float16 with several models: use bfloat16, or wrap one module that has both")
        handler = self.ddp_handler
        wrapped = AdaptiveDataParallel(
            prepared,
            optimizers,
            schedulers,
            self.scaler,
            self._scaling_rule,
            **({} if handler is None else handler.to_kwargs()),
        )
        wrapped._is_accelerate_prepared = True  # type: ignore[assignment]
        # accelerate's autocast is within the model.
        wrapped._pollux.precision = {"fp16": "float16", "bf16": "bfloat16"}.get(self.mixed_precision)
        # accelerate keeps the model as it was before it was compiled.
        self._models[:] = [one for one in self._models if one is not model and one is not prepared]
        self._models.append(wrapped)
        return wrapped

    @property
    def _wrapped(self) -> list[AdaptiveDataParallel]:
        return [model for model in self._models if isinstance(model, AdaptiveDataParallel)]

    def prepare_model(
        self, model: Any, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> Any:
        """Prepare a model without an optimizer: for evaluation only."""
        del evaluation_mode
        return super().prepare_model(model, device_placement, evaluation_mode=True)

    def prepare_optimizer(self, optimizer: Any, device_placement: bool | None = None) -> Any:
        """Wrap an optimizer whose model was prepared with it."""
        del device_placement
        if getattr(optimizer, "_is_accelerate_prepared", False):
            return super().prepare_optimizer(optimizer)
        if not current_session().models.is_wrapped(optimizer):
            raise UsageError(
                f"{type(optimizer).__name__} has no model that was prepared with it: {_ONE_CALL}"
            )
        # Its states are where its parameters are. It gets the step that waits for whole batches.
        prepared = super().prepare_optimizer(optimizer, device_placement=False)
        patch(prepared, "step", self._step)
        prepared._is_accelerate_prepared = True
        if self.has_lomo_optimizer:
            raise UsageError("LOMO steps within the backward pass: use another optimizer")
        return prepared

    def prepare_scheduler(self, scheduler: Any) -> Any:
        """Wrap an LR scheduler, also one made after its optimizer was prepared."""
        if getattr(scheduler, "_is_accelerate_prepared", False):
            return scheduler
        optimizer = _optimizer_of(scheduler)
        own = [one for one in self._optimizers if one.optimizer is optimizer]
        if not own:
            raise UsageError(f"{type(scheduler).__name__}: its optimizer was not given to prepare()")
        if id(scheduler) not in self._scheduled:
            for model in self._wrapped:
                if _steps(optimizer, model):
                    model.add_lr_scheduler(scheduler)
        # `split_batches`: one step a batch. Else it would be stepped once for each process.
        prepared = AcceleratedScheduler(
            scheduler, own, step_with_optimizer=self.step_scheduler_with_optimizer, split_batches=True
        )
        prepared._is_accelerate_prepared = True
        self._schedulers.append(prepared)
        return prepared

    def prepare_data_loader(
        self, data_loader: Any, device_placement: bool | None = None, slice_fn_for_dispatch: Any = None
    ) -> Any:
        """Return the adaptive training loader of the first loader, and shares of an evaluation of others."""
        del slice_fn_for_dispatch
        if isinstance(data_loader, TrainingLoader | EvaluationLoader):
            return data_loader
        places = self.device_placement if device_placement is None else device_placement
        where: dict[str, Any] = {
            "device": self.device if places else None,
            "non_blocking": self.non_blocking,
        }
        if not self.expects_training_loader:
            return EvaluationLoader(data_loader, **where)
        self.expects_training_loader = False
        return make_training_loader(
            data_loader,
            batch_size=self._global_batch_size,
            num_batches=self._num_batches,
            max_batch_size=self._max_batch_size,
            seed=self.dataloader_config.data_seed,
            **where,
        )

    # --------------------------------------------------------------------------------------------- training

    def backward(self, loss: Any, **kwargs: Any) -> None:
        """Compute gradients, in a loop over the training loader."""
        if not isinstance(current_session().loops.outermost, TrainingLoader):
            raise UsageError(
                "a backward pass outside of a loop over the training loader, which is the first DataLoader "
                "that prepare() got: give it that one before those for evaluation"
            )
        if not self._wrapped:
            raise UsageError(f"no model was prepared with an optimizer: {_ONE_CALL}")
        self._check_schedulers()
        super().backward(loss, **kwargs)

    def _step(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if any(model.is_accumulating for model in self._wrapped):
            self._note_micro_batches()
        return original(*args, **kwargs)

    def _note_micro_batches(self) -> None:
        """Take note that the script knows micro-batches: it does not count them as its own batches."""
        for model in self._wrapped:
            model.note_micro_batches()

    @property
    def sync_gradients(self) -> bool:
        """True in the last micro-batch of a step."""
        self._note_micro_batches()
        return bool(self.gradient_state.sync_gradients)

    @sync_gradients.setter
    def sync_gradients(self, value: bool) -> None:
        self.gradient_state.sync_gradients = value

    def _check_schedulers(self) -> None:
        """Refuse an LR scheduler that `prepare` never got: it would step in each micro-batch, unsaved."""
        scheduled = {id(optimizer) for one in self._schedulers for optimizer in one.optimizers}
        for optimizer in self._optimizers:
            # A key that torch's schedulers set.
            if id(optimizer) not in scheduled and "initial_lr" in optimizer.param_groups[0]:
                raise UsageError(
                    f"{type(optimizer.optimizer).__name__} has an LR scheduler that was not given to "
                    "prepare(): scheduler = accelerator.prepare(scheduler)"
                )

    @property
    def gradient_accumulation_steps(self) -> int:
        """1: the loader splits global batches."""
        return 1

    @gradient_accumulation_steps.setter
    def gradient_accumulation_steps(self, steps: int) -> NoReturn:
        raise UsageError("gradient_accumulation_steps: give it to PolluxAccelerator(...)")

    @contextlib.contextmanager
    def accumulate(self, *models: Any) -> Iterator[None]:
        """Begin a micro-batch, for which the loader has set `sync_gradients`."""
        self._note_micro_batches()
        yield

    @contextlib.contextmanager
    def no_sync(self, model: Any) -> Iterator[None]:
        """Add up whole global batches, as `AdaptiveDataParallel.no_sync` does."""
        with model.no_sync() if isinstance(model, AdaptiveDataParallel) else contextlib.nullcontext():
            yield

    @contextlib.contextmanager
    def join_uneven_inputs(self, joinables: Any, even_batches: bool | None = None) -> Iterator[None]:
        """Do nothing: every replica gets equally many batches."""
        yield

    # ---------------------------------------------------------------------------------------------- results

    def _batch_owner(self) -> TrainingLoader | EvaluationLoader | None:
        """Return the loader whose batch the script has; None outside of their loops."""
        active = self.gradient_state.active_dataloader
        if isinstance(active, EvaluationLoader):
            return active
        loader = current_session().loops.outermost
        return loader if isinstance(loader, TrainingLoader) and loader.current_micro_batch_size else None

    def gather(self, tensor: Any) -> Any:
        """Gather from all replicas, which may have unequal numbers of rows; padding is left out."""
        owner = self._batch_owner()
        if owner is None:
            return super().gather(tensor)
        return gather_rows(tensor, num_rows=None, is_padding=owner.num_own_examples == 0)

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """Gather what belongs to each replica's own examples: each example once, in the batch's order."""
        owner = self._batch_owner()
        if owner is None:
            return super().gather_for_metrics(input_data, use_gather_object)
        count = owner.num_own_examples
        # Within a training loop the rows may be those of another loader's batch, which is not cut.
        num_rows = None if count and isinstance(owner, TrainingLoader) else count
        if use_gather_object or not _has_only_tensors(input_data):
            return gather_objects(input_data, num_rows=num_rows)
        return gather_rows(input_data, num_rows=num_rows, is_padding=count == 0)

    # ------------------------------------------------------------------------------------------ checkpoints

    def register_for_checkpointing(self, *objects: Any) -> None:
        """Put objects with `state_dict` and `load_state_dict` into the job's checkpoints; restore them."""
        super().register_for_checkpointing(*objects)
        for one in objects:
            _Registered(one, f"registered-{self._num_registered}")
            self._num_registered += 1

    def load_state(self, input_dir: Any = None, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse: a job goes on from its own checkpoints."""
        raise UsageError(
            "load_state: after a move the script is restored from the job's own checkpoint, to the sample. "
            "Leave load_state and skip_first_batches out; to begin with other weights, load them into the "
            "model before prepare()"
        )

    def skip_first_batches(self, dataloader: Any, num_batches: int = 0) -> Any:
        """Refuse for the training loader, which goes on at its position by itself."""
        if isinstance(dataloader, TrainingLoader):
            raise UsageError("skip_first_batches: the training loader goes on at its position by itself")
        return super().skip_first_batches(dataloader, num_batches)

    def end_training(self) -> None:
        """Finish the trackers. The process group ends with the process: a checkpoint may be under way."""
        for tracker in self.trackers:
            tracker.finish()
        self.wait_for_everyone()


class _Registered(State):
    """An object of the user's with `state_dict` and `load_state_dict`."""

    def __init__(self, one: Any, name: str) -> None:
        super().__init__(name)
        self._one = one

    def state_dict(self) -> Mapping[str, Any]:
        state: Mapping[str, Any] = self._one.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._one.load_state_dict(state)


def _is_for_evaluation(one: Any) -> bool:
    """Return whether it is a model without optimizers, which may get some later."""
    return isinstance(one, torch.nn.Module) and not isinstance(one, AdaptiveDataParallel)


def _is_scheduler(one: Any) -> bool:
    """Return whether it is an LR scheduler, of torch or with the same methods: it must be in checkpoints."""
    return not isinstance(one, torch.optim.Optimizer) and all(
        hasattr(one, name) for name in ("optimizer", "step", "state_dict", "load_state_dict")
    )


def _steps(optimizer: Any, model: Any) -> bool:
    """Return whether the optimizer has parameters of the model."""
    own = {id(parameter) for parameter in model.parameters()}
    return any(id(parameter) in own for group in optimizer.param_groups for parameter in group["params"])


def _optimizer_of(scheduler: Any) -> Any:
    optimizer = getattr(scheduler, "optimizer", None)
    while isinstance(optimizer, AcceleratedOptimizer):
        optimizer = optimizer.optimizer
    return optimizer


def _has_only_tensors(data: Any) -> bool:
    try:
        recursively_apply(lambda one: one, data, error_on_other_type=True)
    except TypeError:
        return False
    return True


def _refuse_splitting(name: str, value: Any) -> None:
    if value is not None:
        raise UsageError(f"{name} (DeepSpeed, FSDP, Megatron, tensor parallelism, fp8): {WHOLE_MODEL}")
