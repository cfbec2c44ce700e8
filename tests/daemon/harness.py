"""A test harness for the daemon: Slurm in memory, a real SQLite store, agents that answer, one clock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from pollux_slurm.config import DaemonConfig, MovesConfig, PolicyConfig
from pollux_slurm.daemon.loop import Daemon
from pollux_slurm.daemon.observe.accounted_runs import PastRuns, no_past_runs
from pollux_slurm.daemon.round import Settings
from pollux_slurm.daemon.service.systemd_notify import Notifier
from pollux_slurm.errors import SlurmCommandError, StaleRunError, UnknownJobError
from pollux_slurm.model import (
    Allocation,
    Decision,
    JobDecision,
    JobState,
    JobTerms,
    Problem,
    ReallocationStep,
    SlurmJob,
)
from pollux_slurm.slurm.client import SlurmClient
from pollux_slurm.slurm.merging_client import MergingClient
from pollux_slurm.slurm.parsing.comment_terms import encode_comment
from pollux_slurm.store.agent_api.token_hashes import hash_token
from pollux_slurm.store.contract.interface import CheckpointConfirmation, Report, RunPhase, Store
from tests.daemon.builders import MODEL
from tests.fakes.slurm import FakeClock, FakeSlurm, fake_node

CONFIG = DaemonConfig(
    interval_s=4,
    checkpoint_timeout_s=20,
    requeue_timeout_s=30,
    start_timeout_s=20,
    first_report_timeout_s=40,
    lease_ttl_s=10,
)


class Agent:
    """The agent in a job: it reports, and confirms requested checkpoints if it `answers`."""

    def __init__(self, harness: Harness, job_id: str, token: str) -> None:
        self.harness, self.job_id, self.token = harness, job_id, token
        self.answers = True
        self.waits_to_be_stopped = True
        self.reports = True
        self.counts: tuple[int, ...] | None = None
        self.epoch = 0
        self.total_epochs: int | None = None
        self.model = MODEL
        self.fitting_atomic: int | None = None
        self._sequence = 0
        self._progress, self._acted_at = 0.0, harness.clock()
        self._confirmed: int | None = None

    def act(self) -> None:
        self.act_on(self.harness.job(self.job_id))

    def act_on(self, job: SlurmJob) -> None:
        """Act with the job as Slurm was just seen to show it."""
        if job.state is not JobState.RUNNING or not self.reports:
            return
        run, at = job.restart_count, self.harness.clock()
        try:
            request = self.harness.store.agent.poll(self.token, run, at=at).checkpoint_request
            new = request is not None and self.answers and request != self._confirmed
            self._sequence += 1
            # About as fast as MODEL predicts.
            self._progress += 10.0 * job.allocation.num_gpus * (at - self._acted_at).total_seconds()
            self._acted_at = at
            self.fitting_atomic = self.harness.store.agent.report(
                self.token,
                Report(
                    run_number=run,
                    restart_count=run,
                    sequence=self._sequence,
                    phase=RunPhase.WAITING
                    if request and self.answers and self.waits_to_be_stopped
                    else RunPhase.TRAINING,
                    gpus_per_node=self.counts or tuple(gpus for _, gpus in job.allocation.gpus_by_node),
                    model=self.model,
                    throughput=100.0,
                    efficiency=0.9,
                    num_steps=5,
                    progress=self._progress,
                    epoch=self.epoch,
                    total_epochs=self.total_epochs,
                    first_step_s=3.0,
                    checkpoint=CheckpointConfirmation(request_id=request, blocked_s=0.5, size_bytes=1000)
                    if new
                    else None,
                ),
                at=at,
            )
            self._confirmed = request if new else self._confirmed
        except (UnknownJobError, StaleRunError):
            return


class Harness:
    """Jobs, nodes and daemon on an empty store. `targets` is the decision of the next rounds, by job."""

    def __init__(self, store: Store, *, nodes: int = 2, kill_s: float = 0.2) -> None:
        self.clock = FakeClock()
        self.slurm = FakeSlurm([fake_node(f"n{i}") for i in range(nodes)], clock=self.clock, kill_s=kill_s)
        self.store = store
        self.agents: dict[str, Agent] = {}
        self.targets: Mapping[str, dict[str, int]] = {}
        self.stop = threading.Event()

    @property
    def client(self) -> SlurmClient:
        """A client that shows an anchor and its wings as one job; `slurm` shows each alone."""
        return MergingClient(self.slurm)

    def daemon(
        self,
        *,
        slurm: SlurmClient | None = None,
        store: Store | None = None,
        owner: str = "d",
        shadow: bool = False,
        policy: PolicyConfig | None = None,
        moves: MovesConfig | None = None,
        decide: Callable[[Problem], Decision] | None = None,
        config: DaemonConfig = CONFIG,
        notifier: Notifier | None = None,
        past_runs: PastRuns = no_past_runs,
        stop: threading.Event | None = None,
        **more: Any,
    ) -> Daemon:
        return Daemon(
            slurm=slurm or self.client,
            store=store or self.store,
            settings=Settings(
                config=config if not shadow else DaemonConfig(interval_s=4, shadow=True),
                policy=policy or PolicyConfig(),
                moves=moves or MovesConfig(),
                decide=decide or self.decide,
            ),
            owner=owner,
            wall_clock=self.clock,
            monotonic=lambda: self.clock.now.timestamp(),
            stop=stop or self.stop,
            notifier=notifier,
            past_runs=past_runs,
            **more,
        )

    def decide(self, problem: Problem) -> Decision:
        """Give each job its allocation in `targets`, else its current one."""
        return Decision(
            jobs=tuple(
                JobDecision(
                    job_id=job.job_id,
                    allocation=job.current
                    if job.pinned or job.job_id not in self.targets
                    else Allocation.of(self.targets[job.job_id]),
                    speedup=1.0,
                    goodput=None,
                    penalty=1.0,
                    batch=None,
                    bound_by="nothing",
                    runner_up=None,
                    runner_up_speedup=None,
                )
                for job in problem.jobs
            ),
            fitness=1.0,
            solver="test",
        )

    def submit(
        self,
        *,
        gpus: int = 1,
        token: str | None = None,
        user_id: int = 1000,
        allow_unconfirmed: bool = False,
        minutes: int | None = None,
        total_minutes: int | None = None,
        slice_minutes: int | None = None,
        kind: str | None = None,
    ) -> str:
        token = token or f"{user_id}-token-{len(self.agents)}"
        terms = JobTerms(
            token_sha256=hash_token(token),
            user_id=user_id,
            min_gpus=1,
            max_gpus=8,
            allow_unconfirmed=allow_unconfirmed,
            slice_s=None if minutes is None or total_minutes is None else (slice_minutes or minutes) * 60,
            total_s=None if total_minutes is None else total_minutes * 60,
            kind=kind,
        )
        options = [f"--gpus={gpus}", "--cpus-per-gpu=1", "--mem-per-gpu=100"]
        if minutes is not None:
            options.append(f"--time={minutes}")
        options.append(f"--comment={encode_comment('', terms)}")
        job_id = self.slurm.submit("#!/bin/sh\n", options, [], {})
        self.slurm.set_job(job_id, user_id=user_id)
        self.agents[job_id] = Agent(self, job_id, token)
        return job_id

    def submit_unmanaged(self, *, gpus: int) -> str:
        """Submit an unmanaged job."""
        return self.slurm.submit("#!/bin/sh\n", [f"--gpus={gpus}"], [], {})

    def refuse_shapes(self, *, times: int) -> None:
        """Let Slurm refuse the next shapes, and an unmanaged job take n0 before the job is released."""
        refusals = iter([SlurmCommandError("no such configuration")] * times)

        def refuse(method: str) -> None:
            if method == "reshape" and (error := next(refusals, None)) is not None:
                raise error

        self.slurm.on_command = refuse
        self.slurm.before["release"] = lambda: self.submit_unmanaged(gpus=4)

    def job(self, job_id: str) -> SlurmJob:
        job = self.client.read_job(job_id)
        assert job is not None
        return job

    def last_step(self, job_id: str) -> tuple[ReallocationStep, str | None]:
        """The step and the reason of a job's last reallocation."""
        move = self.store.journal.reallocations(job_id)[-1]
        return move.step, move.reason

    def runs_again(self, job_id: str, restart_count: int) -> bool:
        """Whether a job runs after so many requeues, and is not being moved."""
        job = self.job(job_id)
        return (job.state, job.restart_count) == (JobState.RUNNING, restart_count) and not self.open_moves()

    def run_until(
        self,
        daemon: Daemon,
        *,
        until: Callable[[], bool] = lambda: False,
        seconds: float = 90,
        round_every_s: int = 8,
    ) -> None:
        """Advance the clock in seconds: agents act, the daemon ticks, now and then there is a round."""
        for second in range(int(seconds)):
            if until():
                return
            for agent in self.agents.values():
                agent.act()
            if second % round_every_s == 0:
                daemon.round()
            daemon.tick()
            self.clock.advance(1)

    def tick(self, daemon: Daemon, *, times: int) -> None:
        """Advance the clock by seconds, with a tick at each and no round."""
        for _ in range(times):
            self.clock.advance(1)
            daemon.tick()

    def has_stepped(self, job_id: str) -> bool:
        """Whether the store has a step of the job."""
        try:
            run = self.store.jobs.get(job_id).run
        except UnknownJobError:
            return False
        return run is not None and run.num_steps > 0

    def open_moves(self) -> int:
        return len(self.store.journal.open_reallocations())

    def is_at(self, step: ReallocationStep) -> bool:
        """Whether the oldest open move is at `step`."""
        moves = self.store.journal.open_reallocations()
        return bool(moves) and moves[0].step is step


class SimulatedStop(threading.Event):
    """A stop event on the harness's clock: waiting advances it and calls `then`."""

    def __init__(self, harness: Harness, then: Callable[[float], None]) -> None:
        super().__init__()
        self.harness, self.then = harness, then
        self.began = harness.clock()

    def wait(self, timeout: float | None = None) -> bool:
        self.harness.clock.advance(timeout or 0.0)
        self.then((self.harness.clock() - self.began).total_seconds())
        return self.is_set()


def running(
    harness: Harness,
    config: DaemonConfig,
    then: Callable[[float], None],
    *,
    policy: PolicyConfig | None = None,
    **more: Any,
) -> Daemon:
    """Return a daemon on the harness's clock; `then` is called at each wait and may set `harness.stop`."""
    harness.stop = SimulatedStop(harness, then)
    return Daemon(
        slurm=harness.client,
        store=harness.store,
        settings=Settings(config=config, policy=policy or PolicyConfig(), decide=harness.decide),
        owner="d",
        wall_clock=harness.clock,
        monotonic=lambda: harness.clock.now.timestamp(),
        stop=harness.stop,
        **more,
    )
