"""A Lightning Trainer with the loggers of all three tools and `PolluxMonitor`, as ranks."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from tests.lightning.scripts import Module, Record
from tests.torch.scripts import Numbered
from tests.trackers.reporting import wait_for_own_threads

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import lightning.pytorch as pl
    from lightning.pytorch.loggers import MLFlowLogger, TensorBoardLogger, WandbLogger

    from pollux_slurm.lightning import PolluxStrategy
    from pollux_slurm.trackers.lightning_callback import PolluxMonitor


def train(folder: str, stop_after: int | None = None) -> None:
    """Train 5 steps an epoch, two epochs."""
    loggers: list[Any] = [
        WandbLogger(project="moves", save_dir=folder),
        TensorBoardLogger(folder, name="tensorboard"),
        MLFlowLogger(experiment_name="moves", tracking_uri=f"file://{folder}/mlruns"),
    ]
    trainer = pl.Trainer(
        strategy=PolluxStrategy(),
        accelerator="cpu",
        max_epochs=2,
        logger=loggers,
        callbacks=[Record(stop_after), PolluxMonitor()],
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=Path(folder),
    )
    try:
        trainer.fit(Module(), DataLoader(Numbered(), batch_size=16, shuffle=True))
    finally:
        if trainer.is_global_zero:
            # Multiprocessing skips `atexit`.
            loggers[0].experiment.finish()
            loggers[1].experiment.close()
            wait_for_own_threads()
