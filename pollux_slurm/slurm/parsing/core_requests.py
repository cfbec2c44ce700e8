"""Count in CPUs what jobs with one thread a core (`--hint=nomultithread`) request in cores. Pure.

Which nodes such a job will get is not known: the largest number of threads of a core counts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from pollux_slurm.model import SlurmJob, SlurmNode


def most_threads_per_core(nodes: Iterable[SlurmNode]) -> int:
    """Return the number of CPUs of the core that has the most."""
    return max((node.threads_per_core for node in nodes), default=1)


def in_cpus(job: SlurmJob, threads: int) -> SlurmJob:
    """Return the job with its request in CPUs, of which a core has so many."""
    if not job.one_thread_per_core or threads == 1 or job.threads_per_core > 1:
        return job
    return dataclasses.replace(
        job,
        threads_per_core=threads,
        cpus_per_gpu=None if job.cpus_per_gpu is None else job.cpus_per_gpu * threads,
        # What it has is in CPUs already.
        num_cpus=job.num_cpus if job.allocation else job.num_cpus * threads,
    )
