"""Check a job's reported goodput model against the progress of its runs. Pure.

A false model could gain a job GPUs. A job whose model is rejected is treated like one without measurements:
it gets its minimum until model and progress agree again.

The model must agree with the last runs, not only with the current one. A rejected job runs on its minimum,
where a false model may be right, and it would be accepted again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from pollux_slurm.goodput import goodput_table
from pollux_slurm.model import Configuration, GoodputModel, GradientStatistics
from pollux_slurm.store.contract.interface import MIN_RECENT_RUN_S, JobRecord, RecentRun
from pollux_slurm.text import plural

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


def doubts_about(records: Sequence[JobRecord]) -> list[str | None]:
    """Return why each job's models are rejected, None where they are accepted."""
    asked = [(models_of(record), record.recent_runs) for record in records]
    goodputs = _goodputs(pair for models, runs in asked for pair in _pairs(models, runs))
    return [_doubt(models, runs, goodputs) for models, runs in asked]


def model_doubt(models: Models, recent_runs: Sequence[RecentRun]) -> str | None:
    """Return why a job's models are rejected, None where accepted; `recent_runs` come newest first.

    Runs on a GPU type without a model are skipped, and runs on GPUs that the model's limits exclude.
    """
    return _doubt(models, recent_runs, _goodputs(_pairs(models, recent_runs)))


Pair = tuple[GoodputModel, Configuration]


def _pairs(models: Models, recent_runs: Sequence[RecentRun]) -> Iterator[Pair]:
    """Yield the models and configurations whose goodput tells what the runs should have made."""
    for run in recent_runs:
        model = _model_for(models, run.gpu_type)
        if model is not None and run.allocated_s >= MIN_RECENT_RUN_S:
            yield from ((model, configuration) for configuration, _ in run.allocations)


def _goodputs(pairs: Iterable[Pair]) -> Mapping[Pair, float]:
    """Return the goodput of the best batches, 0 where none is allowed. All at once is quicker."""
    wanted = list(dict.fromkeys(pairs))
    row = {model: at for at, model in enumerate(dict.fromkeys(model for model, _ in wanted))}
    column = {one: at for at, one in enumerate(dict.fromkeys(one for _, one in wanted))}
    mask = np.zeros((len(row), len(column)), dtype=bool)
    for model, configuration in wanted:
        mask[row[model], column[configuration]] = True
    found = goodput_table(list(row), list(column), mask=mask).goodput
    return {(model, one): float(found[row[model], column[one]]) for model, one in wanted}


def _doubt(models: Models, recent_runs: Sequence[RecentRun], goodputs: Mapping[Pair, float]) -> str | None:
    checked = []
    for run in recent_runs:
        model = _model_for(models, run.gpu_type)
        if model is None or run.allocated_s < MIN_RECENT_RUN_S:
            continue
        predicted = _predicted(model, run, goodputs)
        if predicted is not None:
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
        noisy = dataclasses.replace(model, statistics=_NOISE_ONLY)
        goodputs = _goodputs((noisy, configuration) for configuration, _ in run.allocations)
        predicted = _predicted(noisy, run, goodputs) or predicted
    if predicted <= MAX_OVERSTATEMENT * made and made <= MAX_UNDERSTATEMENT * predicted:
        return None
    on = " and ".join(dict.fromkeys(_gpus(configuration) for configuration, _ in run.allocations))
    return (
        f"its model predicts {predicted / run.allocated_s:.3g} examples/s on {on}, "
        f"but a run there made {made / run.allocated_s:.3g}"
    )


def _predicted(model: GoodputModel, run: RecentRun, goodputs: Mapping[Pair, float]) -> float | None:
    """Return the progress, in examples, that a model predicts for the allocations of a run."""
    made = [(goodputs[model, configuration], seconds) for configuration, seconds in run.allocations]
    if not all(goodput > 0 for goodput, _ in made):
        return None
    return sum(goodput * seconds for goodput, seconds in made)


def _gpus(configuration: Configuration) -> str:
    gpus, nodes = configuration.num_gpus, configuration.num_nodes
    return f"{plural(gpus, 'GPU')} of {plural(nodes, 'node')}"
