"""A fit that is stopped at any place goes on as if it had not been; one replica, with accumulation."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.lightning import scripts
from tests.lightning.here import fit_here, pl, stopped_here
from tests.lightning.same_fit import EXACT, assert_same_fit
from tests.torch.single_replica import joined

pytestmark = pytest.mark.torch

# Three micro-batches a step: 6, 5 and 5 examples.
SPLIT: dict[str, Any] = {"local_bsz_bounds": (None, 6)}


def test_that_a_split_batch_is_one_batch_of_lightnings(tmp_path: Path) -> None:
    reference, split = fit_here(), fit_here(strategy=SPLIT)
    assert_same_fit(split, reference)
    assert split["hooks"] == reference["hooks"]
    assert split["global_steps"] == list(range(1, 16))


@pytest.mark.parametrize("stop", [{"stop_after": 1}, {"stop_after": 7}, {"stop_after": 10}])
def test_that_a_fit_goes_on_at_its_batch(tmp_path: Path, stop: dict[str, int]) -> None:
    stopped_here(tmp_path, strategy=SPLIT, **stop)
    assert_same_fit(fit_here(tmp_path), fit_here())


@pytest.mark.parametrize("interval", [1.0, 2])
def test_that_a_validation_that_was_stopped_runs_again(tmp_path: Path, interval: float) -> None:
    options: dict[str, Any] = {"trainer": {"val_check_interval": interval}}
    reference = fit_here(**options)
    stopped_here(tmp_path, stop_in_validation=2, **options)
    result = fit_here(tmp_path, **options)
    assert_same_fit(result, reference)
    # The stopped one was not over: it ended in the second run only.
    assert result["hooks"]["validation_end"] == reference["hooks"]["validation_end"]


@pytest.mark.parametrize("schedule", ["step", "plateau"])
def test_that_schedules_have_the_same_value_at_each_step(tmp_path: Path, schedule: str) -> None:
    options: dict[str, Any] = {"module": {"schedule": schedule}, "strategy": SPLIT}
    reference = fit_here(**options)
    assert len(set(reference["rates"])) > 1
    for stop in (4, 6):
        stopped_here(tmp_path, stop_after=stop, **options)
    assert_same_fit(fit_here(tmp_path, **options), reference)


@pytest.mark.parametrize(
    "trainer",
    [
        {"gradient_clip_val": 0.5},
        {"gradient_clip_val": 0.02, "gradient_clip_algorithm": "value"},
        {"max_epochs": -1, "max_steps": 8},
        {"limit_train_batches": 3, "check_val_every_n_epoch": 2},
    ],
)
def test_that_settings_of_the_trainer_hold_over_a_stop(tmp_path: Path, trainer: dict[str, Any]) -> None:
    reference = fit_here(trainer=trainer)
    plain = fit_here()
    assert reference["weights"]["body.0.weight"].tolist() != plain["weights"]["body.0.weight"].tolist()
    stopped_here(tmp_path, stop_after=4, trainer=trainer, strategy=SPLIT)
    assert_same_fit(fit_here(tmp_path, trainer=trainer), reference)


def test_that_the_precision_is_lightnings(tmp_path: Path) -> None:
    options: dict[str, Any] = {"trainer": {"precision": "bf16-mixed"}}
    reference = fit_here(**options)
    assert reference["losses"] != pytest.approx(fit_here()["losses"], rel=EXACT[0])
    stopped_here(tmp_path, stop_after=4, **options)
    assert_same_fit(fit_here(tmp_path, **options), reference)


def test_that_a_finished_fit_does_not_begin_again(tmp_path: Path) -> None:
    reference = fit_here(tmp_path)
    again = fit_here(tmp_path)
    assert again["hooks"] == reference["hooks"]
    assert again["weights"]["body.0.weight"].tolist() == reference["weights"]["body.0.weight"].tolist()
    longer = fit_here(tmp_path, trainer={"max_epochs": 4})
    assert_same_fit(longer, fit_here(trainer={"max_epochs": 4}))


def test_that_no_checkpoint_is_written_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ArithmeticError, match="the module fails here"):
        fit_here(tmp_path, module={"fails_at": 7})
    assert not list((tmp_path / "checkpoints").glob("*"))
    assert_same_fit(fit_here(tmp_path), fit_here())


def test_that_sigterm_in_the_last_validation_ends_the_script_with_its_code(tmp_path: Path) -> None:
    stopped_here(tmp_path, stop_in_validation=3)
    result = fit_here(tmp_path)
    assert_same_fit(result, fit_here())


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
