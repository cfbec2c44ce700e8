"""The journaled steps: success, every failure, and a crash at any instant."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection
from datetime import timedelta
from typing import Any

import pytest

from pollux_slurm.errors import SlurmCommandError, SlurmError, SlurmUnavailable
from pollux_slurm.model import Allocation, ClusterSnapshot, JobState
from pollux_slurm.model import ReallocationStep as Step
from pollux_slurm.slurm.commands.command_client import START_DELAY_S
from pollux_slurm.store.contract.interface import AllocationRecord, Reallocation
from pollux_slurm.store.sql_store import SqlStore
from tests.daemon.crashing import Killed, KilledAt
from tests.daemon.harness import Harness
from tests.fakes.slurm import FakeSlurm, fake_node
from tests.store_fixtures import wipe


def started(harness: Harness, *, gpus: int = 1, **options: Any) -> str:
    """Submit a job and let it report its first steps."""
    job_id = harness.submit(gpus=gpus, **options)
    harness.run_until(harness.daemon(), until=lambda: harness.has_stepped(job_id), seconds=8)
    assert harness.job(job_id).state is JobState.RUNNING
    return job_id


def test_that_a_running_job_is_moved_through_every_step(harness: Harness) -> None:
    job_id = started(harness)
    harness.targets = {job_id: {"n0": 2, "n1": 2}}
    harness.run_until(harness.daemon(), seconds=20)
    assert harness.job(job_id).allocation == Allocation.of({"n0": 2, "n1": 2})
    (move,) = harness.store.journal.reallocations(job_id)
    others = (Step.REGROUP_REQUESTED, Step.REGROUPED, Step.ROLLED_BACK, Step.FAILED)
    assert [step for step, _ in move.times] == [step for step in Step if step not in others]
    assert harness.job(job_id).restart_count == 1
    record = harness.store.jobs.get(job_id)
    assert (record.num_restarts, record.allocation) == (1, Allocation.of({"n0": 2, "n1": 2}))
    assert record.mean_restart_delay_s is not None
    assert record.mean_restart_delay_s > 2


def test_that_a_move_of_a_job_that_has_ended_has_that_reason(harness: Harness) -> None:
    job_id = started(harness)
    harness.targets = {job_id: {"n0": 4}}
    daemon = harness.daemon()
    daemon.round()
    harness.slurm.finish(job_id, exit_code=0)
    harness.targets = {}
    daemon.round()  # records its end
    daemon.tick()
    assert harness.last_step(job_id) == (Step.ROLLED_BACK, "the job is completed")


def test_that_nothing_is_requeued_without_a_confirmed_checkpoint(harness: Harness) -> None:
    job_id = started(harness)
    harness.agents[job_id].answers = False
    harness.targets = {job_id: {"n0": 4}}
    harness.run_until(harness.daemon(), until=lambda: bool(harness.store.journal.reallocations()), seconds=10)
    harness.targets = {}
    harness.run_until(harness.daemon(), seconds=30)
    step, reason = harness.last_step(job_id)
    assert (step, reason) == (Step.ROLLED_BACK, "no checkpoint was confirmed in 20 s")
    assert harness.job(job_id).restart_count == 0
    assert ("requeue_hold", job_id) not in harness.slurm.calls


def test_that_the_owner_may_allow_to_go_on_without_confirmation(harness: Harness) -> None:
    job_id = started(harness, allow_unconfirmed=True)
    harness.agents[job_id].answers = False
    harness.targets = {job_id: {"n0": 4}}
    harness.run_until(harness.daemon(), seconds=60)
    assert harness.job(job_id).allocation == Allocation.of({"n0": 4})


def test_that_a_waiting_job_is_reshaped_where_it_waits(harness: Harness) -> None:
    blocker = harness.submit_unmanaged(gpus=4), harness.submit_unmanaged(gpus=4)
    job_id = harness.submit(gpus=4)
    harness.targets = {job_id: {"n1": 2}}
    harness.run_until(harness.daemon(), seconds=10)
    assert harness.job(job_id).state is JobState.PENDING
    assert not harness.job(job_id).held
    harness.slurm.finish(blocker[1])
    harness.run_until(harness.daemon(), seconds=10)
    assert harness.job(job_id).allocation == Allocation.of({"n1": 2})
    step, _ = harness.last_step(job_id)
    assert (step, harness.job(job_id).restart_count) == (Step.CONFIRMED, 0)


def test_that_a_waiting_job_that_starts_first_is_not_shrunk(harness: Harness) -> None:
    """The hazard: an update with fewer nodes shrinks a running job at once."""
    blocker = harness.submit_unmanaged(gpus=4), harness.submit_unmanaged(gpus=4)
    job_id = harness.submit(gpus=4)
    harness.targets = {job_id: {"n1": 2}}

    def make_room() -> None:
        harness.slurm.finish(blocker[0])
        harness.slurm.snapshot()  # time for Slurm to start pending jobs

    harness.slurm.before["reshape"] = make_room
    daemon = harness.daemon()
    daemon.round()
    harness.targets = {}
    harness.run_until(daemon, seconds=8)
    assert harness.job(job_id).allocation == Allocation.of({"n0": 4})
    step, reason = harness.last_step(job_id)
    assert (step, reason) == (Step.ROLLED_BACK, "the job started before it was reshaped")
    assert harness.slurm.calls.count(("reshape", job_id)) == 1, "refused, and not tried again"


def test_that_growth_waits_for_the_gpus_that_shrinking_frees(harness: Harness) -> None:
    small, big = started(harness, gpus=1), started(harness, gpus=3)
    assert harness.job(big).allocation == Allocation.of({"n0": 3})
    harness.targets = {big: {"n0": 1}, small: {"n0": 3}}
    harness.run_until(harness.daemon(), seconds=40)
    assert harness.job(small).allocation == Allocation.of({"n0": 3})
    assert harness.job(big).allocation == Allocation.of({"n0": 1})
    grown, shrunk = (
        harness.store.journal.reallocations(small)[-1],
        harness.store.journal.reallocations(big)[-1],
    )
    assert shrunk.entered_at(Step.REQUEUED) <= grown.entered_at(Step.CHECKPOINT_REQUESTED)  # type: ignore[operator]


def test_that_two_jobs_can_swap_nodes(harness: Harness) -> None:
    one, two = started(harness, gpus=4), started(harness, gpus=4)
    harness.targets = {one: {"n1": 4}, two: {"n0": 4}}
    harness.run_until(harness.daemon(), seconds=60)
    assert harness.job(one).allocation == Allocation.of({"n1": 4})
    assert harness.job(two).allocation == Allocation.of({"n0": 4})


def test_that_gpus_taken_before_the_requeue_roll_the_move_back(harness: Harness) -> None:
    job_id = started(harness)
    harness.targets = {job_id: {"n0": 4}}
    daemon = harness.daemon()
    daemon.round()
    harness.submit_unmanaged(gpus=2)
    harness.targets = {}
    harness.run_until(daemon, seconds=8)
    step, _ = harness.last_step(job_id)
    assert step is Step.ROLLED_BACK
    assert harness.job(job_id).restart_count == 0


def test_that_gpus_taken_after_the_requeue_still_let_the_job_run(harness: Harness) -> None:
    job_id = started(harness)
    harness.targets = {job_id: {"n0": 4}}
    harness.slurm.before["release"] = lambda: harness.submit_unmanaged(gpus=2)
    harness.run_until(harness.daemon(), until=lambda: bool(harness.store.journal.reallocations()), seconds=8)
    harness.targets = {}
    harness.run_until(harness.daemon(), seconds=40)
    assert harness.last_step(job_id) == (Step.CONFIRMED, "instead of n0:4, which was taken or drained")
    assert harness.job(job_id).state is JobState.RUNNING
    assert harness.job(job_id).allocation == Allocation.of({"n1": 4})
    assert harness.store.journal.reallocations(job_id)[-1].target == Allocation.of({"n1": 4})


def test_that_a_job_whose_target_an_adaptive_job_took_gets_the_best_that_fits(harness: Harness) -> None:
    """Slurm starts a pending adaptive job on GPUs that were freed for another."""
    job_id = started(harness)
    harness.submit_unmanaged(gpus=2)
    harness.targets = {job_id: {"n1": 4}}
    harness.slurm.before["release"] = lambda: harness.submit(gpus=2)
    harness.run_until(harness.daemon(), until=lambda: bool(harness.store.journal.reallocations()), seconds=8)
    harness.slurm.set_node("n0", available=False)  # so that the other goes to n1
    harness.targets = {}
    harness.run_until(harness.daemon(), until=lambda: len(harness.agents) == 2, seconds=20)
    harness.slurm.set_node("n0", available=True)
    harness.run_until(harness.daemon(), seconds=40)
    assert harness.last_step(job_id) == (Step.CONFIRMED, "instead of n1:4, which was taken or drained")
    assert harness.job(job_id).allocation == Allocation.of({"n0": 2})


def test_that_a_job_waits_with_its_minimum_where_nothing_fits(harness: Harness) -> None:
    job_id = started(harness)
    harness.targets = {job_id: {"n0": 4}}

    def take_all() -> None:
        for _ in range(2):
            harness.submit_unmanaged(gpus=4)

    harness.slurm.before["release"] = take_all
    harness.run_until(harness.daemon(), until=lambda: bool(harness.store.journal.reallocations()), seconds=8)
    harness.targets = {}
    harness.run_until(harness.daemon(), seconds=40)
    step, reason = harness.last_step(job_id)
    assert step is Step.FAILED
    assert (reason or "").startswith("did not start in its new shape")
    job = harness.job(job_id)
    assert (job.state, job.held, job.requested_gpus) == (JobState.PENDING, False, 1)


def test_that_a_shape_that_slurm_refuses_brings_the_job_back_to_its_old_one(harness: Harness) -> None:
    job_id = started(harness, gpus=2)
    harness.targets = {job_id: {"n1": 4}}
    harness.slurm.fail("reshape", SlurmCommandError("Requested node configuration is not available"))
    harness.run_until(harness.daemon(), until=lambda: bool(harness.store.journal.reallocations()), seconds=8)
    harness.targets = {}
    harness.run_until(harness.daemon(), seconds=30)
    step, reason = harness.last_step(job_id)
    assert step is Step.CONFIRMED
    refused = "which Slurm refused (Requested node configuration is not available)"
    assert reason == f"instead of n1:4, {refused}"
    assert harness.job(job_id).allocation == Allocation.of({"n0": 2})


@pytest.mark.parametrize("method", ["requeue_hold", "reshape", "release"])
def test_that_an_unreachable_slurmctld_only_delays(harness: Harness, method: str) -> None:
    job_id = started(harness)
    harness.targets = {job_id: {"n1": 4}}
    harness.slurm.fail(method, SlurmUnavailable("socket timed out"))
    harness.run_until(harness.daemon(), seconds=40)
    assert harness.job(job_id).allocation == Allocation.of({"n1": 4})
    assert harness.last_step(job_id)[0] is Step.CONFIRMED


def test_that_a_job_held_externally_after_its_release_stays_held(harness: Harness) -> None:
    harness.submit_unmanaged(gpus=4)
    job_id = started(harness)
    harness.targets = {job_id: {"n1": 2}}
    daemon = harness.daemon()

    harness.run_until(daemon, until=lambda: harness.is_at(Step.RELEASED), seconds=20)
    harness.slurm.hold(job_id)
    harness.run_until(daemon, seconds=20)
    assert harness.job(job_id).held
    assert harness.last_step(job_id) == (Step.FAILED, "the job was held externally")


def moves_to_n1(harness: Harness) -> tuple[AllocationRecord, Reallocation]:
    """Move a job; return where it ran before, and its move."""
    job_id = started(harness)
    harness.targets = {job_id: {"n1": 4}}
    harness.run_until(harness.daemon(), seconds=30)
    (move,) = harness.store.journal.reallocations(job_id)
    assert move.step is Step.CONFIRMED
    return harness.store.history.allocations(job_id)[0], move


@pytest.mark.parametrize("ahead_s", [-40, 0, 40])
def test_that_a_run_that_was_moved_ends_by_slurmctlds_clock(harness: Harness, ahead_s: int) -> None:
    harness.slurm.clock = lambda: harness.clock() + timedelta(seconds=ahead_s)
    before, move = moves_to_n1(harness)
    requeued_at = move.entered_at(Step.REQUEUED)
    assert requeued_at is not None
    assert before.ended_at == (requeued_at + timedelta(seconds=ahead_s)).replace(microsecond=0)
    assert not before.estimated


def test_that_an_end_that_slurmctld_answered_late_is_an_estimate(harness: Harness) -> None:
    harness.slurm.before["controller_time"] = lambda: harness.clock.advance(3)
    before, _ = moves_to_n1(harness)
    assert before.estimated


def test_that_an_end_that_slurmctld_does_not_answer_is_an_estimate_and_the_move_continues(
    harness: Harness,
) -> None:
    harness.slurm.fail("controller_time", SlurmUnavailable("socket timed out"))
    before, _ = moves_to_n1(harness)
    assert before.estimated


def held_by(harness: Harness, job_id: str, hand: str) -> None:
    """Hold the job as Slurm shows it, which is also how an owner's hold after a requeue looks."""
    harness.slurm.set_job(job_id, held=True, held_since_requeue=False, reason=f"JobHeld{hand}")


