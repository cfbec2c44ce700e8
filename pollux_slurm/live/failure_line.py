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


def failure_of_job(config: Config, job_id: str) -> str:
    """Return the line of a failed job's log that says which rank has failed first, or where to find it."""
    from pollux_slurm.slurm.connection import make_runner

    log = None
    try:
        shown = make_runner(config.slurm, os.environ).run(
            "scontrol", "show", "job", job_id, timeout_s=_TIMEOUT_S
        )
        found = _STDERR.search(shown.stdout)
        log = None if found is None else Path(found[1])
    except SlurmError:
        pass  # Slurm forgets a job some minutes after its end
    line = None if log is None else line_in_log(log, job_id)
    if line is not None:
        return line
    name = "the last line of its log" if log is None else f"the last line of {log}"
    return f"job {job_id} has failed: {name} says which rank was first, and how to go on"


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
