"""Moves in place: wings, generations, and the ways in which they go wrong."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import pytest

from pollux_slurm.config import MovesConfig
from pollux_slurm.daemon.decide.in_place import not_in_place_because
from pollux_slurm.daemon.loop import Daemon
from pollux_slurm.daemon.observe.association_limits import SiteLimits
from pollux_slurm.errors import SlurmUnavailable
from pollux_slurm.model import Allocation, JobState, ReallocationCause, ReallocationWay, SlurmAnswer
from pollux_slurm.model import ReallocationStep as Step
from pollux_slurm.slurm.commands.accounting import Association
from pollux_slurm.slurm.merging_client import MergingClient
from pollux_slurm.store.contract.interface import GenerationState
from pollux_slurm.store.sql_store import SqlStore
from tests.daemon.anchors import Anchor
from tests.daemon.harness import Harness

MOVES = MovesConfig(gpu_types_without_nvlink=("t4",))


@pytest.fixture
def harness(clean_store: SqlStore) -> Harness:
    """Two nodes of four GPUs, whose jobs may have several wings on a node."""
    return Harness(clean_store)


def daemon(harness: Harness, **more: Any) -> Daemon:
    return harness.daemon(slurm=MergingClient(harness.slurm), moves=MOVES, **more)


def started(harness: Harness, *, gpus: int = 2) -> Anchor:
    """Submit a job in place and let it report its first steps."""
    anchor = Anchor(harness, gpus=gpus)
    harness.run_until(daemon(harness), until=lambda: harness.has_stepped(anchor.job_id), seconds=12)
    assert anchor.job.state is JobState.RUNNING
    return anchor


def move_to(harness: Harness, anchor: Anchor, target: dict[str, int], *, seconds: float = 20) -> None:
    harness.targets = {anchor.job_id: target}
    harness.run_until(daemon(harness), seconds=seconds)


def steps(harness: Harness, anchor: Anchor) -> list[str]:
    """Return the steps of the job's last move."""
    return [step.value for step, _ in harness.store.journal.reallocations(anchor.job_id)[-1].times]


IN_PLACE = ["planned", "regroup_requested", "regrouped", "confirmed"]


def test_that_a_job_grows_in_place(harness: Harness) -> None:
    anchor = started(harness)
    move_to(harness, anchor, {"n0": 2, "n1": 2})
    assert steps(harness, anchor) == IN_PLACE
    (move,) = harness.store.journal.reallocations(anchor.job_id)
    assert (move.way, move.generation, move.standstill_s) == (ReallocationWay.IN_PLACE, 1, 0.4)
    assert anchor.job.allocation == Allocation.of({"n0": 2, "n1": 2})
    (generation,) = harness.store.generations.of_job(anchor.job_id)
    assert [one.id for one in generation.members] == ["0.0.n0.0", "0.0.n0.1", "0.1.n1.0", "0.1.n1.1"]
    record = harness.store.jobs.get(anchor.job_id)
    assert (record.num_restarts, record.mean_standstill_s) == (0, 0.4)


def test_that_it_shrinks_grows_on_its_node_and_leaves_the_first_wing(harness: Harness) -> None:
    anchor = started(harness)
    for target in ({"n0": 4}, {"n0": 2}, {"n0": 2, "n1": 3}, {"n1": 3}, {"n1": 4}):
        move_to(harness, anchor, target)
        assert steps(harness, anchor) == IN_PLACE, target
        assert anchor.job.allocation == Allocation.of(target)
    assert anchor.restart_count == 0


@pytest.mark.parametrize(("threads", "end"), [(2, "confirmed"), (1, "rolled_back")])
def test_that_a_wing_may_have_whole_cores_and_no_more_cpus(harness: Harness, threads: int, end: str) -> None:
    """On a node with two threads a core, one GPU with one CPU is given two."""
    anchor = started(harness)
    harness.slurm.set_node("n1", threads_per_core=threads)
    anchor.is_ready = False
    move_to(harness, anchor, {"n0": 2, "n1": 1}, seconds=4)
    (wing,) = [one for one in anchor.wings() if one.allocation == Allocation.of({"n1": 1})]
    harness.slurm.set_job(wing.job_id, num_cpus=2)
    harness.tick(daemon(harness), times=2)
    anchor.is_ready = True
    harness.targets = {}
    harness.run_until(daemon(harness), until=lambda: not harness.open_moves(), seconds=20)
    assert steps(harness, anchor)[-1] == end


