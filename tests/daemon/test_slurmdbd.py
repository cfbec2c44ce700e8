"""Limits of accounts and QOS, from a real slurmdbd, enforced by a real slurmctld."""

from __future__ import annotations

import contextlib
import getpass
import os
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone

import pytest

from pollux_slurm.cli.site.daemon import limits_of
from pollux_slurm.config import Config
from pollux_slurm.daemon.doctor.findings import Verdict, examine_limits
from pollux_slurm.daemon.observe import association_limits, cluster_picture
from pollux_slurm.model import JobShape, JobState, Problem, ProblemJob, SlurmJob
from pollux_slurm.sandbox.cluster import Sandbox
from pollux_slurm.sandbox.files import NodeGroup
from pollux_slurm.slurm.commands.accounting import Accounting
from pollux_slurm.slurm.commands.command_client import CommandClient
from tests.conftest import running_sandbox
from tests.daemon.builders import record
from tests.slurm.accounting_site import accounting_of, missing_programs, sacctmgr
from tests.waiting import wait_until

MISSING = ", ".join(missing_programs())
pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(bool(MISSING), reason=f"no {MISSING}: apt install slurmdbd mariadb-server-core"),
]
SLEEP = "#!/bin/sh\nexec sleep 600\n"


@pytest.fixture
def site(slurm_programs: None) -> Iterator[Sandbox]:
    """Two nodes of four GPUs. The account lab has three for those below it; a QOS has a limit of its own."""
    me = getpass.getuser()
    with running_sandbox(NodeGroup(num_nodes=2)) as box, accounting_of(box) as runner:
        sacctmgr(runner, "add", "account", "lab")
        sacctmgr(runner, "add", "account", "vision,physics", "parent=lab")
        sacctmgr(runner, "add", "user", me, "account=vision,physics")
        sacctmgr(runner, "add", "qos", "big")
        sacctmgr(runner, "add", "qos", "partition")
        sacctmgr(runner, "modify", "user", me, "set", "qos=normal,big")
        sacctmgr(runner, "modify", "account", "lab", "set", "GrpTRES=gres/gpu=3")
        sacctmgr(runner, "modify", "account", "vision", "set", "MaxTRESPerJob=gres/gpu=2")
        sacctmgr(runner, "modify", "qos", "big", "set", "GrpTRES=gres/gpu=4", "MaxTRESPerJob=gres/gpu=4")
        yield box


def test_that_a_round_decides_within_what_slurm_goes_on_to_keep(
    site: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in site.env.items():
        monkeypatch.setenv(name, value)
    slurm = CommandClient(site.runner())

    def submitted(gpus: int, account: str, qos: str) -> str:
        options = (
            f"--gpus={gpus}",
            f"--account={account}",
            f"--qos={qos}",
            "--output=/dev/null",
            "--mem=100",
        )
        return slurm.submit(SLEEP, options, [], {**os.environ, **site.env})

    def shown(job_id: str) -> SlurmJob:
        found = slurm.read_job(job_id)
        assert found is not None
        return found

    def waits_for(job_id: str, reason: str) -> None:
        wait_until(lambda: shown(job_id).reason == reason, timeout_s=120, what=f"{job_id} to wait: {reason}")

    def runs(job_id: str) -> None:
        wait_until(lambda: shown(job_id).state is JobState.RUNNING, timeout_s=120, what=f"{job_id} to run")

    def problem(*job_ids: str) -> Problem:
        picture = cluster_picture.build_picture(slurm.snapshot(), [record(job_id) for job_id in job_ids])
        jobs = tuple(
            ProblemJob(job_id=one.job_id, account=one.account, user=one.user_name, current=one.allocation)
            for one in map(shown, job_ids)
        )
        plain = Problem(nodes=picture.nodes, jobs=jobs)
        # They are unmanaged: only which jobs Slurm limits is tested.
        return association_limits.apply_limits(plain, picture, limits_of(Config(), slurm)())

    def bounds(found: Problem) -> dict[str, tuple[int, tuple[str, ...] | None]]:
        return {limit.name: (limit.max_gpus, limit.job_ids) for limit in found.limits}

    one, two = submitted(2, "vision", "normal"), submitted(2, "physics", "normal")
    runs(one)
    waits_for(two, "AssocGrpGRES")  # each is below the account's limit, both together are above it
    assert bounds(problem(one, two)) == {"lab": (3, (one, two))}

    exempt = submitted(3, "vision", "big")
    runs(exempt)
    assert bounds(problem(one, two, exempt)) == {"lab": (0, (one, two)), "big": (4, (exempt,))}
    more = submitted(2, "physics", "big")
    waits_for(more, "QOSGrpGRES")

    assert site.runner().run("scontrol", "update", "PartitionName=main", "QoS=partition").exit_code == 0
    sacctmgr(site.runner(), "modify", "qos", "partition", "set", "GrpTRES=gres/gpu=6")
    slurm.cancel(two)
    runs(more)  # the partition's limit comes first: with the job before, five are in use

    def accounted() -> dict[str, tuple[str, int, bool]]:
        now = datetime.now(timezone.utc)
        jobs = Accounting(site.runner()).jobs(now - timedelta(hours=1), now + timedelta(hours=1))
        return {job.job_id: (job.account, job.num_gpus, job.started_at is None) for job in jobs}

    # What `pollux report before-after` reads of them; slurmdbd hears of a start within seconds.
    expected = {one: ("vision", 2, False), two: ("physics", 0, True), more: ("physics", 2, False)}
    with contextlib.suppress(AssertionError):
        wait_until(lambda: accounted().items() >= expected.items(), timeout_s=120, what="sacct", every_s=0.5)
    assert accounted().items() >= expected.items()


def test_that_slurm_keeps_of_a_moved_job_only_limits_on_gpus(
    site: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in site.env.items():
        monkeypatch.setenv(name, value)
    slurm = CommandClient(site.runner())
    sacctmgr(site.runner(), "modify", "account", "vision", "set", "GrpTRES=cpu=1,gres/gpu=1")
    sacctmgr(site.runner(), "modify", "account", "physics", "set", "GrpTRES=cpu=1")

    def submitted(account: str) -> str:
        options = ("--gpus=1", "--cpus-per-gpu=2", f"--account={account}", "--output=/dev/null", "--mem=100")
        return slurm.submit(SLEEP, options, [], {**os.environ, **site.env})

    def waits_until(job_id: str, condition: Callable[[SlurmJob], bool], what: str) -> None:
        def seen() -> bool:
            found = slurm.read_job(job_id)
            return found is not None and condition(found)

        wait_until(seen, timeout_s=120, what=f"{job_id} to {what}")

    both, cpus_only = submitted("vision"), submitted("physics")
    for job_id in (both, cpus_only):
        waits_until(job_id, lambda job: job.reason == "AssocGrpCpuLimit", "meet the limit on CPUs")
    slurm.reshape(both, JobShape(num_gpus=2, cpus_per_gpu=3))
    slurm.reshape(cpus_only, JobShape(num_gpus=2, cpus_per_gpu=3))
    waits_until(cpus_only, lambda job: job.state is JobState.RUNNING, "run above the limit on CPUs")
    waits_until(both, lambda job: job.reason == "AssocGrpGRES", "meet the limit on GPUs")

    found = examine_limits(limits_of(Config(), slurm)())
    assert found.verdict is Verdict.WARN
    assert "account physics (cpu)" in found.text
