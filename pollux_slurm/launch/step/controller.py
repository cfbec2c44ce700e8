"""Wait until slurmctld answers: without it srun fails at once, and with it the whole job."""

from __future__ import annotations

import time
from collections.abc import Callable

from pollux_slurm.errors import SlurmUnavailable
from pollux_slurm.slurm.commands.runner import CommandRunner

_TIMEOUT_S = 600.0
_PAUSE_S = 1.0


def wait_for_controller(
    runner: CommandRunner, warn: Callable[[str], None], pause: Callable[[float], None] = time.sleep
) -> None:
    """Return once slurmctld, or its backup, answers, or after ten minutes without an answer."""
    deadline = time.monotonic() + _TIMEOUT_S
    is_first = True
    while _is_down(runner) and time.monotonic() < deadline:
        if is_first:
            warn("slurmctld does not answer: the processes start when it does")
        is_first = False
        pause(_PAUSE_S)


def _is_down(runner: CommandRunner) -> bool:
    """Whether scontrol says of each slurmctld that it is down; where it says nothing, srun is left to try."""
    try:
        said = runner.run("scontrol", "ping").stdout
    except SlurmUnavailable:
        return False
    return " is DOWN" in said and " is UP" not in said
