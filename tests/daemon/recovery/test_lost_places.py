"""Which jobs have lost their place: those that a move stopped, and nothing that others did."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest
from prometheus_client.exposition import generate_latest

from pollux_slurm.config import MovesConfig
from pollux_slurm.daemon.observe.cluster_picture import ManagedJob, Picture
from pollux_slurm.daemon.recovery.lost_places import lost_places, restores, stopped_jobs
from pollux_slurm.model import Allocation, JobState, ReallocationCause
from pollux_slurm.model import ReallocationStep as Step
from pollux_slurm.store.contract.interface import Reallocation
from tests.daemon.builders import NOON, job, node, reallocation, record, run, snapshot
from tests.daemon.enact.test_state_machine import started
from tests.daemon.harness import CONFIG, Harness

LONGEST_S = 60.0
LATE = NOON + timedelta(seconds=LONGEST_S + 1)


def stopped(step: Step = Step.FAILED, **changes: Any) -> Reallocation:
    """Return a move of job 1 that stopped it at noon, in its first run."""
    move = reallocation(1, "1", step, source={"n0": 2}, target={"n0": 3})
    times = ((Step.PLANNED, NOON), (Step.REQUEUED, NOON), *([] if step is Step.REQUEUED else [(step, NOON)]))
    return dataclasses.replace(move, **{"times": times, **changes})


def waiting(*moves: Reallocation, **slurm: Any) -> ManagedJob:
    """Return job 1, which waits in the queue after `moves`."""
    last = moves[-1] if moves else None
    is_open = last is not None and not last.step.is_end
    known = record(
        "1", state=JobState.PENDING, last_reallocation=last, open_reallocation=last if is_open else None
    )
    shown = {"state": JobState.PENDING, "restart_count": 1, "reason": "Resources", **slurm}
    return ManagedJob(slurm=job("1", **shown), record=known)


def found(one: ManagedJob, *moves: Reallocation, at: Any = LATE, responds: bool = True) -> tuple[str, ...]:
    nodes = [node("n0", responds=responds, available=responds), node("n1")]
    picture = Picture(snapshot=snapshot(nodes, [one.slurm]), managed=(one,), nodes=())
    since = stopped_jobs(picture, lambda _job_id: moves, at)
    return tuple(lost_places(since, at, longest_stop_s=LONGEST_S))


def test_that_a_job_that_a_move_stopped_counts_once_the_move_may_last_no_longer() -> None:
    assert found(waiting(stopped())) == ("1",)
    assert found(waiting(stopped()), at=NOON + timedelta(seconds=LONGEST_S)) == ()
    assert found(waiting(stopped(Step.RELEASED))) == ("1",), "its move still tries"
    assert found(waiting(stopped(Step.REQUEUED), held=True)) == ("1",), "it is the move that holds it"
    assert found(waiting(stopped(), held=True, reason="BadConstraints")) == ("1",), "Slurm holds it"
    assert found(waiting(stopped(cause=ReallocationCause.TIME_LIMIT))) == ("1",)


def test_that_it_counts_still_after_a_start_that_failed_and_for_an_anchor_without_a_wing() -> None:
    start = dataclasses.replace(
        reallocation(2, "1", Step.FAILED, source={}, target={"n1": 1}), from_restart_count=1
    )
    assert found(waiting(stopped(), start), stopped(), start) == ("1",)
    assert found(waiting(stopped(), state=JobState.COMPLETING, restart_count=0)) == ("1",)


def test_that_what_others_did_does_not_count() -> None:
    held = waiting(stopped(), held=True, reason="JobHeldUser")
    assert found(held) == (), "a person's hold"
    assert found(waiting(stopped(), begins_at=LATE + timedelta(hours=1))) == (), "a begin time"
    assert found(waiting(stopped(), restart_count=2)) == (), "requeued by a person, or preempted, later"
    assert found(waiting()) == (), "no move at all: preempted"
    ran = stopped(Step.CONFIRMED, times=((Step.REQUEUED, NOON), (Step.RUNNING, NOON), (Step.CONFIRMED, NOON)))
    assert found(waiting(ran)) == (), "it ran in its target, and was preempted there"
    one = waiting(stopped())
    reported = dataclasses.replace(one, record=dataclasses.replace(one.record, run=run(restart_count=1)))
    assert found(reported) == (), "it ran on any node after its failed move"
    assert found(waiting(stopped(Step.ROLLED_BACK))) == (), "it was started again externally"
    assert found(waiting(stopped()), responds=False) == (), "its node failed"
    assert found(waiting(stopped(), state=JobState.CANCELLED)) == ()
    assert found(ManagedJob(slurm=job("1", on={"n0": 2}), record=one.record)) == (), "it has GPUs"


def test_that_a_job_has_back_what_it_had_and_no_more_for_ten_minutes() -> None:
    soon, later = NOON + timedelta(minutes=9), NOON + timedelta(minutes=11)
    assert restores(stopped(), Allocation.of({"n1": 2}), soon)
    assert not restores(stopped(), Allocation.of({"n1": 3}), soon)
    assert not restores(stopped(), Allocation.of({"n1": 2}), later)


@pytest.mark.parametrize(
    "cause", [ReallocationCause.PAUSE, ReallocationCause.DRAIN, ReallocationCause.FAILED_START]
)
def test_that_an_order_to_stop_and_a_start_again_do_not_count(cause: ReallocationCause) -> None:
    assert found(waiting(stopped(cause=cause))) == ()
    resumed = dataclasses.replace(
        reallocation(2, "1", Step.FAILED, source={}, target={"n0": 2}),
        cause=ReallocationCause.RESUME,
        from_restart_count=1,
    )
    assert found(waiting(stopped(), resumed), stopped(), resumed) == (), "a person let it wait"


def test_that_a_round_shows_the_jobs_that_a_queue_took_the_place_of(harness: Harness) -> None:
    job_id = started(harness, gpus=4)
    daemon = harness.daemon(moves=MovesConfig(keeps_places=False))

    def shown() -> str:
        text = generate_latest(daemon.metrics.registry).decode()
        return next(line for line in text.splitlines() if line.startswith("pollux_jobs_without_their_place "))

    harness.targets = {job_id: {"n0": 2}}
    harness.slurm.before["release"] = lambda: [harness.submit_unmanaged(gpus=4) for _ in range(2)]  # type: ignore[assignment,return-value]
    harness.run_until(daemon, until=lambda: harness.is_at(Step.RELEASED), seconds=60)
    assert shown() == "pollux_jobs_without_their_place 0.0"
    harness.run_until(daemon, seconds=CONFIG.requeue_timeout_s + CONFIG.start_timeout_s + 10)
    assert harness.job(job_id).state is JobState.PENDING
    assert shown() == "pollux_jobs_without_their_place 1.0"
    for one in harness.slurm.snapshot().jobs:
        if one.job_id != job_id:
            harness.slurm.finish(one.job_id, exit_code=0)
    harness.run_until(daemon, until=lambda: harness.job(job_id).state is JobState.RUNNING, seconds=60)
    harness.run_until(daemon, seconds=5)
    assert shown() == "pollux_jobs_without_their_place 0.0"
