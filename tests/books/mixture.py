"""A mixture of jobs on a private Slurm under a real daemon, each with an event between two rounds."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

from pollux_slurm.daemon.loop import Daemon
from pollux_slurm.daemon.observe.accounted_runs import PastRuns, no_past_runs
from pollux_slurm.daemon.round import Settings
from pollux_slurm.model import JobState, JobTerms, SlurmJob
from pollux_slurm.sandbox.cluster import Sandbox
from pollux_slurm.slurm.parsing.comment_terms import encode_comment
from pollux_slurm.store.agent_api.token_hashes import hash_token
from pollux_slurm.store.contract.interface import Store
from tests.daemon.harness import CONFIG, Agent
from tests.daemon.test_on_slurm import RealHarness
from tests.waiting import wait_until

PATIENT = "#!/bin/sh\nexec sleep 900\n"
SHORT = "#!/bin/sh\nsleep 3\n"
FAILING = "#!/bin/sh\nsleep 2\nexit 3\n"
# Ignores SIGTERM: it ends only when slurmd kills it, KillWait later.
STUBBORN = "#!/bin/sh\ntrap '' TERM\nwhile :; do sleep 0.2; done\n"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One job of the mixture: a description of what happened to it, and the GPUs of each of its runs."""

    job_id: str
    what: str
    gpus: int


