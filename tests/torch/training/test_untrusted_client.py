"""A process of another real user beside a run's ranks: it neither joins them nor reads what they send."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pollux_slurm.sandbox.cluster import Sandbox
from tests.people import ALL, User, two_users
from tests.waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.torch]

UNTRUSTED_CLIENT = Path(__file__).with_name("untrusted_client.py")
# Rank 1 comes late, as one on a slow node may, and both stay until the untrusted client has seen enough.
TRAIN = """
import os, sys, time
from pathlib import Path

def until(name):
    end = time.monotonic() + 1800
    while not Path(name).exists() and time.monotonic() < end:
        time.sleep(0.02)

Path("pid-" + os.environ["RANK"]).write_text(str(os.getpid()))
if os.environ["RANK"] == "1":
    until("go")
import torch
import torch.distributed as dist
from pollux_slurm.errors import LaunchError
from pollux_slurm.torch import init_process_group
try:
    init_process_group("gloo")
    data = torch.full((1000,), 1234.5 if os.environ["RANK"] == "0" else 0.0)
    dist.broadcast(data, 0)
    outcome = "joined" if data.eq(1234.5).all() else "other numbers"
except LaunchError as error:
    outcome = str(error)
Path("outcome-" + os.environ["RANK"]).write_text(outcome)
until("end")
os._exit(0)
"""


@pytest.fixture(scope="module")
def users(sandbox: Sandbox) -> Iterator[tuple[User, User]]:
    with two_users({**sandbox.env, "GLOO_SOCKET_IFNAME": "lo"}, imports=f"{ALL}, torch") as made:
        yield made


def submit(user: User, folder: Path, *, num_nodes: int) -> str:
    """Submit a job of two ranks, on one node or one on each of two."""
    body = "#!/bin/sh\nexec " + shlex.join(
        [*user.python, "-m", "pollux_slurm", "run", "--", *user.python, "train.py"]
    )
    done = user.run(
        "sbatch", "--parsable", f"--chdir={folder}", "--output=run.log", f"--nodes={num_nodes}",
        f"--gpus-per-node={2 // num_nodes}", "--cpus-per-gpu=1", "--mem-per-gpu=600", stdin=body,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def listening_ports(pid: int) -> set[int]:
    """Return the ports at which a process listens, as root may know."""
    sockets = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            sockets.add(str(descriptor.readlink()))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                found.add(int(fields[1].rpartition(":")[2], 16))
    return found


@pytest.mark.parametrize("num_nodes", [pytest.param(1, marks=pytest.mark.full), 2])
@pytest.mark.parametrize("attempt", [0, pytest.param(1, marks=pytest.mark.full)])
def test_that_an_untrusted_process_neither_joins_nor_reads(
    sandbox: Sandbox, users: tuple[User, User], num_nodes: int, attempt: int
) -> None:
    """Repeated, because ranks connect in an order of chance, and only one order lets the client be first."""
    alice, bob = users
    folder, seen = alice.home / f"{num_nodes}-{attempt}", bob.home / f"seen-{num_nodes}-{attempt}"
    folder.mkdir()
    os.chown(folder, alice.user_id, alice.user_id)
    (folder / "train.py").write_text(TRAIN)
    script = bob.home / "untrusted_client.py"
    script.write_text(UNTRUSTED_CLIENT.read_text())
    with seen.open("w") as output:
        client = subprocess.Popen(
            [*bob.python, "untrusted_client.py", str(alice.user_id)],
            user=bob.name, group=bob.name, extra_groups=[],
            cwd=bob.home, env=bob.env, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
    assert client.stdin is not None
    wait_until(lambda: "looking" in seen.read_text(), timeout_s=120, what="the untrusted client to look")
    job_id = submit(alice, folder, num_nodes=num_nodes)

    def was_at_rank_0() -> bool:
        file = folder / "pid-0"
        pid = file.read_text() if file.exists() else ""
        ports = {int(line[3:]) for line in seen.read_text().splitlines() if line.startswith("at ")}
        return bool(pid and ports & listening_ports(int(pid)))

    try:
        wait_until(
            was_at_rank_0, timeout_s=300, what="rank 0 to listen, and the untrusted client to be there"
        )
        (folder / "go").touch()
        outcomes = [folder / f"outcome-{rank}" for rank in range(2)]
        wait_until(
            lambda: all(one.exists() and one.read_text() for one in outcomes),
            timeout_s=300,
            what="the ranks to meet, or not",
        )
    finally:
        client.stdin.close()
        client.wait(timeout=120)
        (folder / "end").touch()
        alice.run("scancel", job_id)
    got, ends = json.loads(seen.read_text().splitlines()[-1]), {one.read_text() for one in outcomes}
    assert got["read"] == []
    assert not got["mark"], "what rank 0 sent went to the untrusted client"
    assert ends == {"joined"} or all("not a rank of its run" in end or "another job" in end for end in ends)
