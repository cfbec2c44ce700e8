"""Variables that a job inherits from the job that has submitted it.

sbatch passes on its environment. Slurm sets a job's own values over it, except for two kinds (22.05):

- SLURM_RESTART_COUNT, which only the runs after a requeue have
- SLURM_STEP_ID and others of a step, which only the processes of a step have

So a job that a requeued job submits would count its runs from that job's number, and one that a training
process submits would take its batch script for a step.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from pollux_slurm.agent.environment.layout import JOB_VARIABLE
from pollux_slurm.agent.environment.tracker_runs import without_tracker_variables
from pollux_slurm.errors import SlurmError
from pollux_slurm.launch.submit.wing_request import ANCHOR_VARIABLE
from pollux_slurm.slurm.commands.job_commands import SlurmJobCommands
from pollux_slurm.slurm.commands.runner import CommandRunner

RESTART_COUNT = "SLURM_RESTART_COUNT"
_OF_STEP = "SLURM_STEP"
# The title of the process that starts a batch script, or the tasks of a step.
_STEPD = re.compile(r"slurmstepd: \[(?:StepId=)?[0-9+]+\.([a-z0-9]+)")
_MOST_ANCESTORS = 100


def without_other_jobs_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` without what it has from the job that submitted this one.

    These are its token and checkpoint directory, and the runs of its trackers.
    """
    environ = without_tracker_variables(environ)
    if environ.get(JOB_VARIABLE, environ.get("SLURM_JOB_ID")) == environ.get("SLURM_JOB_ID"):
        return dict(environ)
    inherited = (JOB_VARIABLE, ANCHOR_VARIABLE, "POLLUX_TOKEN_FILE", "POLLUX_CHECKPOINT_DIR")
    return {key: value for key, value in environ.items() if key not in inherited}


def without_step_of_submitter(environ: Mapping[str, str], *, proc: Path = Path("/proc")) -> dict[str, str]:
    """Return `environ` without a step's variables where this process belongs to a batch script.

    They stay where /proc does not tell, as in some containers.
    """
    if "SLURM_STEP_ID" not in environ or _step_of(os.getpid(), proc) != "batch":
        return dict(environ)
    return {key: value for key, value in environ.items() if not key.startswith(_OF_STEP)}


def with_own_restart_count(
    environ: Mapping[str, str],
    runner: CommandRunner,
    wait: Callable[[], None] = lambda: None,
) -> dict[str, str]:
    """Return `environ` with the restart count that Slurm has for the job.

    Slurm is asked only where the environment has one. `wait` is called before, until slurmctld answers;
    where it does not, the count stays.
    """
    if RESTART_COUNT not in environ:
        return dict(environ)
    wait()
    try:
        status = SlurmJobCommands(runner).read_status(environ["SLURM_JOB_ID"])
    except SlurmError:
        status = None
    if status is None:
        return dict(environ)
    others = {key: value for key, value in environ.items() if key != RESTART_COUNT}
    return others | ({RESTART_COUNT: str(status.restart_count)} if status.restart_count else {})


def _step_of(pid: int, proc: Path) -> str | None:
    """Return the name of the step that a process belongs to, such as `batch` or `0`; None if unknown."""
    for _ in range(_MOST_ANCESTORS):
        try:
            title = (proc / str(pid) / "cmdline").read_bytes().decode("utf-8", "replace")
            parent = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        if (match := _STEPD.match(title)) is not None:
            return match[1]
        pid = int(parent.rpartition(")")[2].split()[1])
        if pid <= 0:
            return None
    return None
