"""Starts that Slurm ends before the script runs, and jobs that it holds itself: they go on, so many times."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from pollux_slurm.model import Allocation, JobState, ReallocationCause
from pollux_slurm.model import ReallocationStep as Step
from tests.daemon.crashing import Killed, KilledAt
from tests.daemon.world import CONFIG, World


def started(world: World) -> str:
    job_id = world.submit()
    world.settle(world.daemon(), until=lambda: world.has_stepped(job_id), seconds=8)
    return job_id


def starts_anew(world: World, job_id: str) -> None:
    """Let another hand requeue the job; it starts as Slurm likes, and has made no step there."""
    world.agents[job_id].reports = False
    world.slurm.requeue_hold(job_id)
    world.clock.advance(1)
    world.slurm.release(job_id)
    world.clock.advance(121)  # its begin time since the requeue
    assert world.job(job_id).state is JobState.RUNNING


def reasons(world: World, job_id: str) -> list[str]:
    return [move.reason or "" for move in world.store.reallocations(job_id)]


def runs_again(world: World, job_id: str, restarts: int) -> bool:
    job = world.job(job_id)
    return (job.state, job.restart_count) == (JobState.RUNNING, restarts) and not world.open_moves()


@pytest.mark.parametrize("exit_code", [1, 137, 143])
def test_that_a_job_whose_start_slurm_ended_is_started_again_and_moved_as_any_other(
    world: World, exit_code: int
) -> None:
    job_id = started(world)
    starts_anew(world, job_id)
    world.slurm.finish(job_id, exit_code=exit_code)
    world.agents[job_id].reports = True
    daemon = world.daemon()
    world.settle(daemon, until=lambda: runs_again(world, job_id, 2), seconds=30)
    assert runs_again(world, job_id, 2)
    (move,) = world.store.reallocations(job_id)
    assert move.step is Step.CONFIRMED
    said = f"started again, since Slurm ended its start before it trained: exit code {exit_code}"
    assert (move.reason, move.source) == (said, move.target)
    world.targets = {job_id: {"n1": 4}}
    world.settle(daemon, until=lambda: world.job(job_id).allocation.num_gpus == 4, seconds=30)
    assert world.job(job_id).allocation.num_gpus == 4


def test_that_the_journal_says_where_a_job_was_started_again_when_slurm_refused_its_place(
    world: World,
) -> None:
    job_id = started(world)
    starts_anew(world, job_id)
    world.slurm.finish(job_id, exit_code=1)
    world.refuse_named_places(times=2)
    world.settle(world.daemon(), until=lambda: runs_again(world, job_id, 2), seconds=30)
    assert world.job(job_id).allocation == Allocation.of({"n1": 1})
    assert reasons(world, job_id) == [
        "started again, since Slurm ended its start before it trained: exit code 1; "
        "Slurm refused the shape: no such configuration; got n1:1 instead of n0:1"
    ]


@pytest.mark.parametrize("how", ["own code", "later", "trained", "never requeued"])
def test_that_other_ends_are_ends(world: World, how: str) -> None:
    job_id = started(world)
    if how != "never requeued":
        starts_anew(world, job_id)
    if how == "trained":
        world.agents[job_id].reports = True
        world.agents[job_id].act()
    if how == "later":
        world.clock.advance(11)
    world.slurm.finish(job_id, exit_code=7 if how == "own code" else 1)
    world.settle(world.daemon(), seconds=8)
    assert world.store.job(job_id).state is JobState.FAILED
    assert reasons(world, job_id) == []


def test_that_a_start_is_repeated_three_times_an_hour_and_no_more(world: World) -> None:
    job_id = started(world)
    starts_anew(world, job_id)
    daemon = world.daemon()
    for restarts in (2, 3, 4):
        world.slurm.finish(job_id, exit_code=1)
        world.settle(
            daemon,
            until=lambda restarts=restarts: (
                world.job(job_id).restart_count == restarts  # type: ignore[misc]
                and world.job(job_id).state is JobState.RUNNING
            ),
            seconds=30,
        )
        assert world.job(job_id).restart_count == restarts
    world.slurm.finish(job_id, exit_code=1)
    world.settle(daemon, seconds=12)
    assert (world.job(job_id).state, world.job(job_id).restart_count) == (JobState.FAILED, 4)
    assert world.store.job(job_id).state is JobState.FAILED
    moves = world.store.reallocations(job_id)
    assert [move.cause for move in moves] == [ReallocationCause.FAILED_START] * 3


def test_that_a_job_that_ends_so_with_a_move_planned_is_started_again(world: World) -> None:
    job_id = started(world)
    starts_anew(world, job_id)
    job = world.job(job_id)
    world.store.plan_reallocation(
        job_id, source=job.allocation, target=job.allocation, moves_running=True,
        from_restart_count=1, round_id=None, at=world.clock(),
    )  # fmt: skip
    world.slurm.finish(job_id, exit_code=1)
    world.agents[job_id].reports = True
    world.settle(world.daemon(), until=lambda: runs_again(world, job_id, 2), seconds=30)
    assert runs_again(world, job_id, 2)


@pytest.mark.parametrize("at", [1, 2, 3])
def test_that_a_daemon_killed_around_the_plan_leaves_a_job_that_runs(world: World, at: int) -> None:
    """All that follows is the way back from a fall, which is tried at every call."""
    job_id = started(world)
    starts_anew(world, job_id)
    world.slurm.finish(job_id, exit_code=1)
    world.agents[job_id].reports = True
    counter = itertools.count()
    mortal = world.daemon(
        slurm=KilledAt(world.slurm, counter, at),  # type: ignore[arg-type]
        store=KilledAt(world.store, counter, at),  # type: ignore[arg-type]
    )
    with pytest.raises(Killed):
        world.settle(mortal, seconds=20)
    world.settle(world.daemon(), until=lambda: runs_again(world, job_id, 2), seconds=20)
    assert runs_again(world, job_id, 2)


def test_that_no_more_are_started_again_or_let_go_at_a_time_than_may_be_in_flight(world: World) -> None:
    daemon = world.daemon(config=dataclasses.replace(CONFIG, max_in_flight=1))
    failed, held = [world.submit() for _ in range(2)], [world.submit() for _ in range(2)]
    world.settle(daemon, until=lambda: all(map(world.has_stepped, failed + held)), seconds=12)
    for job_id in held:
        is_given_up_by_slurm(world, job_id)
    for job_id in failed:
        starts_anew(world, job_id)
        world.slurm.finish(job_id, exit_code=1)
        world.agents[job_id].reports = True
    most = 0

    def all_run() -> bool:
        nonlocal most
        most = max(most, world.open_moves())
        return (
            most > 0
            and not world.open_moves()
            and all(world.job(job_id).state is JobState.RUNNING for job_id in failed + held)
        )

    world.settle(daemon, until=all_run, seconds=90)
    assert all_run()
    assert most == 1


def is_given_up_by_slurm(world: World, job_id: str) -> None:
    job = world.job(job_id)
    world.slurm.requeue_hold(job_id)
    world.clock.advance(1)
    world.slurm.set_job(
        job_id, held=True, held_by_slurm=True, reason="JobHeldUser", restart_count=job.restart_count + 1
    )


def test_that_a_job_that_slurm_holds_is_let_go_after_growing_pauses_and_then_no_more(world: World) -> None:
    job_id = started(world)
    daemon = world.daemon()
    for times, pause_s in enumerate((0, 60, 300, 1200, 3600), 1):
        is_given_up_by_slurm(world, job_id)
        if pause_s:
            world.settle(daemon, seconds=5)
            assert (world.job(job_id).held, len(reasons(world, job_id))) == (True, times - 1)
            world.clock.advance(pause_s)
        world.settle(
            daemon,
            until=lambda: world.job(job_id).state is JobState.RUNNING and not world.open_moves(),
            seconds=20,
        )
        assert world.job(job_id).state is JobState.RUNNING
        assert len(reasons(world, job_id)) == times
    causes = {move.cause for move in world.store.reallocations(job_id)}
    assert causes == {ReallocationCause.HELD_BY_SLURM}
    is_given_up_by_slurm(world, job_id)
    world.clock.advance(7200)
    world.settle(daemon, seconds=12)
    assert (world.job(job_id).held, len(reasons(world, job_id))) == (True, 5)


def test_that_a_hold_by_a_hand_stays(world: World) -> None:
    job_id = started(world)
    is_given_up_by_slurm(world, job_id)
    world.slurm.set_job(job_id, held_by_slurm=False)
    world.settle(world.daemon(), seconds=20)
    assert (world.job(job_id).held, reasons(world, job_id)) == (True, [])
