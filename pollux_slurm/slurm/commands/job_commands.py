"""What a client does with one job right at a command: look at its state, and give the simplest commands.

This is the seam between the two backends. `CommandHand` runs squeue, scontrol and scancel, each a process of
its own; `PySlurmHand` in `pyslurm/` asks libslurm.
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

_SILENT_CONTROLLER = re.compile(
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
# Columns of one width, since none is ever empty or has a space; --format has no letter for the restarts.
_PEEK_COLUMNS = (
    "JobID",
    "ArrayJobID",
    "ArrayTaskID",
    "State",
    "PriorityLong",
    "MinCpus",
    "UserID",
    "RestartCnt",
)
_PEEK_FORMAT = ",".join(f"{column}:24" for column in _PEEK_COLUMNS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peek:
    """The little of a job that a command hangs on; nothing in it was written by a user.

    `address` is how the job must be named in a command: the number of an array task may also mean the array.
    """

    address: str
    state: JobState
    held: bool
    min_cpus_per_node: str
    user_id: int
    restart_count: int


class JobHand(Protocol):
    """Reads and commands for one job. Errors are those of `SlurmClient`."""

    def peek(self, job_id: str) -> Peek | None:
        """Return the job's state; None when slurmctld no longer (or never) knew it."""

    def requeue_hold(self, job_id: str, address: str) -> None:
        """Put a running, failed or completed job back into the queue, held."""

    def release(self, job_id: str, address: str) -> None:
        """Let a held job start."""

    def cancel(self, job_id: str, address: str) -> None:
        """End the job."""


class CommandHand:
    """A `JobHand` over Slurm's commands."""

    def __init__(self, runner: CommandRunner) -> None:
        self._runner = runner

    def peek(self, job_id: str) -> Peek | None:
        """Return the job's state; None when slurmctld no longer (or never) knew it."""
        number = job_number(job_id)
        answer = self._runner.run(
            "squeue", "--noheader", "--all", "--states=all", f"--jobs={number}", f"--Format={_PEEK_FORMAT}"
        )
        if answer.exit_code != 0:
            if says_no_such_job(answer):
                return None
            raise failure(answer, SlurmReadError)
        for line in answer.stdout.splitlines():
            columns = line.split()
            if len(columns) != len(_PEEK_COLUMNS):
                raise SlurmReadError(f"squeue: cannot make sense of job {job_id}: {line[:200]!r}")
            own, array, task, state, priority, min_cpus, user_id, restarts = columns
            if own != number:  # another task of the array whose number is `number`, too
                continue
            if not all(count.isdecimal() for count in (priority, user_id, restarts)):
                raise SlurmReadError(f"squeue: cannot make sense of job {job_id}: {line[:200]!r}")
            return Peek(
                address=f"{array}_{task}" if task.isdecimal() else own,
                state=state_of((state,), f"job {job_id}"),
                held=priority == "0",
                min_cpus_per_node=min_cpus,
                user_id=int(user_id),
                restart_count=int(restarts),
            )
        return None

    def requeue_hold(self, job_id: str, address: str) -> None:
        """Put a running, failed or completed job back into the queue, held."""
        change(self._runner, job_id, "scontrol", "requeuehold", address)

    def release(self, job_id: str, address: str) -> None:
        """Let a held job start."""
        change(self._runner, job_id, "scontrol", "release", address)

    def cancel(self, job_id: str, address: str) -> None:
        """End the job."""
        change(self._runner, job_id, "scancel", address)


def change(runner: CommandRunner, job_id: str, command: str, *arguments: str) -> None:
    """Run a command that changes a job, and turn what it complains about into the right error."""
    if any("\0" in argument for argument in arguments):
        raise UsageError(f"job {job_id}: a NUL character cannot be passed to Slurm")
    answer = runner.run(command, *arguments)
    if answer.exit_code == 0 and not _NO_SUCH_JOB.search(answer.stderr):
        return
    raise failure(answer, SlurmCommandError, about=f"job {job_id}")


def job_number(job_id: str) -> str:
    """Return `job_id` if it is a number that Slurm could have given. Raises `UsageError`."""
    if not re.fullmatch(r"[0-9]{1,10}", job_id, re.ASCII):
        raise UsageError(f"{job_id[:60]!r} is no job number")
    return job_id


def says_no_such_job(answer: CommandResult) -> bool:
    """Tell whether a command failed because slurmctld knows no job of that number (any more)."""
    return _NO_SUCH_JOB.search(answer.complaint) is not None


def failure(answer: CommandResult, kind: type[SlurmError], *, about: str = "") -> SlurmError:
    """Return the error for a failed command; see `refusal`."""
    return refusal(f"{answer.arguments[0]}: {answer.complaint[:500]}", kind, about=about)


def refusal(words: str, kind: type[SlurmError], *, about: str = "") -> SlurmError:
    """Return the error that Slurm's words mean.

    A silent slurmctld is `SlurmUnavailable` whatever was asked; a command refused for the job's state is
    `JobStateError`.
    """
    text = f"{about}: {words}" if about else words
    if _SILENT_CONTROLLER.search(words):
        return SlurmUnavailable(text)
    return (JobStateError if kind is SlurmCommandError and about and _WRONG_STATE.search(words) else kind)(
        text
    )
