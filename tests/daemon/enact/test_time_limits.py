"""All runs of a job together keep its time limit, however often it is moved."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from datetime import timedelta

import pytest

from pollux_slurm.config import DaemonConfig, PolicyConfig
from pollux_slurm.daemon.enact.time_limits import is_ending, next_slice_s, time_left_s
from pollux_slurm.daemon.observe.cluster_picture import ManagedJob
from pollux_slurm.model import Allocation, JobState, JobTerms, ReallocationCause
from pollux_slurm.model import ReallocationStep as Step
from pollux_slurm.slurm.parsing.comment_terms import encode_comment
from pollux_slurm.store.contract.interface import AllocationRecord
from pollux_slurm.store.sql_store import SqlStore
from tests.daemon.builders import NOON, job, record
from tests.daemon.crashing import Killed, KilledAt
from tests.daemon.harness import Harness
from tests.store_fixtures import wipe


def started(harness: Harness, minutes: int | None = 60) -> str:
    job_id = harness.submit(minutes=minutes)
    harness.run_until(harness.daemon(), until=lambda: harness.has_stepped(job_id), seconds=8)
    return job_id


def moved(harness: Harness, job_id: str, target: dict[str, int]) -> None:
    harness.targets = {job_id: target}
    policy = PolicyConfig(pauses=True)
    daemon = harness.daemon(policy=policy)
    daemon.round()
    assert harness.open_moves() == 1
    harness.run_until(daemon, until=lambda: not harness.open_moves(), seconds=30)


def test_that_what_a_run_used_is_taken_off_the_limit_at_each_move(harness: Harness) -> None:
    job_id = started(harness)
    harness.clock.advance(20 * 60)
    moved(harness, job_id, {"n1": 2})
    after_one = harness.job(job_id).time_limit_s
    assert after_one is not None
    assert 39 * 60 <= after_one <= 40 * 60
    harness.clock.advance(30 * 60)
    moved(harness, job_id, {"n1": 4})
    after_two = harness.job(job_id).time_limit_s
    assert after_two is not None
    assert 8 * 60 <= after_two <= 10 * 60


def test_that_a_pause_uses_nothing_of_the_limit(harness: Harness) -> None:
    job_id = started(harness)
    harness.clock.advance(20 * 60)
    moved(harness, job_id, {})
    harness.clock.advance(600)
    moved(harness, job_id, {"n1": 2})
    left_s = harness.job(job_id).time_limit_s
    assert left_s is not None
    assert 39 * 60 <= left_s <= 40 * 60


def test_that_a_job_without_a_limit_gets_none(harness: Harness) -> None:
    job_id = started(harness, minutes=None)
    moved(harness, job_id, {"n1": 2})
    assert harness.job(job_id).time_limit_s is None


def test_that_a_time_limit_that_was_changed_externally_counts(harness: Harness) -> None:
    job_id = started(harness)
    harness.clock.advance(20 * 60)
    harness.slurm.set_job(job_id, time_limit_s=120 * 60.0)
    moved(harness, job_id, {"n1": 2})
    left_s = harness.job(job_id).time_limit_s
    assert left_s is not None
    assert 99 * 60 <= left_s <= 100 * 60


def test_that_a_job_is_never_left_too_little_to_save_itself_nor_more_than_it_had() -> None:
    def left(limit_s: float | None, ran_s: float) -> float | None:
        one = job("1", on={"n0": 1}, time_limit_s=limit_s, started_at=NOON)
        return time_left_s(one, NOON + timedelta(seconds=ran_s))

    assert [left(3600, ran_s) for ran_s in (0, 600, 3599, 9000)] == [3600, 3000, 60, 60]
    assert (left(None, 600), left(30, 600)) == (None, 30)
    over = job(
        "1", JobState.FAILED, time_limit_s=3600, started_at=NOON, ended_at=NOON + timedelta(seconds=100)
    )
    assert time_left_s(over, NOON + timedelta(days=1)) == 3500


def near_its_limit(harness: Harness, *, total_minutes: int, slice_minutes: int = 60) -> str:
    """Let a job with slices of an hour use most of its first one."""
    job_id = harness.submit(minutes=60, total_minutes=total_minutes, slice_minutes=slice_minutes)
    harness.run_until(harness.daemon(), until=lambda: harness.has_stepped(job_id), seconds=8)
    harness.clock.advance(59.7 * 60)
    return job_id


def test_that_a_job_near_its_limit_is_saved_and_given_another_slice_up_to_the_total(harness: Harness) -> None:
    job_id = near_its_limit(harness, total_minutes=90)
    place = harness.job(job_id).allocation
    daemon = harness.daemon()
    harness.run_until(daemon, until=lambda: harness.runs_again(job_id, 1), seconds=20)
    assert harness.runs_again(job_id, 1)
    (move,) = harness.store.journal.reallocations(job_id)
    assert (move.step, move.source, move.target) == (Step.CONFIRMED, place, place)
    assert move.cause is ReallocationCause.TIME_LIMIT
    assert move.entered_at(Step.CHECKPOINTED) is not None
    left_s = harness.job(job_id).time_limit_s
    assert left_s is not None
    assert 29 * 60 <= left_s <= 31 * 60  # what the total leaves, not a whole hour
    harness.clock.advance(left_s - 15)
    harness.run_until(daemon, seconds=8)
    assert len(harness.store.journal.reallocations(job_id)) == 1, "the total is used up: it ends at its limit"


def test_that_a_total_gives_whole_slices_while_it_lasts(harness: Harness) -> None:
    job_id = near_its_limit(harness, total_minutes=600)
    harness.run_until(harness.daemon(), until=lambda: harness.runs_again(job_id, 1), seconds=20)
    assert harness.job(job_id).time_limit_s == 3600


@pytest.mark.parametrize("is_known", [True, False])
def test_that_no_run_gets_more_than_slurm_had_granted_whatever_the_comment_has(
    harness: Harness, shared_store_url: str, is_known: bool
) -> None:
    """Owners, who can write the Comment, must not gain from the daemon's right to set any limit."""
    job_id = near_its_limit(harness, total_minutes=600, slice_minutes=300)
    if not is_known:  # the granted limit is not known
        file = shared_store_url.removeprefix("sqlite:///")
        with contextlib.closing(sqlite3.connect(file)) as connection, connection:
            connection.execute("UPDATE jobs SET time_limit_s = NULL")
    harness.run_until(harness.daemon(), until=lambda: harness.runs_again(job_id, 1), seconds=20)
    assert harness.runs_again(job_id, 1)
    assert harness.job(job_id).time_limit_s == 3600


