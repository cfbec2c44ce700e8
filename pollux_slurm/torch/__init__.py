"""The public training API: the agent's measurements wired into a PyTorch training loop."""

from pollux_slurm import env
from pollux_slurm.torch.accumulator import Accumulator
from pollux_slurm.torch.data import AdaptiveDataLoader
from pollux_slurm.torch.epoch import (
    checkpoint_point,
    current_dataloader,
    current_epoch,
    finished_epochs,
    remaining_epochs_until,
)
from pollux_slurm.torch.memory import memory_guard
from pollux_slurm.torch.parallel import AdaptiveDataParallel
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
from pollux_slurm.torch.state import State
from pollux_slurm.torch.stopping import TrainingStopped

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
    "checkpoint_point",
    "current_dataloader",
    "current_epoch",
    "env",
    "finished_epochs",
    "init_process_group",
    "memory_guard",
    "remaining_epochs_until",
]
