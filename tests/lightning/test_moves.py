"""Moved equals unmoved: the same steps, rates, hooks and logged values, with real processes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.lightning import scripts
from tests.lightning.same_fit import assert_same_fit
from tests.torch.ranks import run_ranks, start

pytestmark = pytest.mark.torch


def moved(tmp_path: Path, stops: list[tuple[int, Any]], final: int, **options: Any) -> list[dict[str, Any]]:
    """Fit with a SIGTERM in each of the first runs, as (replicas, arguments); return what the last saw."""
    directory = str(tmp_path / "job")
    for restart, (replicas, stop) in enumerate(stops):
        fit = partial(scripts.fit, directory, **{**options, **stop})
        run = start(tmp_path, replicas, fit, restart_count=restart)
        assert run.wait() == [143] * replicas, run.output()
    fit = partial(scripts.fit, directory, **options)
    return run_ranks(tmp_path, final, fit, restart_count=len(stops))


def unmoved(tmp_path: Path, **options: Any) -> dict[str, Any]:
    result: dict[str, Any] = run_ranks(tmp_path, 1, partial(scripts.fit, None, **options))[0]
    return result


def test_that_a_fit_moved_from_1_to_3_to_2_replicas_is_the_unmoved_one(tmp_path: Path) -> None:
    # 70 examples in batches of 16: five steps an epoch, the last of 6 examples. At most 3 examples fit.
    reference = unmoved(tmp_path)
    split = {"local_bsz_bounds": (None, 3)}
    stops = [
        (1, {"stop_after": 3, "strategy": split}),
        (3, {"stop_after": 5, "strategy": split}),
        (1, {"stop_in_validation": 1}),
    ]
    results = moved(tmp_path, stops, 2, after=True)
    for result in results:
        assert_same_fit(result, reference)
    hooks = results[0]["hooks"]
    assert (hooks["batch_start"], hooks["batch_end"], hooks["before_step"]) == (15, 15, 15)
    # The epoch under way begins again after a move, with its hooks; nothing ends twice. The last move came
    # between two epochs, because the validation was an epoch's last work.
    assert (hooks["train_start"], hooks["epoch_start"]) == (4, 5)
    assert (hooks["validation_end"], hooks["epoch_end"], hooks["train_end"]) == (3, 3, 1)
    assert results[0]["num_made"] == 4
    # Each of two replicas evaluates 12 of 24 examples; what they log is the mean over all.
    for result in results:
        assert result["after"]["validate"] == pytest.approx(reference["history"][-1][1]["valid"], rel=1e-4)
        assert result["after"]["predicted"] == 12


def test_that_two_optimizers_by_hand_train_alike_with_padding(tmp_path: Path) -> None:
    # 70 examples in batches of 23: the last has one, and two of three replicas get padding.
    options: dict[str, Any] = {"module_kind": scripts.Gan, "batch_size": 23}
    reference = unmoved(tmp_path, **options)
    for result in moved(tmp_path, [(3, {"stop_after": 5})], 2, **options):
        assert_same_fit(result, reference)


class _StopsAlone(scripts.Callback):
    """Stops rank 1 after its first epoch, as early stopping on a replica's own share may."""

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        trainer.should_stop = trainer.global_rank == 1


def test_that_a_replica_that_stops_alone_ends_the_fit_with_the_cure(tmp_path: Path) -> None:
    fit = partial(scripts.fit, str(tmp_path / "job"), callbacks=[_StopsAlone], trainer={"min_epochs": 0})
    run = start(tmp_path, 2, fit)
    assert run.wait() == [1, 1], run.output()
    assert "rank 1 has left the epochs by its own decision" in run.output()
