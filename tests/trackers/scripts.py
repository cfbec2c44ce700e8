"""A plain loop with a tracker, run as ranks: stopped by SIGTERM, or killed without a checkpoint."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import torch

import pollux_slurm.torch as pt
from pollux_slurm.trackers import Tracker
from tests.torch.scripts import Numbered, make_model


def open_run(tool: str, folder: str) -> Any:
    if tool == "wandb":
        import wandb

        return wandb.init(project="moves", dir=folder)
    if tool == "tensorboard":
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(folder, purge_step=pt.finished_steps() + 1)
    import mlflow

    mlflow.set_tracking_uri(tool + folder)
    mlflow.set_experiment("moves")
    return mlflow.start_run()


def train(
    tool: str,
    folder: str,
    num_epochs: int,
    stop_after: int | None = None,
    kill_after: int | None = None,
    every: int = 1,
) -> dict[str, Any]:
    """Train 5 steps an epoch; each value of the loss is that of rank 0's own examples."""
    pt.init_process_group(checkpoint_interval_s=None)
    model, optimizer = make_model("sgd")
    parallel = pt.AdaptiveDataParallel(model, optimizer)
    loader = pt.AdaptiveDataLoader(Numbered(), batch_size=16, shuffle=True)
    loader.autoscale_batch_size(16, (1, 8), gradient_accumulation=True)
    tracker = Tracker(lambda: open_run(tool, folder), every=every)
    num_steps = 0
    try:
        for epoch in pt.remaining_epochs_until(num_epochs):
            for inputs, targets, _ in loader:
                optimizer.zero_grad()
                loss = torch.nn.functional.mse_loss(parallel(inputs), targets)
                loss.backward()
                optimizer.step()
                tracker.log({"loss": loss})
                if not loader.is_stepping:
                    continue
                num_steps += 1
                if num_steps == stop_after:
                    os.kill(os.getpid(), signal.SIGTERM)
                if num_steps == kill_after:
                    finish(tool, tracker)
                    torch.distributed.barrier()
                    os.kill(os.getpid(), signal.SIGKILL)
            tracker.log({"finished_epochs": epoch + 1})
    finally:
        finish(tool, tracker)
    return {"steps": pt.finished_steps(), "is_logging": tracker.run is not None}


def finish(tool: str, tracker: Tracker) -> None:
    """Do what the tools do at the end of an ordinary script: multiprocessing skips `atexit`.

    Before a kill it stands for what a longer run has written by then.
    """
    if tracker.run is None:
        return
    tracker.flush()
    if tool == "wandb":
        tracker.run.finish()
    elif tool == "tensorboard":
        tracker.run.close()
    else:
        import mlflow

        mlflow.end_run()


def folder_of(directory: Path, tool: str) -> str:
    place = directory / "tracked"
    if tool == "sqlite:///":
        return f"{place}.db"
    place.mkdir(exist_ok=True)
    return str(place)
