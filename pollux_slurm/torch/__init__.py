"""The public API for training scripts: an adaptive data loader, data-parallel model and checkpoints.

May be imported by `huggingface`, `lightning` and scripts that train.
"""

from pollux_slurm.extras import extras_named, refuse_old_torch

with extras_named():
    from torch import __version__ as _torch_version

    refuse_old_torch(_torch_version)

    from pollux_slurm import env
    from pollux_slurm.torch import scaling_rules
    from pollux_slurm.torch.api.accumulator import Accumulator
    from pollux_slurm.torch.api.data_loader import AdaptiveDataLoader
    from pollux_slurm.torch.api.data_parallel import AdaptiveDataParallel
    from pollux_slurm.torch.api.epochs import (
        checkpoint_point,
        current_dataloader,
        current_epoch,
        finished_epochs,
        finished_steps,
        is_joining,
        on_regroup,
        remaining_epochs_until,
    )
    from pollux_slurm.torch.api.gather_batch import gather_batch
    from pollux_slurm.torch.api.memory_guard import memory_guard
    from pollux_slurm.torch.api.state import State
    from pollux_slurm.torch.api.steps import remaining_steps_until
    from pollux_slurm.torch.api.variables import Variables
    from pollux_slurm.torch.boundary.sigterm import TrainingStopped
    from pollux_slurm.torch.scaling_rules import (
        AdamScale,
        AdaScale,
        LEGWScale,
        LinearScale,
        NoScale,
        ScalingMoment,
        ScalingRule,
        SqrtScale,
    )
    from pollux_slurm.torch.start import init_process_group

__all__ = [
    "Accumulator",
    "AdaScale",
    "AdamScale",
    "AdaptiveDataLoader",
    "AdaptiveDataParallel",
    "LEGWScale",
    "LinearScale",
    "NoScale",
    "ScalingMoment",
    "ScalingRule",
    "SqrtScale",
    "State",
    "TrainingStopped",
    "Variables",
    "checkpoint_point",
    "current_dataloader",
    "current_epoch",
    "env",
    "finished_epochs",
    "finished_steps",
    "gather_batch",
    "init_process_group",
    "is_joining",
    "memory_guard",
    "on_regroup",
    "remaining_epochs_until",
    "remaining_steps_until",
    "scaling_rules",
]
