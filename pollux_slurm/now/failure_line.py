"""The line of a failed job's log that says why, while Slurm knows the log; or that its folder is missing."""

from __future__ import annotations

import errno
import os
import re
import shlex
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from pollux_slurm.errors import SlurmError
from pollux_slurm.launch.run.crash_report import HAS_FAILED

if TYPE_CHECKING:
    from pollux_slurm.config import Config

_LOG = re.compile(r"^[ \t]*Std(?:Err|Out)=(/.*)$", re.MULTILINE)
# slurmd cannot open a file of the job (22.05 to 26.05).
_NOT_OPENED = re.compile(r"\bExitCode=0:53\b|\bReason=JobLaunchFailure\b")
_TIMEOUT_S = 10.0
_MAX_BYTES, _MAX_CHARACTERS = 1 << 16, 2000


def failure_of_job(config: Config, job_id: str) -> str | None:
    """Return the line of a failed job's log that says which rank has failed first; None where none is found.

    A job whose log has no folder has failed for that. Slurm forgets a job, and where its log is, some minutes
    after its end.
    """
    from pollux_slurm.slurm.connection import make_runner

    try:
        shown = make_runner(config.slurm, os.environ).run(
            "scontrol", "show", "job", job_id, timeout_s=_TIMEOUT_S
        )
    except SlurmError:
        return None
    return missing_folder(shown.stdout, job_id) or next(
        (line for log in _logs(shown.stdout) if (line := line_in_log(log, job_id)) is not None), None
    )


def missing_folder(shown: str, job_id: str) -> str | None:
    """Return that a job has failed at its start because its log has no folder; None where that is not so.

    `shown` is what `scontrol show job` prints.
    """
    if not _NOT_OPENED.search(shown):
        return None
    missing = next((log for log in _logs(shown) if _is_missing(log.parent)), None)
    if missing is None:
        return None
    folder = missing.parent
    return (
        f"job {job_id} has failed at its start: Slurm cannot open its log {missing}, since there is no "
        f"folder {folder}; make it, and submit the job again: mkdir -p {shlex.quote(str(folder))}"
    )


def _logs(shown: str) -> list[Path]:
    """Return the files of stderr and stdout."""
    return list(dict.fromkeys(Path(found.rstrip()) for found in _LOG.findall(shown)))


def _is_missing(folder: Path) -> bool:
    """Return whether there is no such folder: one that this user may not look for may be there."""
    # Not `is_dir`, which from Python 3.14 on is False for each of these errors.
    try:
        return not stat.S_ISDIR(folder.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except (OSError, ValueError):  # no name that a file could have
        return False


def line_in_log(log: Path, job_id: str) -> str | None:
    """Return the newest such line near the end of a log; None where there is none, or it cannot be read."""
    begin = f"pollux: job {job_id} {HAS_FAILED} "
    try:
        lines = _end_of(log).decode("utf-8", errors="replace").splitlines()
    except OSError:
        return None
    newest = next((line for line in reversed(lines) if line.startswith(begin)), None)
    return None if newest is None else newest.removeprefix("pollux: ")[:_MAX_CHARACTERS]


def _end_of(log: Path) -> bytes:
    """Return the end of a file that another user may have named: no device is opened, nothing waited for.

    Raises `OSError`, also for anything but a file.
    """
    name = os.open(log, os.O_PATH | os.O_CLOEXEC)
    try:
        status = os.fstat(name)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(log))
        handle = os.open(f"/proc/self/fd/{name}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    finally:
        os.close(name)
    try:
        # Files of /proc have no bytes by their size, and a read of some waits for the kernel.
        length = min(status.st_size, _MAX_BYTES)
        return os.pread(handle, length, status.st_size - length)
    finally:
        os.close(handle)
