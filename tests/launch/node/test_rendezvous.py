"""The rendezvous of a run's processes: a private folder, a reserved port, an address."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from datetime import timedelta
from pathlib import Path

import pytest

from pollux_slurm.errors import LaunchError
from pollux_slurm.launch.node.rendezvous import new_secret, node_address, rendezvous_file, reserve_port
from pollux_slurm.slurm.commands.runner import CommandRunner


def test_that_only_a_socket_that_reuses_addresses_gets_a_reserved_port() -> None:
    with reserve_port() as kept, reserve_port() as other:
        port = kept.getsockname()[1]
        assert other.getsockname()[1] != port
        for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET, ""), (socket.AF_INET6, "::")):
            with socket.socket(family) as taker, pytest.raises(OSError, match="in use"):
                taker.bind((address, port))


@pytest.mark.parametrize("use_libuv", [True, False])
def test_that_torch_listens_at_a_reserved_port(use_libuv: bool) -> None:
    import torch.distributed as dist

    with reserve_port() as kept:
        port = kept.getsockname()[1]
        store = dist.TCPStore("127.0.0.1", port, 1, True, timedelta(seconds=60), use_libuv=use_libuv)
        store.set("a", "b")
        assert store.get("a") == b"b"
        with pytest.raises(OSError, match="in use"):
            socket.create_server(("127.0.0.1", port))


def test_that_ports_and_secrets_are_random() -> None:
    with contextlib.ExitStack() as stack:
        ports = [stack.enter_context(reserve_port()).getsockname()[1] for _ in range(20)]
    assert len({port - ports[0] for port in ports} - set(range(-40, 41))) > 10
    assert len({new_secret() for _ in range(20)}) == 20


def test_that_only_their_user_can_enter_the_rendezvous_folder() -> None:
    before = os.umask(0)
    try:
        with rendezvous_file() as file:
            assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
            assert not file.exists()
            file.touch()
    finally:
        os.umask(before)
    assert not file.parent.exists()


def test_that_a_rendezvous_folder_that_cannot_be_created_is_an_error_with_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with pytest.raises(LaunchError, match="TMPDIR"), rendezvous_file():
        pass


def test_that_a_nodes_address_is_the_one_that_slurm_uses(two_node_sandbox: dict[str, str]) -> None:
    runner = CommandRunner(environ={**os.environ, **two_node_sandbox})
    assert node_address("n1", runner) == "127.0.0.1"
    assert node_address("nowhere", runner) == "nowhere"


def test_that_a_nodes_address_is_found_in_a_text_of_any_length(tmp_path: Path) -> None:
    (tmp_path / "scontrol").write_text(f'#!/bin/sh\nexec cat "{tmp_path}/shown"\n')
    (tmp_path / "scontrol").chmod(0o755)
    runner = CommandRunner(environ={"PATH": "/usr/bin:/bin"}, bin_dir=tmp_path, timeout_s=300.0)
    (tmp_path / "shown").write_text(
        "NodeName=n1\n   NodeAddr=10.0.0.1 NodeHostName=n1\n   Comment=a NodeAddr=b\n"
    )
    assert node_address("n1", runner) == "10.0.0.1"
    # With a cost that grows with the square of the length, this takes an hour.
    (tmp_path / "shown").write_text("\n" * 500_000 + "a " * 500_000)
    assert node_address("n1", runner) == "n1"


def test_that_without_slurm_a_nodes_address_is_its_name(tmp_path: Path) -> None:
    assert node_address("n1", CommandRunner(environ={"PATH": str(tmp_path)})) == "n1"