def test_that_a_job_is_renewed_although_its_node_takes_no_jobs_any_more(harness: Harness) -> None:
    job_id = near_its_limit(harness, total_minutes=600)
    harness.slurm.set_node("n0", available=False, state="draining")
    harness.run_until(harness.daemon(), until=lambda: harness.runs_again(job_id, 1), seconds=30)
    assert harness.job(job_id).allocation.nodes == ("n1",)
    assert harness.job(job_id).time_limit_s == 3600


@pytest.mark.parametrize(
    ("slice_s", "granted_s", "patience_s", "ends_with_s"),
    [
        (36000, 36000, 300, 420),  # a checkpoint that takes all its time, and two rounds
        (36000, 36000, 10, 300),  # Slurm's SIGTERM 120 s before the end, up to 60 s early, and two rounds
        (900, 900, 300, 300),  # a third
        (120, 120, 300, 60),  # SIGTERM may come 72 s before the end: all that is possible is half
        (36000, 120, 300, 60),  # what Slurm granted limits a run, whatever the Comment has
        (900, None, 300, 300),
    ],
)
def test_that_a_run_is_saved_before_slurm_warns_it_and_not_in_its_first_half(
    slice_s: int, granted_s: float | None, patience_s: float, ends_with_s: float
) -> None:
    terms = JobTerms(token_sha256="0" * 64, user_id=1000, min_gpus=1, slice_s=slice_s, total_s=10 * slice_s)
    limit_s = granted_s or float(slice_s)
    running = job("1", on={"n0": 1}, comment=encode_comment("", terms), time_limit_s=limit_s, started_at=NOON)
    managed = ManagedJob(slurm=running, record=record("1", terms=terms, granted_time_limit_s=granted_s))
    config = DaemonConfig(checkpoint_timeout_s=patience_s)
    ends = NOON + timedelta(seconds=limit_s - ends_with_s)
    assert is_ending(managed, ends, config)
    assert not is_ending(managed, ends - timedelta(seconds=1), config)


@pytest.mark.parametrize(
    ("used_s", "limit_s", "ran_s", "next_s"),
    [
        (3600, 3600, 3200, 3600.0),  # a whole slice of the 7,200 s
        (6800, 420, 30, None),  # its last run, which has all that is left
        (6800, 420, 400, 400.0),  # its total was raised meanwhile, say
        (6800, 420, 50, None),
        (7150, 60, 50, None),
    ],
)
def test_that_no_job_is_requeued_for_less_than_a_minute_more(
    used_s: float, limit_s: float, ran_s: float, next_s: float | None
) -> None:
    terms = JobTerms(token_sha256="0" * 64, user_id=1000, min_gpus=1, slice_s=3600, total_s=7200)
    running = job("1", on={"n0": 1}, comment=encode_comment("", terms), time_limit_s=limit_s, started_at=NOON)
    now = NOON + timedelta(seconds=ran_s)
    held = AllocationRecord(
        slurm_job_id="1",
        allocation=Allocation.of({"n0": 1}),
        started_at=now - timedelta(seconds=used_s),
        ended_at=None,
    )
    assert next_slice_s(running, record("1", terms=terms), [held], now) == next_s


def test_that_no_job_is_renewed_without_terms_or_a_checkpoint(harness: Harness) -> None:
    unasked = started(harness)
    harness.clock.advance(59.7 * 60)
    harness.run_until(harness.daemon(), seconds=12)
    assert not harness.store.journal.reallocations(unasked)
    harness.slurm.cancel(unasked)
    silent = near_its_limit(harness, total_minutes=600)
    harness.agents[silent].answers = False
    harness.run_until(harness.daemon(), seconds=30)
    assert harness.job(silent).restart_count == 0
    moves = {move.step for move in harness.store.journal.reallocations(silent)}
    assert moves <= {Step.ROLLED_BACK, Step.CHECKPOINT_REQUESTED}


def test_that_a_daemon_killed_at_any_command_takes_it_off_once(clean_store: SqlStore) -> None:
    for at in itertools.count():
        wipe(clean_store)
        harness = Harness(clean_store)
        job_id = started(harness)
        harness.clock.advance(20 * 60)
        harness.targets = {job_id: {"n1": 2}}

        def is_done(harness: Harness = harness, job_id: str = job_id) -> bool:
            return harness.job(job_id).allocation.num_gpus == 2

        counter = itertools.count()
        mortal = harness.daemon(
            slurm=KilledAt(harness.slurm, counter, at),  # type: ignore[arg-type]
        )
        died = False
        try:
            harness.run_until(mortal, until=is_done, seconds=20)
        except Killed:
            died = True
            harness.run_until(harness.daemon(), until=is_done, seconds=20)
        left_s = harness.job(job_id).time_limit_s
        assert left_s is not None
        assert 39 * 60 <= left_s <= 40 * 60, f"call {at}"
        if not died:
            assert at > 2, "too few calls were tried"
            break