def test_that_it_goes_by_requeue_where_no_wing_can_stay(harness: Harness) -> None:
    anchor = started(harness)
    move_to(harness, anchor, {"n1": 4}, seconds=40)
    (move,) = harness.store.journal.reallocations(anchor.job_id)
    assert (move.way, move.step) == (ReallocationWay.REQUEUE, Step.CONFIRMED)
    assert move.reason == "by requeue, since none of its wings could stay as it is"
    assert (anchor.job.restart_count, anchor.job.allocation) == (1, Allocation.of({"n1": 4}))


def test_that_a_job_that_waits_starts_and_is_not_said_to_be_requeued(harness: Harness) -> None:
    anchor = Anchor(harness, gpus=8)
    harness.targets = {anchor.job_id: {"n1": 2}}
    harness.run_until(daemon(harness), seconds=30)
    (move,) = harness.store.journal.reallocations(anchor.job_id)
    assert (move.moves_running, move.step, move.reason) == (False, Step.CONFIRMED, None)


def test_that_a_script_that_refuses_goes_on_and_moves_by_requeue(harness: Harness) -> None:
    anchor = started(harness)
    anchor.brings_wings = False
    move_to(harness, anchor, {"n0": 4}, seconds=6)
    harness.store.agent.advance_generation(
        anchor.token, 1, GenerationState.REFUSED, restart_count=0, at=harness.clock(), reason="it may not"
    )
    harness.tick(daemon(harness), times=2)
    (move,) = harness.store.journal.reallocations(anchor.job_id)
    assert (move.step, move.job_failed, move.reason) == (Step.ROLLED_BACK, True, "it may not")
    # Also after another move that came to nothing, until the next start.
    other = replace(move, way=ReallocationWay.REQUEUE, job_failed=False, reason="the GPUs were taken")
    record = replace(harness.store.jobs.get(anchor.job_id), last_reallocation=other)
    assert not_in_place_because(anchor.job, record) == "a regroup was refused: it may not"
    (refused,) = record.generations
    for state, restart_count in ((GenerationState.REFUSED, 7), (GenerationState.WITHDRAWN, 0)):
        before = replace(refused, state=state, restart_count=restart_count)
        assert not_in_place_because(anchor.job, replace(record, generations=(before,))) is None
    anchor.brings_wings = True
    move_to(harness, anchor, {"n0": 4}, seconds=40)
    assert harness.store.journal.reallocations(anchor.job_id)[-1].way is ReallocationWay.REQUEUE
    assert (anchor.job.restart_count, anchor.job.allocation) == (1, Allocation.of({"n0": 4}))


def test_that_newcomers_that_are_not_ready_in_time_are_given_up(harness: Harness) -> None:
    anchor = started(harness)
    anchor.is_ready = False
    move_to(harness, anchor, {"n0": 4}, seconds=30)
    assert harness.store.journal.open_reallocations()
    harness.targets = {}
    harness.run_until(daemon(harness), seconds=40)
    (move,) = harness.store.journal.reallocations(anchor.job_id)
    assert (move.step, move.reason) == (Step.ROLLED_BACK, "the new processes were not ready in time")
    assert anchor.job.allocation == Allocation.of({"n0": 2})
    assert anchor.job.restart_count == 0


def without_a_step(harness: Harness) -> Anchor:
    """Let a job commit a generation, and stand still."""
    anchor = started(harness)
    anchor.regroups = False
    move_to(harness, anchor, {"n0": 4}, seconds=10)
    harness.store.agent.advance_generation(
        anchor.token, 1, GenerationState.COMMITTED, restart_count=0, at=harness.clock(), meeting="n0:1"
    )
    harness.targets = {}
    anchor.acts = False
    return anchor


