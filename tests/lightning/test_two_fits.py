"""A script that fits twice with one trainer: each part goes on by itself."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.lightning import scripts
from tests.lightning.here import pl
from tests.torch.single_replica import joined

pytestmark = pytest.mark.torch


def two_fits(directory: Path | None, stop_after: int | None = None) -> tuple[list[int], list[float], Any]:
    """Fit two epochs, then two more; SIGTERM comes after `stop_after` batches of both."""
    with joined(directory, strict=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        record = scripts.Record(stop_after)
        module = scripts.Module()
        trainer = pl.Trainer(
            strategy="pollux",
            accelerator="cpu",
            callbacks=[record],
            max_epochs=2,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, datamodule=scripts.Data())
        assert trainer.fit_loop.max_epochs == 2
        trainer.fit_loop.max_epochs = 4
        trainer.fit(module, datamodule=scripts.Data())
        return record.steps, module.rates, {key: value.tolist() for key, value in module.state_dict().items()}


@pytest.mark.parametrize("stop_after", [7, 13])
def test_that_both_fits_go_on_where_they_were(tmp_path: Path, stop_after: int) -> None:
    reference = two_fits(None)
    with pytest.raises(SystemExit):
        two_fits(tmp_path, stop_after)
    assert two_fits(tmp_path) == reference
