"""The last line of a failed training's log, around the first error that a rank or its node noted."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pollux_slurm.agent.checkpoints.failures import read_failures
from pollux_slurm.agent.checkpoints.lineage import newest_checkpoint, newest_run
from pollux_slurm.agent.exit_codes import STOPPED_EXIT_CODES

HAS_FAILED = "has failed. First was"
"""Stands in this line only, after the name of the job."""

_STDERR = Path("/proc/self/fd/2")
_NUM_PROCESSES_HERE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """What was run: the command of each process, how many there were, and the job of Slurm, if any."""

    command: Sequence[str]
    num_processes: int
    job_id: str | None


def say_what_failed(code: int, directory: Path, retry: Retry, *, warn: Callable[[str], None]) -> int:
    """Say which rank has failed first, and what to do; return the exit code of the run.

    A rank that has failed counts more than others that have stopped.
    """
    run = newest_run(directory)
    if run is None:  # the script has another directory
        return code
    failures = read_failures(directory, since_run=run)
    has_cause = bool(failures) and failures[0].is_cause
    if code == 0 or (code in STOPPED_EXIT_CODES and not has_cause):
        return code
    code = 1 if code in STOPPED_EXIT_CODES else code
    name = "the training" if retry.job_id is None else f"job {retry.job_id}"
    first = failures[0].text if failures else f"a process, with exit code {code}"
    warn(f"{name} {HAS_FAILED} {first}; {_log()}. {_checkpoint(directory, retry)}. {_here(directory, retry)}")
    return code


def _log() -> str:
    """Say where the output of all processes is: in the file that this process writes its own to."""
    try:
        file = _STDERR.resolve(strict=True)
    except OSError:
        return "its output is above"
    return f"its output is in {file}" if file.is_file() else "its output is above"


def _checkpoint(directory: Path, retry: Retry) -> str:
    newest = newest_checkpoint(directory)
    if newest is None:
        return "No checkpoint was written yet: another start begins anew"
    stays = f"The checkpoint {newest} stays; to go on from it,"
    if retry.job_id is None:
        return f"{stays} mend the cause and run the same command again"
    given = shlex.quote(str(directory))
    return f"{stays} scontrol requeue {retry.job_id}, or submit with --checkpoint-dir {given}"


def _here(directory: Path, retry: Retry) -> str:
    count = min(retry.num_processes, _NUM_PROCESSES_HERE)
    copy = "" if newest_checkpoint(directory) is None else f"cp -r {shlex.quote(str(directory))} COPY; "
    where = "" if retry.job_id is None else " without Slurm"
    return (
        f"To reproduce it{where}: {copy}pollux run --nproc-per-node {count} --checkpoint-dir COPY -- "
        f"{shlex.join(retry.command)}"
    )
