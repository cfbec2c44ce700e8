"""Real ranks with a real store: reports, checkpoint requests, waiting, stopping, superseded runs."""

from __future__ import annotations

import functools
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import pollux_slurm.torch as pt
from pollux_slurm.model import BatchChoice
from pollux_slurm.model import ReallocationStep as Step
from pollux_slurm.store.contract.interface import RunPhase, Store
from pollux_slurm.torch.checkpoint.checkpoint_file import read_checkpoint
from pollux_slurm.torch.session.current_session import current_session
from tests.stopping import stop_between_writes
from tests.store.builders import plan, registration, token_of
from tests.torch import scripts
from tests.torch.ranks import Run, start
from tests.torch.single_replica import Numbers, Trainee
from tests.torch.training.test_resume import assert_same_training
from tests.waiting import wait_until

pytestmark = pytest.mark.torch

MANY_EPOCHS = 100_000
# In each step, so that a training that waits for something leaves the cores to others.
PAUSE_S = 0.01
LONG_WAIT = {"POLLUX_AGENT_EPOCH_END_WAIT_S": "600", "POLLUX_DAEMON_CHECKPOINT_TIMEOUT_S": "1200"}


class Job:
    """One job with a token file, a checkpoint directory and a registered row in the store."""

    def __init__(self, directory: Path, store: Store, url: str) -> None:
        self.directory, self.store = directory, store
        self.store_file = Path(url.removeprefix("sqlite:///"))
        self.checkpoints = directory / "job"
        self.checkpoints.mkdir()
        token = directory / "token"
        token.write_text(token_of(1))
        token.chmod(0o600)
        self.env = {
            "POLLUX_TOKEN_FILE": str(token),
            "POLLUX_JOB_ID": "1",
            "POLLUX_STORE_URL": url,
            "POLLUX_AGENT_REPORT_INTERVAL_S": "0.3",
            "POLLUX_AGENT_POLL_INTERVAL_S": "0.1",
        }
        registered = registration(1)
        store.jobs.register([registered], at=registered.submitted_at)

    def start(
        self, num_ranks: int, num_epochs: int, restart: int, *, pause_s: float = PAUSE_S, **more: Any
    ) -> Run:
        train = functools.partial(scripts.train, pause_s=pause_s, **more)
        arguments = (str(self.checkpoints), num_epochs, 16)
        return start(self.directory, num_ranks, train, *arguments, env=self.env, restart_count=restart)

    def request(self, restart: int) -> int:
        move = plan(self.store, 1, from_restart_count=restart)
        assert self.advance(move.id, Step.PLANNED, Step.CHECKPOINT_REQUESTED)
        return move.id

    def advance(self, request: int, expected: Step, step: Step) -> bool:
        at = registration(1).submitted_at
        return self.store.journal.advance(request, step, expected=expected, at=at, reason="a test's")

    def step_of(self, request: int) -> Step:
        return next(move.step for move in self.store.journal.reallocations() if move.id == request)

    def await_phase(self, phase: RunPhase, run_number: int = 0) -> None:
        def reached() -> bool:
            runs = {run.run_number: run.phase for run in self.store.history.runs("1")}
            return runs.get(run_number) is phase

        wait_until(reached, timeout_s=120, what=f"run {run_number} to be {phase}")

    def await_report(self, run_number: int) -> None:
        """Wait until a run that has reported reports again."""

        def reported_at() -> Any:
            return next(r.last_report_at for r in self.store.history.runs("1") if r.run_number == run_number)

        before = reported_at()
        wait_until(lambda: reported_at() > before, timeout_s=120, what=f"a report of run {run_number}")


@pytest.fixture
def job(tmp_path: Path, store: Store, store_url: str) -> Job:
    return Job(tmp_path, store, store_url)


def test_that_a_requested_checkpoint_is_confirmed_and_the_ranks_wait_to_be_stopped(job: Job) -> None:
    run = job.start(2, MANY_EPOCHS, 0)
    job.await_phase(RunPhase.TRAINING)
    request = job.request(0)
    wait_until(lambda: job.step_of(request) is Step.CHECKPOINTED, timeout_s=120, what="confirmation")
    job.await_phase(RunPhase.WAITING)
    files = scripts.checkpoints(job.checkpoints)
    run.terminate()
    assert run.wait() == [143, 143], run.output()
    # Nothing was trained or written after the confirmed checkpoint.
    assert scripts.checkpoints(job.checkpoints) == files