class Mixture(RealHarness):
    """Submits jobs and changes them between two rounds."""

    def __init__(
        self,
        store: Store,
        sandbox: Sandbox,
        *,
        past_runs: PastRuns = no_past_runs,
        options: tuple[str, ...] = (),
        log: Callable[[str], None] = lambda _text: None,
    ) -> None:
        super().__init__(store, sandbox)
        self._past_runs, self._options, self._log = past_runs, options, log
        self.played: list[Played] = []
        self.daemon_now = self._daemon()

    def _daemon(self) -> Daemon:
        return Daemon(
            slurm=self.slurm,
            store=self.store,
            settings=Settings(config=dataclasses.replace(CONFIG, lease_ttl_s=60), decide=self.decide),
            owner="books",
            wall_clock=lambda: datetime.now(timezone.utc),
            monotonic=time.monotonic,
            stop=self.stop,
            past_runs=self._past_runs,
        )

    # ------------------------------------------------------------------------------------------- one job

    def play(self, what: str, script: str, *, gpus: int, options: tuple[str, ...] = ()) -> str:
        """Submit a job and wait until it runs, without a round."""
        token = f"{os.geteuid()}-token-{len(self.played)}"
        terms = JobTerms(token_sha256=hash_token(token), user_id=os.geteuid(), min_gpus=1, max_gpus=8)
        given = (
            "--output=/dev/null", "--requeue", "--cpus-per-gpu=1", "--mem-per-gpu=50", f"--gpus={gpus}",
            f"--comment={encode_comment('', terms)}", *self._options, *options,
        )  # fmt: skip
        job_id = self.slurm.submit(script, given, [], self.env)
        self._log(f"job {job_id}: {what}")
        self.played.append(Played(job_id=job_id, what=what, gpus=gpus))
        self.agents[job_id] = Agent(self, job_id, token)
        self.wait(job_id, lambda job: job.state is not JobState.PENDING, "to start")
        return job_id

    def wait(self, job_id: str, condition: Callable[[SlurmJob], bool], what: str) -> None:
        """Wait for what Slurm shows of a job."""
        wait_until(lambda: condition(self.job(job_id)), timeout_s=300, what=f"job {job_id} {what}")

    def wait_for_the_end(self, *job_ids: str) -> None:
        for job_id in job_ids:
            self.wait(job_id, lambda job: job.state.is_over, "to end")

    def let_run(self, job_id: str, seconds: float) -> None:
        """Wait until a job has run for so long, by Slurm's clock."""
        self.wait(
            job_id,
            lambda job: (
                job.started_at is not None and (self.clock() - job.started_at).total_seconds() > seconds
            ),
            f"to run for {seconds:g} s",
        )

    def let_pass(self, seconds: float) -> None:
        """Wait for some time without a round."""
        since = self.clock()
        wait_until(
            lambda: (self.clock() - since).total_seconds() > seconds,
            timeout_s=300,
            what=f"{seconds:g} s to pass",
        )

    def scontrol(self, *words: str) -> None:
        answer = self.runner.run("scontrol", *words)
        assert answer.exit_code == 0, answer.error_text

    def round(self) -> None:
        """Run one round, and let the agents report."""
        result = self.daemon_now.round()
        assert result.skipped is None, result.skipped
        for agent in self.agents.values():
            agent.act()

    def start_again(self, job_id: str, restarts: int) -> None:
        """Let a requeued job start, and wait until it has."""
        self.wait(
            job_id,
            lambda job: job.state is JobState.PENDING and job.restart_count == restarts,
            "to be in the queue",
        )
        self.scontrol("update", f"JobId={job_id}", "StartTime=now+2")
        self.scontrol("release", job_id)
        self.wait(job_id, lambda job: job.state is JobState.RUNNING, "to start again")

    # -------------------------------------------------------------------------------------------- the play

    def run_all(self, *, limits: bool) -> None:
        """Play everything. With `limits`, one job runs into its time limit, which takes Slurm 60 to 90 s."""
        long = self.play("runs all the time, and is cancelled", PATIENT, gpus=1)
        limited = ()
        if limits:
            limited = (
                self.play("runs into its time limit", PATIENT, gpus=1, options=("--time=1",)),
                self.play("and so does one that is not requeued", PATIENT, gpus=1, options=("--time=1",)),
            )
        self.round()
        self._come_and_go()
        self._requeue_externally()
        self._suspend()
        self._move()
        killed = self.play("is killed", PATIENT, gpus=2)
        self.let_run(killed, 2)
        self.slurm.cancel(killed)
        self.wait_for_the_end(killed)
        self.round()
        self.wait_for_the_end(*limited)
        self.slurm.cancel(long)
        self.wait_for_the_end(long)
        self.round()

    def _come_and_go(self) -> None:
        short = [self.play("comes and goes between two rounds", SHORT, gpus=gpus) for gpus in (2, 1)]
        failing = self.play("fails", FAILING, gpus=1)
        self.wait_for_the_end(*short, failing)
        self.round()

    def _requeue_externally(self) -> None:
        held = self.play("is requeued externally and held in the queue, unseen", PATIENT, gpus=2)
        stubborn = self.play("is requeued externally, and slow to die", STUBBORN, gpus=1)
        twice = self.play("is requeued twice between two rounds", PATIENT, gpus=2)
        self.round()
        self.let_pass(4)
        for job_id in (held, stubborn, twice):
            self.scontrol("requeuehold", job_id)
        self.start_again(twice, 1)
        self.let_run(twice, 3)
        self.scontrol("requeuehold", twice)
        self.start_again(twice, 2)
        for job_id in (held, stubborn):
            self.start_again(job_id, 1)
        self.round()
        for job_id in (held, stubborn, twice):
            self.let_run(job_id, 2)
            self.slurm.cancel(job_id)
        self.wait_for_the_end(held, stubborn, twice)
        self.round()

    def _suspend(self) -> None:
        paused = self.play("is suspended twice, once unseen", PATIENT, gpus=2)
        self.let_run(paused, 2)
        self.round()
        for look in (True, False):
            self.scontrol("suspend", paused)
            if look:
                self.round()
            self.let_pass(4)
            self.scontrol("resume", paused)
            self.wait(paused, lambda job: job.state is JobState.RUNNING, "to go on")
        self.slurm.cancel(paused)
        self.wait_for_the_end(paused)
        self.round()

    def _move(self) -> None:
        moved = self.play("is moved by the daemon", PATIENT, gpus=2, options=("--nodelist=n0",))
        self.until(self.daemon_now, lambda: self.has_stepped(moved), f"job {moved} to train")
        self.let_run(moved, 3)
        self.targets = {moved: {"n1": 2}}
        self.until(
            self.daemon_now,
            lambda: self.job(moved).allocation.nodes == ("n1",) and not self.open_moves(),
            f"job {moved} to be moved",
        )
        self.targets = {}
        self.slurm.cancel(moved)
        self.wait_for_the_end(moved)
        self.round()

    def vanish(self) -> None:
        """Let a job end and be forgotten by slurmctld without a round; MinJobAge is 2 s from here on."""
        lost = self.play("is forgotten by Slurm before anybody looked", SHORT, gpus=2)
        self.round()
        self.agents.clear()
        conf = Path(self.env["SLURM_CONF"])
        text = conf.read_text(encoding="utf-8")
        conf.write_text(text.replace("MinJobAge=300", "MinJobAge=2"), encoding="utf-8")
        self.scontrol("reconfigure")
        wait_until(
            lambda: self.slurm.read_job(lost) is None, timeout_s=180, what="Slurm to forget", every_s=1.0
        )
        self.round()
        self.round()
