"""The contract suite on other releases of Slurm: real daemons from Debian's packages (see `roots.py`)."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from pollux_slurm.slurm.commands import CommandsClient
from pollux_slurm.slurm.sandbox import Sandbox
from tests.conftest import CONTRACT_GROUPS, running_sandbox
from tests.slurm.contract import SlurmClientContract, World
from tests.slurm.roots import SUITES, NoRootError, commands_of
from tests.slurm.test_contract import RealWorld


@pytest.fixture(scope="module", params=sorted(SUITES))
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """The contract's cluster under another release."""
    try:
        commands = commands_of(request.param, os.environ)
    except NoRootError as error:
        pytest.skip(str(error))
    environ = {**os.environ, "PATH": f"{commands}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
    with running_sandbox(*CONTRACT_GROUPS, environ=environ) as running:
        assert CommandsClient(running.runner()).version().startswith(f"{request.param}.")
        yield running


class TestCommandsClient(SlurmClientContract):
    @pytest.fixture
    def world(self, sandbox: Sandbox) -> Iterator[World]:
        environ = {**sandbox.environ, **sandbox.env}
        world = RealWorld(CommandsClient(sandbox.runner()), sandbox.runner(), environ)
        yield world
        world.clean()