def test_that_a_job_moved_by_request_ends_as_if_it_had_never_moved(job: Job) -> None:
    reference = start(job.directory, 1, scripts.train, None, 40, 16).succeed()[0]
    # Slow enough not to be through before the request, on any machine: some 200 steps.
    run = job.start(3, 40, 0, pause_s=0.7)
    job.await_phase(RunPhase.TRAINING)
    request = job.request(0)
    wait_until(lambda: job.step_of(request) is Step.CHECKPOINTED, timeout_s=120, what="confirmation")
    assert job.advance(request, Step.CHECKPOINTED, Step.REQUEUED)
    wait_until(lambda: "job 1 is moved" in run.output(), timeout_s=120, what="the line with the reason")
    run.terminate()
    assert run.wait() == [143] * 3, run.output()
    ours = [line for line in run.output().splitlines() if "job 1 " in line]
    assert len(ours) == 1
    moved = r"pollux: job 1 is moved from n0:2 to n1:3\+n2:1, (in|after) .* \(a test's\): its .*"
    assert re.fullmatch(moved, ours[0])
    following = job.start(2, 40, 1, pause_s=0.0)
    for result in following.succeed():
        assert result["run_number"] == 1
        assert_same_training(result, reference)
    job.await_phase(RunPhase.FINISHED, run_number=1)
    goes_on = "pollux: job 1 goes on from the checkpoint of its run 1, with 2 replicas"
    assert following.output().splitlines().count(goes_on) == 1


def test_that_training_goes_on_when_the_request_is_withdrawn(job: Job) -> None:
    run = job.start(2, MANY_EPOCHS, 0)
    job.await_phase(RunPhase.TRAINING)
    request = job.request(0)
    wait_until(lambda: job.step_of(request) is Step.CHECKPOINTED, timeout_s=120, what="confirmation")
    job.await_phase(RunPhase.WAITING)
    waited_at = job.store.history.runs("1")[0].num_steps
    assert job.advance(request, Step.CHECKPOINTED, Step.ROLLED_BACK)
    job.await_phase(RunPhase.TRAINING)
    wait_until(
        lambda: job.store.history.runs("1")[0].num_steps > waited_at, timeout_s=120, what="further steps"
    )
    run.terminate()
    assert run.wait() == [143, 143], run.output()


def test_that_a_superseded_run_neither_writes_nor_goes_on(job: Job) -> None:
    leftover = job.start(2, MANY_EPOCHS, 0)
    job.await_phase(RunPhase.TRAINING)
    stop_between_writes(leftover.signal, job.store_file)
    run = job.start(1, MANY_EPOCHS, 1)
    job.await_phase(RunPhase.TRAINING, run_number=1)
    leftover.signal(signal.SIGCONT)
    assert leftover.wait() == [1, 1]
    assert "SupersededRunError" in leftover.output()
    run.terminate()
    assert run.wait() == [143], run.output()
    assert {name.split("-")[0] for name in scripts.checkpoints(job.checkpoints)} == {"000001"}


def test_that_reports_have_model_progress_and_allocation(job: Job) -> None:
    run = job.start(2, MANY_EPOCHS, 0, autoscale=(64, 4, 16, True))

    def fitted() -> Any:
        record = job.store.jobs.get("1")
        ready = record.model is not None and record.model.throughput is not None
        return record if ready and record.model.statistics is not None and record.sample is not None else None

    record = wait_until(fitted, timeout_s=120, what="a fitted model")
    assert record.model.limits.initial_batch_size == 16
    assert record.model.limits.max_batch_size == 64
    assert record.model.max_gpus_seen == 2
    assert record.run.gpus_per_node == (2,)
    assert record.run.first_step_s > 0
    assert record.sample.total_epochs == MANY_EPOCHS
    assert record.sample.progress > 0
    run.terminate()
    assert run.wait() == [143, 143], run.output()
    assert [path.name for path in (job.checkpoints / "runs").iterdir()] == ["000000.json"]


def train_impatiently(directory: str) -> None:
    """Train; after a checkpoint on request wait only a moment to be stopped."""
    pt.init_process_group(checkpoint_dir=directory, checkpoint_interval_s=None, max_wait_s=0.3)
    boundary = current_session().boundary
    reporter = boundary.reporter
    if reporter is not None:
        # The moment begins when the store has its answer, however long that takes.
        def is_confirmed() -> bool:
            request = reporter.checkpoint_request
            return request is not None and reporter.is_confirmed(request)

        boundary.monotonic = lambda: time.monotonic() if is_confirmed() else 0.0
    trainee = Trainee(lr=0.0)
    loader = pt.AdaptiveDataLoader(Numbers(1000), batch_size=4)
    for _ in pt.remaining_epochs_until(MANY_EPOCHS):
        for inputs, _ in loader:
            trainee.step(inputs)
            time.sleep(PAUSE_S)


