"""Failed moves: a job that fails in its new shape is returned to its old one, once, and not moved again."""

from __future__ import annotations

import itertools

import pytest

from pollux_slurm.daemon.enact import admin_orders
from pollux_slurm.model import Allocation, JobState, ReallocationCause
from pollux_slurm.model import ReallocationStep as Step
from pollux_slurm.store.sql_store import SqlStore
from tests.daemon.crashing import Killed, KilledAt
from tests.daemon.harness import Harness
from tests.fakes.slurm import fake_node
from tests.store_fixtures import wipe

OLD, NEW = {"n0": 1}, {"n1": 4}


def started(harness: Harness) -> str:
    job_id = harness.submit()
    harness.run_until(harness.daemon(), until=lambda: harness.has_stepped(job_id), seconds=8)
    assert harness.job(job_id).allocation == Allocation.of(OLD)
    return job_id


def moved(harness: Harness, job_id: str) -> None:
    """Bring the job to its new shape, where it has not made a step yet."""
    harness.targets = {job_id: NEW}
    daemon = harness.daemon()
    harness.run_until(daemon, until=lambda: harness.is_at(Step.REQUEUED), seconds=20)
    harness.agents[job_id].reports = False
    harness.run_until(daemon, until=lambda: harness.is_at(Step.RUNNING), seconds=20)
    assert harness.job(job_id).allocation == Allocation.of(NEW)


def steps(harness: Harness, job_id: str) -> list[Step]:
    return [move.step for move in harness.store.journal.reallocations(job_id)]


def is_back(harness: Harness, job_id: str) -> bool:
    return harness.job(job_id).allocation == Allocation.of(OLD) and not harness.open_moves()


def test_that_a_job_that_fails_in_its_new_shape_is_returned_and_not_moved_again(harness: Harness) -> None:
    job_id = started(harness)
    moved(harness, job_id)
    harness.slurm.finish(job_id, exit_code=7)
    harness.agents[job_id].reports = True
    harness.run_until(harness.daemon(), until=lambda: is_back(harness, job_id), seconds=30)
    assert is_back(harness, job_id)
    assert steps(harness, job_id) == [Step.FAILED, Step.CONFIRMED]
    failed_move, back = harness.store.journal.reallocations(job_id)
    assert failed_move.reason == "failed before its first step: exit code 7 in n1:4"
    assert (failed_move.cause, failed_move.job_failed) == (ReallocationCause.DECISION, True)
    assert (back.cause, back.job_failed) == (ReallocationCause.AFTER_FAILURE, False)
    assert back.reason == "returned to the shape it last ran in, after it failed: exit code 7 in n1:4"
    assert (back.source, back.target) == (Allocation.of(NEW), Allocation.of(OLD))
    harness.run_until(harness.daemon(), seconds=12)  # rounds still decide on the new shape
    assert len(harness.store.journal.reallocations(job_id)) == 2
    problem, _ = harness.store.rounds.problem()
    assert (problem.jobs[0].pinned, problem.jobs[0].pinned_because) == (True, back.reason)


def test_that_a_job_that_is_seen_while_it_ends_is_returned_all_the_same(harness: Harness) -> None:
    job_id = started(harness)
    moved(harness, job_id)
    # Its script has failed, and Slurm still ends its processes: the exit code is not shown yet.
    harness.slurm.set_job(job_id, state=JobState.COMPLETING)
    daemon = harness.daemon()
    harness.tick(daemon, times=3)
    assert harness.is_at(Step.RUNNING)
    harness.slurm.set_job(job_id, state=JobState.RUNNING)
    harness.slurm.finish(job_id, exit_code=7)
    harness.agents[job_id].reports = True
    harness.run_until(daemon, until=lambda: is_back(harness, job_id), seconds=30)
    assert is_back(harness, job_id)
    assert steps(harness, job_id) == [Step.FAILED, Step.CONFIRMED]


def test_that_a_returned_job_is_not_moved_again_even_if_slurm_refused_its_old_shape(
    harness: Harness,
) -> None:
    job_id = started(harness)
    moved(harness, job_id)
    harness.slurm.finish(job_id, exit_code=7)
    harness.refuse_shapes(times=1)
    daemon = harness.daemon()
    harness.run_until(
        daemon, until=lambda: len(steps(harness, job_id)) == 2 and not harness.open_moves(), seconds=90
    )
    back = harness.store.journal.reallocations(job_id)[-1]
    assert back.reason == (
        "returned to the shape it last ran in, after it failed: exit code 7 in n1:4; "
        "instead of n0:1, which Slurm refused (no such configuration); "
        "no step was reported in the new shape in time"
    )
    harness.run_until(daemon, seconds=8)
    assert len(steps(harness, job_id)) == 2
    problem, _ = harness.store.rounds.problem()
    assert problem.jobs[0].pinned_because == back.reason


