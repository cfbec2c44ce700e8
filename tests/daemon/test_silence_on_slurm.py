"""Two real users on a real Slurm: one's jobs never answer, and the other's are moved all the same."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from pollux_slurm.model import Allocation
from pollux_slurm.slurm.sandbox import Sandbox
from pollux_slurm.store.sql_store import SqlStore
from tests.daemon.test_on_slurm import RealWorld
from tests.daemon.world import CONFIG


@pytest.fixture
def users() -> Iterator[tuple[str, str]]:
    """Two accounts that are removed afterwards."""
    if os.geteuid() != 0 or shutil.which("useradd") is None or shutil.which("userdel") is None:
        pytest.skip("only root can make users for the test")
    names = [f"pollux-{secrets.token_hex(4)}" for _ in range(2)]
    made: list[str] = []
    try:
        for name in names:
            subprocess.run(["useradd", "--no-create-home", "--user-group", name], check=True, timeout=60)
            made.append(name)
        yield names[0], names[1]
    finally:
        for name in made:
            subprocess.run(["userdel", name], check=False, timeout=60)


def test_that_a_users_silent_jobs_do_not_stop_anothers_moves(
    clean_store: SqlStore, sandbox: Sandbox, users: tuple[str, str]
) -> None:
    """Nine jobs that would free a GPU each, of eight that may move at a time."""
    world = RealWorld(clean_store, sandbox)
    mallory, bob = users
    try:
        nodes = ["n0", "n0", "n1", "n1", "n2", "n2", "n3", "n3", "n3"]
        silent = [
            world.submit_at(f"--uid={mallory}", "--chdir=/", "--gpus=2", f"--nodelist={node}")
            for node in nodes
        ]
        honest = world.submit_at(f"--uid={bob}", "--chdir=/", "--gpus=1", "--nodelist=n3")
        daemon = world.daemon()
        jobs = [*silent, honest]
        world.until(daemon, lambda: all(world.has_stepped(job_id) for job_id in jobs), "all jobs to train")
        assert {world.job(job_id).user_name for job_id in silent} == {mallory}
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
