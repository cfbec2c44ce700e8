"""The public surface, and that importing it does nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

import pollux_slurm.torch as pt
from pollux_slurm.extras import refuse_old_torch

pytestmark = pytest.mark.torch


def test_that_the_public_names_are_exactly_these() -> None:
    names = {name for name in vars(pt) if not name.startswith("_") and name in pt.__all__}
    assert names == set(pt.__all__)
    assert set(pt.__all__) == {
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
    }


def test_that_importing_loads_no_solver_and_no_database_and_leaves_signals_groups_and_logging_alone() -> None:
    code = (
        "import logging, signal, sys, threading; before = signal.getsignal(signal.SIGTERM); "
        "import pollux_slurm.torch, torch.distributed as dist; "
        "heavy = [m for m in ('scipy', 'sqlalchemy', 'typer', 'sklearn') if m in sys.modules]; "
        "print(heavy, signal.getsignal(signal.SIGTERM) is before, dist.is_initialized(), "
        "threading.active_count()); "
        "logger = logging.getLogger('pollux_slurm'); print(logger.handlers, logger.propagate, logger.level)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == ["[] True False 1", "[] True 0"], done.stderr


def test_that_a_torch_that_runs_code_of_a_checkpoint_is_refused() -> None:
    for version in ("2.6.0", "2.6.0a0+git1", "2.10.1+cpu", "3.0.0", "of our own"):
        refuse_old_torch(version)
    command = "import torch; torch.__version__ = '2.5.1+cu124'; import pollux_slurm.torch"
    done = subprocess.run(
        [sys.executable, "-c", command], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 1
    said = "ImportError: torch 2.5.1+cu124 runs code that a checkpoint may contain: pip install 'torch>=2.6'"
    assert done.stderr.splitlines()[-1] == said
