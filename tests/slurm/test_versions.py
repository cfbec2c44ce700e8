"""The contract suite on other releases of Slurm, real daemons all (see `roots.py`), and with PySlurm."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest

from pollux_slurm.config import SlurmConfig
from pollux_slurm.errors import SlurmUnavailable
from pollux_slurm.sandbox.cluster import Sandbox
from pollux_slurm.slurm import connect
from tests.conftest import CONTRACT_GROUPS, running_sandbox
from tests.slurm.contract import SlurmClientContract, World
from tests.slurm.roots import BUILT_VARIABLE, ROOTS_VARIABLE, SUITES, NoRootError, search_path
from tests.slurm.test_contract import RealHarness
from tests.waiting import wait_until

PYSLURM_RELEASE = "25.11"

if not {ROOTS_VARIABLE, BUILT_VARIABLE} & os.environ.keys():
    pytest.skip(
        f"neither {ROOTS_VARIABLE} nor {BUILT_VARIABLE} is set; run: make test-slurm-versions",
        allow_module_level=True,
    )


@contextlib.contextmanager
def cluster_of(release: str) -> Iterator[Sandbox]:
    """Run the contract's cluster under another release, or skip."""
    try:
        environ = {**os.environ, "PATH": search_path(release, os.environ)}
    except NoRootError as error:
        pytest.skip(str(error))
    with running_sandbox(*CONTRACT_GROUPS, environ=environ) as running:
        yield running


@contextlib.contextmanager
def world_of(sandbox: Sandbox, *, backend: str) -> Iterator[World]:
    """Reach the cluster as the daemon does, by its settings."""
    environ = {**sandbox.environ, **sandbox.env}
    client = connect(SlurmConfig(backend=backend), environ)
    world = RealHarness(client, sandbox.runner(), environ)
    yield world
    world.clean()


@pytest.fixture(scope="class", params=[*sorted(SUITES), PYSLURM_RELEASE])
def cluster(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    with cluster_of(request.param) as running:
        yield running


@pytest.fixture(scope="class")
def pyslurm_cluster() -> Iterator[Sandbox]:
    with cluster_of(PYSLURM_RELEASE) as running:
        yield running


class TestCommandClient(SlurmClientContract):
    @pytest.fixture
    def world(self, cluster: Sandbox) -> Iterator[World]:
        with world_of(cluster, backend="commands") as world:
            yield world


class TestPySlurmClient(SlurmClientContract):
    @pytest.fixture
    def world(self, pyslurm_cluster: Sandbox) -> Iterator[World]:
        with world_of(pyslurm_cluster, backend="pyslurm") as world:
            yield world

    def test_that_slurmctld_may_go_away_and_come_back(self, world: World, pyslurm_cluster: Sandbox) -> None:
        job_id = world.submit("--hold", "--gpus=1")
        pyslurm_cluster.stop("slurmctld")
        try:
            with pytest.raises(SlurmUnavailable):
                world.client.release(job_id)
        finally:
            pyslurm_cluster.start("slurmctld")

        def released() -> bool:
            with contextlib.suppress(SlurmUnavailable):
                world.client.release(job_id)
                return True
            return False

        wait_until(released, timeout_s=120, what="slurmctld to answer PySlurm again")
        self.wait_running(world, job_id)