@pytest.mark.parametrize("step", [Step.REQUEUED, Step.RELEASED])
def test_that_an_external_hold_during_a_move_outlives_the_daemon(harness: Harness, step: Step) -> None:
    harness.submit_unmanaged(gpus=4)
    job_id = started(harness)
    harness.targets = {job_id: {"n1": 2}}
    daemon = harness.daemon()
    harness.run_until(daemon, until=lambda: harness.is_at(step), seconds=20)
    harness.slurm.snapshot()  # the kill is over
    harness.clock.advance(0.5)
    harness.slurm.snapshot()
    assert harness.job(job_id).state is JobState.PENDING
    held_by(harness, job_id, "Admin" if step is Step.REQUEUED else "User")
    harness.targets = {}
    harness.run_until(harness.daemon(), seconds=30)  # the first one is dead
    assert harness.job(job_id).held
    assert harness.last_step(job_id) == (Step.FAILED, "the job was held externally")


def test_that_a_pending_job_held_externally_while_it_is_placed_stays_held(harness: Harness) -> None:
    harness.submit_unmanaged(gpus=4), harness.submit_unmanaged(gpus=4)
    job_id = harness.submit(gpus=4)
    harness.targets = {job_id: {"n1": 2}}
    harness.slurm.before["reshape"] = lambda: held_by(harness, job_id, "User")
    harness.run_until(harness.daemon(), until=lambda: harness.is_at(Step.RESHAPED), seconds=8)
    harness.targets = {}
    harness.run_until(harness.daemon(), seconds=20)
    assert harness.job(job_id).held
    assert harness.open_moves() == 0


