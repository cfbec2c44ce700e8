"""What `pollux run` has said of a failed job in the last line of its log, while Slurm knows where that is."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from pollux_slurm.agent.launch.crash_report import HAS_FAILED
from pollux_slurm.errors import SlurmError

if TYPE_CHECKING:
    from pollux_slurm.config import Config

_STDERR = re.compile(r"^\s*StdErr=(/.*?)\s*$", re.MULTILINE)
_TIMEOUT_S = 10.0
_MAX_BYTES, _MAX_CHARACTERS = 1 << 16, 2000


def failure_of_job(config: Config, job_id: str) -> str | None:
    """Return the line of a failed job's log that says which rank has failed first; None where none is found.

    Slurm forgets a job, and where its log is, some minutes after its end.
    """
    from pollux_slurm.slurm.connection import make_runner

    try:
        shown = make_runner(config.slurm, os.environ).run(
            "scontrol", "show", "job", job_id, timeout_s=_TIMEOUT_S
        )
    except SlurmError:
        return None
    found = _STDERR.search(shown.stdout)
    return None if found is None else line_in_log(Path(found[1]), job_id)


def line_in_log(log: Path, job_id: str) -> str | None:
    """Return the newest such line near the end of a log; None where there is none, or it cannot be read."""
    begin = f"pollux: job {job_id} {HAS_FAILED} "
    try:
        if not log.is_file():
            return None
        with log.open("rb") as file:
            file.seek(max(log.stat().st_size - _MAX_BYTES, 0))
            lines = file.read(_MAX_BYTES).decode("utf-8", errors="replace").splitlines()
    except OSError:
        return None
    newest = next((line for line in reversed(lines) if line.startswith(begin)), None)
    return None if newest is None else newest.removeprefix("pollux: ")[:_MAX_CHARACTERS]
