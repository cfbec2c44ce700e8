"""A submitted function's job: its state, result, exception and logs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pollux_slurm.config import load_config
from pollux_slurm.errors import FunctionError, JobFailedError, PolluxError, SlurmUnavailable, UnknownJobError
from pollux_slurm.functions.files import JOB, Outcome, read_json, read_outcomes
from pollux_slurm.system.private_files import write_private
from pollux_slurm.system.process_control import ProcessRecord, is_running, send_signal

if TYPE_CHECKING:
    from pollux_slurm.store.contract.interface import JobRecord

R = TypeVar("R")

_OVER = frozenset(
    {
        *("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "BOOT_FAIL"),
        # Slurm shows PREEMPTED where preemption cancels jobs; one that it requeues is PENDING.
        *("DEADLINE", "LAUNCH_FAILED", "PREEMPTED", "RECONFIG_FAIL", "REVOKED", "UNKNOWN"),
    }
)
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 10.0
# Another machine's files may appear late on a shared file system.
_FILES_TIMEOUT_S = 30.0
_NUM_LOG_LINES = 30


@dataclass(frozen=True)
class SubmittedJob(Generic[R]):
    r"""Follow a job that calls a function in each of its replicas. `submit` returns one.

    Args:
        job_id: Slurm's job id, or a name that begins with `local-`.
        folder: The folder with the job's files, by which `load` finds it again.
        stdout_file: The file of its output; a pattern of Slurm's is replaced.
        stderr_file: The file of its error output.
        script: What was submitted, or the command of a local job.
        process: That of a job on this machine; None for a job of Slurm.

    Examples:
        >>> import pollux_slurm
        >>> def train(learning_rate):
        ...     print("trains")
        ...     return learning_rate / 2
        >>> job = pollux_slurm.submit(train, 0.1, cluster="local", min_gpus=1)
        >>> job.wait(timeout_s=600)
        'COMPLETED'
        >>> job.result(), job.results(), job.exception()
        (0.05, [0.05], None)
        >>> job.stdout(), "trains" in job.logs(), job.stderr().count("Traceback")
        ('trains\n', True, 0)
        >>> later = pollux_slurm.SubmittedJob.load(job.folder)  # in another program, too
        >>> later.done(), later.state
        (True, 'COMPLETED')
        >>> later.cancel()  # it is over: nothing happens
    """

    job_id: str
    folder: Path
    stdout_file: Path = field(repr=False)
    stderr_file: Path = field(repr=False)
    script: str = field(repr=False)
    process: ProcessRecord | None = field(default=None, repr=False)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> SubmittedJob[Any]:
        """Return the job that was submitted with a folder.

        Args:
            folder: The `folder` of the job that `submit` returned.

        Raises:
            FileNotFoundError: No job was submitted with it.
        """
        content = read_json(Path(folder) / JOB)
        process = content["process"]
        return cls(
            job_id=content["job_id"],
            folder=Path(folder),
            stdout_file=Path(content["stdout"]),
            stderr_file=Path(content["stderr"]),
            script=content["script"],
            process=None if process is None else ProcessRecord(**process),
        )

    @property
    def state(self) -> str:
        """The state in Slurm's words; `UNKNOWN` when Slurm has forgotten the job.

        Raises:
            SlurmUnavailable: slurmctld does not answer.
        """
        if self.process is not None:
            return self._local_state(self.process)
        from pollux_slurm.slurm.commands.job_state import read_state_name
        from pollux_slurm.slurm.connection import make_runner

        return (
            read_state_name(self.job_id, make_runner(load_config(os.environ).slurm, os.environ)) or "UNKNOWN"
        )

    def done(self) -> bool:
        """Return whether the job is over. A job that is being moved is not.

        Raises:
            SlurmUnavailable: slurmctld does not answer.
        """
        return self.state in _OVER

    def wait(self, timeout_s: float | None = None) -> str:
        """Wait until the job is over, and return its state. An outage of slurmctld is waited for.

        Args:
            timeout_s: The most seconds to wait; None: as long as it takes.

        Raises:
            TimeoutError: The job is not over by then.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        pause_s, state = _FIRST_PAUSE_S, "not known"
        while True:
            with contextlib.suppress(SlurmUnavailable):
                state = self.state
                if state in _OVER:
                    return state
            left_s = pause_s if deadline is None else deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(
                    f"job {self.job_id} is not over after {timeout_s:g} s; its state is {state}"
                )
            time.sleep(min(pause_s, left_s))
            pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)

    def result(self, timeout_s: float | None = None) -> R:
        """Wait for the job, and return what the function returned on rank 0.

        Args:
            timeout_s: The most seconds to wait; None: as long as it takes.

        Raises:
            FunctionError: The function raised an exception on any rank.
            JobFailedError: The job ended without a result.
            TimeoutError: The job is not over by then.
        """
        return self._outcomes(timeout_s)[0].value()  # type: ignore[no-any-return]

    def results(self, timeout_s: float | None = None) -> list[R]:
        """Wait for the job, and return what the function returned on each rank of the last run.

        Args:
            timeout_s: The most seconds to wait; None: as long as it takes.

        Raises:
            FunctionError: The function raised an exception on any rank.
            JobFailedError: The job ended, and a rank has left no result.
            TimeoutError: The job is not over by then.
        """
        outcomes = self._outcomes(timeout_s)
        if not _are_all(outcomes):
            there = {outcome.rank for outcome in outcomes}
            missing = [rank for rank in range(outcomes[0].world_size) if rank not in there]
            raise JobFailedError(f"rank {missing[0]} of job {self.job_id} has left no result")
        return [outcome.value() for outcome in outcomes]

    def exception(self, timeout_s: float | None = None) -> FunctionError | JobFailedError | None:
        """Wait for the job, and return the exception that `result` would raise; None for a result.

        Args:
            timeout_s: The most seconds to wait; None: as long as it takes.

        Raises:
            TimeoutError: The job is not over by then.
        """
        try:
            self._outcomes(timeout_s)
        except JobFailedError as error:
            return error
        return None

    def stdout(self) -> str:
        """Return what the job's processes have printed so far, in all runs."""
        return _text(self.stdout_file)

    def stderr(self) -> str:
        """Return their error output so far, with the lines of the library."""
        return _text(self.stderr_file)

    def logs(self) -> str:
        """Return stdout and stderr, one after the other."""
        if self.stderr_file == self.stdout_file:
            return self.stdout()
        return self.stdout() + self.stderr()

    def cancel(self) -> None:
        """Cancel the job. Does nothing when it is over."""
        if self.process is not None:
            if is_running(self.process):
                write_private(self.folder / "cancelled", b"")
                send_signal(self.process, signal.SIGTERM)
            return
        from pollux_slurm.slurm.connection import connect

        connect(load_config(os.environ).slurm, os.environ).cancel(self.job_id)

    def explain(self) -> str:
        """Return what `pollux explain` prints about the job.

        Raises:
            PolluxError: The command failed; the message is the command's.
        """
        done = subprocess.run(
            [sys.executable, "-m", "pollux_slurm", "explain", self.job_id],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise PolluxError(done.stderr.strip().removeprefix("pollux: "))
        return done.stdout

    def record(self) -> JobRecord | None:
        """Return the store's record of the job; None while the daemon has not registered it.

        Raises:
            ConfigError: No store is set.
            StoreUnavailable: The database cannot be reached.
        """
        from pollux_slurm.store import open_store

        store = open_store(load_config(os.environ).require_store_url())
        try:
            return store.jobs.get(self.job_id)
        except UnknownJobError:
            return None
        finally:
            store.close()

    def _outcomes(self, timeout_s: float | None) -> list[Outcome]:
        """Wait for the job; return its outcomes with rank 0's first, if none is an error."""
        state = self.wait(timeout_s)
        give_up_at = time.monotonic() + _FILES_TIMEOUT_S
        outcomes = read_outcomes(self.folder)
        while state == "COMPLETED" and not _are_all(outcomes) and time.monotonic() < give_up_at:
            time.sleep(_FIRST_PAUSE_S)
            outcomes = read_outcomes(self.folder)
        # The first error: the other ranks commonly fail because of it.
        for outcome in sorted(outcomes, key=lambda outcome: outcome.at):
            if outcome.error is not None:
                failed = FunctionError(
                    f"rank {outcome.rank} of job {self.job_id} failed:\n{outcome.error.rstrip()}",
                    rank=outcome.rank,
                    traceback_text=outcome.error,
                )
                with contextlib.suppress(Exception):  # its class may be of a module that is missing here
                    failed.__cause__ = outcome.value()
                raise failed
        if not outcomes or outcomes[0].rank != 0:
            raise JobFailedError(
                f"job {self.job_id} ended without a result of its function: its state is {state}. "
                f"The end of its log ({self.stderr_file}):\n{self._end_of_log()}"
            )
        return outcomes

    def _end_of_log(self) -> str:
        if not self.stderr_file.exists():
            return "(no such file: has the job started, and do its nodes share this folder?)"
        lines = self.logs().splitlines()[-_NUM_LOG_LINES:]
        return "\n".join(lines) or "(empty)"

    def _local_state(self, process: ProcessRecord) -> str:
        if is_running(process):
            return "RUNNING"
        outcomes = read_outcomes(self.folder)
        if outcomes and outcomes[0].rank == 0 and all(outcome.error is None for outcome in outcomes):
            return "COMPLETED"
        return "CANCELLED" if (self.folder / "cancelled").exists() else "FAILED"


def _are_all(outcomes: list[Outcome]) -> bool:
    return bool(outcomes) and len(outcomes) == outcomes[0].world_size


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""