def train_and_validate(directory: str, marks: str) -> list[str]:
    """Train an epoch, then validate until a file appears, in a loop without checkpoint points."""
    pt.init_process_group(checkpoint_dir=directory, checkpoint_interval_s=None)
    folder = Path(marks)
    trainee = Trainee()
    loader = pt.AdaptiveDataLoader(Numbers(8), batch_size=4)
    seen = []
    for epoch in pt.remaining_epochs_until(2):
        for inputs, _ in loader:
            trainee.count(inputs)
            seen.append(f"{epoch}: {trainee.weight}")
        # Another weight meanwhile, as with an average of weights: it must not be in the checkpoint.
        with torch.no_grad():
            kept = trainee.model.weight.clone()
            trainee.model.weight.fill_(1000.0)
            (folder / f"validating-{epoch}").touch()
            wait_until((folder / f"go-{epoch}").exists, timeout_s=600, what="the end of the validation")
            trainee.model.weight.copy_(kept)
    return seen


@pytest.mark.parametrize("is_stopped_meanwhile", [False, True])
def test_that_a_request_during_a_long_validation_is_answered_meanwhile(
    job: Job, is_stopped_meanwhile: bool
) -> None:
    arguments = (str(job.checkpoints), str(job.directory))
    # It is not to wait for the epoch's end.
    env = {**job.env, "POLLUX_AGENT_EPOCH_END_WAIT_S": "0"}
    run = start(job.directory, 2, train_and_validate, *arguments, env=env)
    wait_until((job.directory / "validating-0").exists, timeout_s=120, what="the validation")
    job.await_phase(RunPhase.TRAINING)
    request = job.request(0)
    wait_until(lambda: job.step_of(request) is Step.CHECKPOINTED, timeout_s=120, what="confirmation")
    # A daemon that saw it training would take the checkpoint for old.
    job.await_phase(RunPhase.WAITING)
    if is_stopped_meanwhile:
        run.signal(signal.SIGKILL)
        run.wait()
    else:
        (job.directory / "go-0").touch()
        # At the next boundary the ranks wait to be stopped.
        run.terminate()
        assert run.wait() == [143, 143], run.output()
    (job.directory / "go-0").touch()
    resumed = start(job.directory, 2, train_and_validate, *arguments, env=job.env, restart_count=1)
    # Reported twice, it has polled between: the request was for the start before, and none is open for it.
    job.await_phase(RunPhase.TRAINING, run_number=1)
    job.await_report(run_number=1)
    (job.directory / "go-1").touch()
    assert resumed.succeed() == [["1: -3.0", "1: -4.0"]] * 2


def test_that_a_request_during_a_validation_waits_for_the_end_of_the_epoch(job: Job) -> None:
    arguments = (str(job.checkpoints), str(job.directory))
    env = {**job.env, **LONG_WAIT}
    run = start(job.directory, 2, train_and_validate, *arguments, env=env)
    wait_until((job.directory / "validating-0").exists, timeout_s=120, what="the validation")
    job.await_phase(RunPhase.TRAINING)
    request = job.request(0)
    for _ in range(3):
        job.await_report(run_number=0)
    assert job.step_of(request) is Step.CHECKPOINT_REQUESTED
    (job.directory / "go-0").touch()
    wait_until(lambda: job.step_of(request) is Step.CHECKPOINTED, timeout_s=120, what="confirmation")
    run.terminate()
    assert run.wait() == [143, 143], run.output()
    # It is the next epoch that begins: nothing of the one before runs again.
    (job.directory / "validating-0").unlink()
    (job.directory / "go-1").touch()
    resumed = start(job.directory, 2, train_and_validate, *arguments, env=job.env, restart_count=1)
    assert resumed.succeed() == [["1: -3.0", "1: -4.0"]] * 2
    assert not (job.directory / "validating-0").exists()


