"""Which job sbatch has submitted: from what it printed, or from the queue where its answer was lost."""

from __future__ import annotations

import re

from pollux_slurm.errors import SlurmReadError
from pollux_slurm.slurm.commands.runner import CommandRunner

# `12`, with --clusters `12;cluster`, and the words of an sbatch without --parsable.
_NUMBER = re.compile(r"(?:Submitted batch job )?([0-9]{1,10})(?:;\S+| on cluster \S+)?")
_COMMENT_WIDTH = 2000


def submitted_job_id(output: str) -> str | None:
    """Return the job's number in what `sbatch --parsable` printed; None where there is none.

    It is the last line that is nothing else: a site's own sbatch may print more, before it or after it.
    """
    found = [match[1] for line in output.splitlines() if (match := _NUMBER.fullmatch(line.strip()))]
    return found[-1] if found else None


def find_submitted_job(runner: CommandRunner, mark: str, *, clusters: str | None = None) -> str | None:
    """Return the user's newest job whose Comment contains `mark`; None where Slurm has none.

    Raises `SlurmError` where Slurm does not answer.
    """
    of_cluster = [] if clusters is None else [f"--clusters={clusters}"]
    answer = runner.run(
        "squeue", "--noheader", "--me", "--states=all", *of_cluster,
        f"--Format=JobID:20,Comment:{_COMMENT_WIDTH}",
    )  # fmt: skip
    if answer.exit_code != 0:
        raise SlurmReadError(f"squeue: {answer.error_text}")
    number = None
    for line in answer.stdout.splitlines():
        # A Comment may have lines of its own.
        if (match := re.match(r"([0-9]+) ", line)) is not None:
            number = match[1]
        if mark in line and number is not None:
            return number
    return None
