"""Callbacks, loggers and Lightning's own checkpoints over stops."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import torch

from pollux_slurm.errors import UsageError
from tests.lightning import scripts
from tests.lightning.here import fit_here, pl, stopped_here
from tests.lightning.same_fit import assert_same_fit

pytestmark = pytest.mark.torch


class Stopping(pl.callbacks.EarlyStopping):
    """Stops when the validation's loss has grown."""

    def __init__(self) -> None:
        super().__init__("valid", patience=1, min_delta=1e9)


def test_that_early_stopping_ends_with_the_last_checkpoint(tmp_path: Path) -> None:
    options: dict[str, Any] = {"callbacks": (Stopping,), "trainer": {"max_epochs": 9}}
    reference = fit_here(**options)
    assert reference["epoch"] == 2
    stopped_here(tmp_path, stop_after=7, **options)
    result = fit_here(tmp_path, **options)
    assert_same_fit(result, reference)
    # A start after the end comes to the same end, and trains nothing.
    again = fit_here(tmp_path, **options)
    assert (again["global_step"], again["hooks"]) == (result["global_step"], result["hooks"])


def test_that_early_stopping_in_the_middle_of_an_epoch_ends_there_again(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "callbacks": (Stopping,),
        "trainer": {"max_epochs": 9, "val_check_interval": 2},
    }
    reference = fit_here(**options)
    assert reference["global_step"] == 4
    stopped_here(tmp_path, stop_after=3, **options)
    result = fit_here(tmp_path, **options)
    assert_same_fit(result, reference)
    assert fit_here(tmp_path, **options)["global_step"] == 4


class Keeping(pl.callbacks.ModelCheckpoint):
    """Keeps the best two and the last; its state must outlive stops."""

    made: Keeping

    def __init__(self) -> None:
        super().__init__(monitor="valid", save_top_k=2, save_last=True, filename="{epoch}-{step}")
        Keeping.made = self


def keeping(directory: Path, job: Path | None, **options: Any) -> dict[str, Any]:
    trainer = {"enable_checkpointing": True, "default_root_dir": str(directory), "max_epochs": 4}
    return fit_here(job, callbacks=(Keeping,), trainer=trainer, **options)


def test_that_model_checkpoint_keeps_the_same_files_over_a_stop(tmp_path: Path) -> None:
    keeping(tmp_path / "reference", None)
    reference = Keeping.made
    options: dict[str, Any] = {
        "callbacks": (Keeping,),
        "trainer": {
            "enable_checkpointing": True,
            "default_root_dir": str(tmp_path / "moved"),
            "max_epochs": 4,
        },
    }
    stopped_here(tmp_path / "job", stop_after=12, **options)
    keeping(tmp_path / "moved", tmp_path / "job")
    result = Keeping.made
    assert {Path(name).name for name in result.best_k_models} == {
        Path(name).name for name in reference.best_k_models
    }
    assert Path(result.best_model_path).name == Path(reference.best_model_path).name
    assert {path.name for path in (tmp_path / "moved").rglob("*.ckpt")} == {
        path.name for path in (tmp_path / "reference").rglob("*.ckpt")
    }


@pytest.mark.skipif(not hasattr(pl.callbacks, "EMAWeightAveraging"), reason="Lightning 2.6 has it")
@pytest.mark.parametrize("stop", [{"stop_after": 7}, {"stop_in_validation": 2}])
def test_that_an_average_of_the_weights_goes_on_over_a_stop(tmp_path: Path, stop: dict[str, int]) -> None:
    # It puts its average into the checkpoint's `state_dict`, and swaps it with the weights in a validation.
    options: dict[str, Any] = {"callbacks": (lambda: pl.callbacks.EMAWeightAveraging(decay=0.9),)}
    stopped_here(tmp_path, **options, **stop)
    assert_same_fit(fit_here(tmp_path, **options), fit_here(**options))


def rows(folder: Path) -> list[dict[str, str]]:
    (file,) = folder.rglob("metrics.csv")
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


def test_that_a_csv_logger_goes_on_in_its_version_without_a_row_lost_or_twice(tmp_path: Path) -> None:
    def options(name: str) -> dict[str, Any]:
        with_logger = {"logger": pl.loggers.CSVLogger(tmp_path / name), "log_every_n_steps": 1}
        return {"trainer": {**with_logger, "val_check_interval": 2}}

    fit_here(**options("reference"))
    # Between two batches; in a validation; after a checkpoint that a later part of the run is not in.
    stopped_here(tmp_path / "job", stop_after=3, **options("moved"))
    stopped_here(tmp_path / "job", stop_in_validation=1, **options("moved"))
    with pytest.raises(ArithmeticError):
        fit_here(tmp_path / "job", module={"fails_at": 9}, **options("moved"))
    fit_here(tmp_path / "job", **options("moved"))
    result, reference = rows(tmp_path / "moved"), rows(tmp_path / "reference")
    assert [(row["step"], row["epoch"]) for row in result] == [
        (row["step"], row["epoch"]) for row in reference
    ]
    for row, row_0 in zip(result, reference, strict=True):
        for name in ("train_step", "train_epoch", "valid"):
            assert bool(row[name]) == bool(row_0[name])
            if row[name]:
                assert float(row[name]) == pytest.approx(float(row_0[name]), rel=1e-4)


def test_that_a_tensorboard_logger_goes_on_in_its_version(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")

    def options() -> dict[str, Any]:
        return {
            "trainer": {"logger": pl.loggers.TensorBoardLogger(tmp_path / "logs"), "log_every_n_steps": 1}
        }

    stopped_here(tmp_path / "job", stop_after=7, **options())
    fit_here(tmp_path / "job", **options())
    assert [path.name for path in (tmp_path / "logs" / "lightning_logs").iterdir()] == ["version_0"]


def test_that_a_lightning_checkpoint_is_loaded_at_the_first_start_only(tmp_path: Path) -> None:
    keeping(tmp_path / "first", None)
    given = Keeping.made.last_model_path
    options: dict[str, Any] = {"trainer": {"max_epochs": 6}, "fit_options": {"ckpt_path": given}}
    first_four = torch.load(given, weights_only=True)
    assert first_four["global_step"] == 20
    reference = fit_here(**options)
    assert (reference["global_step"], reference["epoch"], reference["finished_epochs"]) == (30, 6, 6)
    stopped_here(tmp_path / "job", stop_after=7, **options)
    assert_same_fit(fit_here(tmp_path / "job", **options), reference)


def test_that_a_lightning_checkpoint_from_within_an_epoch_is_refused(tmp_path: Path) -> None:
    def early() -> Any:
        return pl.callbacks.ModelCheckpoint(
            tmp_path, filename="early", every_n_train_steps=3, save_on_train_epoch_end=False
        )

    fit_here(callbacks=(early,), trainer={"enable_checkpointing": True, "max_epochs": 1, "max_steps": 4})
    with pytest.raises(UsageError, match="saved in the middle of an epoch"):
        fit_here(fit_options={"ckpt_path": str(tmp_path / "early.ckpt")})


def test_that_evaluation_works_after_a_fit() -> None:
    result = fit_here(after=True)
    valid = result["history"][-1][1]["valid"]
    assert result["after"]["validate"] == pytest.approx(valid, rel=1e-5)
    assert result["after"]["predicted"] == scripts.NUM_VALIDATED
