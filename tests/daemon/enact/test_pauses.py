"""Running jobs that are left without GPUs for a while: the way there, the way back, and hands between."""

from __future__ import annotations

import itertools

import pytest

from pollux_slurm.config import PolicyConfig
from pollux_slurm.errors import SlurmCommandError, SlurmUnavailable
from pollux_slurm.model import Allocation, JobState
from pollux_slurm.model import ReallocationStep as Step
from pollux_slurm.policy import decide
from pollux_slurm.store.sql_store import SqlStore
from tests.daemon.crashing import Killed, KilledAt
from tests.daemon.world import CONFIG, World
from tests.store_fixtures import wipe

PAUSES = PolicyConfig(pauses=True)


def started(world: World, *, gpus: int = 1) -> str:
    job_id = world.submit(gpus=gpus)
    world.settle(world.daemon(), until=lambda: world.has_stepped(job_id), seconds=8)
    assert world.job(job_id).state is JobState.RUNNING
    return job_id


def paused(world: World, *, gpus: int = 1) -> str:
    """Return a job that ran, and that the daemon paused."""
    job_id = started(world, gpus=gpus)
    world.targets = {job_id: {}}
    world.settle(world.daemon(policy=PAUSES), until=lambda: is_paused(world, job_id), seconds=30)
    assert is_paused(world, job_id)
    return job_id


def is_paused(world: World, job_id: str) -> bool:
    waits = world.job(job_id).state is JobState.PENDING and not world.open_moves()
    return waits and world.store.job(job_id).paused_at is not None


def last(world: World, job_id: str) -> tuple[Step, str | None]:
    move = world.store.reallocations(job_id)[-1]
    return move.step, move.reason


def test_that_a_job_is_paused_behind_its_checkpoint_and_gets_gpus_again(world: World) -> None:
    job_id = paused(world)
    job = world.job(job_id)
    assert (job.state, job.held, job.restart_count) == (JobState.PENDING, False, 1)
    (move,) = world.store.reallocations(job_id)
    assert [step for step, _ in move.times] == [
        Step.PLANNED,
        Step.CHECKPOINT_REQUESTED,
        Step.CHECKPOINTED,
        Step.REQUEUED,
        Step.RESHAPED,
        Step.RELEASED,
        Step.CONFIRMED,
    ]
    assert (move.source, move.target) == (Allocation.of({"n0": 1}), Allocation())
    world.clock.advance(200)
    world.settle(world.daemon(policy=PAUSES), seconds=8)
    assert world.job(job_id).state is JobState.PENDING
    world.targets = {job_id: {"n1": 2}}
    world.settle(world.daemon(policy=PAUSES), seconds=20)
    assert world.job(job_id).allocation == Allocation.of({"n1": 2})
    record = world.store.job(job_id)
    assert (record.paused_at, record.num_restarts, last(world, job_id)[0]) == (None, 1, Step.CONFIRMED)
    # How long it was paused is no cost of a restart.
    assert record.mean_restart_delay_s is None


def test_that_no_job_is_paused_unless_the_rules_say_so(world: World) -> None:
    job_id = started(world)
    world.targets = {job_id: {}}
    world.settle(world.daemon(policy=PolicyConfig()), seconds=20)
    assert world.job(job_id).state is JobState.RUNNING
    assert world.store.reallocations(job_id) == ()


def test_that_without_a_confirmed_checkpoint_nothing_is_paused(world: World) -> None:
    job_id = started(world)
    world.agents[job_id].answers = False
    world.targets = {job_id: {}}
    world.settle(world.daemon(policy=PAUSES), until=lambda: bool(world.store.reallocations()), seconds=8)
    world.targets = {}
    world.settle(world.daemon(policy=PAUSES), seconds=30)
    assert last(world, job_id)[0] is Step.ROLLED_BACK
    assert world.job(job_id).restart_count == 0


def test_that_a_pause_is_prolonged_and_runs_out_when_no_daemon_is_left(world: World) -> None:
    job_id = paused(world)
    daemon = world.daemon(policy=PAUSES)
    for _ in range(8):
        daemon.round()
        world.clock.advance(CONFIG.pause_ttl_s / 4)
    assert world.job(job_id).state is JobState.PENDING
    world.clock.advance(CONFIG.pause_ttl_s)
    assert world.slurm.snapshot().job(job_id) is not None
    assert world.job(job_id).allocation.num_gpus == 1


def test_that_what_a_pause_frees_goes_to_another_job(world: World) -> None:
    one, two = started(world, gpus=4), started(world, gpus=4)
    world.targets = {one: {}, two: {"n0": 4, "n1": 4}}
    world.settle(world.daemon(policy=PAUSES), seconds=40)
    assert world.job(two).allocation == Allocation.of({"n0": 4, "n1": 4})
    assert is_paused(world, one)


