"""A process of another real user beside a run's ranks: it neither joins them nor reads what they send."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pollux_slurm.agent.rendezvous import new_secret
from tests.people import User, two_users
from tests.torch.ranks import free_port
from tests.waiting import wait_until

STRANGER = Path(__file__).with_name("stranger.py")
# Rank 1 comes late, as one on a slow node may, and both stay until the stranger has seen enough.
TRAIN = """
import os, sys, time
from pathlib import Path

def until(name):
    end = time.monotonic() + 300
    while not Path(name).exists() and time.monotonic() < end:
        time.sleep(0.02)

Path("pid-" + os.environ["RANK"]).touch()
if os.environ["RANK"] == "1":
    until("go")
import torch
import torch.distributed as dist
from pollux_slurm.errors import LaunchError
from pollux_slurm.torch import init_process_group
try:
    init_process_group("gloo")
    told = torch.full((1000,), 1234.5 if os.environ["RANK"] == "0" else 0.0)
    dist.broadcast(told, 0)
    said = "joined" if told.eq(1234.5).all() else "other numbers"
except LaunchError as error:
    said = str(error)
Path("said-" + os.environ["RANK"]).write_text(said)
until("end")
os._exit(0)
"""


@pytest.fixture(scope="module")
def users() -> Iterator[tuple[User, User]]:
    with two_users({"GLOO_SOCKET_IFNAME": "lo"}) as made:
        yield made


def start(user: User, folder: Path, *command: str, **environ: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, user=user.name, group=user.name, extra_groups=[], cwd=folder, env={**user.env, **environ},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def ranks_of(user: User, folder: Path, *, num_nodes: int) -> list[subprocess.Popen[str]]:
    """Start two ranks: as one node's, by `pollux run`, or as it starts each of two nodes'."""
    if num_nodes == 1:
        run = (*user.python, "-m", "pollux_slurm", "run", "--nproc-per-node", "2", "--")
        return [start(user, folder, *run, *user.python, "train.py")]
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    common |= {"LOCAL_RANK": "0", "POLLUX_GPUS_PER_NODE": "1,1", "POLLUX_RUN_SECRET": new_secret()}
    return [start(user, folder, *user.python, "train.py", RANK=str(rank), **common) for rank in range(2)]


@pytest.mark.parametrize("num_nodes", [1, 2])
@pytest.mark.parametrize("attempt", range(2))
def test_that_a_strangers_process_neither_joins_nor_reads(
    users: tuple[User, User], num_nodes: int, attempt: int
) -> None:
    """Which of two ranks waits for the other's connection is chance: only then can a stranger be first."""
    alice, bob = users
    folder = alice.home / f"{num_nodes}-{attempt}"
    folder.mkdir()
    os.chown(folder, alice.user_id, alice.user_id)
    (folder / "train.py").write_text(TRAIN)
    script = bob.home / "stranger.py"
    script.write_text(STRANGER.read_text())
    stranger = start(bob, bob.home, *bob.python, "stranger.py", str(alice.user_id))
    assert stranger.stdin is not None
    assert stranger.stdout is not None
    assert stranger.stdout.readline() == "looking\n"
    ranks = ranks_of(alice, folder, num_nodes=num_nodes)
    try:
        said = [folder / f"said-{rank}" for rank in range(2)]
        assert stranger.stdout.readline().startswith("at "), "rank 0 listens, and the stranger was there"
        (folder / "go").touch()
        wait_until(lambda: all(one.exists() for one in said), timeout_s=300, what="the ranks to meet, or not")
        stranger.stdin.close()
        got = json.loads(stranger.stdout.read().splitlines()[-1])
    finally:
        (folder / "end").touch()
        stranger.stdin.close()
        outputs = [rank.communicate(timeout=120)[0] for rank in ranks]
        stranger.wait(timeout=120)
        stranger.stdout.close()
    ends = {one.read_text() for one in said}
    print(num_nodes, attempt, got, ends, outputs)
    assert got["ports"] >= 1
    assert got["read"] == []
    assert not got["mark"], "what rank 0 sent went to the stranger"
    assert ends == {"joined"} or all("none of its run's" in end or "another job" in end for end in ends)