def test_that_a_generation_without_a_step_is_failed_and_the_job_starts_again(harness: Harness) -> None:
    anchor = without_a_step(harness)
    harness.run_until(daemon(harness), seconds=50)
    (move,) = harness.store.journal.reallocations(anchor.job_id)
    assert (move.step, move.job_failed) == (Step.FAILED, True)
    assert all(wing.state.is_over for wing in anchor.job.wings)


def test_that_a_start_again_without_an_answer_is_asked_for_again(harness: Harness) -> None:
    anchor = without_a_step(harness)
    harness.slurm.fail("cancel", SlurmUnavailable("no answer"))
    with contextlib.suppress(SlurmUnavailable):
        harness.run_until(daemon(harness), seconds=50)
    harness.run_until(daemon(harness), seconds=20)
    (move,) = harness.store.journal.reallocations(anchor.job_id)
    assert (move.step, move.job_failed) == (Step.FAILED, True)
    assert all(wing.state.is_over for wing in anchor.job.wings)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"held": True, "reason": "JobHeldUser"}, "waits whatever is free (JobHeldUser)"),
        ({}, "its new wings did not start in time (BeginTime)"),
    ],
)
def test_that_after_a_wing_that_slurm_does_not_start_the_next_move_is_a_requeue(
    harness: Harness, change: dict[str, object], reason: str
) -> None:
    anchor = started(harness)
    submit = anchor.wing

    def wing(*options: str, **details: Any) -> str:
        number = submit("--begin=now+9999", *options, **details)
        harness.slurm.set_job(number, begins_at=None, **change)
        return number

    anchor.wing = wing  # type: ignore[method-assign]
    move_to(harness, anchor, {"n0": 2, "n1": 2}, seconds=60)
    first, second = harness.store.journal.reallocations(anchor.job_id)[:2]
    assert (first.step, first.way, first.job_failed) == (Step.ROLLED_BACK, ReallocationWay.IN_PLACE, True)
    assert reason in str(first.reason)
    assert second.way is ReallocationWay.REQUEUE


@pytest.mark.parametrize(
    ("options", "minutes", "reason"),
    [
        (["--nodelist=n1", "--gpus=3"], None, "has 3 GPUs on n1, which is not the plan"),
        (["--gpus=2"], None, "which is not the plan"),
        (["--nodelist=n0", "--gpus=2"], None, "has 2 GPUs on n0, which is not the plan"),
        (["--nodelist=n1", "--gpus=2"], 100000, "has a longer time limit than its start"),
        (["--nodelist=n1", "--gpus=2"], 0, "has a longer time limit than its start"),
    ],
)
def test_that_a_wing_that_is_not_as_planned_is_cancelled(
    harness: Harness, options: list[str], minutes: int | None, reason: str
) -> None:
    anchor = started(harness)
    anchor.brings_wings = False
    move_to(harness, anchor, {"n0": 2, "n1": 2}, seconds=6)
    forged = anchor.wing(*options, plan=1, minutes=minutes)
    harness.targets = {}
    harness.tick(daemon(harness), times=2)
    (move,) = harness.store.journal.reallocations(anchor.job_id)
    assert move.step is Step.ROLLED_BACK
    assert reason in str(move.reason)
    assert harness.job(forged).state.is_over
    assert anchor.job.allocation == Allocation.of({"n0": 2})


def test_that_more_wings_than_a_tick_cancels_are_all_cancelled(harness: Harness) -> None:
    anchor = started(harness)
    anchor.brings_wings = False
    move_to(harness, anchor, {"n0": 2, "n1": 2}, seconds=6)
    forged = [anchor.wing("--nodelist=n1", "--gpus=1", plan=plan) for plan in range(1, 60)]
    harness.targets = {}
    harness.run_until(daemon(harness), seconds=150)
    assert all(harness.job(number).state.is_over for number in forged)
    assert anchor.job.allocation == Allocation.of({"n0": 2})
    assert not harness.store.journal.open_reallocations()


