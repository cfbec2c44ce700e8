"""A job does not start on a node where a leftover of its earlier run may still end (docs/slurm-facts.md)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pollux_slurm.daemon.loop import Daemon
from pollux_slurm.daemon.observe import returned_nodes
from pollux_slurm.model import Allocation, Decision, JobState, Problem
from pollux_slurm.model import ReallocationStep as Step
from tests.daemon.harness import Harness
from tests.fakes.slurm import FakeClock, FakeSlurm, fake_node

SETTLING_S = returned_nodes.SETTLING.total_seconds()


def started(harness: Harness, *, gpus: int) -> tuple[str, Daemon]:
    """Start a job under a daemon, and let it report its first steps."""
    job_id, daemon = harness.submit(gpus=gpus), harness.daemon()
    harness.run_until(daemon, until=lambda: harness.has_stepped(job_id), seconds=8)
    assert harness.job(job_id).state is JobState.RUNNING
    return job_id, daemon


def run_rounds(harness: Harness, daemon: Daemon, seconds: float) -> None:
    """Advance the clock with a round every 20 s."""
    for _ in range(int(seconds / 20)):
        harness.clock.advance(20)
        daemon.tick()
        daemon.round()


def lose(harness: Harness, name: str) -> None:
    harness.slurm.set_node(name, available=False, responds=False, state="down")


def bring_back(harness: Harness, name: str) -> None:
    harness.slurm.set_node(
        name, available=True, responds=True, state="idle", last_busy_at=harness.clock().replace(microsecond=0)
    )


def requeue_off_lost_node(harness: Harness, job_id: str) -> None:
    """Requeue the job as slurmctld does for a DOWN node: with a begin time 121 s ahead."""
    number = harness.job(job_id).restart_count
    harness.slurm.requeue(job_id, restart_count=number)
    harness.clock.advance(1)
    harness.slurm.snapshot()
    assert (harness.job(job_id).state, harness.job(job_id).held) == (JobState.PENDING, False)


def test_that_a_node_that_came_back_takes_nothing_until_it_has_settled() -> None:
    clock = FakeClock()
    slurm = FakeSlurm([fake_node("n0"), fake_node("n1")], clock=clock)
    seen = returned_nodes.track_returned_nodes(slurm, tuple)

    def available() -> list[bool]:
        return [node.available for node in seen.snapshot().nodes]

    assert available() == [True, True], "a node that was never lost is not new"
    slurm.set_node("n0", available=False, responds=False)
    assert available() == [False, True]
    slurm.set_node("n0", available=True, responds=True)
    clock.advance(500)  # no daemon read Slurm
    assert available() == [False, True]
    assert returned_nodes.unsettled_nodes(seen.snapshot()) == {"n0"}
    clock.advance(SETTLING_S - 1)
    assert available() == [False, True]
    clock.advance(1)
    assert available() == [True, True]
    slurm.set_node("n0", available=False)  # drained: its slurmd answers
    assert available() == [False, True]
    slurm.set_node("n0", available=True)
    assert available() == [True, True]


def daemon_that_places(harness: Harness, job_id: str, place: dict[str, int]) -> Daemon:
    """Return a daemon that places the job as soon as the nodes accept jobs."""

    def decide(problem: Problem) -> Decision:
        takes_jobs = {node.name for node in problem.nodes if node.accepts_new}
        harness.targets = {job_id: place} if place.keys() <= takes_jobs else {}
        return harness.decide(problem)

    return harness.daemon(decide=decide)


def test_that_a_job_requeued_off_a_lost_node_waits_until_the_node_has_settled(harness: Harness) -> None:
    harness.submit_unmanaged(gpus=4)
    job_id, _ = started(harness, gpus=2)
    assert harness.job(job_id).allocation == Allocation.of({"n1": 2})
    daemon = daemon_that_places(harness, job_id, {"n1": 2})
    lose(harness, "n1")
    requeue_off_lost_node(harness, job_id)
    run_rounds(harness, daemon, 300)  # longer than Slurm's own delay
    assert harness.job(job_id).state is JobState.PENDING
    bring_back(harness, "n1")
    run_rounds(harness, daemon, SETTLING_S)
    assert harness.job(job_id).state is JobState.PENDING, "its leftover may still end there"
    harness.run_until(daemon, until=lambda: harness.job(job_id).state is JobState.RUNNING, seconds=60)
    assert harness.job(job_id).allocation == Allocation.of({"n1": 2})


def lose_and_bring_back(harness: Harness, name: str, job_id: str) -> None:
    """Let a node go DOWN with a job and return while no daemon reads Slurm."""
    lose(harness, name)
    requeue_off_lost_node(harness, job_id)
    harness.clock.advance(30)
    bring_back(harness, name)


@pytest.mark.slow
def test_that_a_daemon_started_after_a_node_was_lost_and_came_back_is_as_careful(harness: Harness) -> None:
    harness.submit_unmanaged(gpus=4)
    job_id, _ = started(harness, gpus=2)
    lose_and_bring_back(harness, "n1", job_id)
    back_at = harness.clock()
    harness.clock.advance(10)
    daemon = daemon_that_places(harness, job_id, {"n1": 2})
    harness.run_until(daemon, until=lambda: harness.job(job_id).state is JobState.RUNNING, seconds=200)
    started_at = harness.job(job_id).started_at
    assert started_at is not None
    assert timedelta(seconds=SETTLING_S) <= started_at - back_at < timedelta(seconds=SETTLING_S + 20)


def test_that_a_daemon_that_had_not_looked_for_a_while_is_as_careful(harness: Harness) -> None:
    job_id, _ = started(harness, gpus=2)
    seen = returned_nodes.track_returned_nodes(harness.slurm, harness.store.jobs.active)
    seen.snapshot()
    harness.clock.advance(SETTLING_S)
    lose_and_bring_back(harness, "n0", job_id)
    assert returned_nodes.unsettled_nodes(seen.snapshot()) == {"n0"}
    harness.clock.advance(SETTLING_S)
    assert returned_nodes.unsettled_nodes(seen.snapshot()) == set()


@pytest.mark.parametrize("waiting", ["nobody", "a job that never ran", "a job requeued since"])
def test_that_a_node_that_a_job_has_just_left_is_not_taken_for_one_that_came_back(
    harness: Harness, waiting: str
) -> None:
    job_id, _ = started(harness, gpus=2)
    harness.slurm.set_node("n0", last_busy_at=harness.clock())
    if waiting == "a job that never ran":
        harness.submit_unmanaged(gpus=4), harness.submit_unmanaged(gpus=4)
    if waiting == "a job requeued since":
        requeue_off_lost_node(harness, job_id)
    assert (
        returned_nodes.unsettled_nodes(
            returned_nodes.track_returned_nodes(harness.slurm, harness.store.jobs.active).snapshot()
        )
        == set()
    )


@pytest.mark.slow
def test_that_a_job_is_not_kept_waiting_for_ever_by_a_node_that_stays_lost(harness: Harness) -> None:
    other = harness.submit_unmanaged(gpus=4)
    job_id, daemon = started(harness, gpus=2)
    assert harness.job(job_id).allocation == Allocation.of({"n1": 2})
    lose(harness, "n1")
    requeue_off_lost_node(harness, job_id)
    run_rounds(harness, daemon, returned_nodes.WAITS_AT_MOST.total_seconds() - returned_nodes.WAIT_S)
    begins_at = harness.job(job_id).begins_at
    assert begins_at is not None
    assert begins_at > harness.clock()
    run_rounds(harness, daemon, 3 * returned_nodes.WAIT_S)
    harness.slurm.cancel(other)
    harness.slurm.snapshot()
    assert harness.job(job_id).allocation == Allocation.of({"n0": 2}), "Slurm starts it, with no round's help"


def test_that_such_a_job_starts_on_another_node_as_soon_as_it_is_given_one(harness: Harness) -> None:
    job_id, daemon = started(harness, gpus=2)
    lose(harness, "n0")
    requeue_off_lost_node(harness, job_id)
    harness.targets = {job_id: {"n1": 2}}
    harness.run_until(daemon, until=lambda: harness.job(job_id).state is JobState.RUNNING, seconds=20)
    assert harness.job(job_id).allocation == Allocation.of({"n1": 2})


def test_that_a_move_whose_node_is_lost_on_the_way_does_not_end_anywhere_slurm_likes(
    harness: Harness,
) -> None:
    harness.submit_unmanaged(gpus=4)
    job_id, daemon = started(harness, gpus=2)
    harness.targets = {job_id: {"n1": 4}}
    harness.run_until(daemon, until=lambda: harness.is_at(Step.REQUEUED), seconds=20)
    lose(harness, "n1")
    harness.targets = {}
    harness.tick(daemon, times=30)  # no round meanwhile
    bring_back(harness, "n1")
    harness.tick(daemon, times=10)
    assert (harness.job(job_id).state, harness.job(job_id).held) == (JobState.PENDING, False)
    begins_at = harness.job(job_id).begins_at
    assert begins_at is not None
    assert begins_at > harness.clock() + timedelta(seconds=1), (
        "should the daemon die, it starts by itself then"
    )
    run_rounds(harness, daemon, 360)
    assert harness.job(job_id).state is JobState.RUNNING


@pytest.mark.parametrize("target", [{"n1": 4}, {}], ids=["move", "pause"])
def test_that_a_daemon_started_during_a_move_does_not_take_its_source_for_a_returned_node(
    harness: Harness, target: dict[str, int]
) -> None:
    """Slurm resets the time of submission before the last process of the run has ended."""
    job_id, daemon = started(harness, gpus=2)
    harness.store.journal.plan(
        job_id,
        source=harness.job(job_id).allocation,
        target=Allocation.of(target),
        moves_running=True,
        from_restart_count=0,
        round_id=None,
        at=harness.clock(),
    )
    for _ in range(30):
        if harness.job(job_id).state is JobState.PENDING:
            break
        harness.agents[job_id].act()
        harness.tick(daemon, times=1)
    waiting = harness.job(job_id)
    assert (waiting.state, waiting.restart_count) == (JobState.PENDING, 1)
    harness.clock.advance(1)
    harness.slurm.set_node("n0", last_busy_at=harness.clock().replace(microsecond=0))
    seen = returned_nodes.track_returned_nodes(harness.slurm, harness.store.jobs.active).snapshot()
    assert returned_nodes.unsettled_nodes(seen) == set()
    assert returned_nodes.unsettled_nodes(
        returned_nodes.track_returned_nodes(harness.slurm, tuple).snapshot()
    ) == {"n0"}
