"""The public surface, and that importing it does nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

import pollux_slurm.torch as pt

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