def test_that_a_job_that_a_round_saw_cancelled_is_not_taken_for_another(harness: Harness) -> None:
    job_id = started(harness)
    harness.targets = {job_id: {"n1": 2}}
    harness.agents[job_id].answers = False
    daemon = harness.daemon()
    harness.run_until(daemon, until=lambda: harness.is_at(Step.CHECKPOINT_REQUESTED), seconds=20)
    daemon.tick()
    harness.slurm.cancel(job_id)
    harness.clock.advance(1)
    daemon.round()
    daemon.tick()
    assert harness.last_step(job_id) == (Step.ROLLED_BACK, "the job is cancelled")


def test_that_a_cancelled_job_closes_the_journal(harness: Harness) -> None:
    job_id = started(harness)
    harness.targets = {job_id: {"n1": 2}}
    harness.slurm.before["reshape"] = lambda: harness.slurm.cancel(job_id)
    harness.run_until(harness.daemon(), seconds=20)
    assert harness.last_step(job_id) == (Step.FAILED, "the job is cancelled")
    assert harness.store.jobs.get(job_id).state is JobState.CANCELLED
    assert harness.open_moves() == 0


def test_that_a_job_requeued_externally_is_not_requeued_again(harness: Harness) -> None:
    job_id = started(harness)
    harness.agents[job_id].answers = False
    harness.targets = {job_id: {"n1": 2}}
    daemon = harness.daemon()
    harness.run_until(daemon, until=lambda: bool(harness.store.journal.reallocations()), seconds=8)
    harness.slurm.requeue_hold(job_id)
    harness.slurm.clock.advance(1)  # type: ignore[attr-defined]
    harness.slurm.release(job_id)
    harness.targets = {}
    harness.run_until(daemon, seconds=10)
    assert harness.last_step(job_id)[0] is Step.ROLLED_BACK
    assert harness.slurm.calls.count(("requeue_hold", job_id)) == 1


