"""Bad moves: a job that fails in its new shape goes back to its old one, once, and is then left alone."""

from __future__ import annotations

import itertools

import pytest

from pollux_slurm.daemon.enact import admin_orders
from pollux_slurm.model import Allocation, JobState, ReallocationCause
from pollux_slurm.model import ReallocationStep as Step
from pollux_slurm.store.sql_store import SqlStore
from tests.daemon.crashing import Killed, KilledAt
from tests.daemon.world import World
from tests.fakes.slurm import fake_node
from tests.store_fixtures import wipe

OLD, NEW = {"n0": 1}, {"n1": 4}


def started(world: World) -> str:
    job_id = world.submit()
    world.settle(world.daemon(), until=lambda: world.has_stepped(job_id), seconds=8)
    assert world.job(job_id).allocation == Allocation.of(OLD)
    return job_id


def moved(world: World, job_id: str) -> None:
    """Bring the job to its new shape, where it has not made a step yet."""
    world.targets = {job_id: NEW}
    daemon = world.daemon()
    world.settle(daemon, until=lambda: world.is_at(Step.REQUEUED), seconds=20)
    world.agents[job_id].reports = False
    world.settle(daemon, until=lambda: world.is_at(Step.RUNNING), seconds=20)
    assert world.job(job_id).allocation == Allocation.of(NEW)


def steps(world: World, job_id: str) -> list[Step]:
    return [move.step for move in world.store.reallocations(job_id)]


def is_back(world: World, job_id: str) -> bool:
    return world.job(job_id).allocation == Allocation.of(OLD) and not world.open_moves()


def test_that_a_job_that_fails_in_its_new_shape_goes_back_and_is_left_alone(world: World) -> None:
    job_id = started(world)
    moved(world, job_id)
    world.slurm.finish(job_id, exit_code=7)
    world.agents[job_id].reports = True
    world.settle(world.daemon(), until=lambda: is_back(world, job_id), seconds=30)
    assert is_back(world, job_id)
    assert steps(world, job_id) == [Step.FAILED, Step.CONFIRMED]
    fall, back = world.store.reallocations(job_id)
    assert fall.reason == "failed before its first step: exit code 7 in n1:4"
    assert (fall.cause, fall.job_failed) == (ReallocationCause.DECISION, True)
    assert (back.cause, back.job_failed) == (ReallocationCause.AFTER_FAILURE, False)
    assert back.reason == "back to the shape it last ran in, after it failed: exit code 7 in n1:4"
    assert (back.source, back.target) == (Allocation.of(NEW), Allocation.of(OLD))
    world.settle(world.daemon(), seconds=12)  # rounds go on wishing for the new shape
    assert len(world.store.reallocations(job_id)) == 2
    problem, _ = world.store.round_problem()
    assert (problem.jobs[0].pinned, problem.jobs[0].pinned_because) == (True, back.reason)


def test_that_a_job_whose_old_place_slurm_refuses_is_left_alone_as_any_that_went_back(world: World) -> None:
    job_id = started(world)
    moved(world, job_id)
    world.slurm.finish(job_id, exit_code=7)
    world.refuse_named_places(times=1)
    daemon = world.daemon()
    world.settle(daemon, until=lambda: len(steps(world, job_id)) == 2 and not world.open_moves(), seconds=30)
    back = world.store.reallocations(job_id)[-1]
    assert back.reason == (
        "back to the shape it last ran in, after it failed: exit code 7 in n1:4; "
        "Slurm refused the shape: no such configuration; got n1:4 instead of n0:1"
    )
    world.settle(daemon, seconds=8)
    assert len(steps(world, job_id)) == 2
    problem, _ = world.store.round_problem()
    assert problem.jobs[0].pinned_because == back.reason


def test_that_a_job_that_fails_in_its_old_shape_as_well_is_over(world: World) -> None:
    job_id = started(world)
    moved(world, job_id)
    world.slurm.finish(job_id, exit_code=7)
    daemon = world.daemon()
    world.settle(daemon, until=lambda: world.job(job_id).state is JobState.RUNNING, seconds=30)
    world.slurm.finish(job_id, exit_code=7)
    world.settle(daemon, seconds=12)
    assert world.store.job(job_id).state is JobState.FAILED
    assert (world.job(job_id).state, steps(world, job_id)) == (JobState.FAILED, [Step.FAILED, Step.FAILED])


