"""Check a job's reported goodput model against the progress of its runs. Pure.

A false model could gain a job GPUs. A job whose model is rejected is treated like one without measurements:
it gets its minimum until model and progress agree again.

The model must agree with the last runs, not only with the current one. A rejected job runs on its minimum,
where a false model may be right, and it would be accepted again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from pollux_slurm.goodput import best_batch
from pollux_slurm.model import Configuration, GoodputModel, GradientStatistics
from pollux_slurm.store.contract.interface import MIN_RECENT_RUN_S, JobRecord, RecentRun

# By which factor a model may predict more progress than a run made. Where epochs take seconds, most of the
# time may go to validation, checkpoints and starting workers, and the gradient noise may have grown since. A
# factor of 10 would reject such jobs and gain little: a ninefold overstatement gains a job 12 % under
# `attained-work`, a thousandfold one 18 to 30 % without this check.
MAX_OVERSTATEMENT = 100.0
# By which factor it may predict less: models are off by 10 or 20 %, some by half.
MAX_UNDERSTATEMENT = 4.0

# How many runs must disagree where the newest agrees: a single run may have been one validation.
_MIN_DISAGREEING_RUNS = 2

# Statistics of pure noise: each example is worth as much at any batch size as at the initial one.
_NOISE_ONLY = GradientStatistics(sqr=0.0, var=1.0)

Models = tuple[GoodputModel | None, tuple[tuple[str, GoodputModel], ...]]
"""One model for all GPU types, or None and the models by type."""


def models_of(record: JobRecord) -> Models:
    """Return the models that a job reported.

    Gradients do not depend on the GPU type, so all models get the newest statistics and the largest size
    seen.
    """
    newest = record.model
    if newest is None or not record.models:
        return newest, ()
    max_gpus_seen = max(newest.max_gpus_seen, *(model.max_gpus_seen for _, model in record.models))
    return None, tuple(
        (
            kind,
            dataclasses.replace(
                model, statistics=newest.statistics or model.statistics, max_gpus_seen=max_gpus_seen
            ),
        )
        for kind, model in record.models
    )


def doubt_about(record: JobRecord) -> str | None:
    """Return why a job's models are rejected, None where they are accepted."""
    return model_doubt(models_of(record), record.recent_runs)


def model_doubt(models: Models, recent_runs: Sequence[RecentRun]) -> str | None:
    """Return why a job's models are rejected, None where accepted; `recent_runs` come newest first.

    Runs on a GPU type without a model are skipped, and runs on GPUs that the model's limits exclude.
    """
    checked = []
    for run in recent_runs:
        model = _model_for(models, run.gpu_type)
        predicted = None if model is None else _predicted(model, run)
        if model is not None and predicted is not None and run.allocated_s >= MIN_RECENT_RUN_S:
            checked.append(_contradiction(model, predicted, run))
    disagreeing = [reason for reason in checked if reason is not None]
    if disagreeing and (checked[0] is not None or len(disagreeing) >= _MIN_DISAGREEING_RUNS):
        return disagreeing[0]
    return None


def _model_for(models: Models, gpu_type: str | None) -> GoodputModel | None:
    for_all, by_type = models
    return for_all if for_all is not None else dict(by_type).get(gpu_type or "")


def _contradiction(model: GoodputModel, predicted: float, run: RecentRun) -> str | None:
    # Progress is in units of M0: each is worth M0 examples at efficiency 1.
    made = run.progress * model.limits.initial_batch_size
    if made > MAX_UNDERSTATEMENT * predicted:
        # Large batches may have been more efficient during the run than they are now.
        predicted = _predicted(dataclasses.replace(model, statistics=_NOISE_ONLY), run) or predicted
    if predicted <= MAX_OVERSTATEMENT * made and made <= MAX_UNDERSTATEMENT * predicted:
        return None
    on = " and ".join(dict.fromkeys(_gpus(configuration) for configuration, _ in run.allocations))
    return (
        f"its model predicts {predicted / run.allocated_s:.3g} examples/s on {on}, "
        f"but a run there made {made / run.allocated_s:.3g}"
    )


def _predicted(model: GoodputModel, run: RecentRun) -> float | None:
    """Return the progress, in examples, that a model predicts for the allocations of a run."""
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