def test_that_a_job_that_trains_on_after_its_checkpoint_is_not_requeued(harness: Harness) -> None:
    """The agent trains on when no daemon runs; the next daemon must not discard that progress."""
    job_id = started(harness)
    harness.targets = {job_id: {"n1": 2}}
    daemon = harness.daemon()
    harness.run_until(daemon, until=lambda: bool(harness.store.journal.open_reallocations()), seconds=8)
    daemon.tick()
    harness.clock.advance(0.5)
    harness.agents[job_id].act()
    (move,) = harness.store.journal.open_reallocations()
    assert move.step is Step.CHECKPOINTED
    harness.agents[job_id].answers = False  # from now on it reports that it trains
    harness.clock.advance(0.5)
    harness.agents[job_id].act()
    harness.targets = {}
    harness.run_until(harness.daemon(), seconds=4)
    step, reason = harness.last_step(job_id)
    assert (step, reason) == (Step.ROLLED_BACK, "the job trained on after its checkpoint")
    assert harness.job(job_id).restart_count == 0


@pytest.mark.slow
def test_that_a_daemon_killed_at_any_call_leaves_a_job_running_and_no_move(
    clean_store: SqlStore,
) -> None:
    """One job grows and another is reshaped in the queue; the daemon dies once, at each call in turn."""
    for at in itertools.count():
        wipe(clean_store)
        harness = Harness(clean_store)
        running = started(harness)
        harness.submit_unmanaged(
            gpus=1
        )  # so that the waiting job never fits in the shape it was submitted in
        harness.submit_unmanaged(gpus=4)
        waiting = harness.submit(gpus=4)
        harness.targets = {running: {"n0": 2}, waiting: {"n0": 1}}
        wanted = ((running, 2), (waiting, 1))
        counter = itertools.count()
        mortal = harness.daemon(
            slurm=KilledAt(harness.slurm, counter, at),  # type: ignore[arg-type]
            store=KilledAt(harness.store, counter, at),  # type: ignore[arg-type]
        )

        def is_done(harness: Harness = harness, wanted: tuple[tuple[str, int], ...] = wanted) -> bool:
            placed = all(harness.job(job_id).allocation.num_gpus == gpus for job_id, gpus in wanted)
            return placed and not harness.open_moves()

        died = False
        try:
            harness.run_until(mortal, until=is_done, seconds=60)
        except Killed:
            died = True
            harness.run_until(harness.daemon(), until=is_done, seconds=60)
        for job_id, gpus in wanted:
            job = harness.job(job_id)
            assert (job.state, job.held) == (JobState.RUNNING, False), f"call {at}"
            assert job.allocation == Allocation.of({"n0": gpus}), f"call {at}"
            assert job.restart_count == (1 if job_id == running else 0), f"call {at}"
        assert harness.open_moves() == 0
        if not died:
            assert at > 15, "too few calls were tried"
            break


