"""The daemon on a real Slurm, with jobs that only sleep and simulated agents."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from pollux_slurm.agent.environment.token import new_token
from pollux_slurm.config import DaemonConfig, PolicyConfig
from pollux_slurm.daemon.decide import lent_gpus
from pollux_slurm.daemon.loop import Daemon
from pollux_slurm.daemon.round import Settings
from pollux_slurm.model import (
    Allocation,
    Decision,
    JobState,
    JobTerms,
    Problem,
    ReallocationCause,
    SlurmJob,
)
from pollux_slurm.model import ReallocationStep as Step
from pollux_slurm.policy import decide
from pollux_slurm.sandbox.cluster import Sandbox
from pollux_slurm.sandbox.files import NodeGroup
from pollux_slurm.slurm.commands.command_client import CommandClient
from pollux_slurm.slurm.parsing.comment_terms import encode_comment
from pollux_slurm.store.agent_api.token_hashes import hash_token
from pollux_slurm.store.contract.interface import Store
from pollux_slurm.store.sql_store import SqlStore
from tests.conftest import running_sandbox
from tests.daemon.harness import CONFIG, Agent, Harness
from tests.waiting import cancel_all, wait_until

# Exits with an error on SIGUSR1, as a training script that cannot run in its new shape.
SLEEP = """#!/bin/sh
trap 'exit 7' USR1
echo run ${SLURM_RESTART_COUNT:-0} listens
while :; do sleep 0.2; done
"""
# Long enough for a slow machine: no step of a move should time out here.
PATIENT = dataclasses.replace(
    CONFIG,
    checkpoint_timeout_s=300,
    requeue_timeout_s=300,
    start_timeout_s=300,
    first_report_timeout_s=300,
)


class RealHarness(Harness):
    """A harness with a real Slurm and real time; store and agents are those of the harness."""

    def __init__(self, store: Store, sandbox: Sandbox) -> None:
        super().__init__(store)
        self.runner = sandbox.runner()
        self.slurm = CommandClient(self.runner)  # type: ignore[assignment]
        self.clock = lambda: datetime.now(timezone.utc)  # type: ignore[assignment]
        self.env = {**os.environ, **sandbox.env}

    def daemon(  # type: ignore[override]
        self,
        *,
        policy: PolicyConfig | None = None,
        decide: Callable[[Problem], Decision] | None = None,
        config: DaemonConfig = PATIENT,
        **_: object,
    ) -> Daemon:
        return Daemon(
            slurm=self.slurm,
            store=self.store,
            settings=Settings(config=config, policy=policy or PolicyConfig(), decide=decide or self.decide),
            owner="d",
            wall_clock=self.clock,
            monotonic=time.monotonic,
            stop=self.stop,
        )

    def submit_at(self, *options: str, slice_s: int | None = None, total_s: int | None = None) -> str:
        # Slurm still shows jobs of earlier tests.
        token = new_token(os.geteuid())
        terms = JobTerms(
            token_sha256=hash_token(token),
            user_id=os.geteuid(),
            min_gpus=1,
            max_gpus=8,
            slice_s=slice_s,
            total_s=total_s,
        )
        given = ["--output=/dev/null", "--requeue", "--cpus-per-gpu=1", "--mem-per-gpu=100", *options]
        job_id = self.slurm.submit(SLEEP, [*given, f"--comment={encode_comment('', terms)}"], [], self.env)
        self.agents[job_id] = Agent(self, job_id, token)
        return job_id

    def until(self, daemon: Daemon, condition: Callable[[], bool], what: str) -> None:
        """Let the daemon and the agents act until the condition holds."""
        rounds = iter(range(1_000_000))

        def act() -> bool:
            for agent in self.agents.values():
                agent.act()
            if next(rounds) % 10 == 0:
                daemon.round()
            daemon.tick()
            return condition()

        wait_until(act, timeout_s=120, what=what, every_s=0.1)

    def close(self) -> None:
        cancel_all(self.slurm, self.agents)


@pytest.fixture
def harness(clean_store: SqlStore, sandbox: Sandbox) -> Iterator[RealHarness]:
    made = RealHarness(clean_store, sandbox)
    yield made
    made.close()


def started(harness: RealHarness, daemon: Daemon, *options: str) -> str:
    job_id = harness.submit_at(*options)
    harness.until(daemon, lambda: harness.has_stepped(job_id), f"job {job_id} to train")
    return job_id


def holds(harness: RealHarness, job_id: str, gpus_by_node: dict[str, int]) -> Callable[[], bool]:
    def condition() -> bool:
        job: SlurmJob = harness.job(job_id)
        return job.allocation == Allocation.of(gpus_by_node)

    return condition


def test_that_a_job_is_paused_and_comes_back_in_another_shape(harness: RealHarness) -> None:
    daemon = harness.daemon(policy=PolicyConfig(pauses=True))
    job_id = started(harness, daemon, "--gpus=2", "--nodelist=n0")
    harness.targets = {job_id: {}}
    harness.until(daemon, lambda: harness.store.jobs.get(job_id).paused_at is not None, "the pause")
    job = harness.job(job_id)
    assert (job.state, job.held, job.restart_count) == (JobState.PENDING, False, 1)
    assert job.begins_at is not None
    assert (job.begins_at - harness.clock()).total_seconds() > CONFIG.pause_ttl_s - 600
    harness.targets = {job_id: {"n1": 3}}
    harness.until(daemon, holds(harness, job_id, {"n1": 3}), "the job to run on n1")
    harness.until(daemon, lambda: not harness.open_moves(), "the journal to close")
    assert [move.step for move in harness.store.journal.reallocations(job_id)] == [Step.CONFIRMED] * 2
    assert harness.store.jobs.get(job_id).paused_at is None


def test_that_a_growth_gives_way_to_a_job_that_comes_before_its_stop_and_before_its_first_step(
    harness: RealHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lent_gpus, "_STARTS_FOR", timedelta(hours=1))
    daemon = harness.daemon()
    job_id = started(harness, daemon, "--gpus=1", "--nodelist=n0")
    harness.targets = {job_id: {"n0": 2}}
    harness.until(daemon, holds(harness, job_id, {"n0": 2}), "the job to grow")
    harness.until(daemon, lambda: not harness.open_moves(), "the job to train there")

    def come() -> str:
        script = "#!/bin/sh\nexec sleep 600\n"
        given = ["--output=/dev/null", "--nodelist=n0", "--gpus-per-node=3", "--mem-per-gpu=100"]
        return harness.slurm.submit(script, given, [], harness.env)

    def starts(other: str) -> Callable[[], bool]:
        return lambda: harness.job(other).state is JobState.RUNNING

    # Asked for a checkpoint, it does not answer before the other job has come.
    agent = harness.agents[job_id]
    agent.answers = False
    harness.targets = {job_id: {"n0": 4}}
    harness.until(daemon, lambda: harness.is_at(Step.CHECKPOINT_REQUESTED), "a request")
    first = come()
    harness.targets = {job_id: {"n0": 1}}
    try:
        harness.until(
            daemon, lambda: len(harness.store.journal.reallocations(job_id)) == 3, "the growth to give way"
        )
        agent.answers = True
        harness.until(daemon, starts(first), "the first job to start")
        harness.until(daemon, lambda: not harness.open_moves(), "the job to train beside it")
        *_, growth, makes_room = harness.store.journal.reallocations(job_id)
        assert (growth.step, growth.target.num_gpus) == (Step.ROLLED_BACK, 4)
        assert (makes_room.step, makes_room.checkpoint_waived) == (Step.CONFIRMED, False)
    finally:
        harness.slurm.cancel(first)

    # Once more, and the next job comes while it starts in its target.
    harness.targets = {job_id: {"n0": 4}}
    stopped = (Step.REQUEUED, Step.RESHAPED, Step.RELEASED)
    harness.until(daemon, lambda: any(map(harness.is_at, stopped)), "the job to be stopped")
    agent.reports = False
    harness.until(daemon, lambda: harness.is_at(Step.RUNNING), "the job to start in its target")
    second = come()
    harness.targets = {job_id: {"n0": 1}}
    try:
        harness.until(daemon, starts(second), "the second job to start")
        agent.reports = True
        harness.until(daemon, lambda: not harness.open_moves(), "the job to train beside it")
        *_, growth, makes_room = harness.store.journal.reallocations(job_id)
        assert (growth.step, growth.target.num_gpus) == (Step.FAILED, 4)
        assert (makes_room.step, makes_room.checkpoint_waived) == (Step.CONFIRMED, True)
        assert harness.job(job_id).allocation == Allocation.of({"n0": 1})
    finally:
        harness.slurm.cancel(second)


def test_that_a_job_that_fails_in_its_new_shape_comes_back_in_its_old_one(
    harness: RealHarness, tmp_path: Path
) -> None:
    daemon, log = harness.daemon(), tmp_path / "log"
    job_id = started(harness, daemon, "--gpus=2", "--nodelist=n0", f"--output={log}")
    harness.targets = {job_id: {"n1": 3}}
    harness.until(daemon, lambda: harness.is_at(Step.REQUEUED), "the requeue")
    harness.agents[job_id].reports = False
    harness.until(daemon, lambda: harness.is_at(Step.RUNNING), "the job to run on n1")
    wait_until(lambda: "run 1 listens" in log.read_text(), timeout_s=120, what="the script to take signals")
    assert harness.runner.run("scancel", "--signal=USR1", "--batch", job_id).exit_code == 0
    harness.until(
        daemon, lambda: harness.store.journal.reallocations(job_id)[0].step is Step.FAILED, "the failed move"
    )
    harness.agents[job_id].reports = True
    harness.until(daemon, holds(harness, job_id, {"n0": 2}), "the job to run on n0 again")
    harness.until(daemon, lambda: not harness.open_moves(), "the journal to close")
    failed_move, back = harness.store.journal.reallocations(job_id)
    assert failed_move.job_failed
    assert failed_move.reason == "failed before its first step: exit code 7 in n1:3"
    assert (back.step, harness.job(job_id).restart_count) == (Step.CONFIRMED, 2)


def test_that_a_job_near_its_limit_goes_on_with_another_slice_of_its_total(harness: RealHarness) -> None:
    """With 300 s for a checkpoint, 200 s before the end of 10 minutes is near: of 3 at once."""
    daemon = harness.daemon(config=PATIENT)
    job_id = harness.submit_at("--gpus=2", "--nodelist=n0", "--time=10", slice_s=600, total_s=900)
    harness.until(daemon, lambda: harness.has_stepped(job_id), f"job {job_id} to train")
    assert not harness.store.journal.reallocations(job_id)
    assert harness.runner.run("scontrol", "update", f"JobId={job_id}", "TimeLimit=3").exit_code == 0
    harness.until(daemon, lambda: harness.job(job_id).restart_count == 1, "the renewal")
    harness.until(daemon, lambda: not harness.open_moves(), "the journal to close")
    (move,) = harness.store.journal.reallocations(job_id)
    assert (move.step, move.target) == (Step.CONFIRMED, Allocation.of({"n0": 2}))
    assert move.entered_at(Step.CHECKPOINTED) is not None
    job = harness.job(job_id)
    assert (job.state, job.allocation, job.time_limit_s) == (JobState.RUNNING, move.target, 600.0)


def test_that_a_type_is_asked_for_by_name_and_cpus_bound_what_is_given(harness: RealHarness) -> None:
    """The job requests a100, so only n3 fits. An unmanaged job leaves 6 of its 16 CPUs: 3 GPUs' worth."""
    hog = ("--output=/dev/null", "--ntasks=1", "--cpus-per-task=10", "--nodelist=n3", "--mem=100")
    unmanaged = harness.slurm.submit(SLEEP, hog, [], harness.env)
    harness.agents[unmanaged] = Agent(harness, unmanaged, "none")
    harness.agents[unmanaged].reports = False
    wait_until(
        lambda: harness.job(unmanaged).state is JobState.RUNNING,
        timeout_s=120,
        what="the unmanaged job to run",
    )
    # The young job may move: a restart costs little over the horizon.
    daemon = harness.daemon(policy=PolicyConfig(penalty="amortised", horizon_s=1e6), decide=decide)
    job_id = started(harness, daemon, "--gpus=a100:1", "--cpus-per-gpu=2")
    harness.until(daemon, holds(harness, job_id, {"n3": 3}), "the job to have what its CPUs allow")
    harness.until(daemon, lambda: not harness.open_moves(), "the journal to close")
    job = harness.job(job_id)
    assert (job.requested_gpu_type, job.cpus_by_node) == ("a100", (("n3", 6),))
    assert {move.step for move in harness.store.journal.reallocations(job_id)} == {Step.CONFIRMED}
    shown = harness.runner.run("scontrol", "show", "job", job_id).stdout
    assert "TresPerJob=gres:gpu:a100:3" in shown or "TresPerJob=gres/gpu:a100:3" in shown, shown


