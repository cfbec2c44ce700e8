"""A job that moves by requeue keeps its place: its reservation and its priority, and how it loses them."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import Any

import pytest

from pollux_slurm.config import MovesConfig
from pollux_slurm.daemon.loop import Daemon
from pollux_slurm.errors import SlurmCommandError, SlurmUnavailable
from pollux_slurm.model import Allocation, ClusterSnapshot, JobState
from pollux_slurm.model import ReallocationStep as Step
from pollux_slurm.slurm.parsing.wing_comment import WingTerms, encode_wing_comment
from pollux_slurm.store.sql_store import SqlStore
from tests.daemon.anchors import Anchor
from tests.daemon.crashing import Killed, KilledAt
from tests.daemon.enact.test_state_machine import started
from tests.daemon.harness import Harness
from tests.store_fixtures import wipe


def is_first(harness: Harness, job_id: str) -> bool:
    """Whether a job has a priority above all others that wait."""
    jobs = harness.slurm.snapshot().jobs
    others = [job.priority or 0 for job in jobs if job.state is JobState.PENDING and job.job_id != job_id]
    return (harness.job(job_id).priority or 0) > max(others)


def busy(harness: Harness, *, waiting: int = 6) -> str:
    """Return a job on n0:4 beside a full node, with a queue of small jobs, in strict order."""
    harness.slurm.in_strict_order = True
    job_id = started(harness, gpus=4)
    harness.submit_unmanaged(gpus=4)
    for _ in range(waiting):
        harness.submit_unmanaged(gpus=1)
    return job_id


def moved(harness: Harness, job_id: str, target: dict[str, int], **more: Any) -> None:
    harness.targets = {job_id: target}
    harness.run_until(
        harness.daemon(**more),
        until=lambda: bool(harness.store.journal.reallocations()) and not harness.open_moves(),
        seconds=120,
    )
    harness.targets = {}


def test_that_a_job_that_shrinks_before_a_queue_keeps_what_it_is_to_have(harness: Harness) -> None:
    job_id = busy(harness)
    moved(harness, job_id, {"n0": 2})
    assert harness.last_step(job_id)[0] is Step.CONFIRMED
    assert harness.job(job_id).allocation == Allocation.of({"n0": 2})
    states = [job.state for job in harness.slurm.snapshot().jobs]
    assert states.count(JobState.RUNNING) == 4, "two of the small ones got what it gave up"
    assert not harness.slurm.reservations
    harness.run_until(harness.daemon(), seconds=4)
    assert not is_first(harness, job_id), "an ordinary one again"
    (move,) = harness.store.journal.reallocations(job_id)
    assert move.priority is not None
    assert move.priority_ended_at is not None


def test_that_it_starts_before_a_queue_in_another_partition_of_its_nodes(harness: Harness) -> None:
    job_id = busy(harness)
    waiting = [job.job_id for job in harness.slurm.snapshot().jobs if job.state is JobState.PENDING]
    for number in waiting:
        harness.slurm.set_job(number, partition="short")
    for node in ("n0", "n1"):
        harness.slurm.set_node(node, partitions=("main", "short"))
    moved(harness, job_id, {"n0": 2})
    (move,) = harness.store.journal.reallocations(job_id)
    assert move.priority is not None
    assert harness.job(job_id).allocation == Allocation.of({"n0": 2})


def test_that_a_job_whose_shape_slurm_held_goes_back_before_the_queue(harness: Harness) -> None:
    """The hold takes its priority off, and what ends the hold gives an ordinary one."""
    harness.slurm.in_strict_order = True
    job_id = started(harness, gpus=2)
    harness.submit_unmanaged(gpus=4)
    harness.slurm.set_job(harness.submit_unmanaged(gpus=8), priority=10**6 + 1)
    harness.slurm.refuses = lambda shape: "BadConstraints" if shape.num_gpus == 4 else None
    moved(harness, job_id, {"n0": 4})
    (move,) = harness.store.journal.reallocations(job_id)
    assert (move.step, move.refusal is not None) == (Step.CONFIRMED, True)
    assert harness.job(job_id).allocation == Allocation.of({"n0": 2})
    assert harness.job(job_id).restart_count == 1


def test_that_a_job_that_has_lost_its_place_starts_before_the_queue_when_there_is_room(
    harness: Harness,
) -> None:
    """Nobody waited at its requeue, so nothing was reserved; then one came, and took its node."""
    harness.slurm.in_strict_order = True
    job_id = started(harness, gpus=4)
    harness.submit_unmanaged(gpus=4)
    thieves: list[str] = []
    harness.slurm.before["release"] = lambda: thieves.append(harness.submit_unmanaged(gpus=4))
    moved(harness, job_id, {"n0": 2})
    assert harness.last_step(job_id)[0] is Step.FAILED
    queue = [harness.submit_unmanaged(gpus=1) for _ in range(6)]
    for number in queue:
        harness.slurm.set_job(number, priority=10**6 + 1)  # it stands before a requeued job
    harness.slurm.before.clear()
    harness.targets = {job_id: {"n0": 2}}
    daemon = harness.daemon()
    harness.run_until(daemon, until=lambda: bool(harness.store.journal.prioritised()), seconds=40)
    harness.slurm.finish(thieves[0])
    harness.run_until(daemon, until=lambda: harness.job(job_id).state is JobState.RUNNING, seconds=10)
    assert harness.job(job_id).allocation == Allocation.of({"n0": 2})
    harness.run_until(daemon, seconds=8)
    assert not harness.store.journal.prioritised()


def test_that_a_job_that_has_come_since_the_round_does_not_take_the_slot_of_one_that_moves(
    harness: Harness,
) -> None:
    """It waits for a limit that counts the moving job, which is held for two seconds."""
    job_id = started(harness)
    harness.targets = {job_id: {"n0": 2}}
    daemon = harness.daemon()
    harness.run_until(daemon, until=lambda: harness.is_at(Step.CHECKPOINT_REQUESTED), seconds=40)
    harness.slurm.refuses = lambda shape: "QOSMaxJobsPerUserLimit" if shape.num_gpus == 3 else None
    harness.slurm.set_job(harness.submit_unmanaged(gpus=3), user_id=1000)
    harness.targets = {}
    harness.run_until(daemon, until=lambda: not harness.open_moves(), seconds=40)
    step, why = harness.last_step(job_id)
    assert step is Step.ROLLED_BACK
    assert "waits for a limit that counts this job" in (why or "")
    assert harness.job(job_id).restart_count == 0


def test_that_a_shrink_that_is_owed_is_made_whoever_waits_for_its_slot(harness: Harness) -> None:
    job_id = started(harness, gpus=4)
    harness.targets = {job_id: {"n0": 2}}
    daemon = harness.daemon()
    harness.run_until(daemon, until=lambda: harness.is_at(Step.CHECKPOINT_REQUESTED), seconds=40)
    harness.slurm.refuses = lambda shape: "QOSMaxJobsPerUserLimit" if shape.num_gpus == 3 else None
    harness.slurm.set_job(harness.submit_unmanaged(gpus=3), user_id=1000)
    harness.run_until(daemon, until=lambda: not harness.open_moves(), seconds=60)
    assert harness.last_step(job_id)[0] is Step.CONFIRMED


def test_that_without_this_the_queue_takes_it_all(harness: Harness) -> None:
    job_id = busy(harness)
    moved(harness, job_id, {"n0": 2}, moves=MovesConfig(keeps_places=False))
    assert not harness.store.journal.reallocations(), "so such a move is not made"
    because = harness.store.jobs.get(job_id).not_moved_reason or ""
    assert "would get the GPUs that a move leaves for a moment" in because
    assert harness.job(job_id).allocation == Allocation.of({"n0": 4})


def test_that_a_daemon_without_the_right_moves_where_nobody_could_start(harness: Harness) -> None:
    """The one that waits needs more than the move frees."""
    harness.slurm.in_strict_order = True
    job_id = started(harness, gpus=2)
    harness.submit_unmanaged(gpus=4)
    harness.slurm.set_node("n1", available=False)
    wide = harness.submit_unmanaged(gpus=4)
    harness.slurm.set_job(wide, num_nodes=2, requested_gpus=8)
    moved(harness, job_id, {"n0": 1}, scope=lambda: 1000)
    assert [call for call in harness.slurm.calls if call[0] == "requeue_hold"] == [("requeue_hold", job_id)]
    assert harness.store.journal.reallocations()[0].priority is None


def test_that_a_job_behind_a_wide_one_starts_at_once(harness: Harness) -> None:
    """A hog on n1 leaves no room for the wide job, which waits before the job that moves."""
    harness.slurm.in_strict_order = True
    job_id = started(harness)
    harness.submit_unmanaged(gpus=4)
    wide = harness.submit_unmanaged(gpus=4)
    harness.slurm.set_job(wide, num_nodes=2, requested_gpus=8)
    harness.slurm.refuses = lambda shape: "Resources" if shape.num_gpus == 4 else None
    moved(harness, job_id, {"n0": 2})
    assert harness.last_step(job_id)[0] is Step.CONFIRMED
    assert harness.job(job_id).allocation == Allocation.of({"n0": 2})


@pytest.mark.parametrize(("takes_s", "num_reads"), [(0.0, 2), (2.0, 1)])
def test_that_a_queue_that_takes_seconds_to_read_is_read_once_for_a_move(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, takes_s: float, num_reads: int
) -> None:
    """Else before the reservation, and again before the priority."""
    job_id = busy(harness)
    refresh, num = harness.slurm.refresh, []

    def slow(job_ids: Collection[str] | None = None) -> ClusterSnapshot:
        if job_ids is None:
            num.append(job_ids)
            harness.clock.advance(takes_s)
        return refresh(job_ids)

    monkeypatch.setattr(harness.slurm, "refresh", slow)
    moved(harness, job_id, {"n0": 2})
    assert harness.last_step(job_id)[0] is Step.CONFIRMED
    assert len(num) == num_reads


def test_that_an_empty_queue_takes_neither_reservation_nor_priority(harness: Harness) -> None:
    job_id = started(harness)
    moved(harness, job_id, {"n0": 2})
    names = {name for name, _ in harness.slurm.calls}
    assert names.isdisjoint({"create_reservation", "set_priority", "restore_priority"})


def test_that_a_job_whose_nodes_slurm_does_not_reserve_trains_on(harness: Harness) -> None:
    job_id = busy(harness)
    harness.slurm.fail("create_reservation", SlurmCommandError("Access/permission denied"))
    moved(harness, job_id, {"n0": 2})
    assert harness.last_step(job_id) == (
        Step.ROLLED_BACK,
        "its place cannot be kept: Access/permission denied",
    )
    assert harness.job(job_id).restart_count == 0


def test_that_a_job_is_not_stopped_before_slurmctld_has_answered(harness: Harness) -> None:
    job_id = busy(harness)
    harness.slurm.fail("create_reservation", SlurmUnavailable("slurmctld does not answer"))
    moved(harness, job_id, {"n0": 2})
    wanted = ("create_reservation", "requeue_hold")
    names = [name for name, _ in harness.slurm.calls if name in wanted]
    assert names == ["create_reservation", "create_reservation", "requeue_hold"]
    assert harness.last_step(job_id)[0] is Step.CONFIRMED


def test_that_a_job_that_is_cancelled_in_its_move_leaves_no_reservation(harness: Harness) -> None:
    job_id = busy(harness)
    harness.targets = {job_id: {"n0": 2}}
    daemon = harness.daemon()
    harness.run_until(daemon, until=lambda: bool(harness.slurm.reservations), seconds=60)
    harness.slurm.cancel(job_id)
    harness.targets = {}
    harness.tick(daemon, times=3)
    assert harness.open_moves() == 0
    assert not harness.slurm.reservations


def at_release(harness: Harness, job_id: str) -> Daemon:
    """Return a daemon that has just given the job its priority, where it cannot start yet."""
    harness.slurm.refuses = lambda shape: "Resources" if shape.num_gpus == 2 else None
    harness.targets = {job_id: {"n0": 2}}
    daemon = harness.daemon()
    harness.run_until(daemon, until=lambda: bool(harness.store.journal.prioritised()), seconds=30)
    assert is_first(harness, job_id)
    assert harness.job(job_id).state is JobState.PENDING
    return daemon


@pytest.mark.parametrize(
    "attack",
    [
        {"requested_gpus": 8},
        {"required_nodes": ("n0", "n1")},
        {"account": "theirs"},
        {"qos": "high"},
        {"partition": "other"},
        {"comment": "mine now"},
        {"restart_count": 7},
        {"num_cpus": 8},
        {"least_memory_mb": 8000},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_that_a_job_that_its_owner_changes_loses_its_priority_for_good(
    harness: Harness, attack: dict[str, Any]
) -> None:
    job_id = busy(harness)
    daemon = at_release(harness, job_id)
    harness.slurm.set_job(job_id, **attack)
    harness.targets = {}
    for _ in range(8):
        harness.clock.advance(0.5)
        daemon.tick()
        assert not is_first(harness, job_id)


@pytest.mark.parametrize(("in_all_mb", "keeps"), [(8192, False), (1000, True)])
def test_that_a_job_loses_its_priority_by_all_memory_of_a_node_and_not_by_slurms_try_to_start_it(
    harness: Harness, in_all_mb: int, keeps: bool
) -> None:
    """Slurm shows the default of the partition for a job that was reshaped (22.05), and 0 in both cases."""
    job_id = busy(harness)
    harness.slurm.before["release"] = lambda: harness.slurm.set_job(
        job_id, least_memory_mb=512, memory_in_all_mb=1000
    )
    daemon = at_release(harness, job_id)
    harness.targets = {}
    daemon.tick()
    assert is_first(harness, job_id)
    harness.slurm.set_job(job_id, least_memory_mb=0, memory_in_all_mb=in_all_mb)
    harness.clock.advance(0.5)
    daemon.tick()
    assert is_first(harness, job_id) is keeps


def test_that_a_job_that_asks_for_more_cpus_while_it_is_held_gets_no_priority(harness: Harness) -> None:
    job_id = busy(harness)
    harness.slurm.before["release"] = lambda: harness.slurm.set_job(job_id, num_cpus=8)
    moved(harness, job_id, {"n0": 2})
    (move,) = harness.store.journal.reallocations(job_id)
    assert move.priority is None


def test_that_no_job_gets_a_priority_that_its_owner_can_hand_on(harness: Harness) -> None:
    """`scontrol top` moves it to another job of theirs, from which nobody takes it."""
    job_id = busy(harness)
    harness.slurm.site["SchedulerParameters"] = "defer,enable_user_top"
    moved(harness, job_id, {"n0": 2})
    assert not harness.store.journal.reallocations(job_id), "it stays, since it would lose its place"
    harness.slurm.site["SchedulerParameters"] = "defer"
    moved(harness, job_id, {"n0": 2})
    (move,) = harness.store.journal.reallocations(job_id)
    assert move.priority is not None


def test_that_a_job_that_its_owner_makes_a_wing_of_another_loses_its_priority(harness: Harness) -> None:
    job_id = busy(harness)
    anchor = Anchor(harness, gpus=1)
    daemon = at_release(harness, job_id)
    terms = WingTerms(anchor_id=anchor.job_id, restart_count=0, plan=0, token_sha256=anchor.token_hash)
    harness.slurm.set_job(job_id, comment=encode_wing_comment(terms))
    harness.targets = {}
    daemon.tick()
    assert not is_first(harness, job_id)


@pytest.mark.parametrize("attack", ["comment", "account", "restart", "twin"])
def test_that_a_wing_that_its_owner_takes_from_its_job_loses_its_priority(
    harness: Harness, attack: str
) -> None:
    """It is the wing that waits for a job in place which moves by requeue."""
    harness.slurm.in_strict_order = True
    anchor = Anchor(harness, gpus=4)
    harness.run_until(harness.daemon(), until=lambda: harness.has_stepped(anchor.job_id), seconds=8)
    for gpus in (4, *[1] * 6):
        harness.submit_unmanaged(gpus=gpus)
    harness.slurm.refuses = lambda shape: "Resources" if shape.num_gpus == 2 else None
    harness.targets = {anchor.job_id: {"n0": 2}}
    daemon = harness.daemon()
    harness.run_until(daemon, until=lambda: bool(harness.store.journal.prioritised()), seconds=200)
    anchor.acts = False
    (wing,) = [one.job_id for one in anchor.wings() if one.state is JobState.PENDING]
    harness.targets = {}
    daemon.tick()
    assert is_first(harness, wing), "what its owner does not change keeps its place"
    if attack == "restart":
        anchor.restart_count += 5  # its owner invents a later start
    if attack in ("restart", "twin"):
        anchor.wing("--gpus=2", "--hold", plan=0)
    if attack in ("comment", "twin"):
        harness.slurm.set_job(wing, comment="mine now")
    if attack == "account":
        harness.slurm.set_job(wing, account="theirs")
    harness.clock.advance(0.5)
    daemon.tick()
    assert not is_first(harness, wing)


def test_that_a_requeue_by_hand_before_the_next_tick_does_not_keep_the_priority(harness: Harness) -> None:
    """A priority that an operator has set is kept over a plain requeue."""
    job_id = busy(harness)
    daemon = at_release(harness, job_id)
    harness.slurm.refuses = lambda _shape: None
    harness.slurm.reservations.clear()
    harness.clock.advance(3)
    harness.slurm.snapshot()
    assert harness.job(job_id).state is JobState.RUNNING
    harness.slurm.requeue(job_id, restart_count=1)
    harness.clock.advance(1)
    harness.slurm.snapshot()
    assert is_first(harness, job_id)
    harness.targets = {}
    daemon.tick()
    assert not is_first(harness, job_id)


def test_that_an_owner_s_hold_is_not_released_to_take_the_priority_off(harness: Harness) -> None:
    job_id = busy(harness)
    daemon = at_release(harness, job_id)
    harness.slurm.hold(job_id)
    harness.slurm.set_job(job_id, priority=0)
    harness.targets = {}
    harness.run_until(daemon, seconds=10)
    assert harness.job(job_id).held
    assert not harness.store.journal.prioritised()


class Calls:
    """Counts what changes anything."""

    def __init__(self) -> None:
        self.made = 0

    def __next__(self) -> int:
        self.made += 1
        return self.made - 1

    def __iter__(self) -> Calls:
        return self


def run_to_the_end(harness: Harness, job_id: str, calls: Calls, *, dies_at: int = -1) -> None:
    """Move a job by a daemon that dies just before one of its calls, until its priority is off again."""
    doomed = harness.daemon(
        slurm=KilledAt(harness.client, calls, dies_at),
        store=KilledAt(harness.store, calls, dies_at),
    )
    harness.targets = {job_id: {"n0": 2}}
    with contextlib.suppress(Killed):
        harness.run_until(doomed, until=lambda: is_done(harness, job_id), seconds=40)
    harness.targets = {}


def is_done(harness: Harness, job_id: str) -> bool:
    moves = harness.store.journal.reallocations(job_id)
    return bool(moves) and moves[0].priority_ended_at is not None and not harness.open_moves()


# Every call in turn, as in test_state_machine.py, is in `make test-full`; here every third.
@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.full)])
def test_that_a_kill_at_any_instant_leaves_the_job_in_its_place_without_priority(
    harness: Harness, clean_store: SqlStore, every: int
) -> None:
    calls, first = Calls(), list[int]()
    job_id = busy(harness)
    harness.slurm.before["create_reservation"] = lambda: first.append(calls.made)
    run_to_the_end(harness, job_id, calls)
    for at in range(first[0] - 1, calls.made, every):
        wipe(clean_store)
        fresh = Harness(clean_store)
        job_id = busy(fresh)
        run_to_the_end(fresh, job_id, Calls(), dies_at=at)
        fresh.clock.advance(15)
        successor = fresh.daemon(owner="next")
        fresh.run_until(successor, until=lambda fresh=fresh: fresh.open_moves() == 0, seconds=90)  # type: ignore[misc]
        fresh.tick(successor, times=2)
        assert not fresh.slurm.reservations, at
        job = fresh.job(job_id)
        assert job.state is JobState.RUNNING, at
        assert job.allocation.num_gpus in (2, 4), at
        assert not is_first(fresh, job_id), at
        assert fresh.open_moves() == 0, at
        assert not fresh.store.journal.prioritised(), at


def test_that_after_one_refused_reservation_no_other_job_is_requeued_without_its_own(
    harness: Harness,
) -> None:
    harness.slurm.in_strict_order = True
    jobs = started(harness, gpus=4), started(harness, gpus=4)
    for _ in range(8):
        harness.submit_unmanaged(gpus=1)
    harness.slurm.fail("create_reservation", SlurmCommandError("Requested nodes are busy"))
    harness.targets = {jobs[0]: {"n0": 2}, jobs[1]: {"n1": 2}}
    harness.run_until(
        harness.daemon(),
        until=lambda: bool(harness.store.journal.reallocations()) and not harness.open_moves(),
        seconds=60,
    )
    assert [harness.job(one).allocation for one in jobs] == [
        Allocation.of({"n0": 4}),
        Allocation.of({"n1": 4}),
    ]
    assert [harness.job(one).restart_count for one in jobs] == [0, 0]


def test_that_before_held_jobs_a_job_has_no_less_than_its_own_priority(harness: Harness) -> None:
    """A newcomer, too, stands behind it."""
    harness.slurm.in_strict_order = True
    job_id = started(harness, gpus=1)
    harness.submit_unmanaged(gpus=3)
    leaving = harness.submit_unmanaged(gpus=4)
    harness.slurm.hold(harness.submit_unmanaged(gpus=1))
    harness.slurm.finish(leaving)
    harness.clock.advance(8)
    moved(harness, job_id, {"n1": 4})
    (move,) = harness.store.journal.reallocations(job_id)
    newcomer = harness.job(harness.submit_unmanaged(gpus=1)).priority
    assert newcomer is not None
    assert (move.priority or 0) > newcomer


@pytest.mark.parametrize(("behind_s", "at_once"), [(1, True), (30, False)])
def test_that_jobs_that_make_room_together_open_their_nodes_at_once(
    harness: Harness, behind_s: int, at_once: bool
) -> None:
    """Else a job of two nodes finds one of them only, and Slurm gives that to the next."""
    first = started(harness, gpus=2)
    moved(harness, first, {"n0": 2, "n1": 2})
    second = started(harness, gpus=2)
    harness.submit_unmanaged(gpus=2)
    harness.submit_unmanaged(gpus=4)
    assert harness.job(second).allocation == Allocation.of({"n0": 2})
    opened: dict[str, float] = {}
    delete = harness.slurm.delete_reservation

    def note(name: str) -> None:
        opened[name.split("_")[1]] = harness.clock().timestamp()
        delete(name)

    harness.slurm.delete_reservation = note  # type: ignore[method-assign]
    harness.targets = {first: {"n0": 1}, second: {"n0": 1}}
    daemon = harness.daemon()
    harness.agents[second].answers = False
    harness.run_until(daemon, until=lambda: harness.job(first).state is not JobState.RUNNING, seconds=20)
    harness.run_until(daemon, seconds=behind_s - 1)
    harness.agents[second].answers = True
    harness.run_until(daemon, until=lambda: len(opened) == 2, seconds=40)
    assert (opened[first] == opened[second]) is at_once
    harness.run_until(daemon, until=lambda: not harness.open_moves(), seconds=40)
    for job_id in (first, second):
        assert harness.last_step(job_id)[0] is Step.CONFIRMED
        assert harness.job(job_id).allocation == Allocation.of({"n0": 1})