def test_that_a_daemon_that_lost_its_lease_gives_no_command(harness: Harness) -> None:
    job_id = started(harness)
    harness.targets = {job_id: {"n1": 2}}
    asleep = harness.daemon(owner="asleep")
    asleep.round()
    harness.store.lease.release("d")
    asleep.round()
    harness.clock.advance(11)
    assert harness.store.lease.acquire("awake", ttl_s=1000, at=harness.clock())
    before = len(harness.slurm.calls)
    asleep.tick()
    commands = {name for name, _ in harness.slurm.calls[before:]}
    assert not commands & {"requeue_hold", "hold", "reshape", "release"}


def test_that_a_node_that_drains_under_a_planned_move_rolls_it_back(harness: Harness) -> None:
    harness.slurm.nodes["n2"] = fake_node("n2")
    job_id = started(harness)
    harness.targets = {job_id: {"n2": 4}}
    daemon = harness.daemon()
    daemon.round()
    harness.slurm.set_node("n2", available=False, state="drained")
    harness.targets = {}
    harness.run_until(daemon, seconds=8)
    assert harness.last_step(job_id)[0] is Step.ROLLED_BACK


def test_that_another_job_with_the_id_of_a_registered_one_is_not_touched(harness: Harness) -> None:
    """A cluster that was set up anew repeats job ids, and the store still has the old jobs."""
    job_id = started(harness)
    harness.targets = {job_id: {"n1": 2}}
    daemon = harness.daemon()
    harness.run_until(daemon, until=lambda: bool(harness.store.journal.open_reallocations()), seconds=8)
    harness.slurm.set_job(job_id, comment="somebody else's words")
    before = len(harness.slurm.calls)
    harness.run_until(daemon, seconds=20)
    commands = {name for name, _ in harness.slurm.calls[before:]}
    assert not commands & {"requeue_hold", "hold", "reshape", "release"}
    assert harness.open_moves() == 0
    assert harness.store.jobs.get(job_id).state.is_over


