"""`pollux sandbox` as typed: what it prints, and its exit codes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pollux_slurm.sandbox.cluster import Sandbox
from tests.waiting import wait_until


def pollux(*arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": os.environ["PATH"], "HOME": str(home)}
    command = [sys.executable, "-W", "error", "-m", "pollux_slurm", "sandbox", *arguments]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=600)


@pytest.fixture
def home(slurm_programs: None) -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="pollux-test-", dir="/tmp"))
    yield made
    for record in made.rglob("sandbox.json"):
        Sandbox.find(record.parent).down()
    shutil.rmtree(made)


def test_that_a_sandbox_goes_up_is_used_and_goes_down(home: Path) -> None:
    box = home / ".local/state/pollux/sandbox"  # where it goes without --dir
    up = pollux("up", "--node-group", "1:t4:2", "--node-group", "1:a100:1", "--timeout", "300", home=home)
    assert (up.returncode, up.stderr) == (0, "")
    assert f"sandbox in {box}: 2 nodes, 3 GPUs, is up" in up.stdout
    again = pollux("up", home=home)
    assert again.returncode == 0
    assert "was already up; nothing changed" in again.stdout

    status = pollux("status", "--json", home=home)
    shown = json.loads(status.stdout)
    assert (status.returncode, shown["running"], shown["dir"]) == (0, True, str(box))
    assert [(node["name"], node["state"], node["gpu_type"], node["num_gpus"]) for node in shown["nodes"]] == [
        ("n0", "idle", "t4", 2),
        ("n1", "idle", "a100", 1),
    ]
    assert {daemon["name"] for daemon in shown["daemons"]} == {"munged", "slurmctld", "n0", "n1"}

    lines = pollux("env", home=home).stdout
    typed = f"{lines}\nsrun --gpus=a100:1 sh -c 'echo \"$SLURMD_NODENAME has $CUDA_VISIBLE_DEVICES\"'"
    used = subprocess.run(["/bin/sh", "-c", typed], capture_output=True, text=True, timeout=300)
    assert used.stdout == "n1 has 0\n"

    # srun ends before its job has, which squeue shows as completing meanwhile.
    squeue = Sandbox.find(box).runner(timeout_s=300.0)
    wait_until(
        lambda: (listed := squeue.run("squeue", "-h")).exit_code == 0 and not listed.stdout,
        timeout_s=120,
        what="the end of srun's job",
    )
    down = pollux("down", home=home)
    assert (down.returncode, down.stderr) == (0, "")
    assert down.stdout == "stopped munged, slurmctld, n0, n1; 0 jobs cancelled\n"
    assert "was not running" in pollux("down", home=home).stdout
    gone = pollux("status", home=home)
    assert gone.returncode == 3
    assert "is down" in gone.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("up", "--dir", "/tmp/it's here"), "allow only letters"),
        (("up", "--node-group", "2:t4"), "expected NODES:TYPE:GPUS, such as 2:t4:4"),
        (("up", "--nodes", "0"), "0 nodes: expected 1 to 500"),
        (("up", "--nodes", "many"), "Invalid value"),
        (("up", "--dir", "/proc/nowhere"), "No such file or directory"),
        (("down",), "no sandbox in"),
        (("status",), "run: pollux sandbox up --dir"),
        (("env",), "no sandbox in"),
        (("sideways",), "No such command"),
    ],
)
def test_that_an_error_is_one_line(home: Path, arguments: tuple[str, ...], words: str) -> None:
    done = pollux(*arguments, home=home)
    assert done.returncode in (1, 2)
    assert words in done.stderr
    assert done.stderr.startswith("pollux: ")
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""
