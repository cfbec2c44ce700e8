"""A Trainer that reports to all three tools, with `PolluxMonitor`, as ranks."""

from __future__ import annotations

import threading
from pathlib import Path

import torch

import pollux_slurm.torch as pt
from pollux_slurm.huggingface import PolluxTrainer
from pollux_slurm.trackers.transformers_callback import PolluxMonitor
from tests.huggingface.trainer_scripts import Stop, Texts, make_arguments, make_model


def train(folder: str, stop_after: int | None = None) -> None:
    """Train 5 steps an epoch, two epochs."""
    pt.init_process_group(checkpoint_interval_s=None)
    arguments = make_arguments(f"{folder}/output", report_to=["wandb", "mlflow", "tensorboard"])
    callbacks = [Stop(stop_after), PolluxMonitor()]
    trainer = PolluxTrainer(make_model(), arguments, train_dataset=Texts(), callbacks=callbacks)
    rank = torch.distributed.get_rank()
    try:
        trainer.train()
    finally:
        if rank == 0:
            finish()


def finish() -> None:
    """Do what the tools do at the end of an ordinary script: multiprocessing skips `atexit`."""
    import mlflow
    import wandb

    wandb.finish()
    mlflow.flush_async_logging()
    wait_for_own_threads()
    mlflow.end_run()


def wait_for_own_threads() -> None:
    for thread in threading.enumerate():
        if thread.name == "pollux-tracker":
            thread.join()


def environment(place: Path) -> dict[str, str]:
    return {
        "MLFLOW_TRACKING_URI": f"file://{place}/mlruns",
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "WANDB_DIR": str(place),
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
    }
