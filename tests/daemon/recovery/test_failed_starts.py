"""Failed starts, and jobs that Slurm itself holds: they are started again, a limited number of times."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from pollux_slurm.model import Allocation, JobState, ReallocationCause
from pollux_slurm.model import ReallocationStep as Step
from tests.daemon.anchors import Anchor
from tests.daemon.crashing import Killed, KilledAt
from tests.daemon.harness import CONFIG, Harness


def started(harness: Harness) -> str:
    job_id = harness.submit()
    harness.run_until(harness.daemon(), until=lambda: harness.has_stepped(job_id), seconds=8)
    return job_id


def starts_anew(harness: Harness, job_id: str) -> None:
    """Requeue the job externally; it starts where Slurm chooses, and has made no step there."""
    harness.agents[job_id].reports = False
    harness.slurm.requeue_hold(job_id)
    harness.clock.advance(1)
    harness.slurm.release(job_id)
    harness.clock.advance(121)  # its begin time since the requeue
    assert harness.job(job_id).state is JobState.RUNNING


def reasons(harness: Harness, job_id: str) -> list[str]:
    return [move.reason or "" for move in harness.store.journal.reallocations(job_id)]


@pytest.mark.parametrize("exit_code", [1, 137, 143])
def test_that_a_job_whose_start_slurm_ended_is_started_again_and_moved_as_any_other(
    harness: Harness, exit_code: int
) -> None:
    job_id = started(harness)
    starts_anew(harness, job_id)
    harness.slurm.finish(job_id, exit_code=exit_code)
    harness.agents[job_id].reports = True
    daemon = harness.daemon()
    harness.run_until(daemon, until=lambda: harness.runs_again(job_id, 2), seconds=30)
    assert harness.runs_again(job_id, 2)
    (move,) = harness.store.journal.reallocations(job_id)
    assert move.step is Step.CONFIRMED
    reason = f"started again, since Slurm ended its start before it trained: exit code {exit_code}"
    assert (move.reason, move.source) == (reason, move.target)
    harness.targets = {job_id: {"n1": 4}}
    harness.run_until(daemon, until=lambda: harness.job(job_id).allocation.num_gpus == 4, seconds=30)
    assert harness.job(job_id).allocation.num_gpus == 4


def test_that_the_journal_has_the_new_target_when_slurm_refused_the_first(
    harness: Harness,
) -> None:
    job_id = started(harness)
    starts_anew(harness, job_id)
    harness.slurm.finish(job_id, exit_code=1)
    harness.refuse_shapes(times=2)
    harness.run_until(harness.daemon(), until=lambda: harness.runs_again(job_id, 2), seconds=30)
    assert harness.job(job_id).allocation == Allocation.of({"n1": 1})
    assert reasons(harness, job_id) == [
        "started again, since Slurm ended its start before it trained: exit code 1; "
        "Slurm refused the shape: no such configuration; got n1:1 instead of n0:1"
    ]


@pytest.mark.parametrize("how", ["own code", "later", "trained", "never requeued"])
def test_that_other_ends_are_ends(harness: Harness, how: str) -> None:
    job_id = started(harness)
    if how != "never requeued":
        starts_anew(harness, job_id)
    if how == "trained":
        harness.agents[job_id].reports = True
        harness.agents[job_id].act()
    if how == "later":
        harness.clock.advance(11)
    harness.slurm.finish(job_id, exit_code=7 if how == "own code" else 1)
    harness.run_until(harness.daemon(), seconds=8)
    assert harness.store.jobs.get(job_id).state is JobState.FAILED
    assert reasons(harness, job_id) == []


def test_that_a_start_is_repeated_three_times_an_hour_and_no_more(harness: Harness) -> None:
    job_id = started(harness)
    starts_anew(harness, job_id)
    daemon = harness.daemon()
    for restarts in (2, 3, 4):
        harness.slurm.finish(job_id, exit_code=1)
        harness.run_until(
            daemon,
            until=lambda restarts=restarts: (
                harness.job(job_id).restart_count == restarts  # type: ignore[misc]
                and harness.job(job_id).state is JobState.RUNNING
            ),
            seconds=30,
        )
        assert harness.job(job_id).restart_count == restarts
    harness.slurm.finish(job_id, exit_code=1)
    harness.run_until(daemon, seconds=12)
    assert (harness.job(job_id).state, harness.job(job_id).restart_count) == (JobState.FAILED, 4)
    assert harness.store.jobs.get(job_id).state is JobState.FAILED
    moves = harness.store.journal.reallocations(job_id)
    assert [move.cause for move in moves] == [ReallocationCause.FAILED_START] * 3


def test_that_a_job_that_ends_so_with_a_move_planned_is_started_again(harness: Harness) -> None:
    job_id = started(harness)
    starts_anew(harness, job_id)
    job = harness.job(job_id)
    harness.store.journal.plan(
        job_id, source=job.allocation, target=job.allocation, moves_running=True,
        from_restart_count=1, round_id=None, at=harness.clock(),
    )  # fmt: skip
    harness.slurm.finish(job_id, exit_code=1)
    harness.agents[job_id].reports = True
    harness.run_until(harness.daemon(), until=lambda: harness.runs_again(job_id, 2), seconds=30)
    assert harness.runs_again(job_id, 2)


@pytest.mark.parametrize("at", [1, 2, 3])
def test_that_a_daemon_killed_around_the_plan_leaves_a_job_that_runs(harness: Harness, at: int) -> None:
    """A return after a failed move is tested in the same way."""
    job_id = started(harness)
    starts_anew(harness, job_id)
    harness.slurm.finish(job_id, exit_code=1)
    harness.agents[job_id].reports = True
    counter = itertools.count()
    mortal = harness.daemon(
        slurm=KilledAt(harness.slurm, counter, at),  # type: ignore[arg-type]
        store=KilledAt(harness.store, counter, at),  # type: ignore[arg-type]
    )
    with pytest.raises(Killed):
        harness.run_until(mortal, seconds=20)
    harness.run_until(harness.daemon(), until=lambda: harness.runs_again(job_id, 2), seconds=20)
    assert harness.runs_again(job_id, 2)


def test_that_no_more_jobs_are_started_again_or_released_at_a_time_than_may_move(harness: Harness) -> None:
    daemon = harness.daemon(config=dataclasses.replace(CONFIG, max_in_flight=1))
    failed, held = [harness.submit() for _ in range(2)], [harness.submit() for _ in range(2)]
    harness.run_until(daemon, until=lambda: all(map(harness.has_stepped, failed + held)), seconds=12)
    for job_id in held:
        is_given_up_by_slurm(harness, job_id)
    for job_id in failed:
        starts_anew(harness, job_id)
        harness.slurm.finish(job_id, exit_code=1)
        harness.agents[job_id].reports = True
    most = 0

    def all_run() -> bool:
        nonlocal most
        most = max(most, harness.open_moves())
        return (
            most > 0
            and not harness.open_moves()
            and all(harness.job(job_id).state is JobState.RUNNING for job_id in failed + held)
        )

    harness.run_until(daemon, until=all_run, seconds=90)
    assert all_run()
    assert most == 1


def is_given_up_by_slurm(harness: Harness, job_id: str) -> None:
    job = harness.job(job_id)
    harness.slurm.requeue_hold(job_id)
    harness.clock.advance(1)
    harness.slurm.set_job(
        job_id, held=True, held_by_slurm=True, reason="JobHeldUser", restart_count=job.restart_count + 1
    )


def test_that_a_job_that_slurm_holds_is_released_after_growing_waits_and_then_stays_held(
    harness: Harness,
) -> None:
    job_id = started(harness)
    daemon = harness.daemon()
    for times, pause_s in enumerate((0, 60, 300, 1200, 3600), 1):
        is_given_up_by_slurm(harness, job_id)
        if pause_s:
            harness.run_until(daemon, seconds=5)
            assert (harness.job(job_id).held, len(reasons(harness, job_id))) == (True, times - 1)
            harness.clock.advance(pause_s)
        harness.run_until(
            daemon,
            until=lambda: harness.job(job_id).state is JobState.RUNNING and not harness.open_moves(),
            seconds=20,
        )
        assert harness.job(job_id).state is JobState.RUNNING
        assert len(reasons(harness, job_id)) == times
    causes = {move.cause for move in harness.store.journal.reallocations(job_id)}
    assert causes == {ReallocationCause.HELD_BY_SLURM}
    is_given_up_by_slurm(harness, job_id)
    harness.clock.advance(7200)
    harness.run_until(daemon, seconds=12)
    assert (harness.job(job_id).held, len(reasons(harness, job_id))) == (True, 5)


def test_that_an_external_hold_stays(harness: Harness) -> None:
    job_id = started(harness)
    is_given_up_by_slurm(harness, job_id)
    harness.slurm.set_job(job_id, held_by_slurm=False)
    harness.run_until(harness.daemon(), seconds=20)
    assert (harness.job(job_id).held, reasons(harness, job_id)) == (True, [])


@pytest.mark.parametrize("reason", [None, "it asks for whole nodes"])
def test_that_an_anchor_that_slurm_holds_is_released_whatever_keeps_its_wings_from_moving(
    harness: Harness, reason: str | None
) -> None:
    anchor = Anchor(harness, gpus=1)
    daemon = harness.daemon()
    harness.run_until(daemon, until=lambda: harness.has_stepped(anchor.job_id))
    (wing,) = anchor.wings()
    harness.slurm.set_job(wing.job_id, unschedulable_reason=reason)
    anchor.end_wings()
    is_given_up_by_slurm(harness, anchor.job_id)
    waiting = anchor.job
    assert (waiting.state, waiting.held, waiting.anchor_waits) == (JobState.PENDING, True, True)
    harness.run_until(daemon, until=lambda: not anchor.alone.held, seconds=20)
    assert not anchor.alone.held
    assert [move.cause for move in harness.store.journal.reallocations(anchor.job_id)] == [
        ReallocationCause.HELD_BY_SLURM
    ]
