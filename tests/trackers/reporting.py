"""A plain loop that drives transformers' own reporting callbacks, with `PolluxMonitor` before them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import torch

import pollux_slurm.torch as pt
from tests.torch.scripts import Numbered, make_model


def train(folder: str, num_epochs: int, stop_after: int | None = None) -> None:
    """Train 5 steps an epoch, with the calls that a Trainer makes of its callbacks."""
    from transformers import TrainerControl, TrainerState, TrainingArguments
    from transformers.integrations import MLflowCallback, TensorBoardCallback, WandbCallback
    from transformers.trainer_callback import CallbackHandler

    from pollux_slurm.trackers.transformers_callback import PolluxMonitor

    pt.init_process_group(checkpoint_interval_s=None)
    model, optimizer = make_model("sgd")
    parallel = pt.AdaptiveDataParallel(model, optimizer)
    loader = pt.AdaptiveDataLoader(Numbered(), batch_size=16, shuffle=True)
    reports = [WandbCallback(), MLflowCallback(), TensorBoardCallback()]
    handler = CallbackHandler([PolluxMonitor(), *reports], model, None, optimizer, None)
    args = TrainingArguments(output_dir=folder, report_to=[], use_cpu=True)
    rank = torch.distributed.get_rank()
    state = TrainerState(is_world_process_zero=rank == 0, global_step=pt.finished_steps())
    control = TrainerControl()
    handler.on_train_begin(args, state, control)
    for _ in pt.remaining_epochs_until(num_epochs):
        for inputs, targets, _ in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(parallel(inputs), targets)
            loss.backward()
            optimizer.step()
            state.global_step = pt.finished_steps()
            handler.on_log(args, state, control, {"loss": loss.item(), "epoch": 1.0})
            if state.global_step == stop_after:
                finish(rank)
                os.kill(os.getpid(), signal.SIGTERM)
    handler.on_train_end(args, state, control)
    finish(rank)


def finish(rank: int) -> None:
    """Do what the tools do at the end of an ordinary script: multiprocessing skips `atexit`."""
    if rank == 0:
        import mlflow
        import wandb

        wandb.finish()
        mlflow.flush_async_logging()
        mlflow.end_run()


def environment(place: Path) -> dict[str, str]:
    return {
        "MLFLOW_TRACKING_URI": f"file://{place}/mlruns",
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "WANDB_DIR": str(place),
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
    }
