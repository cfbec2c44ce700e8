"""Commands of a user for one end-to-end test, with its own store and daemon, on a shared sandbox."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from pollux_slurm.errors import UnknownJobError
from pollux_slurm.model import ReallocationStep
from pollux_slurm.slurm.client import SlurmClient
from pollux_slurm.store.contract.interface import JobRecord, Reallocation, Store
from tests.waiting import wait_until

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[2]
POLLUX = (sys.executable, "-m", "pollux_slurm")
DIGITS = ROOT / "examples" / "digits"

DEADLINE_S = 600.0
"""For whatever a test waits: however busy the machine, only what hangs comes near it."""

FAST = {
    "POLLUX_AGENT_REPORT_INTERVAL_S": "1",
    "POLLUX_AGENT_POLL_INTERVAL_S": "0.3",
    "POLLUX_DAEMON_TICK_S": "0.5",
    # A busy machine measures slow restarts; whether a move is worth it must not depend on that here.
    "POLLUX_POLICY_PENALTY": "amortised",
    "POLLUX_POLICY_HORIZON_S": "36000",
    # Noisy measurements must not cause moves.
    "POLLUX_POLICY_HYSTERESIS": "0.15",
    # A busy machine may take a minute to start eight ranks.
    "POLLUX_DAEMON_CHECKPOINT_TIMEOUT_S": "120",
    "POLLUX_DAEMON_START_TIMEOUT_S": "120",
}


@dataclass(slots=True)
class UserCommands:
    """Runs commands as a user types them, and reads their results.

    `jobs_url` is the store as jobs reach it, where that is another login than the daemon's.
    """

    directory: Path
    slurm: SlurmClient
    slurm_env: Mapping[str, str]
    store: Store
    store_url: str
    jobs_url: str | None = None
    process: subprocess.Popen[bytes] | None = None
    submitted: list[str] = field(default_factory=list)

    @property
    def env(self) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}:{self.slurm_env.get('PATH', os.environ['PATH'])}"
        fixed = {"PATH": path, "POLLUX_STORE_URL": self.store_url, "POLLUX_EXAMPLE_DIR": str(DIGITS)}
        return {**os.environ, **self.slurm_env, **FAST, **fixed}

    # ----------------------------------------------------------------------------------------------- commands

    def start_daemon(self, *options: str, interval_s: float = 3.0) -> None:
        assert self.process is None
        with (self.directory / "daemon.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*POLLUX, "daemon", "--interval", str(interval_s), *options],
                env=self.env,
                stdout=log,
                stderr=log,
            )

    def stop_daemon(self, signum: int = signal.SIGTERM) -> int:
        assert self.process is not None
        process, self.process = self.process, None
        process.send_signal(signum)
        return process.wait(timeout=300)

    def pollux(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command as its user does."""
        return subprocess.run(
            [*POLLUX, *arguments], env=self.env, capture_output=True, text=True, timeout=300, check=False
        )

    def sbatch(self, *arguments: str) -> str:
        """Submit with `pollux sbatch`; return the job's id."""
        done = subprocess.run(
            [*POLLUX, "sbatch", "--parsable", f"--output={self.directory}/%j.log", *arguments],
            env={**self.env, "POLLUX_STORE_URL": self.jobs_url or self.store_url},
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        self.submitted.append(done.stdout.strip())
        return self.submitted[-1]

    def digits(
        self, name: str, *options: str, max_gpus: int = 8, epochs: int = 60, pass_s: str = "0.01,0.004"
    ) -> str:
        """Submit the digits example; `pass_s` is its emulated device time (fixed, per example)."""
        return self.sbatch(
            "--min-gpus=1",
            f"--max-gpus={max_gpus}",
            f"--job-name={name}",
            f"--checkpoint-dir={self.directory}/checkpoints/{name}",
            *options,
            str(DIGITS / "train.sbatch"),
            f"--epochs={epochs}",
            f"--emulate-device={pass_s}",
            f"--result={self.directory}/{name}.json",
            "--audit",
        )

    def plain(self, body: str, *options: str) -> str:
        """Submit an unmanaged job."""
        done = subprocess.run(
            ["sbatch", "--parsable", "--output=/dev/null", *options],
            input=f"#!/bin/bash\n{body}\n",
            env=self.env,
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        self.submitted.append(done.stdout.strip())
        return self.submitted[-1]

    # ---------------------------------------------------------------------------------------------- questions

    def record(self, job_id: str) -> JobRecord | None:
        try:
            return self.store.jobs.get(job_id)
        except UnknownJobError:
            return None

    def gpus(self, job_id: str) -> int:
        """Return the job's GPUs now, by Slurm."""
        job = self.slurm.read_job(job_id)
        return job.allocation.num_gpus if job is not None and not job.state.is_over else 0

    def wait(self, condition: Callable[[], T], what: str, *, every_s: float = 0.2) -> T:
        """Return the first true value of `condition`; fail with the logs of the daemon and the jobs."""
        try:
            return wait_until(condition, timeout_s=DEADLINE_S, what=what, every_s=every_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log()}") from None

    def wait_gpus(self, job_id: str, at_least: int) -> None:
        self.wait(lambda: self.gpus(job_id) >= at_least, f"job {job_id} to hold {at_least} GPUs", every_s=0.5)

    def wait_confirmed(self, job_id: str, *, shrink: bool) -> Reallocation:
        """Wait until a growth (or a shrink) of the running job is confirmed; return it."""

        def confirmed() -> Reallocation | None:
            for move in self.store.journal.reallocations(job_id):
                shrank = move.target.num_gpus < move.source.num_gpus
                if move.step is ReallocationStep.CONFIRMED and move.moves_running and shrank is shrink:
                    return move
            return None

        kind = "shrink" if shrink else "growth"
        found = self.wait(confirmed, f"a confirmed {kind} of job {job_id}", every_s=0.5)
        assert found is not None
        return found

    def ended(self, move: Reallocation) -> Reallocation | None:
        """Wait until a reallocation has ended; return it as the journal has it."""
        now = next(one for one in self.store.journal.reallocations(move.slurm_job_id) if one.id == move.id)
        return now if now.step.is_end else None

    def wait_over(self, job_id: str) -> JobRecord:
        """Wait until the daemon has recorded the end of the job."""

        def over() -> JobRecord | None:
            record = self.record(job_id)
            return record if record is not None and record.state.is_over else None

        found = self.wait(over, f"the end of job {job_id}", every_s=0.5)
        assert found is not None
        return found

    def log(self, lines: int = 30) -> str:
        """Return the last lines of the daemon and of each job."""
        files = [self.directory / "daemon.log", *(self.directory / f"{job}.log" for job in self.submitted)]
        parts = []
        for file in files:
            tail = file.read_text().splitlines()[-lines:] if file.exists() else ["(none)"]
            parts.append("\n".join([f"==> {file.name}", *tail]))
        return "\n".join(parts)

    def close(self) -> None:
        """Stop the daemon and cancel what is left of this test's jobs, so that the sandbox is empty again."""
        if self.process is not None:
            self.stop_daemon()
        for job_id in self.submitted:
            self.slurm.cancel(job_id)
        self.wait(
            lambda: all(node.used_gpus == 0 for node in self.slurm.snapshot().nodes),
            "the sandbox to become empty",
        )
        self.store.close()
