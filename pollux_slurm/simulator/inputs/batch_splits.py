"""Split a global batch over replicas and micro-batches; how long a job trains with its user's batch."""

from __future__ import annotations

from pollux_slurm.errors import TraceError
from pollux_slurm.model import BatchChoice
from pollux_slurm.simulator.inputs.applications import Application
from pollux_slurm.simulator.inputs.workload import WorkloadJob


def split_batch(
    application: Application, batch_size: int, num_gpus: int, *, accumulate_on_one_gpu: bool = False
) -> BatchChoice:
    """Split `batch_size` examples as evenly as whole examples allow, in as few micro-batches as fit.

    A single replica takes at least two micro-batches when the batch is above the initial one, and with
    `accumulate_on_one_gpu` always. The application's largest batch size is never exceeded; a fixed batch is
    split unevenly.
    """
    local = -(-batch_size // num_gpus)
    micro_batches = -(-local // application.max_atomic)
    if application.limits.max_batch_size is None:
        return BatchChoice(
            global_batch_size=batch_size,
            atomic_batch_size=-(-local // micro_batches),
            accumulation_steps=micro_batches - 1,
        )
    if num_gpus == 1 and (accumulate_on_one_gpu or batch_size > application.initial_batch_size):
        micro_batches = max(micro_batches, 2)
    atomic = min(-(-local // micro_batches), application.max_batch_size // (num_gpus * micro_batches))
    return BatchChoice(
        global_batch_size=atomic * num_gpus * micro_batches,
        atomic_batch_size=atomic,
        accumulation_steps=micro_batches - 1,
    )


def packed_step_time_s(
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
    return time.step_s + time.micro_batch_s * accumulation_steps


def user_batch(job: WorkloadJob, application: Application, num_gpus: int) -> BatchChoice:
    """Return the user's batch, split over `num_gpus`."""
    return split_batch(application, job.batch_size, num_gpus)


def user_training_time_s(job: WorkloadJob, application: Application, gpus_per_node: int) -> float:
    """Return how long a job trains at its user's size and batch, packed on GPUs of the measured type."""
    batch = user_batch(job, application, job.num_replicas)
    split = (batch.atomic_batch_size, batch.accumulation_steps)
    try:
        step_s = packed_step_time_s(application, job.num_replicas, gpus_per_node, *split)
    except TraceError as error:
        raise TraceError(f"job {job.name}: {error}") from None
    total_s, begin = 0.0, 0.0
    for epoch in range(application.num_epochs):
        end = application.epoch_end(epoch)
        gained = application.step_progress(batch.global_batch_size, epoch)
        total_s, begin = total_s + (end - begin) / gained * step_s, end
    return total_s * job.work
