"""A sandbox from up to down, on the real daemons."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator, MutableSequence, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pollux_slurm.errors import SandboxError
from pollux_slurm.resources import resource_dir
from pollux_slurm.sandbox.cluster import Sandbox
from pollux_slurm.sandbox.files import NodeGroup
from pollux_slurm.slurm.commands.runner import CommandRunner
from pollux_slurm.system.process_control import is_running, processes_with_environ
from tests.waiting import wait_until

ONE_NODE = (NodeGroup(num_nodes=1, gpus_per_node=2),)
STUBBORN = """#!/bin/bash
trap '' TERM
(setsid sleep 600 &)
srun --gpus=1 sleep 600 &
touch "$1"
while :; do sleep 0.2; done
"""


@pytest.fixture
def folder(slurm_programs: None) -> Iterator[Path]:
    """A short path, since sockets lie below it; whatever a failed test left running in it is ended."""
    made = Path(tempfile.mkdtemp(prefix="pollux-test-", dir="/tmp"))
    yield made
    for record in made.glob("*/sandbox.json"):
        Sandbox.find(record.parent).down()
    shutil.rmtree(made)


def up(place: Path, groups: Sequence[NodeGroup] | None = None, **options: Any) -> Sandbox:
    """Start a sandbox, however long a busy machine takes for it."""
    return Sandbox.up(place, groups, **{"timeout_s": 300.0, **options})


def runner(sandbox: Sandbox) -> CommandRunner:
    """Return a runner that waits for its commands, however long a busy machine takes for them."""
    return sandbox.runner(timeout_s=300.0)


def leftovers(sandbox: Sandbox) -> list[str]:
    """Return everything that runs for the sandbox, wherever it came from."""
    conf = {"SLURM_CONF": str(sandbox.layout.slurm_conf)}
    return [record.name for record in processes_with_environ(conf)]


def wait_gone(sandbox: Sandbox) -> None:
    """Wait until nothing runs for the sandbox: slurmctld's slurmscriptd ends by itself, a moment after it.

    What its jobs run is there for longer than this waits.
    """
    wait_until(lambda: not leftovers(sandbox), timeout_s=120, what="nothing of the sandbox to run")


def test_that_jobs_see_the_gpus_that_slurm_gave_them(sandbox: Sandbox) -> None:
    show = "echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES"
    done = runner(sandbox).run("srun", "--nodes=2", "--gpus=t4:5", "bash", "-c", show)
    assert sorted(done.stdout.split("\n")) == ["", "n0 0,1,2,3", "n1 0"]


def test_that_up_again_changes_nothing_and_down_again_does_nothing(folder: Path) -> None:
    first = up(folder / "box", ONE_NODE)
    assert first.started_now
    states = wait_until(
        lambda: (shown := first.node_states()) != {"n0": "unreachable"} and shown,
        timeout_s=120,
        what="sinfo to answer in time",
    )
    assert states == {"n0": "idle"}
    again = up(folder / "box", ONE_NODE)
    assert (again.started_now, again.processes, again.nodes) == (False, first.processes, first.nodes)
    report = again.down()
    assert sorted(report.stopped) == ["munged", "n0", "slurmctld"]
    wait_gone(first)
    assert Sandbox.find(folder / "box").down().stopped == ()
    assert not Sandbox.find(folder / "box").is_running


def test_that_a_sandbox_that_was_down_starts_afresh(folder: Path) -> None:
    up(folder / "box", ONE_NODE).down()
    again = up(folder / "box", (NodeGroup(num_nodes=1, gpu_type="a100"),))
    assert again.started_now
    assert runner(again).run("sinfo", "-h", "-o", "%G").stdout.strip() == "gpu:a100:4"


def test_that_sandboxes_started_together_do_not_disturb_each_other(folder: Path) -> None:
    places = [folder / name for name in ("a", "b", "c")]
    with ThreadPoolExecutor() as pool:
        started = list(pool.map(lambda place: up(place, ONE_NODE), places))
    assert len({sandbox.controller_port for sandbox in started}) == 3
    for sandbox in started[:2]:
        assert runner(sandbox).run("srun", "--gpus=2", "echo", "$CUDA_VISIBLE_DEVICES").exit_code == 0
    started[0].down()
    assert started[1].is_running
    assert runner(started[1]).run("srun", "true").exit_code == 0


def test_that_two_ups_in_one_folder_start_one_sandbox(folder: Path) -> None:
    with ThreadPoolExecutor() as pool:
        both = list(pool.map(lambda _: up(folder / "box", ONE_NODE), range(2)))
    assert sorted(sandbox.started_now for sandbox in both) == [False, True]
    assert both[0].processes == both[1].processes


def test_that_a_running_sandbox_of_another_shape_is_refused(folder: Path) -> None:
    sandbox = up(folder / "box", ONE_NODE)
    with pytest.raises(SandboxError, match=r"with another shape \(n0: .*pollux sandbox down --dir"):
        up(folder / "box", (NodeGroup(num_nodes=2),))
    assert up(folder / "box", ONE_NODE).processes == sandbox.processes
    assert up(folder / "box").processes == sandbox.processes
    assert sandbox.is_running


class StolenPort(random.Random):
    """Picks one port twice the first time, so that of two daemons one finds it taken."""

    def __init__(self) -> None:
        super().__init__(1)
        self.picks = 0

    def sample(self, population: Sequence[Any], k: int, **_: Any) -> list[Any]:
        self.picks += 1
        ports: MutableSequence[Any] = super().sample(population, k)
        if self.picks == 1:
            with socket.socket() as listener:
                listener.bind(("", 0))
            ports[:2] = [ports[0], ports[0]]
        return list(ports)


def test_that_other_ports_are_tried_when_one_was_taken_meanwhile(folder: Path) -> None:
    picker = StolenPort()
    sandbox = up(folder / "box", ONE_NODE, generator=picker)
    assert picker.picks > 1
    assert sandbox.is_running
    assert sandbox.controller_port != sandbox.nodes[0].port


def test_that_down_ends_stubborn_jobs_and_what_they_left_behind(folder: Path) -> None:
    sandbox = up(folder / "box", ONE_NODE, kill_wait_s=60)
    script = folder / "stubborn.sh"
    script.write_text(STUBBORN)
    ready = folder / "ready"
    done = runner(sandbox).run("sbatch", "--gpus=2", "--output=/dev/null", str(script), str(ready))
    assert done.exit_code == 0
    wait_until(ready.exists, timeout_s=120, what="the job to start")
    wait_until(lambda: leftovers(sandbox).count("sleep") >= 3, timeout_s=120, what="the job's processes")
    report = sandbox.down()
    assert report.cancelled_jobs == 1
    assert report.killed_processes >= 1
    wait_gone(sandbox)


def test_that_down_works_when_daemons_are_dead_already(folder: Path) -> None:
    sandbox = up(folder / "box", ONE_NODE)
    pids = {record.name: record.pid for record in sandbox.processes}
    killed = ("slurmctld", "munged")
    for name in killed:
        os.kill(pids[name], signal.SIGKILL)
    wait_until(lambda: not any(sandbox.daemons()[name] for name in killed), timeout_s=120, what="both")
    with pytest.raises(SandboxError, match=r"has lost munged, slurmctld; run: pollux sandbox down --dir"):
        up(folder / "box", ONE_NODE)
    report = sandbox.down()
    assert (report.stopped, sorted(report.already_gone)) == (("n0",), ["munged", "slurmctld"])
    wait_gone(sandbox)


def test_that_a_process_that_reuses_a_pid_is_not_killed(folder: Path) -> None:
    """The record survives a reboot; its process ids then belong to others."""
    sandbox = up(folder / "box", ONE_NODE)
    record = sandbox.layout.record
    as_it_was = record.read_text()
    mine = f'"pid": {sandbox.processes[-1].pid},'
    record.write_text(as_it_was.replace(mine, f'"pid": {os.getpid()},'))
    assert "n0" in Sandbox.find(folder / "box").daemons()
    assert not Sandbox.find(folder / "box").daemons()["n0"]
    record.write_text(as_it_was)


def test_that_a_job_survives_slurmctld_being_away(folder: Path) -> None:
    sandbox = up(folder / "box", ONE_NODE)
    runner(sandbox).run("sbatch", "--gpus=1", "--output=/dev/null", "--wrap=sleep 600")
    squeue = ("squeue", "-h", "-o", "%T")
    wait_until(
        lambda: "RUNNING" in runner(sandbox).run(*squeue).stdout, timeout_s=120, what="the job to start"
    )
    without = sandbox.stop("slurmctld")
    assert not without.daemons()["slurmctld"]
    assert without.node_states() == {"n0": "unreachable"}
    back = without.start("slurmctld")
    wait_until(
        lambda: runner(back).run(*squeue).stdout.strip() == "RUNNING",
        timeout_s=120,
        what="slurmctld to show the job again",
    )
    assert back.start("slurmctld").processes == back.processes
    with pytest.raises(SandboxError, match=r"no daemon 'n7'; there are: munged, slurmctld, n0"):
        back.stop("n7")


def changed_templates(folder: Path, change: Callable[[str], str]) -> Path:
    """Return a folder of templates whose slurm.conf is the packaged one, changed."""
    templates = folder / "templates"
    templates.mkdir()
    packaged = (resource_dir("templates") / "slurm.conf.j2").read_text()
    assert change(packaged) != packaged
    (templates / "slurm.conf.j2").write_text(change(packaged))
    return templates


def test_that_a_cluster_that_cannot_start_raises_with_its_reason_and_leaves_nothing(folder: Path) -> None:
    templates = changed_templates(folder, lambda text: text + "NoSuchSetting=1\n")
    with pytest.raises(SandboxError, match="NoSuchSetting"):
        up(folder / "box", ONE_NODE, template_dir=templates)
    failed = Sandbox.find(folder / "box")
    assert failed.processes == ()
    wait_gone(failed)


def test_that_nodes_that_do_not_come_up_in_time_are_named(folder: Path) -> None:
    templates = changed_templates(folder, lambda text: text.replace("State=UNKNOWN", "State=DRAIN"))
    with pytest.raises(SandboxError, match=r"in time \((munged's socket|not idle: n0)"):
        up(folder / "box", ONE_NODE, timeout_s=4.0, template_dir=templates)
    wait_gone(Sandbox.find(folder / "box"))


def test_that_a_folder_with_other_files_is_refused(folder: Path) -> None:
    (folder / "etc").mkdir()
    (folder / "etc" / "mine").write_text("precious")
    with pytest.raises(SandboxError, match="contains other files"):
        up(folder, ONE_NODE)
    assert [path.name for path in folder.rglob("*")] == ["etc", "mine"]


def test_that_a_malformed_record_is_refused(folder: Path) -> None:
    (folder / "sandbox.json").write_text('{"format": 1}')
    with pytest.raises(SandboxError, match="not a sandbox's record"):
        Sandbox.find(folder)
    (folder / "sandbox.json").unlink()


def test_that_the_daemons_run_apart_from_this_terminal(sandbox: Sandbox) -> None:
    for record in sandbox.processes:
        assert is_running(record)
        assert os.getsid(record.pid) == record.pid
        assert str(Path(f"/proc/{record.pid}/fd/0").readlink()) == os.devnull
