"""Which claims about a job's length count, and what is said of those that do not."""

from __future__ import annotations

import pytest

from pollux_slurm.daemon.decide.declared_epochs import MOST_PROGRESS, Claim, checked
from pollux_slurm.store.contract.interface import MAX_DECLARATIONS, Declaration, JobRecord, Sample
from tests.daemon.builders import MODEL, NOON, record


def sample(epoch: int, total: int | None, progress: float) -> Sample:
    return Sample(
        at=NOON,
        batch=None,
        throughput=100.0,
        predicted_throughput=None,
        efficiency=0.5,
        progress=progress,
        epoch=epoch,
        total_epochs=total,
    )


def declared(*claims: tuple[int, float | None]) -> tuple[Declaration, ...]:
    return tuple(
        Declaration(total_epochs=total, at=NOON, epoch=0, progress=0.0, least_total_progress=least)
        for total, least in claims
    )


def job(epoch: int, total: int | None, progress: float, *claims: tuple[int, float | None]) -> JobRecord:
    return record("1", sample=sample(epoch, total, progress), declarations=declared(*claims))


def test_that_progress_is_counted_in_examples_and_an_epoch_under_way_by_it() -> None:
    claim = checked(job(3, 10, 50.0, (10, 160.0)))
    assert claim == Claim(progress=50.0 * 64, epochs_done=50.0 / 16.0, epochs_declared=10.0)


@pytest.mark.parametrize(
    ("seen", "done"),
    [
        (job(1, 2, 10.0, (2, 20.0)), 1.0),
        (job(1, 2, 15.0, (2, 20.0)), 1.5),
        (job(1, 2, 30.0, (2, 20.0)), 1.99),  # epochs that become longer end when they say so
        (job(3, 4, 2.0, (4, 40.0)), 3.0),
        (job(0, 2, 5.0, (2, None)), 0.0),  # how long the first is, nobody knows
        (job(2, 3, 25.0, (6, 60.0), (3, 30.0)), 2.5),
    ],
)
def test_that_the_part_of_an_epoch_that_is_done_counts(seen: JobRecord, done: float) -> None:
    assert checked(seen).epochs_done == done


@pytest.mark.parametrize("change", [{"sample": None}, {"sample": sample(3, None, 1.0), "model": None}])
def test_that_what_is_not_known_is_not_claimed(change: dict[str, object]) -> None:
    assert checked(record("1", **change)) == Claim()


def test_that_a_job_without_a_model_may_declare_all_the_same() -> None:
    claim = checked(record("1", model=None, sample=sample(1, 4, 9.0)))
    assert (claim.progress, claim.epochs_done, claim.epochs_declared, claim.doubt) == (None, 1.0, 4.0, None)


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (job(4, 4, 90.0, (4, 80.0)), "goes on after the 4 epochs that it declared"),
        (job(2, 9, 20.0, (4, 40.0), (9, 90.0)), "declared 4 epochs before it declared 9"),
        (job(2, 9, 20.0, (9, 90.0), (4, 40.0)), "declared 4 epochs before it declared 9"),
        (job(5, 9, 200.0, (9, 40.0)), "has made 5 times all the progress"),
        (job(5, 9, 200.0, (20, 40.0), (9, 400.0)), "has made 5 times all the progress"),
        (job(1, 9, 1.0, (9, 0.0)), "has made 1e+06 times all the progress"),
        (job(8, 9, 0.0, (9, 0.0)), "tells of 8 epochs without any progress"),
    ],
    ids=["passed", "raised", "raised again", "far from done", "far from done before", "none then", "none"],
)
def test_that_a_claim_against_what_was_seen_does_not_count(seen: JobRecord, words: str) -> None:
    claim = checked(seen)
    assert (claim.epochs_done, claim.epochs_declared) == (None, None)
    assert claim.progress == seen.sample.progress * MODEL.limits.initial_batch_size  # type: ignore[union-attr]
    assert claim.doubt is not None
    assert words in claim.doubt


def test_that_a_lower_number_and_uneven_epochs_are_no_contradiction() -> None:
    assert checked(job(2, 4, 30.0, (9, 70.0), (4, 40.0))).doubt is None
    # Progress an epoch may well grow threefold as batches become more efficient.
    assert checked(job(5, 9, 150.0, (9, 40.0))).doubt is None


def test_that_a_job_that_named_too_many_numbers_is_not_believed_any_more() -> None:
    falling = [(1000 - i, None) for i in range(MAX_DECLARATIONS)]
    assert checked(job(300, 301, 50.0, *falling)).doubt == "it has declared 32 different numbers of epochs"
    assert checked(job(300, 969, 50.0, *falling[:-1], (969, None))).epochs_declared is None
    assert checked(job(300, 970, 50.0, *falling[:-1])).doubt is None


def test_that_progress_beyond_belief_does_not_keep_a_job_from_being_scheduled() -> None:
    assert checked(job(3, None, 1e18)).progress == MOST_PROGRESS
