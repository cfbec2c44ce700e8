"""Which declarations of a job's length count, and the reason for those that do not."""

from __future__ import annotations

import pytest

from pollux_slurm.daemon.decide.declared_epochs import MAX_PROGRESS, CheckedDeclaration, check_declaration
from pollux_slurm.store.contract.interface import MAX_DECLARATIONS, Declaration, JobRecord
from tests.daemon.builders import MODEL, NOON, record, sample


def declared(*declarations: tuple[int, float | None]) -> tuple[Declaration, ...]:
    return tuple(
        Declaration(total_epochs=total, at=NOON, epoch=0, progress=0.0, least_total_progress=least)
        for total, least in declarations
    )


def job(epoch: int, total: int | None, progress: float, *declarations: tuple[int, float | None]) -> JobRecord:
    return record(
        "1",
        sample=sample(epoch=epoch, total_epochs=total, progress=progress),
        declarations=declared(*declarations),
    )


def test_that_progress_is_counted_in_examples_and_an_epoch_under_way_by_it() -> None:
    declaration = check_declaration(job(3, 10, 50.0, (10, 160.0)))
    assert declaration == CheckedDeclaration(
        progress=50.0 * 64, epochs_done=50.0 / 16.0, epochs_declared=10.0
    )


@pytest.mark.parametrize(
    ("seen", "done"),
    [
        (job(1, 2, 10.0, (2, 20.0)), 1.0),
        (job(1, 2, 15.0, (2, 20.0)), 1.5),
        (job(1, 2, 30.0, (2, 20.0)), 1.99),  # epochs that become longer end when they are reported
        (job(3, 4, 2.0, (4, 40.0)), 3.0),
        (job(0, 2, 5.0, (2, None)), 0.0),  # how long the first is, nobody knows
        (job(2, 3, 25.0, (6, 60.0), (3, 30.0)), 2.5),
    ],
)
def test_that_the_part_of_an_epoch_that_is_done_counts(seen: JobRecord, done: float) -> None:
    assert check_declaration(seen).epochs_done == done


@pytest.mark.parametrize("change", [{"sample": None}, {"sample": sample(epoch=3), "model": None}])
def test_that_unknown_values_are_left_out(change: dict[str, object]) -> None:
    assert check_declaration(record("1", **change)) == CheckedDeclaration()


def test_that_a_job_without_a_model_may_declare_all_the_same() -> None:
    declaration = check_declaration(
        record("1", model=None, sample=sample(epoch=1, total_epochs=4, progress=9.0))
    )
    assert (
        declaration.progress,
        declaration.epochs_done,
        declaration.epochs_declared,
        declaration.doubt,
    ) == (None, 1.0, 4.0, None)


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (job(4, 4, 90.0, (4, 80.0)), "trains on after the 4 epochs that it declared"),
        (job(2, 9, 20.0, (4, 40.0), (9, 90.0)), "declared 4 epochs before it declared 9"),
        (job(2, 9, 20.0, (9, 90.0), (4, 40.0)), "declared 4 epochs before it declared 9"),
        (job(5, 9, 200.0, (9, 40.0)), "has made 5 times the progress"),
        (job(5, 9, 200.0, (20, 40.0), (9, 400.0)), "has made 5 times the progress"),
        (job(1, 9, 1.0, (9, 0.0)), "has made 1e+06 times the progress"),
        (job(8, 9, 0.0, (9, 0.0)), "reports 8 epochs without any progress"),
    ],
    ids=["passed", "raised", "raised again", "far from done", "far from done before", "none then", "none"],
)
def test_that_a_declaration_that_contradicts_observations_does_not_count(seen: JobRecord, words: str) -> None:
    declaration = check_declaration(seen)
    assert (declaration.epochs_done, declaration.epochs_declared) == (None, None)
    assert declaration.progress == seen.sample.progress * MODEL.limits.initial_batch_size  # type: ignore[union-attr]
    assert declaration.doubt is not None
    assert words in declaration.doubt


def test_that_a_lower_number_and_uneven_epochs_are_no_contradiction() -> None:
    assert check_declaration(job(2, 4, 30.0, (9, 70.0), (4, 40.0))).doubt is None
    # Progress an epoch may well grow threefold as batches become more efficient.
    assert check_declaration(job(5, 9, 150.0, (9, 40.0))).doubt is None


def test_that_a_job_that_named_too_many_numbers_is_not_believed_any_more() -> None:
    falling = [(1000 - i, None) for i in range(MAX_DECLARATIONS)]
    assert (
        check_declaration(job(300, 301, 50.0, *falling)).doubt
        == "it has declared 32 different numbers of epochs"
    )
    assert check_declaration(job(300, 969, 50.0, *falling[:-1], (969, None))).epochs_declared is None
    assert check_declaration(job(300, 970, 50.0, *falling[:-1])).doubt is None


def test_that_progress_beyond_belief_does_not_keep_a_job_from_being_scheduled() -> None:
    assert check_declaration(job(3, None, 1e18)).progress == MAX_PROGRESS
