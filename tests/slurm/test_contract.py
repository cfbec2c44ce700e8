from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from pollux_slurm.model import JobState, SlurmJob
from pollux_slurm.sandbox.cluster import Sandbox
from pollux_slurm.slurm.client import SlurmClient
from pollux_slurm.slurm.commands.command_client import CommandClient
from pollux_slurm.slurm.commands.runner import CommandRunner
from tests.fakes.slurm import FakeClock, FakeSlurm, fake_node
from tests.slurm.contract import SlurmClientContract, World
from tests.waiting import cancel_all, wait_until

SLEEP = "#!/bin/sh\ntrap 'exit 7' USR1\nwhile :; do sleep 0.2; done\n"


@dataclass
class RealHarness:
    client: SlurmClient
    runner: CommandRunner
    environ: dict[str, str]
    submitted: list[str] = field(default_factory=list)

    def submit(self, *options: str, script: str = SLEEP) -> str:
        options = ("--output=/dev/null", *options)
        self.submitted.append(self.client.submit(script, options, [], self.environ))
        return self.submitted[-1]

    def fail(self, job_id: str) -> None:
        """Ask the script to fail, every 10 s until it does: before slurmd has begun it, a signal is lost."""
        looks = itertools.count()

        def has_failed() -> bool:
            job = self.client.read_job(job_id)
            if job is not None and job.state is JobState.FAILED:
                return True
            if next(looks) % 50 == 0:
                self.runner.run("scancel", "--signal=USR1", "--batch", job_id)
            return False

        wait_until(has_failed, timeout_s=120, what=f"job {job_id} to fail")

    def wait_for(self, job_id: str, condition: Callable[[SlurmJob], bool], what: str) -> SlurmJob:
        def fulfilled() -> SlurmJob | None:
            job = self.client.read_job(job_id)
            return job if job is not None and condition(job) else None

        found = wait_until(fulfilled, timeout_s=120, what=f"job {job_id} to be {what}", every_s=0.05)
        assert found is not None
        return found

    def clean(self) -> None:
        cancel_all(self.client, self.submitted)


@dataclass
class FakeWorld:
    client: FakeSlurm
    clock: FakeClock

    def fail(self, job_id: str) -> None:
        self.client.finish(job_id, exit_code=7)

    def submit(self, *options: str, script: str = SLEEP) -> str:
        return self.client.submit(script, options, [], {})

    def wait_for(self, job_id: str, condition: Callable[[SlurmJob], bool], what: str) -> SlurmJob:
        for _ in range(600):
            job = self.client.read_job(job_id)
            if job is not None and condition(job):
                return job
            self.clock.advance(0.5)
        raise AssertionError(f"job {job_id} is not {what}: {job}")


class TestCommandClient(SlurmClientContract):
    @pytest.fixture
    def world(self, sandbox: Sandbox) -> Iterator[World]:
        runner = sandbox.runner(timeout_s=120)
        world = RealHarness(CommandClient(runner), runner, {**os.environ, **sandbox.env})
        yield world
        world.clean()


class TestFakeSlurm(SlurmClientContract):
    @pytest.fixture
    def world(self) -> World:
        clock = FakeClock()
        nodes = [fake_node(name) for name in ("n0", "n1", "n2")]
        big = fake_node("n3", gpu_type="a100", num_gpus=8, num_cpus=16, memory_mb=16384)
        return FakeWorld(FakeSlurm([*nodes, big], clock=clock, kill_s=1.0), clock)
