"""SIGTERM in an evaluation outside of a fit: Lightning's own handler would end the script with code 0."""

from __future__ import annotations

import logging
import signal
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from tests.lightning import scripts
from tests.lightning.here import pl
from tests.torch.ranks import start
from tests.torch.scripts import Numbered
from tests.torch.single_replica import joined

pytestmark = pytest.mark.torch


class Module(scripts.Module):
    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.log("test", self.loss(batch))

    def predict_step(self, batch: Any, batch_idx: int) -> None: ...


class Stopping(pl.callbacks.Callback):
    """Sends SIGTERM at the first batch of any evaluation, and counts them."""

    def __init__(self) -> None:
        self.num_batches = 0

    def on_validation_batch_start(self, *args: Any) -> None:
        scripts.stop_here()
        self.num_batches += 1

    on_test_batch_start = on_predict_batch_start = on_validation_batch_start


@pytest.mark.parametrize("name", ["validate", "test", "predict"])
def test_that_sigterm_before_the_fit_ends_the_script_with_its_code(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    stopping = Stopping()
    log = logging.getLogger("pollux_slurm.lightning")
    log.addHandler(caplog.handler)
    with joined(tmp_path, strict=True), caplog.at_level(logging.INFO, log.name), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = pl.Trainer(
            strategy="pollux",
            accelerator="cpu",
            callbacks=[stopping],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
        )
        with pytest.raises(SystemExit) as stop:
            getattr(trainer, name)(Module(), dataloaders=DataLoader(Numbered(24), 8))
    log.removeHandler(caplog.handler)
    assert (stop.value.code, stopping.num_batches) == (143, 1)
    assert "stopped by SIGTERM in an evaluation" in caplog.text


def test_that_sigterm_after_the_fit_ends_the_process(tmp_path: Path) -> None:
    # Three validations within the fit. After it nothing is left to save.
    fit = partial(scripts.fit, str(tmp_path / "job"), stop_in_validation=4, after=True)
    run = start(tmp_path, 1, fit)
    assert run.wait() == [-signal.SIGTERM], run.output()
