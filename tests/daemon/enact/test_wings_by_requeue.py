"""Jobs that move in place, and are requeued: their wings are cancelled, and the next start is shaped."""

from __future__ import annotations

import dataclasses

import pytest

from pollux_slurm.config import PolicyConfig
from pollux_slurm.model import Allocation, JobState
from pollux_slurm.store.contract.interface import Store
from tests.daemon.anchors import Anchor
from tests.daemon.enact.test_state_machine import Step
from tests.daemon.harness import CONFIG, Harness


@pytest.fixture
def harness(store: Store) -> Harness:
    return Harness(store, nodes=3)


def started(harness: Harness, *, gpus: int = 1) -> Anchor:
    anchor = Anchor(harness, gpus=gpus)
    harness.run_until(harness.daemon(), until=lambda: harness.has_stepped(anchor.job_id))
    return anchor


def test_that_it_is_registered_once_its_first_wing_is_submitted(harness: Harness) -> None:
    anchor = Anchor(harness, gpus=2, starts=False)
    daemon = harness.daemon()
    harness.run_until(daemon, seconds=10)
    assert harness.store.jobs.all() == ()
    anchor.start()
    harness.run_until(daemon, seconds=10)
    (record,) = harness.store.jobs.all()
    assert (record.slurm_job_id, record.terms.in_place) == (anchor.job_id, True)
    assert (record.cpus_per_gpu, record.memory_per_gpu_mb) == (1, 100)
    assert (record.state, record.allocation) == (JobState.RUNNING, Allocation.of({"n0": 2}))


def test_that_it_moves_through_every_step_of_a_requeue(harness: Harness) -> None:
    anchor = started(harness)
    harness.targets = {anchor.job_id: {"n1": 2, "n2": 1}}
    harness.run_until(harness.daemon(), seconds=30)
    assert harness.job(anchor.job_id).allocation == Allocation.of({"n1": 2, "n2": 1})
    (move,) = harness.store.journal.reallocations(anchor.job_id)
    assert (move.step, move.from_restart_count) == (Step.CONFIRMED, 0)
    first, second = anchor.job.wings
    assert [one.state for one in (anchor.alone, first, second)] == [
        JobState.RUNNING,
        JobState.CANCELLED,
        JobState.RUNNING,
    ]
    of_first, of_second = harness.store.history.allocations(anchor.job_id)
    assert (of_first.started_at, of_first.ended_at) == (first.started_at, first.ended_at)
    assert (of_second.started_at, of_second.ended_at) == (second.started_at, None)
    assert not of_first.estimated
    assert [of_first.restart_count, of_second.restart_count] == [0, 1]


def test_that_a_lost_wing_starts_it_again(harness: Harness) -> None:
    anchor = started(harness, gpus=2)
    (first,) = anchor.wings()
    harness.slurm.cancel(first.job_id)
    harness.targets = {anchor.job_id: {"n1": 1}}
    daemon = harness.daemon()
    harness.run_until(daemon, until=lambda: harness.job(anchor.job_id).restart_count == 1)
    harness.run_until(daemon, until=lambda: harness.job(anchor.job_id).state is JobState.RUNNING)
    assert harness.job(anchor.job_id).allocation == Allocation.of({"n1": 1})
    (move,) = harness.store.journal.reallocations(anchor.job_id)
    assert not move.moves_running
    harness.run_until(daemon, seconds=10)
    anchor.end_wings()
    harness.slurm.finish(anchor.job_id)
    harness.run_until(daemon, seconds=10)
    assert harness.store.jobs.get(anchor.job_id).state is JobState.COMPLETED
    of_wings = [(one.started_at, one.ended_at) for one in anchor.job.wings]
    recorded = harness.store.history.allocations(anchor.job_id)
    assert [(one.started_at, one.ended_at) for one in recorded] == of_wings


def test_that_a_pause_parks_the_wing_that_waits(harness: Harness) -> None:
    anchor = started(harness, gpus=2)
    harness.targets = {anchor.job_id: {}}
    daemon = harness.daemon(policy=PolicyConfig(pauses=True))
    harness.run_until(daemon, seconds=20)
    job = harness.job(anchor.job_id)
    assert (job.state, job.held) == (JobState.PENDING, False)
    assert job.begins_at is not None
    assert (job.begins_at - harness.clock()).total_seconds() > CONFIG.pause_ttl_s - 30
    harness.targets = {anchor.job_id: {"n1": 2}}
    harness.run_until(daemon, seconds=30)
    assert harness.job(anchor.job_id).allocation == Allocation.of({"n1": 2})


def test_that_an_anchor_leaves_a_drained_node_with_a_checkpoint(harness: Harness) -> None:
    anchor = started(harness)
    harness.slurm.set_job(anchor.job_id, cpus_by_node=(("n2", 1),))
    harness.slurm.set_node("n2", available=False, draining=True)
    daemon = harness.daemon(config=dataclasses.replace(CONFIG, start_timeout_s=120))
    harness.run_until(daemon, until=lambda: anchor.alone.state is JobState.PENDING)
    (move,) = harness.store.journal.reallocations(anchor.job_id)
    assert move.reason is not None
    assert move.reason.startswith("its anchor leaves n2, which is drained")
    assert [step.value for step, _ in move.times][:4] == [
        *("planned", "checkpoint_requested", "checkpointed", "requeued")
    ]
    anchor.end_wings()
    harness.slurm.set_job(anchor.job_id, cpus_by_node=(("n1", 1),))
    harness.run_until(daemon, until=lambda: anchor.alone.state is JobState.RUNNING, seconds=10)
    assert anchor.alone.state is JobState.RUNNING, "not two minutes later, as after any requeue"
    anchor.restart_count += 1
    anchor.start()
    harness.run_until(daemon, until=lambda: harness.store.journal.reallocations(anchor.job_id)[0].step.is_end)
    harness.run_until(daemon, seconds=200)
    assert harness.job(anchor.job_id).state is JobState.RUNNING
    (move,) = harness.store.journal.reallocations(anchor.job_id)
    assert (move.step, str(move.reason).endswith("its anchor started it again")) == (Step.ROLLED_BACK, True)
