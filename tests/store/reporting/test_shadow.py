"""Shadow decisions are read with the jobs' allocations and measurements, on both databases."""

from __future__ import annotations

import dataclasses

import pytest

from pollux_slurm.errors import StoreError
from pollux_slurm.model import Allocation, JobState
from pollux_slurm.store.contract.interface import Store
from pollux_slurm.store.reporting.shadow import ShadowReader
from tests.store.builders import (
    at,
    decision_of,
    observation,
    problem_of,
    registration,
    report,
    token_of,
)

DECIDED = {number: Allocation.of({f"n{number}": 3, f"m{number}": 1}) for number in (1, 2)}


def reader_of(store: Store) -> ShadowReader:
    return ShadowReader(store.database)  # type: ignore[attr-defined]


@pytest.fixture
def shadow(any_store: Store) -> ShadowReader:
    """Jobs 1 and 2; rounds at 10, 30 and 40 s in shadow mode, one at 20 s that was enacted."""
    store = any_store
    store.jobs.register([registration(1), registration(2)], at=at(0))
    running = observation(1, gpus={"n1": 2}, started_at=at(5))
    store.jobs.observe([running, observation(2, JobState.PENDING)], at=at(6))
    for seconds, shadow in ((10, True), (20, False), (30, True), (40, True)):
        decision = decision_of([1, 2])
        if seconds == 40:
            decision = dataclasses.replace(decision, excluded=(("2", "it asks for too much"),))
        store.rounds.record(problem_of([1, 2]), decision, shadow=shadow, at=at(seconds))
    for index, (seconds, throughput) in enumerate([(12, 100.0), (28, 300.0), (35, 50.0)]):
        sent = report(index + 1, throughput=throughput, efficiency=0.5)
        store.agent.report(token_of(1), sent, at=at(seconds))
    store.jobs.observe([observation(1, gpus={"n2": 4}, started_at=at(33))], at=at(36))
    return reader_of(store)


def test_that_only_shadow_rounds_and_their_decisions_are_read(shadow: ShadowReader) -> None:
    found = shadow.history(at(0), at(100))
    assert [one.at for one in found.rounds] == [at(10), at(30), at(40)]
    assert {one.num_jobs for one in found.rounds} == {2}
    assert all(one.replayable for one in found.rounds)
    number = {one.job_id: one.slurm_job_id for one in found.jobs}
    first, second, third = found.sampled_rounds
    assert [(number[one.job_id], one.round_id, one.decided) for one in found.decisions] == [
        ("1", first, DECIDED[1]),
        ("1", second, DECIDED[1]),
        ("1", third, DECIDED[1]),
        ("2", first, DECIDED[2]),
        ("2", second, DECIDED[2]),
        ("2", third, None),
    ]
    assert [(one.started_at, one.ended_at, one.allocation) for one in found.allocation_intervals] == [
        (at(5), at(33), Allocation.of({"n1": 2})),
        (at(33), None, Allocation.of({"n2": 4})),
    ]


def test_that_a_range_excludes_its_end(shadow: ShadowReader) -> None:
    found = shadow.history(at(11), at(40))
    assert [one.at for one in found.rounds] == [at(30)]
    assert [one.round_id for one in found.decisions] == [found.rounds[0].round_id] * 2
    assert shadow.history(at(50), at(60)).rounds == ()


def test_that_of_too_many_decisions_those_of_every_nth_round_are_read(shadow: ShadowReader) -> None:
    found = shadow.history(at(0), at(100), max_decisions=4)
    assert (len(found.rounds), found.round_stride) == (3, 2)
    assert found.sampled_rounds[-1] == found.rounds[-1].round_id
    assert {one.round_id for one in found.decisions} == set(found.sampled_rounds)
    assert len({number % 2 for number in found.sampled_rounds}) == 1


def test_that_goodput_is_averaged_over_each_window(shadow: ShadowReader) -> None:
    first, second, empty = shadow.measured([(at(10), at(28)), (at(28), at(60)), (at(60), at(90))])
    assert (first["1"].num_samples, first["1"].throughput, first["1"].goodput) == (2, 200.0, 100.0)
    assert (second["1"].num_samples, second["1"].goodput) == (1, 25.0)
    assert empty == {}


def test_that_a_round_is_read_as_it_was_recorded(shadow: ShadowReader) -> None:
    round_id = shadow.history(at(0), at(20)).sampled_rounds[0]
    assert shadow.round(round_id) == (problem_of([1, 2]), decision_of([1, 2]))
    with pytest.raises(StoreError, match="there is no round 999"):
        shadow.round(999)