def test_that_a_job_that_fails_in_its_old_shape_as_well_is_over(harness: Harness) -> None:
    job_id = started(harness)
    moved(harness, job_id)
    harness.slurm.finish(job_id, exit_code=7)
    daemon = harness.daemon()
    harness.run_until(daemon, until=lambda: harness.job(job_id).state is JobState.RUNNING, seconds=30)
    harness.slurm.finish(job_id, exit_code=7)
    harness.run_until(daemon, seconds=12)
    assert harness.store.jobs.get(job_id).state is JobState.FAILED
    assert (harness.job(job_id).state, steps(harness, job_id)) == (
        JobState.FAILED,
        [Step.FAILED, Step.FAILED],
    )


@pytest.mark.parametrize("how", ["stepped", "cancelled", "unmoved"])
def test_that_other_ends_are_ends(harness: Harness, how: str) -> None:
    job_id = started(harness)
    if how != "unmoved":
        moved(harness, job_id)
    if how == "stepped":
        harness.agents[job_id].reports = True
        harness.agents[job_id].act()
    if how == "cancelled":
        harness.slurm.cancel(job_id)
    else:
        harness.slurm.finish(job_id, exit_code=7)
    harness.targets = {}
    harness.run_until(harness.daemon(), seconds=12)
    assert harness.store.jobs.get(job_id).state.is_over
    assert harness.job(job_id).state.is_over
    assert not harness.open_moves()


def waits_again(harness: Harness, job_id: str, how: str) -> None:
    """Let the job be pending after it has run: paused manually, or requeued externally."""
    if how == "paused":
        admin_orders.pause(harness.store, job_id, by="ann", drain=False, at=harness.clock())
        harness.run_until(harness.daemon(), until=lambda: is_paused(harness, job_id), seconds=20)
        admin_orders.resume(harness.store, job_id, by="ann", at=harness.clock())
    else:
        harness.slurm.requeue_hold(job_id)
        harness.clock.advance(1)
        harness.slurm.release(job_id)
    harness.agents[job_id].reports = False


def is_paused(harness: Harness, job_id: str) -> bool:
    return harness.store.jobs.get(job_id).paused_at is not None and not harness.open_moves()


@pytest.mark.parametrize("how", ["paused", "requeued"])
def test_that_a_job_that_fails_right_after_it_waited_goes_back_as_well(harness: Harness, how: str) -> None:
    """Its move is confirmed when it starts: the failure is recognised by a run without a step."""
    job_id = started(harness)
    harness.targets = {job_id: NEW}
    daemon = harness.daemon()
    if how == "paused":  # it is resumed on its former nodes, which are gone
        harness.targets = {}
    waits_again(harness, job_id, how)
    runs = harness.job(job_id).restart_count
    harness.run_until(daemon, until=lambda: harness.job(job_id).state is JobState.RUNNING, seconds=30)
    harness.slurm.finish(job_id, exit_code=7)
    harness.agents[job_id].reports = True
    harness.run_until(daemon, until=lambda: is_back(harness, job_id), seconds=30)
    assert is_back(harness, job_id), steps(harness, job_id)
    assert harness.job(job_id).restart_count == runs + 1
    back = harness.store.journal.reallocations(job_id)[-1]
    assert back.step is Step.CONFIRMED
    assert back.cause is ReallocationCause.AFTER_FAILURE
    assert (back.reason or "").startswith(
        "returned to the shape it last ran in, after it failed: exit code 7 in n"
    )
    assert not harness.store.jobs.get(job_id).state.is_over
    harness.slurm.finish(job_id, exit_code=7)  # and then it is not touched
    harness.run_until(daemon, seconds=12)
    assert harness.store.jobs.get(job_id).state is JobState.FAILED


def test_that_a_job_requeued_externally_during_a_move_is_returned_when_it_fails(harness: Harness) -> None:
    """Slurm 22.05 may kill the start after a lost node ("Job credential revoked"): it never ran there."""
    job_id = started(harness)
    harness.targets = {job_id: NEW}
    daemon = harness.daemon()
    waits_again(harness, job_id, "requeued")
    harness.run_until(daemon, until=lambda: harness.is_at(Step.RELEASED), seconds=30)
    harness.slurm.set_job(job_id, restart_count=harness.job(job_id).restart_count + 1)
    harness.clock.advance(5)
    assert harness.job(job_id).state is JobState.RUNNING
    harness.slurm.finish(job_id, exit_code=1)
    harness.agents[job_id].reports = True
    harness.run_until(daemon, until=lambda: is_back(harness, job_id), seconds=30)
    assert is_back(harness, job_id), steps(harness, job_id)
    assert steps(harness, job_id)[-2:] == [Step.FAILED, Step.CONFIRMED]


