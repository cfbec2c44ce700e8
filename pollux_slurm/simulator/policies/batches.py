"""How a batch of a given size is split over replicas and passes (rules `osdi21`)."""

from __future__ import annotations

from pollux_slurm.model import BatchChoice
from pollux_slurm.simulator.applications import Application


def split_batch(
    application: Application, batch_size: int, num_gpus: int, *, twice_alone: bool = False
) -> BatchChoice:
    """Split `batch_size` examples as evenly as whole examples allow, in as few passes as fit.

    One replica takes two passes at least where the batch is above the initial one, with `twice_alone` at any
    batch. The largest batch size of the application is never exceeded.
    """
    local = -(-batch_size // num_gpus)
    passes = -(-local // application.max_atomic)
    if num_gpus == 1 and (twice_alone or batch_size > application.initial_batch_size):
        passes = max(passes, 2)
    atomic = min(-(-local // passes), application.max_batch_size // (num_gpus * passes))
    return BatchChoice(
        global_batch_size=atomic * num_gpus * passes,
        atomic_batch_size=atomic,
        accumulation_steps=passes - 1,
    )
