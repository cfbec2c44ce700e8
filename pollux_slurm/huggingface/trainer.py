"""`PolluxTrainer`: transformers' Trainer over adaptive loaders, steps and checkpoints."""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import torch
import transformers
from torch.optim.lr_scheduler import ReduceLROnPlateau
from transformers import Seq2SeqTrainer, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint, has_length

from pollux_slurm.errors import UsageError
from pollux_slurm.huggingface.accelerator import PolluxAccelerator
from pollux_slurm.huggingface.arguments import adapted_arguments, check_arguments
from pollux_slurm.huggingface.loaders import TrainingLoader
from pollux_slurm.huggingface.progress import ProgressKeeper, TrainerProgress
from pollux_slurm.huggingface.steps import StepBatch, StepLoader
from pollux_slurm.torch.api.option_names import refuse_unknown_options
from pollux_slurm.torch.scaling_rules import ScalingRule
from pollux_slurm.torch.session.current_session import current_session, has_session
from pollux_slurm.torch.start import init_process_group
from pollux_slurm.trackers.transformers_callback import PolluxMonitor

_LOG = logging.getLogger(__name__)
# Methods of Trainer that are overridden here though they are not public: read in 5.3, which has introduced
# the first four, and in 5.23.
_NEEDED = (
    "_init_training_state",
    "_prepare_for_training",
    "_run_epoch",
    "_finalize_training",
    "_build_accelerator_args",
    "_maybe_log_save_evaluate",
    "_evaluate",
    "_track_num_input_tokens",
)

# Schedulers that Trainer steps with a metric. The second one is not in 5.3.
_STEPPED_BY_METRIC = (
    ReduceLROnPlateau,
    getattr(transformers.optimization, "GreedyLR", ReduceLROnPlateau),
)
# What Trainer does after an evaluation that follows a step: of its control.
_AFTER_EVALUATION = ("should_save", "should_epoch_stop", "should_training_stop")

if TYPE_CHECKING:
    _Base = Any
else:
    _Base = object