def test_that_a_job_that_fails_where_it_first_starts_is_over(harness: Harness) -> None:
    harness.submit_unmanaged(gpus=4)
    harness.slurm.nodes["n1"] = fake_node("n1", num_gpus=2)
    job_id = harness.submit(gpus=4)
    harness.targets = {job_id: {"n1": 2}}
    harness.agents[job_id].reports = False
    daemon = harness.daemon()
    harness.run_until(daemon, until=lambda: harness.job(job_id).state is JobState.RUNNING, seconds=30)
    harness.slurm.finish(job_id, exit_code=7)
    harness.run_until(daemon, seconds=12)
    assert harness.store.jobs.get(job_id).state is JobState.FAILED
    assert steps(harness, job_id) == [Step.CONFIRMED] or steps(harness, job_id) == [Step.FAILED]


def test_that_a_returned_job_runs_even_if_its_old_nodes_are_taken(harness: Harness) -> None:
    job_id = started(harness)
    moved(harness, job_id)
    harness.submit_unmanaged(gpus=4)
    harness.slurm.finish(job_id, exit_code=7)
    harness.agents[job_id].reports = True
    harness.targets = {}
    harness.run_until(harness.daemon(), seconds=20)
    assert harness.job(job_id).allocation.num_gpus >= 1
    assert not harness.open_moves()


# Every call in turn, as in enact/test_state_machine.py, is in `make test-full`; here every third.
@pytest.mark.slow
@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.full)])
def test_that_a_daemon_killed_at_any_call_of_the_way_back_leaves_a_running_job(
    clean_store: SqlStore, every: int
) -> None:
    for at in itertools.count(step=every):
        wipe(clean_store)
        harness = Harness(clean_store)
        job_id = started(harness)
        moved(harness, job_id)
        harness.slurm.finish(job_id, exit_code=7)
        harness.agents[job_id].reports = True
        harness.targets = {}
        counter = itertools.count()
        mortal = harness.daemon(
            slurm=KilledAt(harness.slurm, counter, at),  # type: ignore[arg-type]
            store=KilledAt(harness.store, counter, at),  # type: ignore[arg-type]
        )
        died = False
        try:
            harness.run_until(
                mortal, until=lambda harness=harness, id=job_id: is_back(harness, id), seconds=20
            )  # type: ignore[misc]
        except Killed:
            died = True
            harness.run_until(
                harness.daemon(), until=lambda harness=harness, id=job_id: is_back(harness, id), seconds=20
            )  # type: ignore[misc]
        assert is_back(harness, job_id), f"call {at}"
        assert harness.job(job_id).restart_count == 2, f"call {at}"
        if not died:
            assert at > 9, "too few calls were tried"
            break


def test_that_gpus_that_vanish_leave_the_most_that_still_fits(harness: Harness) -> None:
    """Planned for 4 on n1: if that and its source are taken, 3 on n2 are better than its minimum."""
    harness.slurm.nodes["n2"] = fake_node("n2")
    job_id = started(harness)
    harness.targets = {job_id: NEW}
    daemon = harness.daemon()
    harness.run_until(daemon, until=lambda: harness.is_at(Step.REQUEUED), seconds=20)
    harness.slurm.set_node("n1", available=False, state="drained")
    harness.slurm.set_node("n0", available=False, state="drained")
    harness.slurm.set_node("n2", num_gpus=3)
    harness.targets = {}
    harness.run_until(daemon, seconds=12)
    assert harness.job(job_id).allocation == Allocation.of({"n2": 3})
    assert steps(harness, job_id) == [Step.CONFIRMED]
    (move,) = harness.store.journal.reallocations(job_id)
    assert (move.retargeted, move.reason) == (True, "instead of n1:4, which was taken or drained")


@pytest.mark.parametrize("at", range(3))  # before target, reshape, and the next step
def test_that_a_daemon_killed_while_retargeting_leaves_a_job_that_runs(harness: Harness, at: int) -> None:
    job_id = started(harness)
    harness.targets = {job_id: NEW}
    harness.run_until(harness.daemon(), until=lambda: harness.is_at(Step.RELEASED), seconds=20)
    harness.slurm.set_node("n1", num_gpus=2)
    harness.targets = {}
    counter = itertools.count()
    mortal = harness.daemon(
        slurm=KilledAt(harness.slurm, counter, at),  # type: ignore[arg-type]
        store=KilledAt(harness.store, counter, at),  # type: ignore[arg-type]
    )
    with pytest.raises(Killed):
        harness.tick(mortal, times=20)
    harness.run_until(harness.daemon(), until=lambda: not harness.open_moves(), seconds=40)
    job = harness.job(job_id)
    assert (job.state, job.held, job.restart_count) == (JobState.RUNNING, False, 1)
    assert job.allocation == Allocation.of({"n0": 4})


def test_that_a_run_that_counts_other_gpus_is_not_confirmed(harness: Harness) -> None:
    job_id = started(harness)
    moved(harness, job_id)
    agent = harness.agents[job_id]
    agent.reports, agent.counts = True, (3,)
    harness.targets = {}
    harness.run_until(harness.daemon(), seconds=8)
    (move,) = harness.store.journal.reallocations(job_id)
    assert (move.step, move.reason) == (
        Step.FAILED,
        "its run counts [3] GPUs on its nodes, Slurm gave it [4]",
    )
