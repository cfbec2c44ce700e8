"""Make a workload of a site's jobs in Slurm's accounting.

    SLURM_TIME_FORMAT=%s sacct -a -X -P --starttime 2026-01-01 --endtime 2026-02-01 \\
        --format=JobIDRaw,Account,Submit,ElapsedRaw,AllocTRES,State

Slurm does not know what a job trained, only its GPU time. So each job is simulated with an application of its
class of GPU time (see `generate`), and with as much `work` as takes its GPU time at its size.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from pollux_slurm.errors import TraceError
from pollux_slurm.simulator.inputs.applications import Application
from pollux_slurm.simulator.inputs.batch_splits import user_training_time_s
from pollux_slurm.simulator.inputs.generate import class_of, fastest_batch_size
from pollux_slurm.simulator.inputs.workload import WorkloadJob, listed
from pollux_slurm.slurm.parsing.sacct_text import SacctJob, parse_sacct

_COMMAND = (
    "SLURM_TIME_FORMAT=%s sacct -a -X -P -S 2026-01-01 -E 2026-01-31 "
    "--format=JobIDRaw,Account,Submit,ElapsedRaw,AllocTRES,State"
)
# The nodes on which the applications of the paper were measured.
_GPUS_PER_NODE = 4


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

    Excluded are jobs that have not ended, never started or had no GPU. The first submission becomes time 0.

    A job keeps its number of GPUs, limited to what was measured of its application, and gets the fastest
    batch size on them. Its training there, without starts, takes the GPU time that it had. Where a class has
    two applications, one is drawn with `seed` and the job id. Raises `TraceError` that names the malformed
    line.
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
    first_at = min(row.submitted_at for row in rows)
    asked: dict[tuple[str, int], WorkloadJob] = {}
    jobs = [_workload_job(row, applications, asked, first_at, seed) for row in rows]
    return SacctImport(
        jobs=tuple(sorted(jobs, key=lambda job: job.submitted_s)),
        gpu_hours=sum(row.gpu_s for row in rows) / 3600,
        num_without_gpus=num_without_gpus,
        num_not_ended=num_not_ended,
    )


def _workload_job(
    row: SacctJob,
    applications: Mapping[str, Application],
    asked: dict[tuple[str, int], WorkloadJob],
    first_at: datetime,
    seed: int,
) -> WorkloadJob:
    names = class_of(row.gpu_s / 3600).applications
    name = names[int(random.Random(f"{seed} {row.job_id}").random() * len(names))]
    if name not in applications:
        raise TraceError(
            f"no traces of application {name!r}, needed for jobs like {row.job_id} "
            f"(there are: {listed(applications)})"
        )
    key = (name, min(row.num_gpus, applications[name].most_gpus))
    if key not in asked:
        asked[key] = _measured_request(applications[name], key[1])
    found = asked[key]
    return replace(
        found,
        name=row.job_id,
        submitted_s=(row.submitted_at - first_at).total_seconds(),
        account=row.account,
        work=row.gpu_s * found.work,
    )


def _measured_request(application: Application, most_gpus: int) -> WorkloadJob:
    """Return a job on the most replicas up to `most_gpus` that were measured, with their fastest batch size.

    Its work is that of a GPU second.
    """
    for num_replicas in range(most_gpus, 0, -1):
        batch_size = fastest_batch_size(application, num_replicas, gpus_per_node=_GPUS_PER_NODE)
        if batch_size is not None:
            job = WorkloadJob(
                name=application.name,
                submitted_s=0.0,
                application=application.name,
                num_replicas=num_replicas,
                batch_size=batch_size,
            )
            gpu_s = num_replicas * user_training_time_s(job, application, _GPUS_PER_NODE)
            return replace(job, work=1 / gpu_s)
    raise TraceError(f"{application.name}: the traces have no step time on one GPU")