class PolluxTrainerMixin(_Base):
    """Make a `Trainer` adaptive: `class Mine(PolluxTrainerMixin, Seq2SeqTrainer)`.

    A step is one optimizer step, of one global batch, on any number of GPUs.
    `args.per_device_train_batch_size` is the largest micro-batch.

    Args:
        model: The Trainer's model.
        *given: The Trainer's further arguments, in its own order.
        global_batch_size: The global batch size, in examples. None: `per_device_train_batch_size` times
            `gradient_accumulation_steps`.
        max_batch_size: The largest global batch size, in examples. None: it never changes.
        scaling_rule: Scales the learning rate with the batch. None: `SqrtScale` for Adam-like optimizers,
            else `AdaScale`.
        **options: The Trainer's arguments by name.

    Raises:
        UsageError: Arguments that cannot be right in a job that is moved, and unknown ones.

    Examples:
        >>> class Mine(PolluxTrainerMixin, Trainer):
        ...     def items_in_batch(self, inputs):
        ...         return int((inputs["labels"] != -100).sum())
        >>> arguments = TrainingArguments(
        ...     "out", per_device_train_batch_size=32, use_cpu=True, report_to="none"
        ... )
        >>> trainer = Mine(model=model, args=arguments, train_dataset=dataset)
    """

    # Trainer's own, which has no types here.
    control: Any
    lr_scheduler: Any
    optimizer: Any
    training_step: Any

    def __init__(
        self,
        model: Any = None,
        *given: Any,
        global_batch_size: int | None = None,
        max_batch_size: int | None = None,
        scaling_rule: ScalingRule | None = None,
        **options: Any,
    ) -> None:
        missing = [name for name in _NEEDED if not hasattr(self, name)]
        if missing:
            raise UsageError(
                f"transformers {transformers.__version__} has no Trainer.{missing[0]}: install 5.3 or later"
            )
        base = super().__init__
        if not any(one.kind is one.VAR_KEYWORD for one in inspect.signature(base).parameters.values()):
            refuse_unknown_options(type(self).__name__, options, PolluxTrainerMixin.__init__, base)
        # Each Trainer has an order of its own, such as trl's DPOTrainer(model, ref_model, args).
        order = _positional(base)
        named = _named(type(self).__name__, order, (model, *given), options)
        args = named.get("args")
        if args is None and order[1] != "args":
            raise UsageError(f"{type(self).__name__} needs its training arguments: args=...")
        if args is None:
            args = TrainingArguments(output_dir="tmp_trainer")
        check_arguments(args)
        if not has_session():
            init_process_group("gloo" if args.use_cpu else None)
        current_session().regrouping.refuse("the Trainer keeps the rank and the world size")
        self._batching = {
            "global_batch_size": global_batch_size,
            "max_batch_size": max_batch_size,
            "scaling_rule": scaling_rule,
            "gradient_accumulation_steps": args.gradient_accumulation_steps,
        }
        self.steps: StepLoader | None = None
        self.progress: TrainerProgress | None = None
        super().__init__(**{**named, "args": adapted_arguments(args)})
        if self.label_smoother is not None and not hasattr(self, "_loss_shifts_labels"):
            raise UsageError("label_smoothing_factor: install a later transformers, which counts its tokens")
        self._has_ctc_loss = type(self.model).__name__.endswith("ForCTC")
        if self._has_ctc_loss and getattr(self.model.config, "ctc_loss_reduction", None) == "sum":
            raise UsageError(
                'ctc_loss_reduction="sum": a step would depend on the number of GPUs. Set '
                'model.config.ctc_loss_reduction = "mean"'
            )
        # Before the callbacks that report.
        self.callback_handler.callbacks.sort(key=lambda one: not isinstance(one, PolluxMonitor))
        self.callback_handler.callbacks.insert(0, ProgressKeeper(self))

    # ------------------------------------------------------------------------------------------ accelerator

    def _build_accelerator_args(self, **kwargs: Any) -> dict[str, Any]:
        options: dict[str, Any] = super()._build_accelerator_args(**kwargs)
        self._accelerator_options = options
        return options

    def create_accelerator_and_postprocess(self) -> None:
        """Make the accelerator: Trainer's own first, whose options are then those of the adaptive one."""
        super().create_accelerator_and_postprocess()
        options = self._accelerator_options
        del options["gradient_accumulation_plugin"]
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        options["dataloader_config"].data_seed = seed
        self.accelerator = PolluxAccelerator(**options, **self._batching)
        # Until `train`, all loaders are for evaluation.
        self.accelerator.expects_training_loader = False
        self.gather_function = functools.partial(
            self.accelerator.gather_for_metrics, use_gather_object=self.args.eval_use_gather_object
        )

    # --------------------------------------------------------------------------------------------- training

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Train, or go on after a move."""
        session = current_session()
        if self.progress is not None:
            raise UsageError("train() twice in one job: submit another job for another training")
        if trial is not None:
            raise UsageError("hyperparameter_search: submit a job for each trial")
        self._check_resume(resume_from_checkpoint)
        self.accelerator.expects_training_loader = True
        # Around the class's own method, which may be the user's: that one gets micro-batches as usual.
        self.training_step = functools.partial(self._train_whole_step, self.training_step)
        try:
            return super().train(None, None, ignore_keys_for_eval, **kwargs)
        except BaseException:
            if session.progress_state.epoch is not None and not session.is_closed:
                session.epochs.leave(by_break=False)
            raise
        finally:
            del self.training_step
            self.accelerator.expects_training_loader = False

    def hyperparameter_search(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse: a job has one training."""
        raise UsageError("hyperparameter_search: submit a job for each trial")

    def _check_resume(self, given: str | bool | None) -> None:
        """Refuse to begin with a checkpoint of Trainer's; one of the job's own training is ignored."""
        if not given:
            return
        session = current_session()
        if session.is_resumed:
            _LOG.info("resume_from_checkpoint is not used: the job goes on from its own, newer checkpoint")
        elif session.run_number > 0:
            _LOG.warning(
                "resume_from_checkpoint is not used: the job was stopped before its own first checkpoint, "
                "and begins anew"
            )
        elif given is not True or get_last_checkpoint(self.args.output_dir) is not None:
            raise UsageError(
                "resume_from_checkpoint: a job goes on from its own checkpoints, without that argument. To "
                "begin with the weights of another training, make the model with from_pretrained(folder); to "
                "begin anew, choose another output_dir"
            )

    def set_initial_training_values(self, args: Any, dataloader: Any, *further: Any) -> Any:
        """Count the steps of an epoch, which are its global batches."""
        if isinstance(dataloader, TrainingLoader):
            dataloader = StepLoader(dataloader)
        return super().set_initial_training_values(args, dataloader, *further)

    def get_total_train_batch_size(self, args: Any) -> int:
        """Return the global batch size, by which Trainer tells how many examples `max_steps` steps have."""
        own: int = args.train_batch_size * self._batching["gradient_accumulation_steps"]
        return self._batching["global_batch_size"] or own

    def _init_training_state(
        self,
        max_steps: int,
        num_update_steps_per_epoch: int,
        num_train_epochs: int,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[int, int]:
        super()._init_training_state(max_steps, num_update_steps_per_epoch, num_train_epochs, *args, **kwargs)
        session = current_session()
        self.batches_in_epoch = num_update_steps_per_epoch
        # Restores `self.state`.
        self.progress = TrainerProgress(self)
        if self.progress.batches > 0:
            self.args.eval_on_start = False
        if num_train_epochs < sys.maxsize:
            session.epochs.declare(num_train_epochs)
        if self.progress.is_stopped:
            return num_train_epochs, 0
        return min(session.progress_state.finished_epochs, num_train_epochs), 0

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(train_dataloader, TrainingLoader):
            raise UsageError(
                "get_train_dataloader() must return self.accelerator.prepare(loader), before any other "
                "loader is prepared"
            )
        self.steps = StepLoader(train_dataloader)
        self._knows_length = has_length(self.steps)
        self.create_optimizer_and_scheduler(num_training_steps=max_steps)
        # Trainer makes another scheduler, after it has prepared the model, unless this one is the user's.
        self._created_lr_scheduler = False
        parts: list[Any] = [self.model, self.optimizer]
        if isinstance(self.lr_scheduler, _STEPPED_BY_METRIC):
            # Stepped after evaluations only, which a restart may make again: each counts.
            self.accelerator.register_for_checkpointing(self.lr_scheduler)
        else:
            parts.append(self.lr_scheduler)
        self.model_wrapped, self.optimizer, *_ = self.accelerator.prepare(*parts)
        model, _ = super()._prepare_for_training(max_steps, train_dataloader, *args, **kwargs)
        return model, self.steps

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        assert self.steps is not None
        assert self.progress is not None
        session = current_session()
        is_resumed = self.progress.batches_in_epoch > 0
        session.epochs.begin()
        if self.progress.evaluation_after_step is not None:
            self._evaluate_again(**kwargs)
        is_left = self.control.should_epoch_stop or self.control.should_training_stop
        if not is_left and (self.steps.begin() or not is_resumed):
            super()._run_epoch(*args, **kwargs)
        else:
            self._end_epoch_again(**kwargs)
        # As a restart finds it: an evaluation has left it in the other mode.
        self.model_wrapped.train()
        self.progress.is_stopped = self.control.should_training_stop
        if self.progress.is_stopped and not self.has_whole_epoch:
            session.epochs.leave(by_break=True)
        else:
            self.progress.batches_in_epoch = 0
            session.epochs.end()

    @property
    def has_whole_epoch(self) -> bool:
        """True once the epoch under way has used all of its examples; False where its length is not known."""
        assert self.progress is not None
        return self._knows_length and self.progress.batches_in_epoch >= self.batches_in_epoch

    def _evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate between two steps, where a checkpoint is possible: a restart then evaluates again."""
        assert self.steps is not None
        assert self.progress is not None
        if self.steps.is_in_step:
            self.progress.evaluation_after_step = {
                name: getattr(self.control, name) for name in _AFTER_EVALUATION
            }
        with self.progress.evaluating():
            if self.steps.is_in_step:
                self.steps.end_step()
                current_session().loops.pause()
            return super()._evaluate(*args, **kwargs)

    def _evaluate_again(self, **kwargs: Any) -> None:
        """Evaluate as Trainer does after a step: the move came in that evaluation."""
        assert self.progress is not None
        for name, value in (self.progress.evaluation_after_step or {}).items():
            setattr(self.control, name, value)
        self.control.should_evaluate = True
        self._log_save_evaluate_again(**kwargs)

    def _end_epoch_again(self, **kwargs: Any) -> None:
        """Do what Trainer does after an epoch's loop: the move came between that and the epoch's end."""
        self.control = self.callback_handler.on_epoch_end(self.args, self.state, self.control)
        self._log_save_evaluate_again(**kwargs)

    def _log_save_evaluate_again(
        self,
        *,
        model: Any,
        epoch: int,
        trial: Any,
        ignore_keys_for_eval: Any,
        start_time: float,
        **kwargs: Any,
    ) -> None:
        self._maybe_log_save_evaluate(
            self._tr_loss, None, model, trial, epoch, ignore_keys_for_eval, start_time, learning_rate=None
        )

    def _finalize_training(self, trial: Any, num_train_samples: int, start_time: float) -> Any:
        assert self.progress is not None
        session = current_session()
        # A callback may have stopped this replica alone.
        session.epochs.leave_together()
        if session.progress_state.epoch is None:
            session.epochs.finish()
        self._tr_loss.copy_(self.accelerator.reduce(self._tr_loss, "mean"))
        return super()._finalize_training(trial, num_train_samples, start_time - self.progress.runtime_s)

    # ---------------------------------------------------------------------------------------------- one step

    @property
    def is_padding(self) -> bool:
        """True while the training loop's micro-batch is padding: it belongs to no example."""
        return self.steps is not None and self.steps.loader.is_padding

    def items_in_batch(self, inputs: Any) -> int | None:
        """Return of how many items the loss of these inputs is the mean; None: of its examples.

        By default the labels that are not −100, where labels are whole numbers: tokens, or examples with a
        class each. A CTC loss is a mean over examples. Override it for a mean over something else.

        Args:
            inputs: The model's inputs by name, of this replica's micro-batch.
        """
        if self._has_ctc_loss:
            return None
        labels = inputs.get("shift_labels", inputs.get("labels"))
        if not isinstance(labels, torch.Tensor) or labels.is_floating_point() or labels.ndim == 0:
            return None
        if "shift_labels" not in inputs and getattr(self, "_loss_shifts_labels", False):
            labels = labels[..., 1:]
        return int(labels.ne(-100).sum())

    def _train_whole_step(self, train_micro_batch: Any, model: Any, step: StepBatch, *further: Any) -> Any:
        """Train on each micro-batch; return this replica's part of the step's loss.

        The mean over the replicas of what is returned is the mean over the items of the global batch.
        """
        del further
        loader, loss, total = step.loader, torch.zeros((), device=self.args.device), 1.0
        passes_items = self.model_accepts_loss_kwargs or self.compute_loss_func is not None
        for inputs in step.micro_batches():
            items = self.items_in_batch(inputs)
            weight = loader.current_share
            num_items = None
            if items is not None:
                weight = float(items)
                total = model.average_over(weight) or total
                if passes_items:
                    # Of no items the loss is then 0, not 0/0.
                    num_items = torch.tensor(max(items, 1), device=self.args.device)
            self._count_inputs(inputs, is_padding=loader.is_padding)
            own = train_micro_batch(model, inputs, num_items)
            if weight > 0 and not loader.is_padding:
                loss += own * weight
            if not loader.is_stepping:
                self.control = self.callback_handler.on_substep_end(self.args, self.state, self.control)
        return loss * (self.accelerator.num_processes / total)

    def _count_inputs(self, inputs: Any, *, is_padding: bool) -> None:
        if is_padding:
            inputs = {
                name: value[:0] if isinstance(value, torch.Tensor) else value
                for name, value in inputs.items()
            }
        self.current_flos += float(self.floating_point_ops(inputs))
        super()._track_num_input_tokens(inputs)

    def _track_num_input_tokens(self, inputs: Any) -> None:
        """Do nothing for a whole step: its micro-batches were counted."""


def _positional(base: Callable[..., Any]) -> list[str]:
    """Return the names of a Trainer's positional arguments; transformers' own where it passes them on."""
    for taker in (base, functools.partial(Trainer.__init__, None)):
        parameters = inspect.signature(taker).parameters.values()
        names = [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
        if "args" in names:
            break
    return names


def _named(owner: str, order: list[str], given: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
    """Return all arguments by name."""
    if len(given) > len(order):
        raise TypeError(f"{owner} takes {len(order)} positional arguments, and {len(given)} were given")
    named = dict(zip(order, given, strict=False))
    if twice := sorted(named.keys() & options.keys()):
        raise TypeError(f"{owner} got multiple values for argument {twice[0]!r}")
    return named | options


class PolluxTrainer(PolluxTrainerMixin, Trainer):
    """Train as transformers' `Trainer` does, adaptively. `PolluxTrainerMixin` says how.

    Args:
        model: The Trainer's model.
        *given: The Trainer's further arguments, in its own order.
        global_batch_size: The global batch size, in examples.
        max_batch_size: The largest global batch size, in examples. None: it never changes.
        scaling_rule: Scales the learning rate with the batch size.
        **options: The Trainer's arguments by name.

    Raises:
        UsageError: Arguments that cannot be right in a job that is moved, and unknown ones.

    Examples:
        >>> arguments = TrainingArguments(
        ...     "out", num_train_epochs=1, per_device_train_batch_size=32, use_cpu=True, report_to="none"
        ... )
        >>> trainer = PolluxTrainer(model=model, args=arguments, train_dataset=dataset, max_batch_size=128)
        >>> trainer.train().global_step  # doctest: +ELLIPSIS
        {...
        2
    """


class PolluxSeq2SeqTrainer(PolluxTrainerMixin, Seq2SeqTrainer):
    """Train as transformers' `Seq2SeqTrainer` does, adaptively. `PolluxTrainerMixin` says how.

    Args:
        model: The Trainer's model.
        *given: The Trainer's further arguments, in its own order.
        global_batch_size: The global batch size, in examples.
        max_batch_size: The largest global batch size, in examples. None: it never changes.
        scaling_rule: Scales the learning rate with the batch size.
        **options: The Trainer's arguments by name.

    Raises:
        UsageError: Arguments that cannot be right in a job that is moved, and unknown ones.

    Examples:
        >>> arguments = Seq2SeqTrainingArguments(
        ...     "out", per_device_train_batch_size=32, use_cpu=True, report_to="none"
        ... )
        >>> trainer = PolluxSeq2SeqTrainer(model=model, args=arguments, train_dataset=dataset)
    """
