"""Two real users on a real Slurm: one's jobs never answer, and the other's are moved all the same."""

from __future__ import annotations

from pollux_slurm.agent.submit.token import new_token
from pollux_slurm.model import Allocation
from pollux_slurm.sandbox.cluster import Sandbox
from pollux_slurm.store.sql_store import SqlStore
from tests.daemon.test_on_slurm import RealWorld
from tests.daemon.world import CONFIG, Agent
from tests.people import User, two_users


def submit(world: RealWorld, user: User, *options: str) -> str:
    """Submit a job as its owner; the test plays its agent."""
    token = new_token(user.user_id)
    job_id = user.submit("--chdir=/", *options, token=token)
    world.agents[job_id] = Agent(world, job_id, token)
    return job_id


def test_that_a_users_silent_jobs_do_not_stop_anothers_moves(clean_store: SqlStore, sandbox: Sandbox) -> None:
    """Nine jobs that would free a GPU each, of eight that may move at a time."""
    world = RealWorld(clean_store, sandbox)
    with two_users(sandbox.env) as (mallory, bob):
        try:
            nodes = ["n0", "n0", "n1", "n1", "n2", "n2", "n3", "n3", "n3"]
            silent = [submit(world, mallory, "--gpus=2", f"--nodelist={node}") for node in nodes]
            honest = submit(world, bob, "--gpus=1", "--nodelist=n3")
            daemon = world.daemon()
            jobs = [*silent, honest]
            world.until(daemon, lambda: all(world.has_stepped(one) for one in jobs), "all jobs to train")
            assert {world.job(job_id).user_name for job_id in silent} == {mallory.name}
            for job_id in silent:
                world.agents[job_id].answers = False
            world.targets = {job_id: {world.job(job_id).allocation.nodes[0]: 1} for job_id in silent}
            world.targets |= {honest: {"n3": 2}}
            most = 0

            def has_moved() -> bool:
                nonlocal most
                under_way = [move for move in world.store.open_reallocations() if move.slurm_job_id in silent]
                most = max(most, len(under_way))
                return world.job(honest).allocation == Allocation.of({"n3": 2})

            world.until(daemon, has_moved, "the honest job's second GPU")
            assert most == CONFIG.max_in_flight // 2
        finally:
            world.close()