def test_that_a_job_whose_start_slurm_ends_is_started_again(harness: RealHarness) -> None:
    """A start within the second of its own kill: "Job credential revoked" (22.05.8)."""
    daemon = harness.daemon()
    job_id = started(harness, daemon, "--gpus=2", "--nodelist=n0")
    harness.until(daemon, lambda: bool(harness.store.jobs.get(job_id).allocation), "a round to see it run")
    for _ in range(10):
        time_to_the_full_second()
        harness.runner.run("scontrol", "requeuehold", job_id)
        wait_until(lambda: harness.job(job_id).state is JobState.PENDING, timeout_s=120, what="the requeue")
        harness.runner.run("scontrol", "update", f"JobId={job_id}", "StartTime=now")
        harness.runner.run("scontrol", "release", job_id)
        wait_until(lambda: harness.job(job_id).state is not JobState.PENDING, timeout_s=120, what="a start")
        with contextlib.suppress(AssertionError):  # it may run for a moment before it is lost
            wait_until(lambda: harness.job(job_id).state is JobState.FAILED, timeout_s=3, what="its loss")
            break
    else:
        pytest.skip("none of ten starts was ended by Slurm")
    assert harness.job(job_id).exit_code == 1
    harness.until(daemon, lambda: harness.job(job_id).state is JobState.RUNNING, "another start")
    harness.until(daemon, lambda: not harness.open_moves(), "the journal to close")
    (move,) = harness.store.journal.reallocations(job_id)
    assert (move.step, move.target) == (Step.CONFIRMED, Allocation.of({"n0": 2}))
    assert move.cause is ReallocationCause.FAILED_START


