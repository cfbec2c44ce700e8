"""How a batch of a given size is split over replicas and passes, and how long the user's own takes."""

from __future__ import annotations

from pollux_slurm.errors import TraceError
from pollux_slurm.model import BatchChoice
from pollux_slurm.simulator.inputs.applications import Application
from pollux_slurm.simulator.inputs.workload import WorkloadJob


def split_batch(
    application: Application, batch_size: int, num_gpus: int, *, twice_alone: bool = False
) -> BatchChoice:
    """Split `batch_size` examples as evenly as whole examples allow, in as few passes as fit.

    One replica takes two passes at least where the batch is above the initial one, with `twice_alone` at any
    batch. The largest batch size of the application is never exceeded; a fixed one is split unevenly.
    """
    local = -(-batch_size // num_gpus)
    passes = -(-local // application.max_atomic)
    if application.limits.max_batch_size is None:
        return BatchChoice(
            global_batch_size=batch_size,
            atomic_batch_size=-(-local // passes),
            accumulation_steps=passes - 1,
        )
    if num_gpus == 1 and (twice_alone or batch_size > application.initial_batch_size):
        passes = max(passes, 2)
    atomic = min(-(-local // passes), application.max_batch_size // (num_gpus * passes))
    return BatchChoice(
        global_batch_size=atomic * num_gpus * passes,
        atomic_batch_size=atomic,
        accumulation_steps=passes - 1,
    )


def packed_step_s(
    application: Application,
    num_gpus: int,
    gpus_per_node: int,
    atomic_batch_size: int,
    accumulation_steps: int,
) -> float:
    """Return the true time of one step on as few nodes as possible. Raises `TraceError`."""
    whole, rest = divmod(num_gpus, gpus_per_node)
    placement = (gpus_per_node,) * whole + ((rest,) if rest else ())
    time = application.step_time(placement, atomic_batch_size)
    return time.step_s + time.pass_s * accumulation_steps


def user_batch(job: WorkloadJob, application: Application, num_gpus: int) -> BatchChoice:
    """Return the batch that the user asked for, split over `num_gpus`."""
    return split_batch(application, job.batch_size, num_gpus)


def user_time_s(job: WorkloadJob, application: Application, gpus_per_node: int) -> float:
    """Return how long a job trains at its user's size and batch, packed on GPUs of the measured type."""
    batch = user_batch(job, application, job.num_replicas)
    split = (batch.atomic_batch_size, batch.accumulation_steps)
    try:
        step_s = packed_step_s(application, job.num_replicas, gpus_per_node, *split)
    except TraceError as error:
        raise TraceError(f"job {job.name}: {error}") from None
    total_s, begin = 0.0, 0.0
    for epoch in range(application.num_epochs):
        end = application.epoch_end(epoch)
        gained = application.step_progress(batch.global_batch_size, epoch)
        total_s, begin = total_s + (end - begin) / gained * step_s, end
    return total_s
