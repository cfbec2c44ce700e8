"""Two real users on a real Slurm: one's jobs never answer, and the other's are moved nevertheless."""

from __future__ import annotations

import pytest

from pollux_slurm.agent.environment.token import new_token
from pollux_slurm.model import Allocation
from pollux_slurm.sandbox.cluster import Sandbox
from pollux_slurm.store.sql_store import SqlStore
from tests.daemon.harness import CONFIG, Agent
from tests.daemon.test_on_slurm import RealHarness
from tests.people import User, two_users


def submit(harness: RealHarness, user: User, *options: str) -> str:
    """Submit a job as its owner; the test simulates its agent."""
    token = new_token(user.user_id)
    job_id = user.submit("--chdir=/", *options, token=token)
    harness.agents[job_id] = Agent(harness, job_id, token)
    return job_id


# `decide/test_unanswered_requests.py` tests the same without Slurm.
@pytest.mark.full
def test_that_unanswering_jobs_of_a_user_do_not_block_anothers_moves(
    clean_store: SqlStore, sandbox: Sandbox
) -> None:
    """Nine jobs that would free a GPU each, of eight that may move at a time."""
    harness = RealHarness(clean_store, sandbox)
    with two_users(sandbox.env) as (mallory, bob):
        try:
            nodes = ["n0", "n0", "n1", "n1", "n2", "n2", "n3", "n3", "n3"]
            silent = [submit(harness, mallory, "--gpus=2", f"--nodelist={node}") for node in nodes]
            honest = submit(harness, bob, "--gpus=1", "--nodelist=n3")
            daemon = harness.daemon()
            jobs = [*silent, honest]
            harness.until(daemon, lambda: all(harness.has_stepped(one) for one in jobs), "all jobs to train")
            assert {harness.job(job_id).user_name for job_id in silent} == {mallory.name}
            for job_id in silent:
                harness.agents[job_id].answers = False
            harness.targets = {job_id: {harness.job(job_id).allocation.nodes[0]: 1} for job_id in silent}
            harness.targets |= {honest: {"n3": 2}}
            most = 0

            def has_moved() -> bool:
                nonlocal most
                under_way = [
                    move for move in harness.store.journal.open_reallocations() if move.slurm_job_id in silent
                ]
                most = max(most, len(under_way))
                return harness.job(honest).allocation == Allocation.of({"n3": 2})

            harness.until(daemon, has_moved, "the honest job's second GPU")
            assert most == CONFIG.max_in_flight // 2
        finally:
            harness.close()
