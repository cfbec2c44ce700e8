"""Unmanaged jobs that wait for resources, for which adaptive jobs may make room. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable

from pollux_slurm.model import JobState, SlurmJob

# Only the head of the queue takes part in a round.
MAX_UNMANAGED = 10
# Slurm's reasons for a job that waits only for free resources; one that just came has none yet. Slurm starts
# no job of lower priority where such a one would start later by it.
KEEPS_ORDER = frozenset({"Resources", "Priority", "None"})
# The last one is shown for a while where nodes are reserved for a moment for a job that moves (22.05).
_WAITS_FOR_RESOURCES = KEEPS_ORDER | {"ReqNodeNotAvail"}
# Reasons that may concern one of the partitions of `-p a,b` only: that of the last one tried is shown.
_OF_ONE_PARTITION = frozenset(
    {
        *("PartitionDown", "PartitionInactive", "PartitionNodeLimit", "PartitionTimeLimit"),
        *("PartitionConfig", "BadConstraints", "QOSNotAllowed", "AccountNotAllowed"),
    }
)


def head_of_queue(jobs: Iterable[SlurmJob], adaptive: Container[str]) -> list[SlurmJob]:
    """Return the unmanaged jobs that wait for resources, those first that Slurm tries first."""
    waiting = [
        job
        for job in jobs
        if job.state is JobState.PENDING
        and not job.held
        and job.job_id not in adaptive
        and (
            job.reason in _WAITS_FOR_RESOURCES
            or (len(job.partitions) > 1 and job.reason in _OF_ONE_PARTITION)
        )
        and (job.requested_gpus > 0 or job.num_cpus > 0)
    ]
    return sorted(waiting, key=lambda job: (-(job.priority or 0), int(job.job_id)))
