"""Jobs of which only their GPUs and GPU time are known, as a workload.

Such records do not say what a job trained. So each job is simulated with an application of its class of GPU
time (see `generate`), and with as much `work` as takes its GPU time at its size.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pollux_slurm.errors import TraceError
from pollux_slurm.simulator.inputs.applications import Application
from pollux_slurm.simulator.inputs.batch_splits import user_training_time_s
from pollux_slurm.simulator.inputs.generate import class_of, fastest_batch_size
from pollux_slurm.simulator.inputs.workload import WorkloadJob, listed

# The nodes on which the applications of the paper were measured.
_GPUS_PER_NODE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedJob:
    """An ended job: when it was submitted, by any clock, and what it used."""

    name: str
    submitted_s: float
    num_gpus: int
    gpu_s: float
    account: str = ""
    user: str = ""


def as_workload(
    rows: Sequence[UsedJob], applications: Mapping[str, Application], *, seed: int = 0
) -> tuple[WorkloadJob, ...]:
    """Return the jobs in the order of their submissions, the first of which becomes time 0.

    A job keeps its number of GPUs, limited to what was measured of its application, and gets the fastest
    batch size on them. Its training there, without starts, takes the GPU time that it had. Where a class has
    two applications, one is drawn with `seed` and the job's name. Raises `TraceError` for missing traces.
    """
    first_s = min((row.submitted_s for row in rows), default=0.0)
    asked: dict[tuple[str, int], WorkloadJob] = {}
    jobs = [_workload_job(row, applications, asked, first_s, seed) for row in rows]
    return tuple(sorted(jobs, key=lambda job: job.submitted_s))


def _workload_job(
    row: UsedJob,
    applications: Mapping[str, Application],
    asked: dict[tuple[str, int], WorkloadJob],
    first_s: float,
    seed: int,
) -> WorkloadJob:
    names = class_of(row.gpu_s / 3600).applications
    name = names[int(random.Random(f"{seed} {row.name}").random() * len(names))]
    if name not in applications:
        raise TraceError(
            f"no traces of application {name!r}, needed for jobs like {row.name} "
            f"(there are: {listed(applications)})"
        )
    key = (name, min(row.num_gpus, applications[name].most_gpus))
    if key not in asked:
        asked[key] = _measured_request(applications[name], key[1])
    found = asked[key]
    return replace(
        found,
        name=row.name,
        submitted_s=row.submitted_s - first_s,
        account=row.account,
        user=row.user,
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