def time_to_the_full_second() -> None:
    """Wait until a second has just begun."""
    wait_until(lambda: time.time() % 1 < 0.1, timeout_s=120, what="a full second", every_s=0.01)


# Fails where a file exists; Slurm then drains the node, requeues the job, and holds it.
PROLOG = """#!/bin/sh
: > "FOLDER/asked-$SLURMD_NODENAME"
if [ -e FOLDER/fail ]; then exit 1; fi
"""


def test_that_a_job_that_slurm_holds_after_a_failed_launch_is_released(
    clean_store: SqlStore, slurm_programs: None
) -> None:
    with running_sandbox(NodeGroup(num_nodes=2)) as sandbox:
        folder = Path(sandbox.env["SLURM_CONF"]).parent
        prolog, conf = folder / "prolog", folder / "slurm.conf"
        prolog.write_text(PROLOG.replace("FOLDER", str(folder)))
        prolog.chmod(0o755)
        conf.write_text(f"{conf.read_text()}\nProlog={prolog}\n")
        harness = RealHarness(clean_store, sandbox)
        harness.runner.run("scontrol", "reconfigure")

        def is_known() -> bool:
            harness.runner.run("srun", "--nodes=2", "true")
            return all((folder / f"asked-n{number}").exists() for number in range(2))

        wait_until(is_known, timeout_s=120, what="both nodes to know of the prolog")
        (folder / "fail").touch()
        job_id = harness.submit_at("--gpus=2")
        wait_until(lambda: harness.job(job_id).held_by_slurm, timeout_s=120, what="Slurm to hold the job")
        (folder / "fail").unlink()
        daemon = harness.daemon()
        harness.until(daemon, lambda: harness.has_stepped(job_id), "the job to train")
        harness.until(daemon, lambda: not harness.open_moves(), "the journal to close")
        (move,) = harness.store.journal.reallocations(job_id)
        assert move.step is Step.CONFIRMED
        assert move.cause is ReallocationCause.HELD_BY_SLURM
        harness.close()
