from __future__ import annotations

import random
import socket
from pathlib import Path

import pytest

from pollux_slurm.errors import SandboxError, UsageError
from pollux_slurm.sandbox.files import (
    NodeGroup,
    find_programs,
    free_ports,
    layout_of,
    parse_group,
    plan_nodes,
    search_path,
    write_files,
)


def test_that_a_group_is_read() -> None:
    assert parse_group("2:a100:8") == NodeGroup(num_nodes=2, gpu_type="a100", gpus_per_node=8)


def test_that_a_node_has_two_cpus_and_two_gib_for_each_gpu() -> None:
    assert (NodeGroup(gpus_per_node=8).num_cpus, NodeGroup(gpus_per_node=8).memory_mb) == (16, 16384)
    assert (NodeGroup(gpus_per_node=0).num_cpus, NodeGroup(gpus_per_node=0).memory_mb) == (2, 4096)
    given = parse_group("1:t4:4", cpus_per_node=3, memory_mb_per_node=500)
    assert (given.num_cpus, given.memory_mb) == (3, 500)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2",
        "2:t4",
        "2:t4:4:1",
        "x:t4:4",
        "-1:t4:4",
        "0:t4:4",
        "2:t4:65",
        "2:t 4:4",
        "2:t4;x:4",
        "2::4",
        "1e9:t4:4",
    ],
)
def test_that_another_group_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_group(text)


@pytest.mark.parametrize(
    "path", ["/tmp/a b", "/tmp/it's", '/tmp/x"y', "/tmp/a%n", "/tmp/a,b", "/tmp/a#b", "/tmp/ü\n"]
)
def test_that_a_path_with_special_characters_is_refused(path: str) -> None:
    with pytest.raises(SandboxError, match="allow only letters"):
        layout_of(path)


def test_that_a_path_too_long_for_a_socket_is_refused() -> None:
    layout_of("/tmp/" + "x" * 60)
    with pytest.raises(SandboxError, match="longer than"):
        layout_of("/tmp/" + "x" * 70)


def test_that_missing_programs_are_named_with_their_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pollux_slurm.sandbox.files._SBIN", ())
    for program in ("munged", "sbatch", "scancel", "scontrol", "sinfo", "squeue"):
        (tmp_path / program).write_text("#!/bin/sh\n")
        (tmp_path / program).chmod(0o755)
    words = "needs slurmctld, slurmd, srun, missing here; run: apt-get install slurm-client slurmctld slurmd"
    with pytest.raises(SandboxError, match=words):
        find_programs({"PATH": str(tmp_path)})


def test_that_daemons_are_also_searched_in_sbin() -> None:
    assert search_path({"PATH": "/home/me/bin:/usr/sbin"}) == "/home/me/bin:/usr/sbin:/usr/local/sbin:/sbin"


def test_that_ports_in_use_are_skipped() -> None:
    picks = free_ports(5, random.Random(3))
    with socket.socket() as taken:
        taken.bind(("", picks[0]))
        taken.listen()
        again = free_ports(5, random.Random(3))
    assert again[:4] == picks[1:]
    assert len(set(again)) == 5


def test_that_the_files_contain_the_requested_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "big.example.org")
    monkeypatch.setattr("pollux_slurm.sandbox.files._MAX_PATH", 4096)
    layout = layout_of(tmp_path)
    groups = [
        NodeGroup(num_nodes=1),
        NodeGroup(num_nodes=1, gpu_type="a100", gpus_per_node=8),
        NodeGroup(num_nodes=1, gpus_per_node=0),
    ]
    write_files(
        layout,
        nodes=plan_nodes(groups, [10001, 10002, 10003]),
        controller_port=10000,
        kill_wait_s=7,
        slurmd_timeout_s=60,
        release=(22, 5),
    )
    conf = layout.slurm_conf.read_text().splitlines()
    assert "SlurmctldHost=big(127.0.0.1)" in conf
    assert "KillWait=7" in conf
    node = "NodeHostname=big NodeAddr=127.0.0.1 Port="
    assert [line for line in conf if line.startswith("NodeName=")] == [
        f"NodeName=n0 {node}10001 CPUs=8 RealMemory=8192 Gres=gpu:t4:4 State=UNKNOWN",
        f"NodeName=n1 {node}10002 CPUs=16 RealMemory=16384 Gres=gpu:a100:8 State=UNKNOWN",
        f"NodeName=n2 {node}10003 CPUs=2 RealMemory=4096 State=UNKNOWN",
    ]
    gres = [
        line for line in (layout.etc_dir / "gres.conf").read_text().splitlines() if line.startswith("Node")
    ]
    assert gres == [
        f"NodeName=n0 Name=gpu Type=t4 File={tmp_path}/dev/gpu[0-3]",
        f"NodeName=n1 Name=gpu Type=a100 File={tmp_path}/dev/gpu[0-7]",
    ]
    assert not (layout.etc_dir / "cgroup.conf").exists()
    assert layout.munge_key.stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in layout.device_dir.iterdir()) == [f"gpu{i}" for i in range(8)]
