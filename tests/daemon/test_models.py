"""Models that jobs report, held against the progress that they make."""

from __future__ import annotations

import dataclasses

import pytest

from pollux_slurm.daemon.models import doubt, doubt_of
from pollux_slurm.goodput import best_batch
from pollux_slurm.model import Allocation, BatchLimits, Configuration
from pollux_slurm.store.contract import Pace
from tests.daemon.builders import MODEL, record, run

TWO = Configuration(num_nodes=1, num_gpus=2)


def pace(times: float, *, trained_s: float = 300.0, at: Configuration = TWO) -> Pace:
    """Return what a job makes that is `times` as fast as its model promises."""
    best = best_batch(MODEL, at)
    assert best is not None
    return Pace(times * best.goodput / MODEL.limits.initial_batch_size * trained_s, trained_s)


@pytest.mark.parametrize(
    ("times", "counts"), [(1.0, True), (0.1, True), (0.02, True), (3.5, True), (0.005, False), (5.0, False)]
)
def test_that_a_model_counts_where_what_is_made_is_near(times: float, counts: bool) -> None:
    assert (doubt(MODEL, TWO, pace(times)) is None) is counts


def test_that_no_model_is_judged_by_a_moment() -> None:
    assert doubt(MODEL, TWO, pace(0.001, trained_s=100.0)) is None
    assert doubt(MODEL, TWO, pace(0.001, trained_s=130.0)) is not None


def test_that_a_job_is_not_doubted_where_its_owners_limits_exclude_what_it_holds() -> None:
    """Batches of 4 at most, and never less than 64 of them together, need 16 GPUs; it was started on 2."""
    limits = BatchLimits(initial_batch_size=64, max_batch_size=1024, max_atomic=4)
    steep = dataclasses.replace(MODEL, limits=limits)
    assert doubt(steep, TWO, Pace(100.0, 300.0)) is None


def test_that_a_job_that_waits_is_judged_by_where_it_ran() -> None:
    four = Configuration(num_nodes=2, num_gpus=4)
    ran = dataclasses.replace(run(), gpus_per_node=(2, 2))
    assert doubt_of(record("1", run=ran, pace=pace(1.0, at=four)), Allocation()) is None
    assert doubt_of(record("1", run=ran, pace=pace(10.0, at=four)), Allocation()) is not None


def test_that_a_job_that_has_told_nothing_is_not_doubted() -> None:
    held = Allocation.of({"n0": 2})
    for known in (
        record("1"),
        record("1", model=None, pace=pace(9.0)),
        record("1", run=None, pace=pace(9.0)),
    ):
        assert doubt_of(known, held) is None
