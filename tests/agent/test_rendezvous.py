"""Ports below the ephemeral range, and the address that other nodes reach."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollux_slurm.agent.rendezvous import (
    candidate_ports,
    find_free_port,
    first_ephemeral_port,
    node_address,
    seed_of,
)
from pollux_slurm.slurm.runner import CommandRunner


@given(seed=st.integers(min_value=0), first=st.integers(min_value=1, max_value=65535))
def test_that_every_port_of_the_window_is_tried_once_and_needs_no_privilege(seed: int, first: int) -> None:
    ports = candidate_ports(seed, first_ephemeral=first)
    assert len(set(ports)) == len(ports) == 8192
    assert min(ports) > 1024
    assert max(ports) < 65536
    if first >= 20_000:
        assert max(ports) < first


def test_that_neighbouring_jobs_begin_at_different_ports() -> None:
    starts = {candidate_ports(seed_of(str(job), {}), first_ephemeral=32768)[0] for job in range(100, 200)}
    assert len(starts) == 100


def test_that_jobs_of_one_number_in_two_clusters_of_a_host_begin_at_different_ports() -> None:
    sandboxes = [{"SLURM_CLUSTER_NAME": "sandbox", "SLURM_CONF": f"/tmp/{name}/slurm.conf"} for name in "ab"]
    names = [{"SLURM_CLUSTER_NAME": name} for name in ("one", "two")]
    starts = {candidate_ports(seed_of("2", it), first_ephemeral=32768)[0] for it in (*sandboxes, *names, {})}
    assert len(starts) == 5


@pytest.mark.parametrize("address", ["127.0.0.1", ""])
def test_that_a_port_in_use_is_passed_over(address: str) -> None:
    first = find_free_port(4711)
    with socket.create_server((address, first)):
        second = find_free_port(4711)
    assert second != first
    with socket.create_server(("127.0.0.1", second)):
        pass


def test_that_an_unreadable_range_gives_the_usual_one(tmp_path: Path) -> None:
    (tmp_path / "range").write_text("40000\t60999\n")
    assert first_ephemeral_port(tmp_path / "range") == 40000
    (tmp_path / "range").write_text("odd")
    assert first_ephemeral_port(tmp_path / "range") == 32768
    assert first_ephemeral_port(tmp_path / "missing") == 32768


def test_that_a_nodes_address_is_what_slurm_uses(two_node_sandbox: dict[str, str]) -> None:
    runner = CommandRunner(environ={**os.environ, **two_node_sandbox})
    assert node_address("n1", runner) == "127.0.0.1"
    assert node_address("nowhere", runner) == "nowhere"


def test_that_without_slurm_a_nodes_name_must_do(tmp_path: Path) -> None:
    assert node_address("n1", CommandRunner(environ={"PATH": str(tmp_path)})) == "n1"
