"""Export a site's jobs from its store for simulations: measurements, and the delays of starts and moves.

The store has useful progress and statistical efficiency; their quotient is the number of examples. Delays are
means over the journal's reallocations and over the starts of runs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import fmean

import numpy as np

from pollux_slurm.model import (
    GoodputModel,
    GradientStatistics,
    ReallocationStep,
    ReallocationWay,
    ThroughputParameters,
)
from pollux_slurm.simulator.engine.cluster_rules import Delays
from pollux_slurm.simulator.site.measured_jobs import (
    MeasuredDelays,
    MeasuredJob,
    MeasuredQueue,
    invalid_reason,
)
from pollux_slurm.store.contract.interface import JobRecord, Reallocation, Sample, Store
from pollux_slurm.store.journal.move_costs import gains_gpus, reallocation_costs

# For a job without estimates: a larger batch brings no more progress.
_UNKNOWN = GradientStatistics(sqr=1.0, var=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedQueue:
    """The exported jobs. `excluded` are (job id, reason) of jobs that cannot be simulated."""

    queue: MeasuredQueue
    excluded: tuple[tuple[str, str], ...]


def export_queue(
    store: Store, *, since: datetime | None = None, until: datetime | None = None
) -> ExportedQueue:
    """Return the jobs submitted from `since` until before `until`, and their delays."""
    every = store.jobs.all()
    # The store returns histories by job id, of the newest job with that id.
    newest = {record.slurm_job_id: record for record in every}
    records = [
        record
        for record in every
        if (since is None or record.submitted_at >= since) and (until is None or record.submitted_at < until)
    ]
    first = min((record.submitted_at for record in records), default=None)
    jobs, excluded = [], []
    for record in records:
        assert first is not None
        found: MeasuredJob | str = "a later job has its job id"
        if newest[record.slurm_job_id] is record:
            found = _measured(store, record, submitted_s=(record.submitted_at - first).total_seconds())
        if isinstance(found, MeasuredJob):
            found = invalid_reason(found) or found
        if isinstance(found, str):
            excluded.append((record.slurm_job_id, found))
        else:
            jobs.append(found)
    delays = measure_delays(store, [one for one in records if newest[one.slurm_job_id] is one])
    return ExportedQueue(queue=MeasuredQueue(jobs=tuple(jobs), delays=delays), excluded=tuple(excluded))


# ---------------------------------------------------------------------------------------------------- one job


def _measured(store: Store, record: JobRecord, *, submitted_s: float) -> MeasuredJob | str:
    """Return the measured job, or the reason why it cannot be simulated."""
    job_id = record.slurm_job_id
    model, runs = record.model, store.history.runs(job_id)
    if model is None or model.throughput is None or not runs:
        return "it has reported no model"
    samples = store.history.samples(job_id)
    total = next((sample.total_epochs for sample in reversed(samples) if sample.total_epochs), None)
    if total is None:
        return "it has not declared how many epochs it trains"
    examples = examples_per_epoch(samples, model.limits.initial_batch_size)
    if examples is None:
        return "it has not ended an epoch"
    return MeasuredJob(
        name=f"{job_id} {record.name}".strip(),
        submitted_s=submitted_s,
        start_gpus=max(sum(runs[0].gpus_per_node), record.terms.min_gpus),
        num_epochs=total,
        examples_per_epoch=examples,
        limits=model.limits,
        throughput=scaled_times(model.throughput, step_time_ratio(samples)),
        statistics=_statistics(samples, store.history.models(job_id)),
        min_gpus=record.terms.min_gpus,
        max_gpus=record.terms.max_gpus,
        account=record.account,
    )


def examples_per_epoch(samples: Sequence[Sample], initial_batch_size: int) -> float | None:
    """Return the examples of an epoch; None before the first epoch has ended.

    Useful progress over efficiency is examples. The efficiency of a sample without one is 1 at the initial
    batch size, and else the last one known. Progress that a run repeats after a loss is not counted again.
    """
    seen, done, share = 0.0, 0.0, 1.0
    epochs, at_epochs = 0, 0.0
    for sample in samples:
        if sample.efficiency is not None:
            share = max(sample.efficiency, 1e-6)
        elif sample.batch is not None and sample.batch.global_batch_size <= initial_batch_size:
            share = 1.0
        seen += max(sample.progress - done, 0.0) * initial_batch_size / share
        done = max(done, sample.progress)
        if sample.epoch > epochs:
            epochs, at_epochs = sample.epoch, seen
    if epochs == 0:
        return None
    if samples[-1].total_epochs == epochs:
        return at_epochs / epochs
    # The first sample of the current epoch is on average half an epoch late.
    return at_epochs / (epochs + 0.5)


def step_time_ratio(samples: Sequence[Sample]) -> float:
    """Return measured over predicted step time, limited to a factor of two.

    Models are fitted to medians, but the samples' means include occasional slow steps.
    """
    compared = [
        (1 / sample.throughput, 1 / sample.predicted_throughput)
        for sample in samples
        if sample.throughput and sample.predicted_throughput
    ]
    if not compared:
        return 1.0
    ratio = sum(measured_s for measured_s, _ in compared) / sum(predicted_s for _, predicted_s in compared)
    return min(max(ratio, 0.5), 2.0)


def scaled_times(theta: ThroughputParameters, factor: float) -> ThroughputParameters:
    """Return θ with all times multiplied by `factor`."""
    return ThroughputParameters(
        alpha_g=theta.alpha_g * factor,
        beta_g=theta.beta_g * factor,
        alpha_n=theta.alpha_n * factor,
        beta_n=theta.beta_n * factor,
        alpha_l=theta.alpha_l * factor,
        beta_l=theta.beta_l * factor,
        gamma=theta.gamma,
    )


def _statistics(
    samples: Sequence[Sample], versions: Sequence[tuple[datetime, GoodputModel]]
) -> tuple[tuple[int, GradientStatistics], ...]:
    """Return the last statistics of each epoch that reported some; the first ones apply from epoch 0."""
    at = [sample.at for sample in samples]
    found: dict[int, GradientStatistics] = {}
    for when, model in versions:
        if model.statistics is not None:
            epoch = samples[max(bisect_right(at, when) - 1, 0)].epoch if samples else 0
            found[epoch] = model.statistics
    if not found:
        return ((0, _UNKNOWN),)
    first = min(found)
    return tuple((0 if epoch == first else epoch, found[epoch]) for epoch in sorted(found))


# ---------------------------------------------------------------------------------------------------- delays


def measure_delays(store: Store, records: Sequence[JobRecord]) -> MeasuredDelays | None:
    """Return the mean delays of `records`; None where no job ever started.

    Delays that were never measured have the defaults of `Delays`.
    """
    known = {record.slurm_job_id for record in records}
    all_moves = [move for move in store.journal.reallocations() if move.slurm_job_id in known]
    done = [move for move in all_moves if move.step is ReallocationStep.CONFIRMED and move.moves_running]
    moves = [move for move in done if move.way is ReallocationWay.REQUEUE]
    regroups = [move for move in done if move.way is ReallocationWay.IN_PLACE]
    costs = [reallocation_costs(move) for move in regroups]
    assumed = Delays()
    launches = [
        (float(move.target.num_gpus), launch_s)
        for move in moves
        if (launch_s := reallocation_costs(move).launch_s) is not None
    ]
    starts = []
    for record in records:
        first = next(iter(store.history.runs(record.slurm_job_id)), None)
        if first is None or record.started_at is None or first.first_step_s is None:
            continue
        waited = any(not move.moves_running for move in all_moves if move.slurm_job_id == record.slurm_job_id)
        if not waited:
            starts.append(max((record.started_at - record.submitted_at).total_seconds(), 0.0))
        came_up_s = (first.first_report_at - record.started_at).total_seconds()
        launches.append((float(sum(first.gpus_per_node)), max(came_up_s, first.first_step_s)))
    if not launches:
        return None
    launch_s, per_gpu_s = line_through(launches)
    return MeasuredDelays(
        notice_s=_mean(done, _notice_s, assumed.notice_s),
        checkpoint_s=_mean(moves, lambda move: move.checkpoint_blocked_s, assumed.checkpoint_s),
        requeue_s=_mean(
            moves,
            lambda move: _between(move, ReallocationStep.CHECKPOINTED, ReallocationStep.RUNNING),
            assumed.requeue_s,
        ),
        start_s=fmean(starts) if starts else assumed.start_s,
        launch_s=launch_s,
        launch_per_gpu_s=per_gpu_s,
        num_moves=len(moves),
        num_starts=len(starts),
        num_regroups=len(regroups),
        warm_up_s=_mean_known(cost.warm_up_s for cost in costs),
        standstill_s=_mean_known(cost.standstill_s for cost in costs),
    )


def line_through(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return (a, b) of the line a + b·x closest to points (x, y), with a and b not below 0."""
    x, y = (np.array(column) for column in zip(*points, strict=True))
    spread = float(((x - x.mean()) ** 2).sum())
    slope = float(((x - x.mean()) * (y - y.mean())).sum()) / spread if spread > 0 else 0.0
    if slope <= 0:
        return float(y.mean()), 0.0
    base = float(y.mean() - slope * x.mean())
    return (base, slope) if base >= 0 else (0.0, float((x * y).sum() / (x * x).sum()))


def _mean(
    moves: Sequence[Reallocation], measure: Callable[[Reallocation], float | None], otherwise: float
) -> float:
    found = [value for move in moves if (value := measure(move)) is not None]
    return fmean(found) if found else otherwise


def _mean_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _notice_s(move: Reallocation) -> float | None:
    """Return how long the job kept training between the request and its checkpoint, or its standstill.

    None for a move in place that gains GPUs: then it trains for a warm-up.
    """
    if move.way is ReallocationWay.IN_PLACE:
        took = _between(move, ReallocationStep.REGROUP_REQUESTED, ReallocationStep.REGROUPED)
        if took is None or move.standstill_s is None or gains_gpus(move):
            return None
        return max(took - move.standstill_s, 0.0)
    waited = _between(move, ReallocationStep.CHECKPOINT_REQUESTED, ReallocationStep.CHECKPOINTED)
    return None if waited is None else max(waited - (move.checkpoint_blocked_s or 0.0), 0.0)


def _between(move: Reallocation, start: ReallocationStep, end: ReallocationStep) -> float | None:
    first, last = move.entered_at(start), move.entered_at(end)
    if first is None or last is None:
        return None
    return max((last - first).total_seconds(), 0.0)