def fail_next_start(harness: Harness, anchor: Anchor) -> None:
    """Have a job lose its wing, and fail as by a signal right after its next start."""
    harness.slurm.cancel(anchor.wings()[0].job_id)
    harness.run_until(daemon(harness), until=lambda: anchor.restart_count == 1, seconds=10)
    anchor.reports = False
    harness.run_until(daemon(harness), until=lambda: anchor.job.state is JobState.RUNNING, seconds=200)
    harness.clock.advance(2)
    harness.slurm.finish(anchor.wings()[0].job_id, exit_code=137)
    harness.slurm.finish(anchor.job_id, exit_code=137)


def test_that_a_job_whose_start_slurm_ended_is_started_again_by_its_anchor(harness: Harness) -> None:
    anchor = started(harness)
    fail_next_start(harness, anchor)
    anchor.reports = True
    harness.run_until(daemon(harness), seconds=200)
    (move,) = harness.store.journal.reallocations(anchor.job_id)
    assert (move.cause, move.step) == (ReallocationCause.FAILED_START, Step.CONFIRMED)
    assert (anchor.restart_count, anchor.job.state) == (2, JobState.RUNNING)


def test_that_an_anchor_that_slurm_holds_is_released(harness: Harness) -> None:
    anchor = started(harness)
    harness.slurm.requeue_hold(anchor.job_id)
    anchor.end_wings()
    harness.clock.advance(2)
    harness.slurm.set_job(anchor.job_id, held_by_slurm=True, held_since_requeue=False)
    assert anchor.job.held
    harness.run_until(daemon(harness), until=lambda: not anchor.job.held, seconds=30)
    assert not anchor.job.held


def test_that_an_anchor_that_brings_no_wing_does_not_keep_its_gpus(harness: Harness) -> None:
    anchor = started(harness)
    fail_next_start(harness, anchor)
    anchor.acts = False
    harness.run_until(daemon(harness), seconds=120)
    move = harness.store.journal.reallocations(anchor.job_id)[-1]
    assert move.step is Step.FAILED
    assert str(move.reason).endswith("its anchor brought no wing in time")
    assert not anchor.job.held


def test_that_another_users_wing_is_a_job_of_its_own(harness: Harness) -> None:
    anchor = started(harness)
    harness.submit(gpus=1)
    forged = anchor.wing("--nodelist=n1", "--gpus=2", plan=1, user_id=1001)
    harness.run_until(daemon(harness), seconds=90)
    assert harness.job(forged).state is JobState.RUNNING
    assert anchor.job.allocation == Allocation.of({"n0": 2})


def test_that_a_donor_waits_until_wings_stand_in_the_queue_with_priority(harness: Harness) -> None:
    receiver, donor = started(harness, gpus=4), harness.submit(gpus=4)
    harness.run_until(daemon(harness), until=lambda: harness.has_stepped(donor), seconds=12)
    waiting = harness.submit_unmanaged(gpus=4)
    seen: list[tuple[bool, bool]] = []

    def look(method: str) -> None:
        if method == "requeue_hold":
            wing = next(one for one in receiver.wings() if one.state is JobState.PENDING)
            other = harness.job(waiting)
            assert wing.priority is not None
            assert other.priority is not None
            seen.append((wing.priority > other.priority, wing.required_nodes == ("n1",)))

    harness.slurm.on_command = look
    harness.targets = {receiver.job_id: {"n0": 4, "n1": 2}, donor: {"n1": 2}}
    harness.run_until(daemon(harness), seconds=40)
    assert seen == [(True, True)]
    assert receiver.job.allocation == Allocation.of({"n0": 4, "n1": 2})
    assert harness.job(donor).allocation == Allocation.of({"n1": 2})
    assert harness.job(waiting).state is JobState.PENDING


def test_that_a_daemon_without_rights_leaves_free_gpus_to_those_who_wait(harness: Harness) -> None:
    anchor = started(harness)
    harness.submit_unmanaged(gpus=4)
    harness.slurm.set_job(harness.submit_unmanaged(gpus=4), user_id=7)
    harness.targets = {anchor.job_id: {"n0": 3}}
    own = daemon(harness, scope=lambda: 1000)
    harness.run_until(own, seconds=8)
    assert not harness.store.journal.reallocations(anchor.job_id), "by requeue it would lose its place"
    because = str(harness.store.jobs.get(anchor.job_id).not_moved_reason)
    assert "waits, and would get the GPUs that a move leaves for a moment" in because


