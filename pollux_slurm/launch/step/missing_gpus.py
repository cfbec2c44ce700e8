"""A job that Slurm has started without its GPUs starts again, instead of failing.

Seen on 22.05 just after a restart of slurmctld, before the nodes had registered. The batch script runs, with
or without GPUs in its environment. slurmctld has allocated none, and srun cannot start a step ("Invalid
generic resource (gres) specification"). Nothing was trained, so another start loses nothing. A job of its own
is requeued; a wing counts as stopped, so that its anchor makes another start.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from pollux_slurm.errors import SlurmError
from pollux_slurm.model import JobState, SlurmJob
from pollux_slurm.slurm.client import SlurmClient

MAX_RESTARTS = 50
"""A job that was restarted so often fails: something else is wrong."""

# Slurm ends the batch script within seconds of the requeue.
_WAIT_FOR_END_S = 60.0


def requeue_if_gpus_missing(
    num_gpus: int | None,
    *,
    environ: Mapping[str, str],
    connect: Callable[[], SlurmClient],
    warn: Callable[[str], None],
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Requeue this job, whose step has failed, if slurmctld has allocated it fewer than `num_gpus` GPUs.

    Pass None where the job's environment names no GPU: the job is then requeued if it requested GPUs and owns
    none. After the requeue, waits to be ended by Slurm. `environ` is the batch script's. Does nothing where
    the job has its GPUs or slurmctld does not answer.
    """
    job_id, restart_count = environ["SLURM_JOB_ID"], environ.get("SLURM_RESTART_COUNT") or "0"
    try:
        slurm = connect()
        job = slurm.read_job(job_id)
        shortage = None if job is None else _shortage(job, num_gpus)
        if job is None or shortage is None or str(job.restart_count) != restart_count:
            return
        if job.restart_count >= MAX_RESTARTS:
            return
        warn(f"{shortage}: requeuing it")
        slurm.requeue(job_id, restart_count=job.restart_count)
    except SlurmError as error:
        warn(f"job {job_id} cannot be requeued: {error}")
        return
    pause(_WAIT_FOR_END_S)


def was_stopped_by_slurm(
    num_gpus: int | None,
    *,
    environ: Mapping[str, str],
    connect: Callable[[], SlurmClient],
    warn: Callable[[str], None],
) -> bool:
    """Whether slurmctld ends this job, or has started it with fewer GPUs, so that its step could not go on.

    Arguments as of `requeue_if_gpus_missing`. False where slurmctld does not answer.
    """
    try:
        job = connect().read_job(environ["SLURM_JOB_ID"])
    except SlurmError:
        return False
    if job is None:
        return False
    if (shortage := _shortage(job, num_gpus)) is not None:
        warn(shortage)
        return True
    return job.state is JobState.COMPLETING or job.state.is_over


def _shortage(job: SlurmJob, num_gpus: int | None) -> str | None:
    """Return what a running job lacks: it should have `num_gpus`, or one at least where that is None."""
    allocated = job.allocation.num_gpus
    wanted = num_gpus if num_gpus is not None else int(job.requested_gpus > 0)
    if job.state is not JobState.RUNNING or allocated >= wanted:
        return None
    return f"Slurm has started job {job.job_id} with {allocated} of its {num_gpus or job.requested_gpus} GPUs"
