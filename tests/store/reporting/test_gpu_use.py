"""Who used which GPUs is read with moves and what rounds decided, on both databases."""

from __future__ import annotations

import dataclasses

from pollux_slurm.model import JobState
from pollux_slurm.store.contract.interface import Store
from pollux_slurm.store.reporting.gpu_use import DecidedSize, FirstStep, HeldGpus, read_gpu_use
from tests.store.builders import (
    at,
    decision_of,
    move_running_job,
    observation,
    problem_of,
    registration,
    report,
    token_of,
)


def test_that_all_of_the_jobs_of_a_range_is_read(any_store: Store) -> None:
    """Job 1 moves and ends at 89 s, job 2 waits; the round at 60 s is a shadow daemon's."""
    store = any_store
    store.jobs.register([registration(1), registration(2, terms={"max_gpus": 4})], at=at(0))
    first = observation(1, gpus={"n0": 1, "n1": 1}, started_at=at(4))
    store.jobs.observe([first, observation(2, JobState.PENDING)], at=at(5))
    excluded = (("2", "it asks for too much"),)
    for seconds, shadow in ((6, False), (60, True), (70, False)):
        decision = dataclasses.replace(decision_of([1, 2]), excluded=excluded if seconds == 70 else ())
        store.rounds.record(problem_of([1, 2]), decision, shadow=shadow, at=at(seconds))
    store.agent.report(token_of(1), report(1, gpus_per_node=(1, 1), first_step_s=3.0), at=at(10))
    move = move_running_job(store, start=20)
    store.jobs.observe([observation(1, gpus={"n1": 3, "n2": 1}, started_at=at(29))], at=at(30))
    store.jobs.observe([observation(1, JobState.COMPLETED, ended_at=at(89))], at=at(90))

    use = read_gpu_use(store.database, at(0), at(100))  # type: ignore[attr-defined]
    assert use.rounds == ((at(6), 8), (at(60), 8), (at(70), 8))
    one, two = use.jobs
    assert (one.slurm_job_id, one.max_gpus, one.finished_at) == ("1", None, at(89))
    assert [(held.num_gpus, held.until) for held in one.held] == [(2, one.held[0].until), (4, at(89))]
    assert one.held[1] == HeldGpus(since=at(29), until=at(89), num_gpus=4)
    assert one.first_steps[0] == FirstStep(at=at(10), num_gpus=2)
    assert [found.id for found in one.moves] == [move.id]
    pinned = DecidedSize(at=at(6), num_gpus=4, bound_by="capacity", because="it is being moved")
    assert one.decided == (pinned, dataclasses.replace(pinned, at=at(70)))
    assert (two.max_gpus, two.finished_at, two.held, two.first_steps, two.moves) == (4, None, (), (), ())
    assert [size.because for size in two.decided] == [None, "it asks for too much"]

    later = read_gpu_use(store.database, at(95), at(100))  # type: ignore[attr-defined]
    assert ([job.slurm_job_id for job in later.jobs], later.rounds) == (["2"], ())


def test_that_of_too_many_decisions_those_of_every_nth_round_are_read(any_store: Store) -> None:
    any_store.jobs.register([registration(1)], at=at(0))
    for seconds in range(10):
        any_store.rounds.record(problem_of([1]), decision_of([1]), shadow=False, at=at(seconds))
    database = any_store.database  # type: ignore[attr-defined]
    (job,) = read_gpu_use(database, at(0), at(100), max_decisions=5).jobs
    assert len(job.decided) == 5
