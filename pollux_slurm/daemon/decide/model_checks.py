"""Whether the model that a job reports may count: it is a claim that can pay, so its progress is held to it.

Pure. A model that does not count costs the job nothing but the model: it is then treated like a job of which
nothing was measured, and has its minimum until what it reports agrees again.

The present model must agree with what the job's last runs made on what they held, not with the present run
alone: who is found out and has its minimum makes there what its model says, and would be believed again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from pollux_slurm.goodput import best_batch
from pollux_slurm.model import Configuration, GoodputModel, GradientStatistics
from pollux_slurm.store.contract.interface import MIN_RECENT_RUN_S, JobRecord, RecentRun

# How many times less than its model promises a run may make: of its time, epochs of seconds may take most for
# validation, checkpoints and the start of workers, and the noise that the model goes by may have grown since.
# Ten would doubt such jobs and save little: nine times the speed gains 12 % under `attained-work`, a thousand
# times 18 to 30 % where nobody looks.
LEAST_MADE = 100.0
# And how many times more: models are off by a tenth or two, some by half.
MOST_MADE = 4.0

# So many of its last runs must disagree where the newest agrees: of one, a validation may be all there was.
_RUNS_AGAINST = 2

# Of nothing but noise, at which every example of any batch is worth as much as at the initial batch size.
_NOISE_ONLY = GradientStatistics(sqr=0.0, var=1.0)

Models = tuple[GoodputModel | None, tuple[tuple[str, GoodputModel], ...]]
"""A job's model for every type of GPU, or None and its models by type."""


def models_of(record: JobRecord) -> Models:
    """Return what a job reports of its speed.

    Gradients are the same on every type: the newest statistics go with all, as does the size it has had.
    """
    newest = record.model
    if newest is None or not record.models:
        return newest, ()
    grown = max(newest.max_gpus_seen, *(model.max_gpus_seen for _, model in record.models))
    return None, tuple(
        (
            kind,
            dataclasses.replace(model, statistics=newest.statistics or model.statistics, max_gpus_seen=grown),
        )
        for kind, model in record.models
    )


def doubt_of(record: JobRecord) -> str | None:
    """Return why what a job reports of its speed does not count; None where it does."""
    return doubt(models_of(record), record.recent_runs)


def doubt(models: Models, recent_runs: Sequence[RecentRun]) -> str | None:
    """Return why the models of a job do not count, None where they do; `recent_runs` newest first.

    A run on a type of GPU without a model says nothing, nor does one on GPUs that the model's own limits
    exclude, on which its owner may have started it.
    """
    judged = []
    for run in recent_runs:
        model = _model_for(models, run.gpu_type)
        promised = None if model is None else _promised(model, run)
        if model is not None and promised is not None and run.allocated_s >= MIN_RECENT_RUN_S:
            judged.append(_contradiction(model, promised, run))
    against = [reason for reason in judged if reason is not None]
    if against and (judged[0] is not None or len(against) >= _RUNS_AGAINST):
        return against[0]
    return None


def _model_for(models: Models, gpu_type: str | None) -> GoodputModel | None:
    every, by_type = models
    return every if every is not None else dict(by_type).get(gpu_type or "")


def _contradiction(model: GoodputModel, promised: float, run: RecentRun) -> str | None:
    # A scale-invariant iteration is worth the initial batch at an efficiency of 1.
    made = run.progress * model.limits.initial_batch_size
    if made > MOST_MADE * promised:
        # Large batches may have been worth more during the run than they are by now.
        promised = _promised(dataclasses.replace(model, statistics=_NOISE_ONLY), run) or promised
    if promised <= LEAST_MADE * made and made <= MOST_MADE * promised:
        return None
    on = " and ".join(dict.fromkeys(_gpus(configuration) for configuration, _ in run.allocations))
    return (
        f"it promises {promised / run.allocated_s:.3g} examples/s on {on}, "
        f"but a run there made {made / run.allocated_s:.3g}"
    )


def _promised(model: GoodputModel, run: RecentRun) -> float | None:
    """Return the examples' worth of progress that a model promises for what a run held."""
    total = 0.0
    for configuration, seconds in run.allocations:
        best = best_batch(model, configuration)
        if best is None:
            return None
        total += best.goodput * seconds
    return total


def _gpus(configuration: Configuration) -> str:
    gpus, nodes = configuration.num_gpus, configuration.num_nodes
    return f"{gpus} GPU{'s' * (gpus > 1)} of {nodes} node{'s' * (nodes > 1)}"
