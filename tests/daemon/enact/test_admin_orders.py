"""Manual pauses and drains, enacted by the daemon."""

from __future__ import annotations

import math

import pytest

from pollux_slurm.daemon.enact import admin_orders
from pollux_slurm.errors import UsageError
from pollux_slurm.launch.submit.changed_terms import changed_terms
from pollux_slurm.model import Allocation, JobState, ReallocationCause
from pollux_slurm.model import ReallocationStep as Step
from pollux_slurm.policy import decide
from tests.cli.inside import pollux
from tests.daemon.harness import CONFIG, Harness


def started(harness: Harness, *, allow_unconfirmed: bool = False) -> str:
    job_id = harness.submit(allow_unconfirmed=allow_unconfirmed)
    harness.run_until(harness.daemon(), until=lambda: harness.has_stepped(job_id), seconds=8)
    return job_id


def paused(harness: Harness, *, drain: bool = False) -> str:
    job_id = started(harness)
    admin_orders.pause(harness.store, job_id, by="ann", drain=drain, at=harness.clock())
    harness.run_until(harness.daemon(), until=lambda: not harness.open_moves(), seconds=20)
    return job_id


def test_that_a_manually_paused_job_waits_whatever_rounds_decide_until_it_is_resumed(
    harness: Harness,
) -> None:
    job_id = paused(harness)
    harness.targets = {job_id: {"n1": 4}}
    harness.run_until(harness.daemon(), seconds=10)
    job = harness.job(job_id)
    assert (job.state, job.held, job.restart_count) == (JobState.PENDING, False, 1)
    daemon = harness.daemon()
    for _ in range(6):  # and it is not forgotten
        harness.clock.advance(CONFIG.pause_ttl_s / 3)
        daemon.round()
    assert harness.job(job_id).state is JobState.PENDING
    harness.targets = {}
    admin_orders.resume(harness.store, job_id, by="bob", at=harness.clock())
    harness.run_until(harness.daemon(), until=lambda: not harness.open_moves(), seconds=20)
    assert harness.job(job_id).allocation == Allocation.of({"n0": 1})
    moves = harness.store.journal.reallocations(job_id)
    assert [(move.step, move.cause, move.reason) for move in moves] == [
        (Step.CONFIRMED, ReallocationCause.PAUSE, "paused manually: ann"),
        (Step.CONFIRMED, ReallocationCause.RESUME, "resumed manually: bob"),
    ]
    harness.targets = {job_id: {"n1": 2}}
    harness.run_until(
        harness.daemon(), until=lambda: harness.job(job_id).allocation.num_gpus == 2, seconds=20
    )
    assert harness.job(job_id).allocation.num_gpus == 2


@pytest.mark.parametrize("words", ["", "ann; resumed manually: eve", "taken over from another daemon"])
def test_that_the_reason_in_the_journal_does_not_affect_an_order(harness: Harness, words: str) -> None:
    job_id = started(harness)
    admin_orders.pause(harness.store, job_id, by=words, drain=True, at=harness.clock())
    harness.run_until(harness.daemon(), until=lambda: not harness.open_moves(), seconds=20)
    harness.targets = {job_id: {"n1": 4}}
    harness.run_until(harness.daemon(), seconds=8)
    assert harness.job(job_id).held
    (drained,) = harness.store.journal.reallocations(job_id)
    assert (drained.step, drained.cause) == (Step.CONFIRMED, ReallocationCause.DRAIN)


@pytest.mark.parametrize("by_daemon", [True, False])
def test_that_a_drained_job_stays_held_until_it_is_released(harness: Harness, by_daemon: bool) -> None:
    job_id = paused(harness, drain=True)
    harness.clock.advance(10 * CONFIG.pause_ttl_s)
    harness.run_until(harness.daemon(), seconds=8)
    assert harness.job(job_id).held
    assert harness.store.jobs.get(job_id).paused_at is not None
    if by_daemon:
        admin_orders.resume(harness.store, job_id, by="bob", at=harness.clock())
    else:
        harness.slurm.release(job_id)
    harness.run_until(harness.daemon(), until=lambda: bool(harness.job(job_id).allocation), seconds=20)
    assert harness.job(job_id).allocation == Allocation.of({"n0": 1})


