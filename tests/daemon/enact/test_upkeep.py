"""Anchors and wings outside of moves: wings whose anchor is over, and anchors that wait."""

from __future__ import annotations

import pytest

from pollux_slurm.config import PolicyConfig
from pollux_slurm.model import JobState
from pollux_slurm.store.sql_store import SqlStore
from tests.daemon.anchors import Anchor
from tests.daemon.enact.test_in_place import daemon, started
from tests.daemon.harness import Harness


@pytest.fixture
def harness(clean_store: SqlStore) -> Harness:
    return Harness(clean_store)


def test_that_a_wing_that_waits_for_an_anchor_that_is_over_is_cancelled(harness: Harness) -> None:
    anchor = started(harness)
    waiting = anchor.wing("--gpus=8", plan=0)
    anchor.end_wings()
    harness.slurm.finish(anchor.job_id, exit_code=1)
    harness.run_until(daemon(harness), seconds=50)
    assert harness.job(waiting).state is JobState.PENDING
    harness.run_until(daemon(harness), seconds=40)
    assert harness.job(waiting).state is JobState.CANCELLED


def test_that_an_anchor_on_a_drained_node_is_requeued_while_its_training_waits(harness: Harness) -> None:
    harness.submit_unmanaged(gpus=4)
    harness.clock.advance(5)
    anchor = Anchor(harness, gpus=8)
    harness.targets = {anchor.job_id: {}}
    harness.run_until(daemon(harness), seconds=5)
    assert anchor.job.state is JobState.PENDING
    harness.slurm.set_job(anchor.job_id, cpus_by_node=(("n1", 1),))
    harness.slurm.set_node("n1", available=False, draining=True)
    harness.run_until(daemon(harness), seconds=30)
    alone = harness.slurm.read_job(anchor.job_id)
    assert alone is not None
    assert (alone.state, alone.restart_count, alone.held) == (JobState.PENDING, 1, False)
    assert harness.store.journal.reallocations(anchor.job_id) == ()


def test_that_an_anchor_that_was_requeued_while_its_training_was_paused_returns(harness: Harness) -> None:
    anchor = started(harness)
    harness.targets = {anchor.job_id: {}}
    paused = daemon(harness, policy=PolicyConfig(pauses=True))
    harness.run_until(paused, seconds=20)
    assert anchor.job.state is JobState.PENDING
    anchor.acts = False
    for wing in anchor.wings():
        harness.slurm.cancel(wing.job_id)
    harness.slurm.requeue(anchor.job_id, restart_count=anchor.alone.restart_count)
    harness.run_until(paused, until=lambda: anchor.alone.state is JobState.RUNNING, seconds=300)


def test_that_a_daemon_without_rights_keeps_to_its_own_user(harness: Harness) -> None:
    anchor = started(harness)
    waiting = anchor.wing("--gpus=8", plan=0)
    anchor.end_wings()
    harness.slurm.finish(anchor.job_id, exit_code=1)
    harness.run_until(daemon(harness, scope=lambda: anchor.user_id + 1), seconds=100)
    assert harness.job(waiting).state is JobState.PENDING
