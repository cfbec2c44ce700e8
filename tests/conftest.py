"""Private Slurm clusters for the tests that need one; each xdist worker starts its own."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from pollux_slurm.errors import SandboxError
from pollux_slurm.sandbox.cluster import Sandbox
from pollux_slurm.sandbox.files import NodeGroup, find_programs

pytest_plugins = ["tests.store_fixtures"]

# Set before numpy and torch are imported: for the small matrices of tests their threads only cost CPU, and
# each worker of xdist would have as many threads as there are cores.
for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

# No time limit of hypothesis: a busy machine makes any example slow. Every run has the same examples, so that
# a failure comes from the change; POLLUX_TEST_RANDOM=1 draws others.
settings.register_profile(
    "unhurried",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=not os.environ.get("POLLUX_TEST_RANDOM"),
)
settings.load_profile("unhurried")

# The cluster that `tests/slurm/contract.py` is written for.
CONTRACT_GROUPS = (NodeGroup(num_nodes=3), NodeGroup(num_nodes=1, gpu_type="a100", gpus_per_node=8))
SANDBOX_FIXTURES = {"sandbox", "two_node_sandbox", "slurm_programs"}


# The longest tests start first, so that none of them runs alone at the end.
LONGEST_FIRST = ("e2e", "slurm", "torch")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that uses a cluster, so that `-m "not slurm"` leaves it out; put long files first."""
    rank: dict[Path, int] = {}
    for item in items:
        if SANDBOX_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker("slurm")
        marks = [place for place, mark in enumerate(LONGEST_FIRST) if item.get_closest_marker(mark)]
        rank[item.path] = min([*marks, rank.get(item.path, len(LONGEST_FIRST))])
    items.sort(key=lambda item: rank[item.path])


def pytest_collection_finish() -> None:
    """Spare the garbage collector what was imported: it stays, and each full collection would look at it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def slurm_programs() -> None:
    """Skip without Slurm's daemons; on CI, where they are always installed, fail."""
    try:
        find_programs(os.environ)
    except SandboxError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


@contextlib.contextmanager
def running_sandbox(
    *groups: NodeGroup, kill_wait_s: int = 5, environ: Mapping[str, str] | None = None
) -> Iterator[Sandbox]:
    """Run a cluster in a short path (sockets must fit) that other users can enter."""
    folder = Path(tempfile.mkdtemp(prefix="pollux-test-", dir="/tmp"))
    folder.chmod(0o755)
    try:
        surroundings = os.environ if environ is None else environ
        sandbox = Sandbox.up(folder, groups, environ=surroundings, kill_wait_s=kill_wait_s, timeout_s=300)
        try:
            yield sandbox
        finally:
            sandbox.down()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def sandbox(slurm_programs: None) -> Iterator[Sandbox]:
    """Three nodes n0 to n2 of four t4, and n3 with eight a100."""
    with running_sandbox(*CONTRACT_GROUPS) as running:
        yield running


@pytest.fixture(scope="session")
def two_node_sandbox(slurm_programs: None) -> Iterator[dict[str, str]]:
    """Two nodes of four t4; the value is the environment for commands on them."""
    with running_sandbox(NodeGroup(num_nodes=2), kill_wait_s=10) as running:
        yield running.env
