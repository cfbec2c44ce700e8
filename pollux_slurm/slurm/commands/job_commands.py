"""Reads and commands of one job: its state, requeue, release and cancel.

Here the two backends differ. `SlurmJobCommands` runs squeue, scontrol and scancel, each in a process of its
own; `PySlurmJobCommands` in `pyslurm/` calls libslurm.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from pollux_slurm.errors import (
    JobStateError,
    SlurmCommandError,
    SlurmError,
    SlurmReadError,
    SlurmUnavailable,
    UsageError,
)
from pollux_slurm.model import JobState
from pollux_slurm.slurm.commands.runner import CommandResult, CommandRunner
from pollux_slurm.slurm.parsing.job_json import state_of
from pollux_slurm.whole_numbers import whole_number

_CONTROLLER_UNREACHABLE = re.compile(
    r"unable to contact slurm controller|socket timed out|connection (refused|failure|timed out)"
    r"|communication.*(failure|error)|backup controller|zero bytes were transmitted|munge"
    r"|protocol authentication error|invalid authentication credential|slurmctld.*not responding",
    re.IGNORECASE,
)
_NO_SUCH_JOB = re.compile(r"invalid job id", re.IGNORECASE)
_WRONG_STATE = re.compile(
    r"no longer pending|is pending execution|already (finished|completing)|already completing or completed"
    r"|job is not running|invalid job id",
    re.IGNORECASE,
)
# --Format, because --format has no letter for the restart count. No column is ever empty or has a space.
_STATUS_COLUMNS = (
    "JobID",
    "ArrayJobID",
    "ArrayTaskID",
    "State",
    "PriorityLong",
    "MinCpus",
    "UserID",
    "RestartCnt",
)
_STATUS_FORMAT = ",".join(f"{column}:24" for column in _STATUS_COLUMNS)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """What a command needs to know of a job; no field contains text of a user's.

    `address` names the job in commands: the plain id of an array task may also mean the whole array.
    """

    address: str
    state: JobState
    held: bool
    min_cpus_per_node: str
    user_id: int
    restart_count: int


class JobCommands(Protocol):
    """Reads and commands for one job. Errors are those of `SlurmClient`."""

    def read_status(self, job_id: str) -> JobStatus | None:
        """Return the job's status; None when slurmctld does not know it (any more)."""

    def requeue_hold(self, job_id: str, address: str) -> None:
        """Requeue a running, failed or completed job, held."""

    def release(self, job_id: str, address: str) -> None:
        """Release a held job."""

    def cancel(self, job_id: str, address: str) -> None:
        """Cancel the job."""


class SlurmJobCommands:
    """A `JobCommands` over Slurm's commands."""

    def __init__(self, runner: CommandRunner) -> None:
        self._runner = runner

    def read_status(self, job_id: str) -> JobStatus | None:
        """Return the job's status; None when slurmctld does not know it (any more)."""
        number = job_number(job_id)
        answer = self._runner.run(
            "squeue", "--noheader", "--all", "--states=all", f"--jobs={number}", f"--Format={_STATUS_FORMAT}"
        )
        if answer.exit_code != 0:
            if is_unknown_job(answer):
                return None
            raise error_of_result(answer, SlurmReadError)
        for line in answer.stdout.splitlines():
            columns = line.split()
            if len(columns) != len(_STATUS_COLUMNS):
                raise SlurmReadError(f"squeue: cannot parse job {job_id}: {line[:200]!r}")
            own, array, task, state, priority, min_cpus, user_id, restarts = columns
            if own != number:  # another task of the array whose number is `number`, too
                continue
            owner, restart_count = whole_number(user_id), whole_number(restarts)
            if owner is None or restart_count is None or whole_number(priority) is None:
                raise SlurmReadError(f"squeue: cannot parse job {job_id}: {line[:200]!r}")
            return JobStatus(
                address=f"{array}_{task}" if task.isdecimal() else own,
                state=state_of((state,), f"job {job_id}"),
                held=priority == "0",
                min_cpus_per_node=min_cpus,
                user_id=owner,
                restart_count=restart_count,
            )
        return None

    def requeue_hold(self, job_id: str, address: str) -> None:
        """Requeue a running, failed or completed job, held."""
        run_job_command(self._runner, job_id, "scontrol", "requeuehold", address)

    def release(self, job_id: str, address: str) -> None:
        """Release a held job."""
        run_job_command(self._runner, job_id, "scontrol", "release", address)

    def cancel(self, job_id: str, address: str) -> None:
        """Cancel the job."""
        run_job_command(self._runner, job_id, "scancel", address)


def run_job_command(runner: CommandRunner, job_id: str, command: str, *arguments: str) -> None:
    """Run a command that changes a job, and turn a failure of it into the right error."""
    if any("\0" in argument for argument in arguments):
        raise UsageError(f"job {job_id}: a NUL character cannot be passed to Slurm")
    answer = runner.run(command, *arguments)
    if answer.exit_code == 0 and not _NO_SUCH_JOB.search(answer.stderr):
        return
    raise error_of_result(answer, SlurmCommandError, about=f"job {job_id}")


def job_number(job_id: str) -> str:
    """Return `job_id` if it has the form of a Slurm job id. Raises `UsageError`."""
    if not re.fullmatch(r"[0-9]{1,10}", job_id, re.ASCII):
        raise UsageError(f"{job_id[:60]!r} is not a job id")
    return job_id


def is_unknown_job(answer: CommandResult) -> bool:
    """Return whether a command failed because slurmctld does not know the job (any more)."""
    return _NO_SUCH_JOB.search(answer.error_text) is not None


def error_of_result(answer: CommandResult, kind: type[SlurmError], *, about: str = "") -> SlurmError:
    """Return the error that a failed command means; see `error_of_text`."""
    return error_of_text(f"{answer.arguments[0]}: {answer.error_text[:500]}", kind, about=about)


def error_of_text(message: str, kind: type[SlurmError], *, about: str = "") -> SlurmError:
    """Return the error that Slurm's message means.

    It is `SlurmUnavailable` when slurmctld does not answer, `JobStateError` for a command about a job that
    is in the wrong state, and else `kind`.
    """
    text = f"{about}: {message}" if about else message
    if _CONTROLLER_UNREACHABLE.search(message):
        return SlurmUnavailable(text)
    wrong_state = kind is SlurmCommandError and about and _WRONG_STATE.search(message)
    return (JobStateError if wrong_state else kind)(text)
