"""Which jobs in the middle of a move or a start give way to rigid jobs, and what a round then does."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from pollux_slurm.config import PolicyConfig
from pollux_slurm.daemon.decide import lent_gpus, problem_building, unmanaged_jobs
from pollux_slurm.daemon.loop import Daemon
from pollux_slurm.daemon.observe import cluster_picture
from pollux_slurm.daemon.observe.cluster_picture import ManagedJob, Picture
from pollux_slurm.model import (
    Allocation,
    Decision,
    JobDecision,
    JobState,
    ReallocationCause,
    ReallocationWay,
    SlurmJob,
)
from pollux_slurm.model import ReallocationStep as Step
from pollux_slurm.policy import decide
from pollux_slurm.store.contract.interface import RunPhase
from pollux_slurm.store.sql_store import SqlStore
from tests.daemon.builders import NOON, job, node, reallocation, record, run, snapshot
from tests.daemon.crashing import Killed, KilledAt
from tests.daemon.harness import Harness
from tests.store_fixtures import wipe

# Their owner submitted it with one GPU. It trains on two, or has just started there in its second run.
GROWING = reallocation(1, "1", Step.CHECKPOINT_REQUESTED, source={"n0": 2}, target={"n0": 4})
TRAINS = {"on": {"n0": 2}}
STARTED = reallocation(1, "1", Step.RUNNING, source={"n0": 2}, target={"n0": 4})
STARTS = {"on": {"n0": 4}, "restart_count": 1, "started_at": NOON - timedelta(seconds=50)}


def managed(move: Any, shown: dict[str, Any], **known: Any) -> ManagedJob:
    known = {"submitted_gpus": 1, "open_reallocation": move, **known}
    return ManagedJob(slurm=job("1", **shown), record=record("1", **known))


@pytest.mark.parametrize(
    ("move", "shown", "known", "does"),
    [
        (GROWING, TRAINS, {}, True),
        (dataclasses.replace(GROWING, step=Step.PLANNED), TRAINS, {}, True),
        # Its ranks have written a checkpoint, and wait.
        (dataclasses.replace(GROWING, step=Step.CHECKPOINTED), TRAINS, {}, False),
        (dataclasses.replace(GROWING, step=Step.RELEASED), {"state": JobState.PENDING}, {}, False),
        # This one makes room itself.
        (dataclasses.replace(GROWING, target=Allocation.of({"n0": 1})), TRAINS, {}, False),
        (dataclasses.replace(GROWING, target=Allocation.of({"n1": 2})), TRAINS, {}, False),
        (dataclasses.replace(GROWING, cause=ReallocationCause.TIME_LIMIT), TRAINS, {}, False),
        (dataclasses.replace(GROWING, way=ReallocationWay.IN_PLACE), TRAINS, {}, False),
        (STARTED, STARTS, {}, True),
        (STARTED, STARTS, {"run": run(restart_count=1, steps=0, phase=RunPhase.STARTING)}, True),
        (STARTED, STARTS, {"run": run(restart_count=1, steps=1)}, False),
        (STARTED, {**STARTS, "started_at": NOON - timedelta(seconds=70)}, {}, False),
        # All of it is its owner's.
        (STARTED, STARTS, {"submitted_gpus": 4}, False),
        (None, STARTS, {}, False),
    ],
)
def test_that_a_growth_gives_way_until_its_job_is_stopped_and_again_until_its_first_step(
    move: Any, shown: dict[str, Any], known: dict[str, Any], does: bool
) -> None:
    assert lent_gpus.gives_way(managed(move, shown, **known), NOON) is does


def picture(*jobs: SlurmJob, **known: Any) -> Picture:
    """Job 1 is adaptive, and was submitted with one GPU."""
    used = sum(other.allocation.num_gpus for other in jobs)
    ours = record("1", **{"submitted_gpus": 1, **known})
    return cluster_picture.build_picture(snapshot([node("n0", used=used)], list(jobs)), [ours])


def rigid(gpus: int) -> SlurmJob:
    return job("9", JobState.PENDING, comment="", reason="Resources", requested_gpus=gpus, priority=10)


def decided(seen: Picture) -> tuple[dict[str, int], tuple[Any, ...]]:
    """Return the GPUs that the jobs get in a round, and the moves that it gives up."""
    unmanaged = unmanaged_jobs.next_unmanaged_jobs(
        seen, problem_building.UsableNodes(seen.snapshot), PolicyConfig(), takes_part=frozenset()
    )
    problem = problem_building.build_problem(
        seen, now=NOON, default_restart_delay_s=30.0, unmanaged=unmanaged
    )
    problem = lent_gpus.keep_submitted_shapes(problem, decide, {"1": 1})
    decision = decide(problem)
    gpus = {one.job_id: one.allocation.num_gpus for one in decision.jobs}
    return gpus, lent_gpus.moves_given_up(seen, decision, NOON)


def test_that_a_growth_that_was_only_asked_for_is_given_up_for_a_rigid_job() -> None:
    growing = dataclasses.replace(GROWING, source=Allocation.of({"n0": 3}))
    grows = job("1", on={"n0": 3})
    assert decided(picture(grows, open_reallocation=growing)) == ({"1": 4}, ())
    gpus, given_up = decided(picture(grows, rigid(2), open_reallocation=growing))
    assert gpus == {"1": 2, "9": 2}
    assert given_up == (growing,)


def test_that_a_start_with_lent_gpus_makes_room_and_takes_nothing() -> None:
    for move in (STARTED, None):
        gpus, given_up = decided(picture(job("1", **STARTS), rigid(2), open_reallocation=move))
        assert gpus == {"1": 2, "9": 2}
        assert given_up == (() if move is None else (STARTED,))
    alone = picture(job("1", **{**STARTS, "on": {"n0": 2}}))
    assert decided(alone) == ({"1": 2}, ()), "it does not grow before its first step"


def test_that_a_move_that_is_given_up_counts_no_more() -> None:
    seen = picture(job("1", **STARTS), open_reallocation=STARTED)
    (left,) = lent_gpus.without_moves(seen, (STARTED,)).managed
    assert not left.in_flight
    (kept,) = lent_gpus.without_moves(seen, ()).managed
    assert kept.in_flight


def grown(harness: Harness, daemon: Daemon) -> str:
    """Return a job that was submitted with one GPU, and trains on two of n0."""
    job_id = harness.submit(gpus=1)
    harness.run_until(daemon, until=lambda: harness.has_stepped(job_id), seconds=30)
    harness.targets = {job_id: {"n0": 2}}
    harness.run_until(
        daemon, until=lambda: harness.job(job_id).restart_count == 1 and not harness.open_moves(), seconds=60
    )
    return job_id


def test_that_a_job_that_waits_is_started_instead_of_a_growth_that_was_asked_for(harness: Harness) -> None:
    daemon = harness.daemon()
    job_id = grown(harness, daemon)
    harness.agents[job_id].answers = False
    harness.targets = {job_id: {"n0": 4}}
    harness.run_until(daemon, until=lambda: harness.is_at(Step.CHECKPOINT_REQUESTED), seconds=20)
    harness.submit_unmanaged(gpus=4)
    comes = harness.submit_unmanaged(gpus=3)
    harness.targets = {job_id: {"n0": 1}}
    daemon.round()
    harness.agents[job_id].answers = True
    harness.run_until(daemon, until=lambda: harness.job(comes).state is JobState.RUNNING, seconds=30)
    harness.run_until(daemon, until=lambda: not harness.open_moves(), seconds=30)
    *_, growth, makes_room = harness.store.journal.reallocations(job_id)
    assert (growth.step, growth.reason) == (Step.ROLLED_BACK, "it gives way to jobs that wait")
    assert (makes_room.step, makes_room.target) == (Step.CONFIRMED, Allocation.of({"n0": 1}))
    assert harness.job(job_id).restart_count == 2, "one for each move that stopped it"


def given_way_at_start(harness: Harness, made: Callable[[], Daemon]) -> None:
    """Let a job that has just started with lent GPUs give way; a daemon that is killed is made again."""
    daemon = harness.daemon()
    job_id = grown(harness, daemon)
    harness.targets = {job_id: {"n0": 4}}
    harness.run_until(daemon, until=lambda: harness.is_at(Step.CHECKPOINT_REQUESTED), seconds=20)
    harness.agents[job_id].act()
    harness.agents[job_id].reports = False
    harness.run_until(daemon, until=lambda: harness.is_at(Step.RUNNING), seconds=30)
    harness.submit_unmanaged(gpus=4)
    comes = harness.submit_unmanaged(gpus=3)
    harness.targets = {job_id: {"n0": 1}}
    daemon = made()
    try:
        harness.run_until(daemon, until=lambda: harness.job(comes).state is JobState.RUNNING, seconds=30)
    except Killed:
        harness.run_until(
            harness.daemon(), until=lambda: harness.job(comes).state is JobState.RUNNING, seconds=60
        )
    assert harness.job(comes).state is JobState.RUNNING
    harness.agents[job_id].reports = True
    harness.run_until(harness.daemon(), until=lambda: not harness.open_moves(), seconds=60)
    shown = harness.job(job_id)
    assert (shown.state, shown.held, shown.restart_count) == (JobState.RUNNING, False, 3)
    assert shown.allocation == Allocation.of({"n0": 1})
    assert harness.open_moves() == 0


def test_that_a_start_with_lent_gpus_is_ended_without_a_checkpoint_for_a_job_that_waits(
    harness: Harness,
) -> None:
    given_way_at_start(harness, harness.daemon)
    (job_id,) = harness.agents
    *_, growth, makes_room = harness.store.journal.reallocations(job_id)
    assert (growth.step, growth.reason) == (Step.FAILED, "it gives way to jobs that wait")
    assert makes_room.step is Step.CONFIRMED
    assert makes_room.entered_at(Step.CHECKPOINT_REQUESTED) is None
    assert makes_room.checkpoint_waived
    record = harness.store.jobs.get(job_id)
    assert (record.run and record.run.restart_count, record.unanswered) == (3, ())


def test_that_a_daemon_that_is_killed_while_a_start_gives_way_leaves_no_job_stopped(
    clean_store: SqlStore,
) -> None:
    for at in itertools.count():
        wipe(clean_store)
        harness, counter = Harness(clean_store), itertools.count()

        def mortal(harness: Harness = harness, counter: Iterator[int] = counter, at: int = at) -> Daemon:
            return harness.daemon(
                slurm=KilledAt(harness.slurm, counter, at),  # type: ignore[arg-type]
                store=KilledAt(harness.store, counter, at),  # type: ignore[arg-type]
            )

        given_way_at_start(harness, mortal)
        if next(counter) <= at:
            assert at > 8, "too few calls were tried"
            break


def test_that_no_decision_gives_up_the_move_of_a_job_that_is_stopped() -> None:
    stopped = dataclasses.replace(GROWING, step=Step.RESHAPED)
    waits = job("1", JobState.PENDING, held=True, requested_gpus=4)
    gpus = JobDecision(
        job_id="1", allocation=Allocation.of({"n0": 1}), speedup=1.0, goodput=None, penalty=1.0, batch=None,
        bound_by="nothing", runner_up=None, runner_up_speedup=None,
    )  # fmt: skip
    decision = Decision(jobs=(gpus,), fitness=1.0, solver="test")
    assert lent_gpus.moves_given_up(picture(waits, open_reallocation=stopped), decision, NOON) == ()
    grows = picture(job("1", **TRAINS), open_reallocation=GROWING)
    assert lent_gpus.moves_given_up(grows, decision, NOON) == (GROWING,)
