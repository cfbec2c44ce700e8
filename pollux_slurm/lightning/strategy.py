"""`PolluxStrategy`: data-parallel over an adaptive model and train loader; other loaders are divided."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric.utilities.seed import reset_seed
from lightning.pytorch import LightningModule
from lightning.pytorch.accelerators import Accelerator
from lightning.pytorch.plugins import CheckpointIO
from lightning.pytorch.plugins.precision import MixedPrecision, Precision
from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry
from lightning.pytorch.trainer.states import RunningStage, TrainerFn
from lightning_utilities.core.rank_zero import rank_zero_info
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from pollux_slurm.errors import UsageError
from pollux_slurm.lightning.checks import check_optimizers, check_trainer
from pollux_slurm.lightning.environment import PolluxEnvironment
from pollux_slurm.lightning.fit_control import FitControl
from pollux_slurm.lightning.fit_state import FitState
from pollux_slurm.lightning.logged_values import StepValues, unchanged
from pollux_slurm.lightning.private_parts import (
    before_batch_transfer,
    ddp_options,
    ignore_signals,
    logged_results,
    replace_checkpoint_restore,
    replace_loader_preparation,
    restore_connectors,
    with_synced_layers,
    without_step_hooks,
)
from pollux_slurm.lightning.train_loader import TrainLoader, adaptive_loader
from pollux_slurm.torch import AdaptiveDataParallel, ScalingRule, TrainingStopped, init_process_group
from pollux_slurm.torch.api.option_names import refuse_unknown_options
from pollux_slurm.torch.session.current_session import current_session, has_session

_LOG = logging.getLogger(__name__)
_NONE_LEFT = (
    "training_step returned None to skip a batch: replicas would wait for each other's gradients; return a "
    "loss of zero that depends on the weights, such as 0.0 * self(x).sum()"
)


class PolluxStrategy(DDPStrategy):
    """Train on the GPUs that Pollux gives, with the module, its data and the `Trainer` as they are.

    The train DataLoader's `batch_size` is the global batch size. Its methods are Lightning's hooks. Call
    `pollux_slurm.torch.init_process_group(...)` before the `Trainer` is made to set its options.

    Args:
        max_batch_size: The largest global batch size, in examples. None: it never changes.
        local_bsz_bounds: The least and the most examples of a micro-batch; None: no bound.
        gradient_accumulation: Allow several micro-batches a step.
        scaling_rule: Scales the learning rate with the batch. None: `SqrtScale` for Adam-like optimizers,
            else `AdaScale`.
        exempt_from_comparison: Names of parameters or modules that may differ between replicas.
        accelerator: Lightning's accelerator; None: the Trainer's.
        checkpoint_io: How Lightning writes its own checkpoints; None: the Trainer's.
        precision_plugin: Lightning's precision; None: the Trainer's.
        **ddp_options: Further arguments of `torch.nn.parallel.DistributedDataParallel`.

    Raises:
        UsageError: An option that neither it nor `DistributedDataParallel` has.

    Examples:
        >>> from lightning.pytorch import Trainer
        >>> strategy = PolluxStrategy(max_batch_size=128, gradient_accumulation=True)
        >>> quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        >>> trainer = Trainer(strategy=strategy, max_epochs=2, **quiet)
        >>> trainer.fit(module, torch.utils.data.DataLoader(dataset, batch_size=32))
        >>> trainer.current_epoch
        2
    """

    strategy_name = "pollux"

    def __init__(
        self,
        *,
        max_batch_size: int | None = None,
        local_bsz_bounds: tuple[int | None, int | None] | None = None,
        gradient_accumulation: bool = False,
        scaling_rule: ScalingRule | None = None,
        exempt_from_comparison: Sequence[str] = (),
        accelerator: Accelerator | None = None,
        checkpoint_io: CheckpointIO | None = None,
        precision_plugin: Precision | None = None,
        **ddp_options: Any,
    ) -> None:
        refuse_unknown_options(
            "PolluxStrategy", ddp_options, PolluxStrategy.__init__, DistributedDataParallel.__init__
        )
        super().__init__(
            accelerator=accelerator,
            cluster_environment=PolluxEnvironment(),
            checkpoint_io=checkpoint_io,
            precision_plugin=precision_plugin,
            **ddp_options,
        )
        self._max_batch_size, self._local_bsz_bounds = max_batch_size, local_bsz_bounds
        self._gradient_accumulation = gradient_accumulation
        self._scaling_rule, self._exempt = scaling_rule, exempt_from_comparison
        # Batches that `Trainer(accumulate_grad_batches=...)` adds up: the global batch has as many.
        self._factor = 1
        self._control: FitControl | None = None
        self._state: FitState | None = None
        self._prepare_dataloader: Callable[..., Any] | None = None
        self._has_failed = False
        # This replica's micro-batch as a share of the step's examples, while its training step runs; and that
        # of what it has logged, which may be a mean over all replicas.
        self._share: float | None = None
        self._weight = 0.0

    # ------------------------------------------------------------------------------------------ processes

    def _configure_launcher(self) -> None:
        """Start no process: `pollux run` has."""

    @property
    def root_device(self) -> torch.device:
        """This replica's device."""
        devices = self.parallel_devices or []
        if devices and devices[0].type == "cuda":
            return torch.device("cuda", self.local_rank)
        return devices[0] if devices else torch.device("cpu")

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """How validation, test and prediction data are divided."""
        return {"num_replicas": self.world_size, "rank": self.global_rank}

    def setup_distributed(self) -> None:
        """Join the session, and resume from the job's checkpoint."""
        reset_seed()
        self.set_world_ranks()
        if not has_session():
            init_process_group("gloo" if self.root_device.type == "cpu" else None)
        current_session().regrouping.refuse("Lightning owns its process group")
        self._has_failed = False
        trainer = self._trainer
        # SIGTERM is the session's: Lightning's handler would broadcast within the handler, and end with 0.
        ignore_signals(trainer)
        if trainer.state.fn == TrainerFn.FITTING:
            self._begin_fit(trainer)

    @property
    def is_padding(self) -> bool:
        """True in a training step whose batch is padding: it belongs to no example."""
        return current_session().loops.is_padding

    @property
    def _trainer(self) -> Any:
        assert self.lightning_module is not None
        return self.lightning_module.trainer

    # ------------------------------------------------------------------------------------- setting up a fit

    def _begin_fit(self, trainer: Any) -> None:
        module = self.lightning_module
        assert module is not None
        if trainer.accumulate_grad_batches > 1:
            self._factor, trainer.accumulate_grad_batches = trainer.accumulate_grad_batches, 1
        is_adaptive = self._max_batch_size is not None
        check_trainer(trainer, module, factor=self._factor, is_adaptive=is_adaptive)
        self._control = FitControl(trainer, is_adaptive=is_adaptive)
        # Lightning would put a DistributedSampler into the train loader, too.
        self._prepare_dataloader = replace_loader_preparation(trainer, self._prepare_train_loader)
        session = current_session()
        self._state = FitState(session.next_default_name("lightning"), trainer, reduce=self.reduce)
        self._control.add_saved_sums = self._state.add_saved_sums
        if self._state.saved is not None:
            self._state.restore_loggers()
            replace_checkpoint_restore(trainer, _ignore_checkpoint)

    def _prepare_train_loader(self, dataloader: Any, shuffle: bool, mode: RunningStage) -> Any:
        assert self._prepare_dataloader is not None
        if mode != RunningStage.TRAINING:
            return self._prepare_dataloader(dataloader, shuffle=shuffle, mode=mode)
        control = self._control
        assert control is not None
        if control.loader is not None:
            raise UsageError(
                "several train DataLoaders advance together: combine their datasets into one (ConcatDataset, "
                "or a dataset that returns an example of each)"
            )
        adaptive = adaptive_loader(dataloader, factor=self._factor)
        if self._max_batch_size is not None or self._local_bsz_bounds is not None:
            adaptive.autoscale_batch_size(
                self._max_batch_size or adaptive.batch_size,
                self._local_bsz_bounds,
                gradient_accumulation=self._gradient_accumulation or self._factor > 1,
            )
            if self._max_batch_size is None:
                adaptive.fix_batch_size()
        control.loader = TrainLoader(adaptive, control)
        return control.loader

    def setup(self, trainer: Any) -> None:
        """Wrap the module with its optimizers, and restore them."""
        if trainer.state.fn != TrainerFn.FITTING:
            super().setup(trainer)
            return
        state, control, module = self._state, self._control, self.lightning_module
        assert state is not None
        assert control is not None
        assert module is not None
        assert self.accelerator is not None
        self.accelerator.setup(trainer)
        model_name = f"{state.name}-model"
        saved_model = current_session().checkpointer.unrestored.get(model_name, {})
        # Set before anything is restored, so that no checkpoint lacks it.
        state.control = control
        state.restore_hooks(saved_model.get("model", {}))
        self.model = with_synced_layers(self, module) or self.model
        self.model = self.precision_plugin.convert_module(self.model or module)
        self.model_to_device()
        self.setup_optimizers(trainer)
        is_adaptive = self._max_batch_size is not None
        check_optimizers(self.optimizers, self.lr_scheduler_configs, is_adaptive=is_adaptive)
        self._wrap(module, model_name)
        self.setup_precision_plugin()
        state.restore_training()

    def _wrap(self, module: LightningModule, name: str) -> None:
        # Schedules of single batches count batches of the initial size; Lightning steps the others once.
        stepped = [
            config.scheduler
            for config in self.lr_scheduler_configs
            if not module.automatic_optimization
            or (config.interval == "step" and not config.reduce_on_plateau)
        ]
        assert self._state is not None
        self._state.schedulers = [
            config.scheduler for config in self.lr_scheduler_configs if config.scheduler not in stepped
        ]
        precision, options = self.precision_plugin, ddp_options(self)
        if not module.automatic_optimization and len(self.optimizers) > 1:
            # Each backward pass reaches the parameters of some optimizers only.
            options.setdefault("find_unused_parameters", True)
        self.model = AdaptiveDataParallel(
            module,
            self.optimizers,
            stepped,
            precision.scaler if isinstance(precision, MixedPrecision) else None,
            self._scaling_rule,
            name=name,
            exempt_from_comparison=self._exempt,
            device_ids=self.determine_ddp_device_ids(),
            **options,
        )

    def load_checkpoint(self, checkpoint_path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Load a checkpoint of Lightning's; for a `fit`, at its first start only, and at an epoch's end."""
        if self._trainer.state.fn != TrainerFn.FITTING:
            return super().load_checkpoint(checkpoint_path, *args, **kwargs)
        checkpoint: dict[str, Any] = super().load_checkpoint(checkpoint_path, *args, **kwargs)
        progress = checkpoint.get("loops", {}).get("fit_loop", {}).get("epoch_loop.batch_progress")
        if progress is not None and progress["current"]["ready"] > 0 and not progress["is_last_batch"]:
            raise UsageError(
                f"ckpt_path={checkpoint_path}: it was saved in the middle of an epoch, and Lightning's "
                "checkpoints do not say which examples were used. Give one from the end of an epoch, or load "
                "its weights only"
            )
        return checkpoint

    # ----------------------------------------------------------------------------------------- training

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's training step on each micro-batch of the global batch; return the last's result.

        All but the last do their backward pass here; that one's is Lightning's.
        """
        control, module = self._control, self.lightning_module
        assert control is not None
        assert control.loader is not None
        assert module is not None
        loader = control.loader.adaptive
        results = logged_results(self._trainer)
        values = None if loader.is_stepping else StepValues(results)
        # In these micro-batches no step takes effect.
        with nullcontext() if loader.is_stepping else without_step_hooks(self):
            while not loader.is_stepping:
                output = self._micro_batch_step(results, *args, **kwargs)
                if values is not None:
                    values.add(self._weight)
                if module.automatic_optimization:
                    self.backward(_loss_of(output), self.optimizers[0])
                del output
                args = (self._next_micro_batch(results), *args[1:])
        output = self._micro_batch_step(results, *args, **kwargs)
        if values is not None:
            values.add(self._weight)
            values.finish()
        if self._state is not None:
            self._state.add_saved_sums()
        if module.automatic_optimization:
            _loss_of(output)
        return output

    def _micro_batch_step(self, results: Any, *args: Any, **kwargs: Any) -> Any:
        """Run the training step on one micro-batch; what padding logs counts nowhere."""
        assert self._control is not None
        assert self._control.loader is not None
        assert self.lightning_module is not None
        self._share = self._weight = self._control.loader.adaptive.current_share
        try:
            if self._share > 0:
                return super().training_step(*args, **kwargs)
            with unchanged(results, self.lightning_module):
                return super().training_step(*args, **kwargs)
        finally:
            self._share = None

    def _next_micro_batch(self, results: Any) -> Any:
        """Return the next micro-batch as Lightning's loop prepares the first: converted, on the device."""
        assert self._control is not None
        assert self._control.loader is not None
        module = self.lightning_module
        assert module is not None
        batch = self.precision_plugin.convert_input(self._control.loader.next_micro_batch())
        batch = before_batch_transfer(module, batch)
        batch = self.batch_to_device(batch, dataloader_idx=0)
        # Their size is the weight of what is logged.
        results.batch, results.batch_size = batch, None
        return batch

    def optimizer_step(
        self,
        optimizer: Optimizer,
        closure: Callable[[], Any],
        model: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Step after the global batch's last micro-batch; clip and call the step's hooks only then."""
        result = closure()
        control = self._control
        if control is not None and control.loader is not None and not control.loader.adaptive.is_stepping:
            return result
        # The gradients are there, and summed: the step needs no other closure.
        return super().optimizer_step(optimizer, lambda: result, model, **kwargs)

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Reduce over replicas. Within a training step a mean is one over examples, not over replicas."""
        is_mean = isinstance(reduce_op, str) and reduce_op.lower() in ("mean", "avg")
        if not is_mean or not isinstance(tensor, torch.Tensor):
            return super().reduce(tensor, group, reduce_op)
        if self._share is None:
            # Lightning rounds the mean of whole numbers down, and replicas' numbers of examples may differ.
            return super().reduce(tensor if tensor.is_floating_point() else tensor.double(), group, reduce_op)
        share = torch.full((1,), self._share, device=tensor.device)
        # What padding gives may be infinite.
        own = tensor.float().flatten() * share if self._share else torch.zeros_like(tensor.float().flatten())
        values = torch.cat([own, share])
        if self.world_size > 1:
            dist.all_reduce(values, group=group)
        self._weight = float(values[-1])
        return (values[:-1] / values[-1]).view_as(tensor).to(tensor.dtype)

    # ------------------------------------------------------------------------------------------ evaluation

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module itself: no gradient is summed, and replicas may have unequal numbers of batches."""
        assert self.lightning_module is not None
        self._end_evaluation_on_sigterm()
        with self.precision_plugin.val_step_context():
            return self.lightning_module.validation_step(*args, **kwargs)

    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module's, unless SIGTERM has come."""
        self._end_evaluation_on_sigterm()
        return super().test_step(*args, **kwargs)

    def predict_step(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module's, unless SIGTERM has come."""
        self._end_evaluation_on_sigterm()
        return super().predict_step(*args, **kwargs)

    def _end_evaluation_on_sigterm(self) -> None:
        """End the script if SIGTERM has come in an evaluation outside of a fit: nothing was trained since."""
        stop = current_session().stop
        if self._control is None and stop.is_set:
            if self.global_rank == 0:
                _LOG.info(
                    "the job is stopped by SIGTERM in an evaluation: it goes on from its last checkpoint"
                )
            stop.raise_stopped()

    def on_validation_start(self) -> None:
        """Give all replicas rank 0's buffers (batch statistics), as a forward pass in training would."""
        if self.world_size > 1 and isinstance(self.model, AdaptiveDataParallel):
            for buffer in self.model.module.buffers():
                dist.broadcast(buffer, 0)

    # ------------------------------------------------------------------------------------------------ end

    def on_train_end(self) -> None:
        """Write the last checkpoint: training has come to its end, or was stopped early."""
        if self._control is not None:
            self._control.finish()

    def on_exception(self, exception: BaseException) -> None:
        """Leave the training without a checkpoint. On SIGTERM it is written already."""
        self._has_failed = True
        if self._control is not None and not isinstance(exception, TrainingStopped):
            self._control.fail()
        super().on_exception(exception)

    def teardown(self) -> None:
        """End the fit, also one that had nothing left to train."""
        control, self._control = self._control, None
        if control is not None:
            if not self._has_failed:
                control.finish()
            control.restore_methods()
            restore_connectors(self._trainer)
        # Unwrapped here, so that Lightning does not recommend options of its own strategy.
        self.model = self.lightning_module
        super().teardown()

    @classmethod
    def register_strategies(cls, strategy_registry: Any) -> None:
        """Register this strategy by its name."""
        if cls.strategy_name not in strategy_registry:
            strategy_registry.register(cls.strategy_name, cls, description="Adaptive training by Pollux")


def register() -> None:
    """Make `Trainer(strategy="pollux")` known."""
    PolluxStrategy.register_strategies(StrategyRegistry)


def _ignore_checkpoint(checkpoint_path: Any = None, *args: Any, **kwargs: Any) -> None:
    if checkpoint_path is not None:
        rank_zero_info(
            f"pollux: ckpt_path={checkpoint_path} is not loaded: the job goes on from its own checkpoint"
        )


def _loss_of(output: Any) -> torch.Tensor:
    """Return the loss of a training step's result. Raises `UsageError` where there is none."""
    loss = output.get("loss") if isinstance(output, Mapping) else output
    if not isinstance(loss, torch.Tensor):
        raise UsageError(_NONE_LEFT)
    return loss
