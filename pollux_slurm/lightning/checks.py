"""What cannot be right under this strategy is refused before training, with what to do instead."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import (
    BaseFinetuning,
    BatchSizeFinder,
    GradientAccumulationScheduler,
    LearningRateFinder,
)
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch.optim import LBFGS, Optimizer

from pollux_slurm.errors import UsageError
from pollux_slurm.lightning.private_parts import has_time_as_validation_interval, is_placeholder


def check_trainer(trainer: Any, module: LightningModule, *, factor: int, is_adaptive: bool) -> None:
    """Raise `UsageError` for settings that would train wrong. `factor`: how many batches are accumulated."""
    if any(isinstance(one, GradientAccumulationScheduler) for one in trainer.callbacks):
        raise UsageError(
            "GradientAccumulationScheduler changes the batch size behind the loader's back: give the "
            "DataLoader the batch size, and PolluxStrategy(max_batch_size=...) for a growing one"
        )
    if any(isinstance(one, (BatchSizeFinder, LearningRateFinder)) for one in trainer.callbacks):
        raise UsageError(
            "BatchSizeFinder and LearningRateFinder train outside of the epochs: find the values in a run of "
            "their own, with Trainer(devices=1)"
        )
    if any(isinstance(one, BaseFinetuning) for one in trainer.callbacks):
        raise UsageError(
            "BaseFinetuning (BackboneFinetuning) freezes layers before the fit begins: their gradients "
            "would not be summed once they train. Set requires_grad in on_train_epoch_start, with all "
            "parameters in the optimizer and PolluxStrategy(find_unused_parameters=True)"
        )
    if trainer.reload_dataloaders_every_n_epochs:
        raise UsageError(
            "reload_dataloaders_every_n_epochs: positions belong to one train loader. Leave it out, and let "
            "the dataset or the sampler change by its set_epoch()"
        )
    if has_time_as_validation_interval(trainer):
        raise UsageError(
            "val_check_interval as a time: replicas would disagree on when it is over; give a number"
        )
    if is_param_in_hook_signature(module.training_step, "dataloader_iter", explicit=True):
        raise UsageError(
            "training_step(dataloader_iter) fetches batches before their turn: take (batch, batch_idx)"
        )
    if factor > 1:
        for name in ("val_check_interval", "limit_train_batches", "overfit_batches"):
            value = getattr(trainer, name)
            if isinstance(value, int) and not isinstance(value, bool) and value != 0:
                raise UsageError(
                    f"{name}={value} with accumulate_grad_batches={factor}: a batch here is the whole global "
                    f"one, {factor} times the DataLoader's. Give the DataLoader that batch size, "
                    "PolluxStrategy(local_bsz_bounds=...) the largest local batch, and leave "
                    "accumulate_grad_batches out"
                )
    if is_adaptive:
        _check_adaptive(trainer, module)


def _check_adaptive(trainer: Any, module: LightningModule) -> None:
    """Raise `UsageError` for limits whose meaning depends on the size of a batch that varies."""
    if isinstance(trainer.val_check_interval, float) and trainer.val_check_interval != 1.0:
        raise UsageError(
            f"val_check_interval={trainer.val_check_interval} with max_batch_size: the number of batches of "
            "an epoch varies; give a whole number of batches, or 1.0"
        )
    if isinstance(trainer.limit_train_batches, float) and trainer.limit_train_batches != 1.0:
        raise UsageError(
            f"limit_train_batches={trainer.limit_train_batches} with max_batch_size: the number of batches "
            "of an epoch varies; give a whole number, or a smaller dataset"
        )
    if trainer.max_steps != -1 and not module.automatic_optimization:
        raise UsageError(
            "max_steps with max_batch_size and manual optimization: Lightning counts each optimizer's steps, "
            "of batches that vary; give max_epochs"
        )


def check_optimizers(optimizers: list[Optimizer], schedulers: list[Any], *, is_adaptive: bool) -> None:
    """Raise `UsageError` for optimizers and schedules that cannot be right."""
    if not optimizers or any(is_placeholder(one) for one in optimizers):
        raise UsageError("configure_optimizers returned no optimizer: nothing could be trained")
    if any(isinstance(one, LBFGS) for one in optimizers):
        raise UsageError(
            "LBFGS evaluates its closure several times a step, and a global batch is there once: use another "
            "optimizer"
        )
    for config in schedulers:
        if is_adaptive and config.interval == "step" and config.frequency > 1:
            raise UsageError(
                f'a scheduler with interval "step" and frequency={config.frequency}, with max_batch_size: '
                "schedules count batches of the initial size, of which a step may have several; leave "
                "frequency out"
            )