def train_with_sums_of_its_own(directory: str, num_epochs: int) -> None:
    """Train as the README's ordinary script does: sums begin at 0 in each epoch, and are divided after it."""
    pt.init_process_group(checkpoint_dir=directory, checkpoint_interval_s=None)
    trainee = Trainee(lr=0.0)
    loader = pt.AdaptiveDataLoader(Numbers(64), batch_size=4)
    for _ in pt.remaining_epochs_until(num_epochs):
        total, n = 0.0, 0
        for inputs, indices in loader:
            trainee.step(inputs)
            time.sleep(PAUSE_S)
            total += float(indices.sum())
            n += len(indices)
        assert (n, total / n) == (64, 31.5), f"{n} examples"


def test_that_moves_of_a_script_with_short_epochs_leave_its_own_sums_whole(job: Job) -> None:
    arguments = (str(job.checkpoints), MANY_EPOCHS)
    # However slow this machine is.
    env = {**job.env, **LONG_WAIT}
    for restart in range(2):
        run = start(job.directory, 1, train_with_sums_of_its_own, *arguments, env=env, restart_count=restart)
        job.await_phase(RunPhase.TRAINING, run_number=restart)
        request = job.request(restart)
        wait_until(lambda move=request: job.step_of(move) is Step.CHECKPOINTED, timeout_s=120, what="it")
        assert job.advance(request, Step.CHECKPOINTED, Step.REQUEUED)
        run.terminate()
        assert run.wait() == [143], run.output()
        assert job.advance(request, Step.REQUEUED, Step.ROLLED_BACK)
    states = [
        read_checkpoint(job.checkpoints / "checkpoints" / name)
        for name in scripts.checkpoints(job.checkpoints)
    ]
    assert {state["loader-0"]["start"] for state in states} == {0}
    assert {len(state["loader-0"]["ended"]) for state in states} == {1}


def test_that_training_goes_on_when_nobody_stops_it_and_answers_each_request_once(job: Job) -> None:
    run = start(job.directory, 2, train_impatiently, str(job.checkpoints), env=job.env)
    job.await_phase(RunPhase.TRAINING)
    request = job.request(0)
    wait_until(lambda: job.step_of(request) is Step.CHECKPOINTED, timeout_s=120, what="confirmation")
    answered_at = job.store.history.runs("1")[0].num_steps
    wait_until(
        lambda: job.store.history.runs("1")[0].num_steps > answered_at + 100,
        timeout_s=120,
        what="further steps",
    )
    assert len(scripts.checkpoints(job.checkpoints)) == 1
    run.terminate()
    assert run.wait() == [143, 143], run.output()


def test_that_a_store_that_goes_away_stops_nothing(job: Job, store_url: str) -> None:
    run = job.start(2, MANY_EPOCHS, 0)
    job.await_phase(RunPhase.TRAINING)
    database = Path(store_url.removeprefix("sqlite:///"))
    away = database.with_name("away.db")
    job.store.close()
    database.rename(away)
    run.terminate()
    assert run.wait() == [143, 143], run.output()
    assert len(scripts.checkpoints(job.checkpoints)) == 1


def test_that_what_fits_by_its_kind_bounds_a_jobs_next_run(job: Job) -> None:
    # Two replicas have 8 examples each, and one would have 16.
    job.store.jobs.record_fitting({"1": 8})
    run = job.start(2, MANY_EPOCHS, 0)
    job.await_phase(RunPhase.TRAINING)
    # The answer to that report is known at a later step, and so before a later report.
    for _ in range(2):
        job.await_report(0)
    request = job.request(0)
    wait_until(lambda: job.step_of(request) is Step.CHECKPOINTED, timeout_s=120, what="confirmation")
    run.terminate()
    assert run.wait() == [143, 143], run.output()
    model = job.store.jobs.get("1").model
    assert model is not None
    assert (model.limits.max_atomic, model.limits.accumulation) == (None, False)
    num_parameters = sum(one.numel() for one in scripts.make_model("sgd")[0].parameters())
    assert (model.num_parameters, model.precision) == (num_parameters, "float32")
    following = job.start(1, MANY_EPOCHS, 1)
    job.await_phase(RunPhase.TRAINING, run_number=1)
    job.await_report(1)
    record = job.store.jobs.get("1")
    following.terminate()
    assert following.wait() == [143], following.output()
    assert record.model is not None
    limits = record.model.limits
    assert (limits.max_atomic, limits.accumulation, limits.failed_atomic) == (8, True, None)
    assert record.sample is not None
    assert record.sample.batch == BatchChoice(global_batch_size=16, atomic_batch_size=8, accumulation_steps=1)
