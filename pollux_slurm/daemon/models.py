"""Whether the model that a job reports may count: it is a claim that can pay, so its progress is held to it.

Pure. A model that does not count costs the job nothing but the model: it is then treated like a job of which
nothing was measured, and has its minimum until what it reports agrees again.
"""

from __future__ import annotations

from pollux_slurm.goodput import best_batch
from pollux_slurm.model import Allocation, Configuration, GoodputModel
from pollux_slurm.store.contract import JobRecord, Pace

# How many times less than its model promises a job may make: of its time, epochs of seconds may take most for
# validation, checkpoints and the start of workers, and a suspension counts, too.
LEAST_MADE = 100.0
# And how many times more: models are off by a tenth or two, some by half.
MOST_MADE = 4.0

# Nobody is judged by less training than this, in seconds.
_LEAST_S = 120.0


def doubt_of(record: JobRecord, held: Allocation) -> str | None:
    """Return why the model of a job, which holds `held` if it runs, does not count; None where it does."""
    if record.model is None or record.pace is None or record.run is None:
        return None
    configuration = held.configuration
    if not held:
        told = record.run.gpus_per_node
        configuration = Configuration(num_nodes=len(told), num_gpus=sum(told))
    return doubt(record.model, configuration, record.pace)


def doubt(model: GoodputModel, configuration: Configuration, pace: Pace) -> str | None:
    """Return why a model does not count, None where it does; `pace` is what was made on `configuration`.

    A scale-invariant iteration is worth the initial batch at an efficiency of 1.
    """
    if model.throughput is None or pace.trained_s < _LEAST_S:
        return None
    best = best_batch(model, configuration)
    if best is None:
        return None  # started on GPUs that its own limits exclude, as its owner may ask for
    promised = best.goodput
    made = pace.made / pace.trained_s * model.limits.initial_batch_size
    if made * LEAST_MADE >= promised and made <= MOST_MADE * promised:
        return None
    return f"it promises {promised:.3g} examples/s on {_said(configuration)}, but {made:.3g} are made"


def _said(configuration: Configuration) -> str:
    gpus, nodes = configuration.num_gpus, configuration.num_nodes
    return f"{gpus} GPU{'s' * (gpus > 1)} of {nodes} node{'s' * (nodes > 1)}"