@pytest.mark.parametrize("how", ["stepped", "cancelled", "unmoved"])
def test_that_other_ends_are_ends(world: World, how: str) -> None:
    job_id = started(world)
    if how != "unmoved":
        moved(world, job_id)
    if how == "stepped":
        world.agents[job_id].reports = True
        world.agents[job_id].act()
    if how == "cancelled":
        world.slurm.cancel(job_id)
    else:
        world.slurm.finish(job_id, exit_code=7)
    world.targets = {}
    world.settle(world.daemon(), seconds=12)
    assert world.store.job(job_id).state.is_over
    assert world.job(job_id).state.is_over
    assert not world.open_moves()


def waits_again(world: World, job_id: str, how: str) -> None:
    """Let the job wait in the queue after it has run, paused by a person or put back by one."""
    if how == "paused":
        admin_orders.pause(world.store, job_id, by="ann", drain=False, at=world.clock())
        world.settle(world.daemon(), until=lambda: is_paused(world, job_id), seconds=20)
        admin_orders.resume(world.store, job_id, by="ann", at=world.clock())
    else:
        world.slurm.requeue_hold(job_id)
        world.clock.advance(1)
        world.slurm.release(job_id)
    world.agents[job_id].reports = False


def is_paused(world: World, job_id: str) -> bool:
    return world.store.job(job_id).paused_at is not None and not world.open_moves()


@pytest.mark.parametrize("how", ["paused", "requeued"])
def test_that_a_job_that_fails_right_after_it_waited_goes_back_as_well(world: World, how: str) -> None:
    """Its move is confirmed when it starts: that the run made no step is what tells."""
    job_id = started(world)
    world.targets = {job_id: NEW}
    daemon = world.daemon()
    if how == "paused":  # it is resumed in the place that it had, which has gone
        world.targets = {}
    waits_again(world, job_id, how)
    runs = world.job(job_id).restart_count
    world.settle(daemon, until=lambda: world.job(job_id).state is JobState.RUNNING, seconds=30)
    world.slurm.finish(job_id, exit_code=7)
    world.agents[job_id].reports = True
    world.settle(daemon, until=lambda: is_back(world, job_id), seconds=30)
    assert is_back(world, job_id), steps(world, job_id)
    assert world.job(job_id).restart_count == runs + 1
    back = world.store.reallocations(job_id)[-1]
    assert back.step is Step.CONFIRMED
    assert back.cause is ReallocationCause.AFTER_FAILURE
    assert (back.reason or "").startswith(
        "back to the shape it last ran in, after it failed: exit code 7 in n"
    )
    assert not world.store.job(job_id).state.is_over
    world.slurm.finish(job_id, exit_code=7)  # and then it is left alone
    world.settle(daemon, seconds=12)
    assert world.store.job(job_id).state is JobState.FAILED


def test_that_a_job_requeued_by_another_hand_on_its_way_goes_back_when_it_fails(world: World) -> None:
    """Slurm 22.05 may kill the start after a lost node ("Job credential revoked"): it never ran there."""
    job_id = started(world)
    world.targets = {job_id: NEW}
    daemon = world.daemon()
    waits_again(world, job_id, "requeued")
    world.settle(daemon, until=lambda: world.is_at(Step.RELEASED), seconds=30)
    world.slurm.set_job(job_id, restart_count=world.job(job_id).restart_count + 1)
    world.clock.advance(5)
    assert world.job(job_id).state is JobState.RUNNING
    world.slurm.finish(job_id, exit_code=1)
    world.agents[job_id].reports = True
    world.settle(daemon, until=lambda: is_back(world, job_id), seconds=30)
    assert is_back(world, job_id), steps(world, job_id)
    assert steps(world, job_id)[-2:] == [Step.FAILED, Step.CONFIRMED]


def test_that_a_job_that_fails_where_it_first_starts_is_over(world: World) -> None:
    world.neighbour(gpus=4)
    world.slurm.nodes["n1"] = fake_node("n1", num_gpus=2)
    job_id = world.submit(gpus=4)
    world.targets = {job_id: {"n1": 2}}
    world.agents[job_id].reports = False
    daemon = world.daemon()
    world.settle(daemon, until=lambda: world.job(job_id).state is JobState.RUNNING, seconds=30)
    world.slurm.finish(job_id, exit_code=7)
    world.settle(daemon, seconds=12)
    assert world.store.job(job_id).state is JobState.FAILED
    assert steps(world, job_id) == [Step.CONFIRMED] or steps(world, job_id) == [Step.FAILED]


