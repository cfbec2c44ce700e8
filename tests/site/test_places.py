"""A job that moves in a busy queue keeps its place, and Slurm's refusals end where it ran."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from pollux_slurm.model import Allocation, JobState, SlurmAnswer
from pollux_slurm.model import ReallocationStep as Step
from pollux_slurm.sandbox.cluster import Sandbox
from pollux_slurm.sandbox.files import NodeGroup
from pollux_slurm.store.sql_store import SqlStore
from tests.conftest import running_sandbox
from tests.daemon.test_on_slurm import PATIENT, SLEEP, RealHarness, holds, started
from tests.waiting import wait_until

pytestmark = [pytest.mark.full, pytest.mark.slurm]


@pytest.fixture(scope="module")
def site(slurm_programs: None) -> Iterator[Sandbox]:
    """Two nodes of four GPUs."""
    with running_sandbox(NodeGroup(num_nodes=2)) as running:
        yield running


class Site(RealHarness):
    """A harness that also submits plain jobs, and changes the partition."""

    def __init__(self, store: SqlStore, sandbox: Sandbox) -> None:
        super().__init__(store, sandbox)
        self.plain: list[str] = []

    def submit_plain(self, *options: str) -> str:
        given = ("--output=/dev/null", "--mem=100", *options)
        self.plain.append(self.slurm.submit(SLEEP, given, [], self.env))
        return self.plain[-1]

    def limit(self, setting: str) -> None:
        assert self.runner.run("scontrol", "update", "PartitionName=main", setting).exit_code == 0

    def is_running(self, job_id: str) -> bool:
        return self.job(job_id).state is JobState.RUNNING

    def close(self) -> None:
        for job_id in self.plain:
            self.slurm.cancel(job_id)
        for setting in ("MaxNodes=UNLIMITED", "MaxCPUsPerNode=UNLIMITED"):
            self.limit(setting)
        super().close()


@pytest.fixture
def harness(clean_store: SqlStore, site: Sandbox) -> Iterator[Site]:
    made = Site(clean_store, site)
    yield made
    made.close()


def fills_n1(harness: Site) -> None:
    hog = harness.submit_plain("--gpus=4", "--nodelist=n1", "--time=60")
    wait_until(lambda: harness.is_running(hog), timeout_s=60, what="the other node to be full")


def test_that_a_sweep_gets_what_a_job_gives_up_and_no_more(harness: Site) -> None:
    """What a requeue leaves for a moment goes to the queue, unless the place is kept."""
    fills_n1(harness)
    daemon = harness.daemon()
    job_id = started(harness, daemon, "--gpus=4", "--nodelist=n0", "--time=30")
    sweep = [harness.submit_plain("--gpus=1", "--ntasks=1", "--time=10") for _ in range(6)]
    harness.targets = {job_id: {"n0": 2}}
    harness.until(daemon, lambda: bool(harness.store.journal.reallocations()), "the move")
    harness.until(daemon, lambda: not harness.open_moves(), "the journal to close")
    (move,) = harness.store.journal.reallocations(job_id)
    assert (move.step, move.reason) == (Step.CONFIRMED, None)
    assert holds(harness, job_id, {"n0": 2})()
    wait_until(
        lambda: sum(harness.is_running(one) for one in sweep) == 2, timeout_s=60, what="two of the sweep"
    )
    daemon.tick()
    assert not harness.store.journal.prioritised()
    shown = {job.job_id: job.priority or 0 for job in harness.slurm.snapshot().jobs}
    assert shown[job_id] < min(shown[one] for one in sweep), "an ordinary priority again"
    assert "No reservations" in harness.runner.run("scontrol", "show", "reservation").stdout


def test_that_a_job_grows_behind_a_wide_one_that_waits(harness: Site) -> None:
    fills_n1(harness)
    daemon = harness.daemon()
    job_id = started(harness, daemon, "--gpus=1", "--nodelist=n0", "--time=30")
    wide = harness.submit_plain("--nodes=2", "--gpus-per-node=4", "--time=60")
    wait_until(lambda: harness.job(wide).reason == "Resources", timeout_s=60, what="the wide job to wait")
    harness.targets = {job_id: {"n0": 2}}
    harness.until(daemon, holds(harness, job_id, {"n0": 2}), "the job to grow")
    harness.until(daemon, lambda: not harness.open_moves(), "the journal to close")
    assert [move.step for move in harness.store.journal.reallocations(job_id)] == [Step.CONFIRMED]


@pytest.mark.parametrize(
    ("setting", "target", "reason"),
    [
        ("MaxCPUsPerNode=2", {"n0": 3}, "BadConstraints"),
        ("MaxNodes=1", {"n0": 1, "n1": 1}, "PartitionNodeLimit"),
    ],
)
def test_that_a_shape_against_the_partition_s_rules_is_tried_once(
    harness: Site, setting: str, target: dict[str, int], reason: str
) -> None:
    harness.limit(setting)
    daemon = harness.daemon(config=dataclasses.replace(PATIENT, interval_s=1.0))
    job_id = started(harness, daemon, "--gpus=1", "--nodelist=n0")
    harness.targets = {job_id: target}
    harness.until(daemon, lambda: bool(harness.store.jobs.get(job_id).refusals), "the refusal")
    harness.until(daemon, lambda: not harness.open_moves(), "the job to be back")
    for _ in range(3):
        daemon.round()
        daemon.tick()
    job = harness.job(job_id)
    assert (job.state, job.allocation) == (JobState.RUNNING, Allocation.of({"n0": 1}))
    assert len(harness.store.journal.reallocations(job_id)) == 1
    (refusal,) = harness.store.jobs.get(job_id).refusals
    assert (refusal.allocation, refusal.answer) == (Allocation.of(target), SlurmAnswer.NEVER)
    assert refusal.reason == reason
    (move,) = harness.store.journal.reallocations(job_id)
    assert (move.step, move.target) == (Step.CONFIRMED, Allocation.of({"n0": 1}))
