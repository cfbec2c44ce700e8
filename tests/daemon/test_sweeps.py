"""A queue of forty small jobs does not take the GPUs of other people's running jobs."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from pollux_slurm.config import PolicyConfig
from pollux_slurm.daemon.loop import Daemon
from pollux_slurm.model import Allocation, JobState
from pollux_slurm.model import ReallocationStep as Step
from pollux_slurm.policy import decide
from pollux_slurm.store.sql_store import SqlStore
from tests.daemon.harness import Harness

# Steps in which a job that moves has no GPUs.
STOPPED = (Step.REQUEUED, Step.RESHAPED, Step.RELEASED)
# A young job may move.
POLICY = PolicyConfig(penalty="amortised", horizon_s=1e6)
SUBMITTED, LASTS_S = 2, 15.0


def four_jobs(store: SqlStore) -> tuple[Harness, Daemon, list[str]]:
    """Return four adaptive jobs of one user that have grown over all 16 GPUs."""
    harness = Harness(store, nodes=4)
    harness.slurm.in_strict_order = True
    daemon = harness.daemon(decide=decide, policy=POLICY)
    jobs = [harness.submit(gpus=SUBMITTED) for _ in range(4)]
    harness.run_until(daemon, until=lambda: not free_gpus(harness), seconds=300)
    assert not free_gpus(harness)
    harness.run_until(daemon, until=lambda: not harness.open_moves(), seconds=60)
    return harness, daemon, jobs


def free_gpus(harness: Harness) -> int:
    return sum(node.num_gpus - node.used_gpus for node in harness.slurm.snapshot().nodes)


class Fewest(NamedTuple):
    """The fewest GPUs of any of some jobs, and of all together, outside of the seconds of moves."""

    of_one: int
    of_all: int


def fewest_gpus(harness: Harness, daemon: Daemon, jobs: list[str], *, seconds: float) -> Fewest:
    """Run on, and end plain jobs after a while; return the fewest GPUs that these jobs ever had."""
    fewest = Fewest(16, 16)

    def look() -> bool:
        nonlocal fewest
        moves = harness.store.journal.open_reallocations()
        coming = {one.slurm_job_id: one.target.num_gpus for one in moves if one.step in STOPPED}
        shown = {job.job_id: job for job in harness.slurm.snapshot().jobs}
        has = [coming.get(one, shown[one].allocation.num_gpus) for one in jobs]
        fewest = Fewest(min(fewest.of_one, *has), min(fewest.of_all, sum(has)))
        for job in shown.values():
            lasted_s = (harness.clock() - (job.started_at or harness.clock())).total_seconds()
            if job.state is JobState.RUNNING and job.job_id not in harness.agents and lasted_s > LASTS_S:
                harness.slurm.finish(job.job_id)
        return False

    harness.run_until(daemon, until=look, seconds=seconds)
    return fewest


def test_that_forty_rigid_jobs_get_what_is_lent_and_no_more(clean_store: SqlStore) -> None:
    harness, daemon, jobs = four_jobs(clean_store)
    sweep = [harness.submit_unmanaged(gpus=1) for _ in range(40)]
    for one in sweep:
        harness.slurm.set_job(one, user_id=2000, user_name="bob")
    assert fewest_gpus(harness, daemon, jobs, seconds=40).of_one >= SUBMITTED
    ended = [one for one in sweep if harness.job(one).state is JobState.COMPLETED]
    assert ended, "some of them ran"


@pytest.mark.slow
def test_that_forty_adaptive_jobs_get_their_user_s_share(clean_store: SqlStore) -> None:
    harness, daemon, jobs = four_jobs(clean_store)
    sweep = [harness.submit(gpus=1, user_id=2000) for _ in range(40)]
    for one in sweep:
        harness.slurm.set_job(one, user_name="bob")
    fewest = fewest_gpus(harness, daemon, jobs, seconds=32)
    assert fewest.of_all >= 8, "half of all, for two users"
    shown = {job.job_id: job.allocation for job in harness.slurm.snapshot().jobs}
    theirs = sum(shown.get(one, Allocation()).num_gpus for one in sweep)
    assert theirs >= 6