def test_that_a_taken_old_place_still_lets_the_job_run(world: World) -> None:
    job_id = started(world)
    moved(world, job_id)
    world.neighbour(gpus=4)
    world.slurm.finish(job_id, exit_code=7)
    world.agents[job_id].reports = True
    world.targets = {}
    world.settle(world.daemon(), seconds=20)
    assert world.job(job_id).allocation.num_gpus >= 1
    assert not world.open_moves()


@pytest.mark.slow
def test_that_a_daemon_killed_at_any_call_of_the_way_back_leaves_a_running_job(clean_store: SqlStore) -> None:
    for at in itertools.count():
        wipe(clean_store)
        world = World(clean_store)
        job_id = started(world)
        moved(world, job_id)
        world.slurm.finish(job_id, exit_code=7)
        world.agents[job_id].reports = True
        world.targets = {}
        counter = itertools.count()
        mortal = world.daemon(
            slurm=KilledAt(world.slurm, counter, at),  # type: ignore[arg-type]
            store=KilledAt(world.store, counter, at),  # type: ignore[arg-type]
        )
        died = False
        try:
            world.settle(mortal, until=lambda world=world, id=job_id: is_back(world, id), seconds=20)  # type: ignore[misc]
        except Killed:
            died = True
            world.settle(world.daemon(), until=lambda world=world, id=job_id: is_back(world, id), seconds=20)  # type: ignore[misc]
        assert is_back(world, job_id), f"call {at}"
        assert world.job(job_id).restart_count == 2, f"call {at}"
        if not died:
            assert at > 9, "too few calls were tried"
            break


def test_that_gpus_that_vanish_leave_the_most_that_still_fits(world: World) -> None:
    """Planned for 4 on n1: when that and the old place are gone, 3 on n2 are better than its minimum."""
    world.slurm.nodes["n2"] = fake_node("n2")
    job_id = started(world)
    world.targets = {job_id: NEW}
    daemon = world.daemon()
    world.settle(daemon, until=lambda: world.is_at(Step.REQUEUED), seconds=20)
    world.slurm.set_node("n1", available=False, state="drained")
    world.slurm.set_node("n0", available=False, state="drained")
    world.slurm.set_node("n2", num_gpus=3)
    world.targets = {}
    world.settle(daemon, seconds=12)
    assert world.job(job_id).allocation == Allocation.of({"n2": 3})
    assert steps(world, job_id) == [Step.CONFIRMED]
    (move,) = world.store.reallocations(job_id)
    assert (move.retargeted, move.reason) == (True, "instead of n1:4, which others took")


@pytest.mark.parametrize("at", range(3))  # before target, reshape, and the next step
def test_that_a_daemon_killed_on_the_way_to_another_place_leaves_a_job_that_runs(
    world: World, at: int
) -> None:
    job_id = started(world)
    world.targets = {job_id: NEW}
    world.settle(world.daemon(), until=lambda: world.is_at(Step.RELEASED), seconds=20)
    world.slurm.set_node("n1", num_gpus=2)
    world.targets = {}
    counter = itertools.count()
    mortal = world.daemon(
        slurm=KilledAt(world.slurm, counter, at),  # type: ignore[arg-type]
        store=KilledAt(world.store, counter, at),  # type: ignore[arg-type]
    )
    with pytest.raises(Killed):
        world.tick(mortal, times=20)
    world.settle(world.daemon(), until=lambda: not world.open_moves(), seconds=40)
    job = world.job(job_id)
    assert (job.state, job.held, job.restart_count) == (JobState.RUNNING, False, 1)
    assert job.allocation == Allocation.of({"n0": 4})


def test_that_a_run_that_counts_other_gpus_is_not_confirmed(world: World) -> None:
    job_id = started(world)
    moved(world, job_id)
    agent = world.agents[job_id]
    agent.reports, agent.counts = True, (3,)
    world.targets = {}
    world.settle(world.daemon(), seconds=8)
    (move,) = world.store.reallocations(job_id)
    assert (move.step, move.reason) == (
        Step.FAILED,
        "its run counts [3] GPUs on its nodes, where Slurm gave it [4]",
    )
