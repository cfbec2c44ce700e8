"""The journaled steps: the way there, every way back, and a crash at any instant."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import Any

import pytest

from pollux_slurm.errors import SlurmCommandError, SlurmError, SlurmUnavailable
from pollux_slurm.model import Allocation, JobState
from pollux_slurm.model import ReallocationStep as Step
from pollux_slurm.store.contract.interface import AllocationRecord, Reallocation
from pollux_slurm.store.sql_store import SqlStore
from tests.daemon.crashing import Killed, KilledAt
from tests.daemon.world import World
from tests.fakes.slurm import fake_node
from tests.store_fixtures import wipe


def started(world: World, *, gpus: int = 1, **options: Any) -> str:
    """Submit a job and let it report its first steps."""
    job_id = world.submit(gpus=gpus, **options)
    world.settle(world.daemon(), until=lambda: world.has_stepped(job_id), seconds=8)
    assert world.job(job_id).state is JobState.RUNNING
    return job_id


def last(world: World, job_id: str) -> tuple[Step, str | None]:
    move = world.store.reallocations(job_id)[-1]
    return move.step, move.reason


def test_that_a_running_job_gets_its_new_place_through_every_step(world: World) -> None:
    job_id = started(world)
    world.targets = {job_id: {"n0": 2, "n1": 2}}
    world.settle(world.daemon(), seconds=20)
    assert world.job(job_id).allocation == Allocation.of({"n0": 2, "n1": 2})
    (move,) = world.store.reallocations(job_id)
    ends = (Step.ROLLED_BACK, Step.FAILED)
    assert [step for step, _ in move.times] == [step for step in Step if step not in ends]
    assert world.job(job_id).restart_count == 1
    record = world.store.job(job_id)
    assert (record.num_restarts, record.allocation) == (1, Allocation.of({"n0": 2, "n1": 2}))
    assert record.mean_restart_delay_s is not None
    assert record.mean_restart_delay_s > 2


def test_that_a_move_of_a_job_that_has_ended_says_so(world: World) -> None:
    job_id = started(world)
    world.targets = {job_id: {"n0": 4}}
    daemon = world.daemon()
    daemon.round()
    world.slurm.finish(job_id, exit_code=0)
    world.targets = {}
    daemon.round()  # records its end
    daemon.tick()
    assert last(world, job_id) == (Step.ROLLED_BACK, "the job is completed")


def test_that_nothing_is_requeued_without_a_confirmed_checkpoint(world: World) -> None:
    job_id = started(world)
    world.agents[job_id].answers = False
    world.targets = {job_id: {"n0": 4}}
    world.settle(world.daemon(), until=lambda: bool(world.store.reallocations()), seconds=10)
    world.targets = {}
    world.settle(world.daemon(), seconds=30)
    step, reason = last(world, job_id)
    assert (step, reason) == (Step.ROLLED_BACK, "no checkpoint was confirmed in 20 s")
    assert world.job(job_id).restart_count == 0
    assert ("requeue_hold", job_id) not in world.slurm.calls


def test_that_the_owner_may_allow_to_go_on_without_confirmation(world: World) -> None:
    job_id = started(world, allow_unconfirmed=True)
    world.agents[job_id].answers = False
    world.targets = {job_id: {"n0": 4}}
    world.settle(world.daemon(), seconds=60)
    assert world.job(job_id).allocation == Allocation.of({"n0": 4})


def test_that_a_waiting_job_is_reshaped_where_it_waits(world: World) -> None:
    blocker = world.neighbour(gpus=4), world.neighbour(gpus=4)
    job_id = world.submit(gpus=4)
    world.targets = {job_id: {"n1": 2}}
    world.settle(world.daemon(), seconds=10)
    assert world.job(job_id).state is JobState.PENDING
    assert not world.job(job_id).held
    world.slurm.finish(blocker[1])
    world.settle(world.daemon(), seconds=10)
    assert world.job(job_id).allocation == Allocation.of({"n1": 2})
    step, _ = last(world, job_id)
    assert (step, world.job(job_id).restart_count) == (Step.CONFIRMED, 0)


def test_that_a_waiting_job_that_starts_first_is_not_shrunk(world: World) -> None:
    """The hazard: an update with fewer nodes shrinks a running job at once."""
    blocker = world.neighbour(gpus=4), world.neighbour(gpus=4)
    job_id = world.submit(gpus=4)
    world.targets = {job_id: {"n1": 2}}

    def make_room() -> None:
        world.slurm.finish(blocker[0])
        world.slurm.snapshot()  # time for Slurm to start what waits

    world.slurm.before["reshape"] = make_room
    daemon = world.daemon()
    daemon.round()
    world.targets = {}
    world.settle(daemon, seconds=8)
    assert world.job(job_id).allocation == Allocation.of({"n0": 4})
    step, reason = last(world, job_id)
    assert (step, reason) == (Step.ROLLED_BACK, "the job started before it was reshaped")
    assert world.slurm.calls.count(("reshape", job_id)) == 1, "refused, and not tried again"


def test_that_growth_waits_for_the_gpus_that_shrinking_frees(world: World) -> None:
    small, big = started(world, gpus=1), started(world, gpus=3)
    assert world.job(big).allocation == Allocation.of({"n0": 3})
    world.targets = {big: {"n0": 1}, small: {"n0": 3}}
    world.settle(world.daemon(), seconds=40)
    assert world.job(small).allocation == Allocation.of({"n0": 3})
    assert world.job(big).allocation == Allocation.of({"n0": 1})
    grown, shrunk = world.store.reallocations(small)[-1], world.store.reallocations(big)[-1]
    assert shrunk.entered_at(Step.REQUEUED) <= grown.entered_at(Step.CHECKPOINT_REQUESTED)  # type: ignore[operator]


def test_that_two_jobs_can_swap_places(world: World) -> None:
    one, two = started(world, gpus=4), started(world, gpus=4)
    world.targets = {one: {"n1": 4}, two: {"n0": 4}}
    world.settle(world.daemon(), seconds=60)
    assert world.job(one).allocation == Allocation.of({"n1": 4})
    assert world.job(two).allocation == Allocation.of({"n0": 4})


def test_that_gpus_taken_before_the_requeue_roll_the_move_back(world: World) -> None:
    job_id = started(world)
    world.targets = {job_id: {"n0": 4}}
    daemon = world.daemon()
    daemon.round()
    world.neighbour(gpus=2)
    world.targets = {}
    world.settle(daemon, seconds=8)
    step, _ = last(world, job_id)
    assert step is Step.ROLLED_BACK
    assert world.job(job_id).restart_count == 0


def test_that_gpus_taken_after_the_requeue_still_let_the_job_run(world: World) -> None:
    job_id = started(world)
    world.targets = {job_id: {"n0": 4}}
    world.slurm.before["release"] = lambda: world.neighbour(gpus=2)
    world.settle(world.daemon(), until=lambda: bool(world.store.reallocations()), seconds=8)
    world.targets = {}
    world.settle(world.daemon(), seconds=40)
    assert last(world, job_id) == (Step.CONFIRMED, "instead of n0:4, which others took")
    assert world.job(job_id).state is JobState.RUNNING
    assert world.job(job_id).allocation == Allocation.of({"n1": 4})
    assert world.store.reallocations(job_id)[-1].target == Allocation.of({"n1": 4})


def test_that_a_job_whose_place_one_of_ours_took_gets_the_best_that_still_fits(world: World) -> None:
    """Slurm starts a waiting job of ours on GPUs that were freed for another, as soon as it can."""
    job_id = started(world)
    world.neighbour(gpus=2)
    world.targets = {job_id: {"n1": 4}}
    world.slurm.before["release"] = lambda: world.submit(gpus=2)
    world.settle(world.daemon(), until=lambda: bool(world.store.reallocations()), seconds=8)
    world.slurm.set_node("n0", available=False)  # so that the other goes to n1
    world.targets = {}
    world.settle(world.daemon(), until=lambda: len(world.agents) == 2, seconds=20)
    world.slurm.set_node("n0", available=True)
    world.settle(world.daemon(), seconds=40)
    assert last(world, job_id) == (Step.CONFIRMED, "instead of n1:4, which others took")
    assert world.job(job_id).allocation == Allocation.of({"n0": 2})


def test_that_a_job_waits_with_its_minimum_where_nothing_fits(world: World) -> None:
    job_id = started(world)
    world.targets = {job_id: {"n0": 4}}

    def take_all() -> None:
        for _ in range(2):
            world.neighbour(gpus=4)

    world.slurm.before["release"] = take_all
    world.settle(world.daemon(), until=lambda: bool(world.store.reallocations()), seconds=8)
    world.targets = {}
    world.settle(world.daemon(), seconds=40)
    step, reason = last(world, job_id)
    assert step is Step.FAILED
    assert (reason or "").startswith("did not start in its new shape")
    job = world.job(job_id)
    assert (job.state, job.held, job.requested_gpus) == (JobState.PENDING, False, 1)


def test_that_a_shape_that_slurm_refuses_brings_the_job_back_to_its_old_one(world: World) -> None:
    job_id = started(world, gpus=2)
    world.targets = {job_id: {"n1": 4}}
    world.slurm.fail("reshape", SlurmCommandError("Requested node configuration is not available"))
    world.settle(world.daemon(), until=lambda: bool(world.store.reallocations()), seconds=8)
    world.targets = {}
    world.settle(world.daemon(), seconds=30)
    step, reason = last(world, job_id)
    assert step is Step.FAILED
    assert reason is not None
    assert "Requested node configuration" in reason
    assert world.job(job_id).allocation == Allocation.of({"n0": 2})


@pytest.mark.parametrize("method", ["requeue_hold", "reshape", "release"])
def test_that_a_silent_slurmctld_only_delays(world: World, method: str) -> None:
    job_id = started(world)
    world.targets = {job_id: {"n1": 4}}
    world.slurm.fail(method, SlurmUnavailable("socket timed out"))
    world.settle(world.daemon(), seconds=40)
    assert world.job(job_id).allocation == Allocation.of({"n1": 4})
    assert last(world, job_id)[0] is Step.CONFIRMED


def test_that_a_job_held_by_hand_after_its_release_stays_held(world: World) -> None:
    world.neighbour(gpus=4)
    job_id = started(world)
    world.targets = {job_id: {"n1": 2}}
    daemon = world.daemon()

    world.settle(daemon, until=lambda: world.is_at(Step.RELEASED), seconds=20)
    world.slurm.hold(job_id)
    world.settle(daemon, seconds=20)
    assert world.job(job_id).held
    assert last(world, job_id) == (Step.FAILED, "the job was held by another hand")


def moves_to_n1(world: World) -> tuple[AllocationRecord, Reallocation]:
    """Move a job; return where it ran before, and its move."""
    job_id = started(world)
    world.targets = {job_id: {"n1": 4}}
    world.settle(world.daemon(), seconds=30)
    (move,) = world.store.reallocations(job_id)
    assert move.step is Step.CONFIRMED
    return world.store.allocation_history(job_id)[0], move


@pytest.mark.parametrize("ahead_s", [-40, 0, 40])
def test_that_a_run_that_was_moved_ends_by_slurmctlds_clock(world: World, ahead_s: int) -> None:
    world.slurm.clock = lambda: world.clock() + timedelta(seconds=ahead_s)
    before, move = moves_to_n1(world)
    requeued_at = move.entered_at(Step.REQUEUED)
    assert requeued_at is not None
    assert before.ended_at == (requeued_at + timedelta(seconds=ahead_s)).replace(microsecond=0)
    assert not before.estimated


def test_that_an_end_that_slurmctld_told_late_is_an_estimate(world: World) -> None:
    world.slurm.before["controller_time"] = lambda: world.clock.advance(3)
    before, _ = moves_to_n1(world)
    assert before.estimated


def test_that_an_end_that_slurmctld_does_not_tell_is_an_estimate_and_the_move_goes_on(world: World) -> None:
    world.slurm.fail("controller_time", SlurmUnavailable("socket timed out"))
    before, _ = moves_to_n1(world)
    assert before.estimated


def held_by(world: World, job_id: str, hand: str) -> None:
    """Hold the job as Slurm shows it: an owner's hold on top of a requeue's cannot be told from that."""
    world.slurm.set_job(job_id, held=True, held_since_requeue=False, reason=f"JobHeld{hand}")


@pytest.mark.parametrize("step", [Step.REQUEUED, Step.RELEASED])
def test_that_a_hold_by_hand_during_a_move_outlives_the_daemon(world: World, step: Step) -> None:
    world.neighbour(gpus=4)
    job_id = started(world)
    world.targets = {job_id: {"n1": 2}}
    daemon = world.daemon()
    world.settle(daemon, until=lambda: world.is_at(step), seconds=20)
    world.slurm.snapshot()  # the kill is over
    world.clock.advance(0.5)
    world.slurm.snapshot()
    assert world.job(job_id).state is JobState.PENDING
    held_by(world, job_id, "Admin" if step is Step.REQUEUED else "User")
    world.targets = {}
    world.settle(world.daemon(), seconds=30)  # the first one is dead
    assert world.job(job_id).held
    assert last(world, job_id) == (Step.FAILED, "the job was held by another hand")


def test_that_a_waiting_job_held_by_hand_as_it_gets_its_place_stays_held(world: World) -> None:
    world.neighbour(gpus=4), world.neighbour(gpus=4)
    job_id = world.submit(gpus=4)
    world.targets = {job_id: {"n1": 2}}
    world.slurm.before["reshape"] = lambda: held_by(world, job_id, "User")
    world.settle(world.daemon(), until=lambda: world.is_at(Step.RESHAPED), seconds=8)
    world.targets = {}
    world.settle(world.daemon(), seconds=20)
    assert world.job(job_id).held
    assert world.open_moves() == 0


def test_that_a_cancelled_job_closes_the_journal(world: World) -> None:
    job_id = started(world)
    world.targets = {job_id: {"n1": 2}}
    world.slurm.before["reshape"] = lambda: world.slurm.cancel(job_id)
    world.settle(world.daemon(), seconds=20)
    assert last(world, job_id) == (Step.FAILED, "the job is cancelled")
    assert world.store.job(job_id).state is JobState.CANCELLED
    assert world.open_moves() == 0


def test_that_a_job_requeued_by_another_hand_is_not_requeued_again(world: World) -> None:
    job_id = started(world)
    world.agents[job_id].answers = False
    world.targets = {job_id: {"n1": 2}}
    daemon = world.daemon()
    world.settle(daemon, until=lambda: bool(world.store.reallocations()), seconds=8)
    world.slurm.requeue_hold(job_id)
    world.slurm.clock.advance(1)  # type: ignore[attr-defined]
    world.slurm.release(job_id)
    world.targets = {}
    world.settle(daemon, seconds=10)
    assert last(world, job_id)[0] is Step.ROLLED_BACK
    assert world.slurm.calls.count(("requeue_hold", job_id)) == 1


def test_that_a_job_that_goes_on_training_after_its_checkpoint_is_left_alone(world: World) -> None:
    """The agent gives up waiting when no daemon is alive; the next one must not kill what it did since."""
    job_id = started(world)
    world.targets = {job_id: {"n1": 2}}
    daemon = world.daemon()
    world.settle(daemon, until=lambda: bool(world.store.open_reallocations()), seconds=8)
    daemon.tick()
    world.clock.advance(0.5)
    world.agents[job_id].act()
    (move,) = world.store.open_reallocations()
    assert move.step is Step.CHECKPOINTED
    world.agents[job_id].answers = False  # from now on it reports that it trains
    world.clock.advance(0.5)
    world.agents[job_id].act()
    world.targets = {}
    world.settle(world.daemon(), seconds=4)
    step, reason = last(world, job_id)
    assert (step, reason) == (Step.ROLLED_BACK, "the job went on training after its checkpoint")
    assert world.job(job_id).restart_count == 0


@pytest.mark.slow
def test_that_a_daemon_killed_at_any_call_leaves_a_job_running_and_no_move(
    clean_store: SqlStore,
) -> None:
    """One job grows and another is reshaped in the queue; the daemon dies once, at each call in turn."""
    for at in itertools.count():
        wipe(clean_store)
        world = World(clean_store)
        running = started(world)
        world.neighbour(gpus=1)  # so that the waiting job never fits in the shape it was submitted in
        world.neighbour(gpus=4)
        waiting = world.submit(gpus=4)
        world.targets = {running: {"n0": 2}, waiting: {"n0": 1}}
        wanted = ((running, 2), (waiting, 1))
        counter = itertools.count()
        mortal = world.daemon(
            slurm=KilledAt(world.slurm, counter, at),  # type: ignore[arg-type]
            store=KilledAt(world.store, counter, at),  # type: ignore[arg-type]
        )

        def is_done(world: World = world, wanted: tuple[tuple[str, int], ...] = wanted) -> bool:
            placed = all(world.job(job_id).allocation.num_gpus == gpus for job_id, gpus in wanted)
            return placed and not world.open_moves()

        died = False
        try:
            world.settle(mortal, until=is_done, seconds=60)
        except Killed:
            died = True
            world.settle(world.daemon(), until=is_done, seconds=60)
        for job_id, gpus in wanted:
            job = world.job(job_id)
            assert (job.state, job.held) == (JobState.RUNNING, False), f"call {at}"
            assert job.allocation == Allocation.of({"n0": gpus}), f"call {at}"
            assert job.restart_count == (1 if job_id == running else 0), f"call {at}"
        assert world.open_moves() == 0
        if not died:
            assert at > 15, "too few calls were tried"
            break


def test_that_a_daemon_that_lost_its_lease_gives_no_command(world: World) -> None:
    job_id = started(world)
    world.targets = {job_id: {"n1": 2}}
    asleep = world.daemon(owner="asleep")
    asleep.round()
    world.store.release_lease("d")
    asleep.round()
    world.clock.advance(11)
    assert world.store.acquire_lease("awake", ttl_s=1000, at=world.clock())
    before = len(world.slurm.calls)
    asleep.tick()
    commands = {name for name, _ in world.slurm.calls[before:]}
    assert not commands & {"requeue_hold", "hold", "reshape", "release"}


def test_that_a_node_that_drains_under_a_planned_move_rolls_it_back(world: World) -> None:
    world.slurm.nodes["n2"] = fake_node("n2")
    job_id = started(world)
    world.targets = {job_id: {"n2": 4}}
    daemon = world.daemon()
    daemon.round()
    world.slurm.set_node("n2", available=False, state="drained")
    world.targets = {}
    world.settle(daemon, seconds=8)
    assert last(world, job_id)[0] is Step.ROLLED_BACK


def test_that_a_stranger_with_the_number_of_a_registered_job_is_left_alone(world: World) -> None:
    """A cluster that was set up anew counts from 1 again; the store still knows the old jobs."""
    job_id = started(world)
    world.targets = {job_id: {"n1": 2}}
    daemon = world.daemon()
    world.settle(daemon, until=lambda: bool(world.store.open_reallocations()), seconds=8)
    world.slurm.set_job(job_id, comment="somebody else's words")
    before = len(world.slurm.calls)
    world.settle(daemon, seconds=20)
    commands = {name for name, _ in world.slurm.calls[before:]}
    assert not commands & {"requeue_hold", "hold", "reshape", "release"}
    assert world.open_moves() == 0
    assert world.store.job(job_id).state.is_over


def test_that_a_job_whose_owner_takes_it_back_while_it_is_held_is_let_go(world: World) -> None:
    job_id = started(world)
    world.targets = {job_id: {"n1": 2}}
    daemon = world.daemon()

    world.settle(daemon, until=lambda: world.is_at(Step.REQUEUED), seconds=20)
    world.clock.advance(0.5)
    world.slurm.set_job(job_id, comment="no more")
    world.settle(daemon, seconds=8)
    assert not world.job(job_id).held
    assert world.open_moves() == 0


@pytest.mark.parametrize(
    ("method", "error"),
    [
        ("reshape", SlurmUnavailable("socket timed out")),
        ("reshape", SlurmCommandError("Requested node configuration is not available")),
        ("release", SlurmCommandError("try again in a bit")),
    ],
)
def test_that_giving_up_a_lost_place_leaves_no_job_held(world: World, method: str, error: SlurmError) -> None:
    job_id = started(world)
    world.targets = {job_id: {"n0": 4}}

    def takes_the_place() -> None:
        world.neighbour(gpus=2)

    world.slurm.before["release"] = takes_the_place
    daemon = world.daemon()

    world.settle(daemon, until=lambda: world.is_at(Step.RELEASED), seconds=20)
    world.targets = {}
    world.slurm.fail(method, error)
    world.settle(daemon, seconds=60)
    assert not world.job(job_id).held
    assert world.open_moves() == 0


def test_that_a_round_longer_than_the_lease_still_acts_when_nobody_else_took_over(world: World) -> None:
    job_id = started(world)
    world.targets = {job_id: {"n1": 2}}
    daemon = world.daemon()
    world.slurm.before["snapshot"] = lambda: world.clock.advance(15)
    assert daemon.round().skipped is None
    assert world.open_moves() == 1


def test_that_a_stop_waits_for_a_job_whose_release_failed(world: World) -> None:
    job_id = started(world)
    world.targets = {job_id: {"n1": 2}}
    world.slurm.fail("release", SlurmUnavailable("socket timed out"))
    daemon = world.daemon()

    world.settle(daemon, until=lambda: world.is_at(Step.RELEASED), seconds=20)
    assert world.job(job_id).held
    world.stop.set()
    daemon.run()
    assert not world.job(job_id).held


def test_that_a_job_missing_from_one_read_is_not_given_up(world: World) -> None:
    job_id = started(world)
    world.targets = {job_id: {"n1": 2}}
    daemon = world.daemon()

    world.settle(daemon, until=lambda: world.is_at(Step.REQUEUED), seconds=20)
    hidden = world.slurm._jobs.pop(job_id)
    daemon.tick()
    world.slurm._jobs[job_id] = hidden
    world.settle(daemon, seconds=20)
    assert world.job(job_id).allocation == Allocation.of({"n1": 2})
    assert last(world, job_id)[0] is Step.CONFIRMED
