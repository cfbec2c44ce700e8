"""A job's state in Slurm's own words, also of a job that slurmctld has forgotten."""

from __future__ import annotations

from pollux_slurm.errors import SlurmUnavailable
from pollux_slurm.slurm.commands.job_commands import job_number
from pollux_slurm.slurm.commands.runner import CommandRunner


def read_state_name(job_id: str, runner: CommandRunner) -> str | None:
    """Return Slurm's state, such as `RUNNING` or `OUT_OF_MEMORY`; None where Slurm does not know the job.

    A job that ended some minutes ago is known to the accounting database only. Raises `SlurmUnavailable` when
    slurmctld does not answer.
    """
    number = job_number(job_id)
    seen = runner.run(
        "squeue", "--noheader", "--states=all", f"--jobs={number}", "--Format=JobID:20,State:30"
    )
    for line in seen.stdout.splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == number:
            return words[1]
    if seen.exit_code != 0 and "Invalid job id" not in seen.error_text:
        raise SlurmUnavailable(f"the state of job {job_id} cannot be read: {seen.error_text}")
    try:
        kept = runner.run(
            *("sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={number}", "--format=State")
        )
    except SlurmUnavailable:  # no accounting commands here
        return None
    words = kept.stdout.split()
    # `CANCELLED by 1000`
    return words[0] if kept.exit_code == 0 and words else None