def test_that_a_person_who_holds_a_paused_job_keeps_it_held(world: World) -> None:
    job_id = paused(world)
    world.slurm.hold(job_id)
    world.targets = {job_id: {"n1": 2}}
    world.settle(world.daemon(policy=PAUSES), seconds=30)
    assert world.job(job_id).held
    assert len(world.store.reallocations(job_id)) == 1
    world.slurm.release(job_id)
    world.settle(world.daemon(policy=PAUSES), seconds=20)
    assert world.job(job_id).allocation == Allocation.of({"n1": 2})


def test_that_a_person_who_lets_a_paused_job_begin_now_has_it_run(world: World) -> None:
    job_id = paused(world)
    world.slurm.set_begin_time(job_id, ahead_s=1)
    world.clock.advance(1)
    world.targets = {}
    world.settle(world.daemon(policy=PAUSES), seconds=8)
    assert world.job(job_id).state is JobState.RUNNING


def test_that_a_person_who_lets_a_paused_job_begin_tomorrow_is_obeyed(world: World) -> None:
    job_id = paused(world)
    world.slurm.set_begin_time(job_id, ahead_s=86400)
    world.targets = {job_id: {"n1": 2}}
    world.settle(world.daemon(policy=PAUSES), seconds=30)
    assert world.job(job_id).state is JobState.PENDING
    assert len(world.store.reallocations(job_id)) == 1


def test_that_a_job_cancelled_while_it_is_paused_is_over(world: World) -> None:
    job_id = paused(world)
    world.slurm.cancel(job_id)
    world.settle(world.daemon(policy=PAUSES), seconds=8)
    assert world.store.job(job_id).state is JobState.CANCELLED


@pytest.mark.parametrize("method", ["requeue_hold", "set_begin_time", "release"])
def test_that_a_silent_slurmctld_only_delays_a_pause(world: World, method: str) -> None:
    job_id = started(world)
    world.targets = {job_id: {}}
    world.slurm.fail(method, SlurmUnavailable("socket timed out"))
    world.settle(world.daemon(policy=PAUSES), seconds=20)
    assert is_paused(world, job_id)
    assert not world.job(job_id).held


def test_that_a_job_that_cannot_be_parked_is_let_go(world: World) -> None:
    job_id = started(world)
    world.targets = {job_id: {}}
    world.slurm.fail("set_begin_time", SlurmCommandError("access denied"))
    daemon = world.daemon(policy=PAUSES)
    world.settle(daemon, until=lambda: bool(world.store.reallocations()), seconds=8)
    world.targets = {}
    world.settle(daemon, seconds=20)
    step, reason = last(world, job_id)
    assert (step, reason) == (Step.FAILED, "Slurm refused to let it wait: access denied")
    assert not world.job(job_id).held


@pytest.mark.slow
def test_that_a_daemon_killed_at_any_call_of_a_pause_still_brings_the_job_back(clean_store: SqlStore) -> None:
    for at in itertools.count():
        wipe(clean_store)
        world = World(clean_store)
        job_id = started(world)
        world.targets = {job_id: {}}
        counter = itertools.count()
        mortal = world.daemon(
            slurm=KilledAt(world.slurm, counter, at),  # type: ignore[arg-type]
            store=KilledAt(world.store, counter, at),  # type: ignore[arg-type]
            policy=PAUSES,
        )

        def is_done(world: World = world, job_id: str = job_id) -> bool:
            return is_paused(world, job_id)

        died = False
        try:
            world.settle(mortal, until=is_done, seconds=30)
        except Killed:
            died = True
            world.settle(world.daemon(policy=PAUSES), until=is_done, seconds=30)
        assert is_done(), f"call {at}"
        job = world.job(job_id)
        assert (job.state, job.held, job.restart_count) == (JobState.PENDING, False, 1), f"call {at}"
        world.targets = {job_id: {"n1": 1}}
        runs = lambda world=world, job_id=job_id: bool(world.job(job_id).allocation)  # noqa: E731
        world.settle(world.daemon(policy=PAUSES), until=runs, seconds=10)
        assert world.job(job_id).allocation == Allocation.of({"n1": 1}), f"call {at}"
        if not died:
            assert at > 9, "too few calls were tried"
            break


def test_that_a_paused_job_that_waited_too_long_is_served_first(clean_store: SqlStore) -> None:
    """The real policy on a full cluster of one node: the objective pauses, the bound on waiting ends it."""
    world = World(clean_store, nodes=1)
    one, two = started(world, gpus=2), started(world, gpus=2)
    policy = PolicyConfig(objective="attained-work", max_wait_s=60.0)
    world.targets = {one: {}}
    world.settle(world.daemon(policy=policy), until=lambda: is_paused(world, one), seconds=30)
    world.clock.advance(61)
    world.settle(
        world.daemon(policy=policy, decide=decide), until=lambda: bool(world.job(one).allocation), seconds=40
    )
    assert world.job(one).state is JobState.RUNNING
    assert world.job(two).state is JobState.RUNNING or is_paused(world, two)
