"""Make a workload of a site's jobs in Slurm's accounting.

    SLURM_TIME_FORMAT=%s sacct -a -X -P --starttime 2026-01-01 --endtime 2026-02-01 \\
        --format=JobIDRaw,Account,Submit,ElapsedRaw,AllocTRES,State

Slurm does not know what a job trained, only its GPU time (see `used_jobs`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pollux_slurm.errors import TraceError
from pollux_slurm.simulator.inputs.applications import Application
from pollux_slurm.simulator.inputs.workload import WorkloadJob
from pollux_slurm.simulator.site.used_jobs import UsedJob, as_workload
from pollux_slurm.slurm.parsing.sacct_text import parse_sacct

_COMMAND = (
    "SLURM_TIME_FORMAT=%s sacct -a -X -P -S 2026-01-01 -E 2026-01-31 "
    "--format=JobIDRaw,Account,Submit,ElapsedRaw,AllocTRES,State"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SacctImport:
    """The jobs of a workload by submission, their GPU time, and the numbers of excluded jobs by reason."""

    jobs: tuple[WorkloadJob, ...]
    gpu_hours: float
    num_without_gpus: int
    num_not_ended: int


def import_sacct(
    lines: Iterable[str], applications: Mapping[str, Application], *, seed: int = 0
) -> SacctImport:
    """Parse the GPU jobs of sacct's text (see `parse_sacct`).

    Excluded are jobs that have not ended, never started or had no GPU. See `used_jobs.as_workload`. Raises
    `TraceError` that names the malformed line.
    """
    whole = parse_sacct(lines, command=_COMMAND)
    ended = [job for job in whole if job.has_ended]
    rows = [job for job in ended if job.gpu_s]
    num_not_ended, num_without_gpus = len(whole) - len(ended), len(ended) - len(rows)
    if not rows:
        raise TraceError(
            f"no ended job with GPUs in sacct's text ({num_without_gpus} without, {num_not_ended} not "
            "ended): Slurm counts them where slurm.conf has AccountingStorageTRES=gres/gpu"
        )
    used = [
        UsedJob(
            name=row.job_id,
            submitted_s=row.submitted_at.timestamp(),
            num_gpus=row.num_gpus,
            gpu_s=row.gpu_s,
            account=row.account,
        )
        for row in rows
    ]
    return SacctImport(
        jobs=as_workload(used, applications, seed=seed),
        gpu_hours=sum(row.gpu_s for row in rows) / 3600,
        num_without_gpus=num_without_gpus,
        num_not_ended=num_not_ended,
    )