def test_that_a_job_that_trains_on_after_its_checkpoint_is_not_stopped_by_an_order(harness: Harness) -> None:
    """An order's reason must not count as the owner's permission to continue without a checkpoint."""
    job_id = started(harness)
    admin_orders.pause(harness.store, job_id, by="ann", drain=False, at=harness.clock())
    daemon = harness.daemon()
    daemon.tick()
    harness.clock.advance(0.5)
    harness.agents[job_id].act()
    assert harness.is_at(Step.CHECKPOINTED)
    harness.agents[job_id].answers = False
    harness.clock.advance(0.5)
    harness.agents[job_id].act()
    harness.run_until(harness.daemon(), seconds=4)
    assert harness.job(job_id).restart_count == 0
    assert harness.store.journal.reallocations(job_id)[-1].step is Step.ROLLED_BACK


def test_that_without_a_checkpoint_the_owners_leave_decides_and_the_order_is_remembered(
    harness: Harness,
) -> None:
    job_id = started(harness, allow_unconfirmed=True)
    harness.agents[job_id].answers = False
    admin_orders.pause(harness.store, job_id, by="ann", drain=False, at=harness.clock())
    harness.run_until(harness.daemon(), until=lambda: not harness.open_moves(), seconds=40)
    harness.daemon().round()
    record = harness.store.jobs.get(job_id)
    assert admin_orders.paused_manually_because(record) == (
        "paused manually: ann; no checkpoint was confirmed in 20 s; the owner allows to continue without"
    )
    assert record.last_reallocation is not None
    assert record.last_reallocation.checkpoint_waived


def test_that_orders_that_make_no_sense_are_refused(harness: Harness) -> None:
    job_id = started(harness)
    with pytest.raises(UsageError, match="is not paused: it is running"):
        admin_orders.resume(harness.store, job_id, by="ann", at=harness.clock())
    admin_orders.pause(harness.store, job_id, by="ann", drain=False, at=harness.clock())
    with pytest.raises(UsageError, match=r"is being moved \(planned\)"):
        admin_orders.pause(harness.store, job_id, by="ann", drain=False, at=harness.clock())
    harness.run_until(harness.daemon(), until=lambda: not harness.open_moves(), seconds=20)
    harness.run_until(harness.daemon(), seconds=4)
    with pytest.raises(UsageError, match="it is paused already"):
        admin_orders.pause(harness.store, job_id, by="ann", drain=False, at=harness.clock())
    harness.slurm.cancel(job_id)
    harness.run_until(harness.daemon(), seconds=8)
    with pytest.raises(UsageError, match="is over: it is cancelled"):
        admin_orders.resume(harness.store, job_id, by="ann", at=harness.clock())


def test_that_the_commands_give_the_orders(harness: Harness, shared_store_url: str) -> None:
    job_id = started(harness)
    url = shared_store_url
    shown = pollux("drain", job_id, "--store", url)
    assert f"it is then held until: pollux resume {job_id}" in shown.stdout
    late = pollux("resume", job_id, "--store", url)
    assert (late.returncode, "is being moved" in late.stderr) == (2, True)
    harness.run_until(harness.daemon(), until=lambda: not harness.open_moves(), seconds=20)
    assert harness.job(job_id).held
    assert pollux("resume", job_id, "--store", url).returncode == 0
    waited = pollux("pause", job_id, "--wait", "1", "--store", url)
    assert "is being moved" in waited.stderr


def test_that_other_terms_of_a_job_count_from_the_next_round_on(harness: Harness) -> None:
    """Bounds, and how long it runs undisturbed: alone, it would grow at once."""
    job_id = harness.submit()

    def change(**changes: object) -> None:
        _, comment = changed_terms(harness.slurm, job_id, **changes)
        harness.slurm.set_comment(job_id, comment)

    def run(seconds: float, until: int = 9) -> int:
        daemon = harness.daemon(decide=decide)
        harness.run_until(
            daemon,
            until=lambda: harness.job(job_id).allocation.num_gpus >= until and not harness.open_moves(),
            seconds=seconds,
        )
        return harness.job(job_id).allocation.num_gpus

    harness.slurm.snapshot()
    change(max_gpus=1)
    assert run(20) == 1
    assert harness.store.jobs.get(job_id).terms.max_gpus == 1
    change(max_gpus=4, min_run_s=math.inf)
    assert run(20) == 1
    assert harness.store.jobs.get(job_id).terms.max_gpus == 4
    change(min_run_s=None)
    assert run(60, until=2) > 1