@pytest.mark.parametrize(
    ("reason", "answer"), [("BadConstraints", SlurmAnswer.NEVER), ("Resources", SlurmAnswer.NOT_NOW)]
)
def test_that_a_wing_that_slurm_refuses_stops_neither_training_nor_moves_in_place(
    harness: Harness, reason: str, answer: SlurmAnswer
) -> None:
    """The allocation is not asked for again, by requeue as little as in place."""
    anchor = started(harness)
    harness.slurm.refuses = lambda shape: reason if shape.nodes == ("n1",) else None
    move_to(harness, anchor, {"n0": 2, "n1": 2}, seconds=100)
    (move,) = harness.store.journal.reallocations(anchor.job_id)
    assert (move.step, move.job_failed) == (Step.ROLLED_BACK, False)
    (refusal,) = harness.store.jobs.get(anchor.job_id).refusals
    assert (refusal.answer, refusal.reason) == (answer, reason)
    assert anchor.job.restart_count == 0


def test_that_a_wing_without_a_process_is_cancelled_and_journaled(harness: Harness) -> None:
    anchor = started(harness)
    stray = anchor.wing("--nodelist=n1", "--gpus=3", plan=0)
    harness.run_until(daemon(harness), seconds=90)
    (move,) = harness.store.journal.reallocations(anchor.job_id)
    assert (move.cause.value, move.step) == ("stray_wings", Step.CONFIRMED)
    assert (move.source, move.target) == (Allocation.of({"n0": 2, "n1": 3}), Allocation.of({"n0": 2}))
    assert harness.job(stray).state is JobState.CANCELLED
    assert anchor.job.restart_count == 0


def test_that_gpu_hours_are_those_of_the_wings(harness: Harness) -> None:
    anchor = started(harness)
    for target in ({"n0": 4}, {"n0": 2}, {"n0": 2, "n1": 3}, {"n1": 3}):
        move_to(harness, anchor, target, seconds=9)
    harness.slurm.cancel(anchor.job_id)
    anchor.end_wings()
    harness.run_until(daemon(harness), seconds=8)
    by_wings = sum(
        (wing.ended_at - wing.started_at).total_seconds() * wing.last_allocation.num_gpus
        for wing in anchor.job.wings
        if wing.started_at is not None and wing.ended_at is not None
    )
    by_books = sum(
        (one.ended_at - one.started_at).total_seconds() * one.allocation.num_gpus
        for one in harness.store.history.allocations(anchor.job_id)
        if one.ended_at is not None
    )
    assert by_books == pytest.approx(by_wings, abs=0.01)


@pytest.mark.parametrize(
    ("limits", "because"),
    [
        ({"gpus": 4}, "the limit of 4 GPUs of account "),
        ({"gpus_per_job": 4}, "the limit of 4 GPUs per job"),
        ({"gpus": 5, "gpus_per_job": 5}, None),
    ],
)
def test_that_slurms_limits_hold_while_wings_replace_others(
    harness: Harness, limits: dict[str, int], because: str | None
) -> None:
    """From 2 and 1 GPUs to 2 and 2: with the new wing of two beside the old one of one, five."""
    anchor = started(harness)
    move_to(harness, anchor, {"n0": 2, "n1": 1})
    harness.targets = {anchor.job_id: {"n0": 2, "n1": 2}}
    site = SiteLimits(associations=(Association(account=anchor.job.account, **limits),))
    one_wing_a_node = harness.daemon(
        slurm=MergingClient(harness.slurm), moves=MovesConfig(), site_limits=lambda: site
    )
    harness.run_until(one_wing_a_node, seconds=40)
    move = harness.store.journal.reallocations(anchor.job_id)[-1]
    assert move.step is Step.CONFIRMED
    assert anchor.job.allocation == Allocation.of({"n0": 2, "n1": 2})
    if because is None:
        assert move.way is ReallocationWay.IN_PLACE
    else:
        assert move.way is ReallocationWay.REQUEUE
        assert because in str(move.reason)