def test_that_a_job_whose_owner_removes_its_terms_while_it_is_held_is_released(harness: Harness) -> None:
    job_id = started(harness)
    harness.targets = {job_id: {"n1": 2}}
    daemon = harness.daemon()

    harness.run_until(daemon, until=lambda: harness.is_at(Step.REQUEUED), seconds=20)
    harness.clock.advance(0.5)
    harness.slurm.set_job(job_id, comment="no more")
    harness.run_until(daemon, seconds=8)
    assert not harness.job(job_id).held
    assert harness.open_moves() == 0


@pytest.mark.parametrize(
    ("method", "error"),
    [
        ("reshape", SlurmUnavailable("socket timed out")),
        ("reshape", SlurmCommandError("Requested node configuration is not available")),
        ("release", SlurmCommandError("try again in a bit")),
    ],
)
def test_that_giving_up_a_lost_target_leaves_no_job_held(
    harness: Harness, method: str, error: SlurmError
) -> None:
    job_id = started(harness)
    harness.targets = {job_id: {"n0": 4}}

    def takes_the_place() -> None:
        harness.submit_unmanaged(gpus=2)

    harness.slurm.before["release"] = takes_the_place
    daemon = harness.daemon()

    harness.run_until(daemon, until=lambda: harness.is_at(Step.RELEASED), seconds=20)
    harness.targets = {}
    harness.slurm.fail(method, error)
    harness.run_until(daemon, seconds=60)
    assert not harness.job(job_id).held
    assert harness.open_moves() == 0


def test_that_a_round_longer_than_the_lease_still_acts_when_no_other_daemon_took_over(
    harness: Harness,
) -> None:
    job_id = started(harness)
    harness.targets = {job_id: {"n1": 2}}
    daemon = harness.daemon()
    harness.slurm.before["snapshot"] = lambda: harness.clock.advance(15)
    assert daemon.round().skipped is None
    assert harness.open_moves() == 1


def test_that_a_stop_waits_for_a_job_whose_release_failed(harness: Harness) -> None:
    job_id = started(harness)
    harness.targets = {job_id: {"n1": 2}}
    harness.slurm.fail("release", SlurmUnavailable("socket timed out"))
    daemon = harness.daemon()

    harness.run_until(daemon, until=lambda: harness.is_at(Step.RELEASED), seconds=20)
    assert harness.job(job_id).held
    harness.clock.advance(START_DELAY_S)  # a job is not looked for before it may start
    harness.stop.set()
    daemon.run()
    assert not harness.job(job_id).held


class JobHidden:
    """Passes calls on to Slurm; one job is missing from its snapshots while it is `hidden`."""

    def __init__(self, slurm: FakeSlurm) -> None:
        self._slurm = slurm
        self.hidden: str | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._slurm, name)

    def snapshot(self) -> ClusterSnapshot:
        return self._without_hidden(self._slurm.snapshot())

    def refresh(self, job_ids: Collection[str] | None = None) -> ClusterSnapshot:
        return self._without_hidden(self._slurm.refresh(job_ids))

    def _without_hidden(self, found: ClusterSnapshot) -> ClusterSnapshot:
        return dataclasses.replace(found, jobs=tuple(job for job in found.jobs if job.job_id != self.hidden))


def test_that_a_job_missing_from_one_read_is_not_given_up(harness: Harness) -> None:
    job_id = started(harness)
    harness.targets = {job_id: {"n1": 2}}
    slurm = JobHidden(harness.slurm)
    daemon = harness.daemon(slurm=slurm)  # type: ignore[arg-type]

    harness.run_until(daemon, until=lambda: harness.is_at(Step.REQUEUED), seconds=20)
    slurm.hidden = job_id
    daemon.tick()
    slurm.hidden = None
    harness.run_until(daemon, seconds=20)
    assert harness.job(job_id).allocation == Allocation.of({"n1": 2})
    assert harness.last_step(job_id)[0] is Step.CONFIRMED
