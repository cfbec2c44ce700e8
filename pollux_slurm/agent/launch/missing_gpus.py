"""A job that Slurm has started without its GPUs: put it back into the queue instead of letting it fail.

Seen on 22.05 just after slurmctld was started again, before the nodes had registered: the batch script runs,
its environment tells of GPUs, or of none, slurmctld has given the job none, and srun cannot start a step
("Invalid generic resource (gres) specification"). Nothing was trained, so nothing is lost by another start.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from pollux_slurm.errors import SlurmError
from pollux_slurm.model import JobState
from pollux_slurm.slurm.client import SlurmClient

# A job that was started so often is left to fail: something else is wrong.
_MOST_RESTARTS = 50
# Slurm ends the batch script within seconds of the requeue.
_END_S = 60.0


def requeue_if_gpus_missing(
    num_gpus: int | None,
    *,
    environ: Mapping[str, str],
    connect: Callable[[], SlurmClient],
    warn: Callable[[str], None],
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Requeue this job, whose step has failed, if slurmctld says that it holds fewer than `num_gpus`.

    None where the job's environment tells of no GPU: then it may have been started without any, and holds too
    few if it holds none and has asked for some. Waits to be ended then. `environ` is the batch script's.
    Without effect where the job holds what it should or slurmctld does not say.
    """
    job_id, restart_count = environ["SLURM_JOB_ID"], environ.get("SLURM_RESTART_COUNT") or "0"
    try:
        slurm = connect()
        job = slurm.read_job(job_id)
        if job is None or job.state is not JobState.RUNNING or str(job.restart_count) != restart_count:
            return
        held = job.allocation.num_gpus
        wanted = num_gpus if num_gpus is not None else int(job.requested_gpus > 0)
        if held >= wanted or job.restart_count >= _MOST_RESTARTS:
            return
        of = num_gpus or job.requested_gpus
        warn(f"Slurm has started job {job_id} with {held} of its {of} GPUs: it goes back into the queue")
        slurm.requeue(job_id, restart_count=job.restart_count)
    except SlurmError as error:
        warn(f"job {job_id} cannot be put back into the queue: {error}")
        return
    pause(_END_S)
