"""What a daemon in shadow mode expected to gain, and how good its predictions were for what ran anyway."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from pollux_slurm.document.charts.line_charts import LineChart, Panel, Series
from pollux_slurm.document.charts.scales import linear_axis
from pollux_slurm.document.charts.thinning import averaged
from pollux_slurm.document.charts.time_axes import Range, time_axis
from pollux_slurm.document.columns import Column, Data, Kind, spread, table_of
from pollux_slurm.document.document import Part, Plot
from pollux_slurm.errors import InvalidProblemError
from pollux_slurm.goodput import TableCache
from pollux_slurm.model import Allocation, Decision, Problem
from pollux_slurm.policy.comparison import evaluate
from pollux_slurm.report.parts.columns import (
    AT,
    GPUS_DECIDED,
    GPUS_STOOD,
    JOB,
    MEAN_ABS_ERROR,
    MEAN_ERROR,
    NUM_GPUS,
    NUM_JOBS,
    NUM_ROUNDS,
    NUM_SAMPLES,
    ROUND,
)
from pollux_slurm.store.reporting.shadow import (
    AllocationInterval,
    MeasuredGoodput,
    ShadowHistory,
    ShadowRound,
)
from pollux_slurm.text import change_text

# A report waits for so many jobs' goodput tables, of as many rounds as that makes, and no more rounds.
_MOST_WEIGHED_JOBS = 20_000
_MOST_WEIGHED = 200
_LEAST_WEIGHED = 10
# Samples come every half minute by default: a window holds a few of them.
_LEAST_WINDOW = timedelta(seconds=120)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeighedRound:
    """One round's decision against what stood, over the jobs that it decided about.

    `fitness_*` is the objective's value, a mean over jobs that counts those without GPUs as next to nothing;
    `speedup_*` is the mean of f·SPEEDUP over jobs, and `gpus_*` what they have in all. `kept` are the
    predicted goodputs, in examples/s, of the jobs that the round left just as they were, by Slurm's number.
    """

    round: ShadowRound
    num_jobs: int
    fitness_stood: float
    fitness_decided: float
    speedup_stood: float
    speedup_decided: float
    gpus_stood: int
    gpus_decided: int
    kept: Mapping[str, float]

    @property
    def gain(self) -> float | None:
        """The part by which the decision's mean speedup is above that of what stood; None from nothing."""
        return self.speedup_decided / self.speedup_stood - 1.0 if self.speedup_stood > 0 else None

    @property
    def fitness_gain(self) -> float | None:
        return self.fitness_decided / self.fitness_stood - 1.0 if self.fitness_stood > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowPrediction:
    """A goodput predicted for what a job went on with, and what it then measured; in examples/s."""

    slurm_job_id: str
    num_gpus: int
    predicted: float
    measured: float
    num_samples: int

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1.0


def rounds_to_weigh(history: ShadowHistory) -> tuple[ShadowRound, ...]:
    """Return replayable rounds with jobs, evenly apart, so many that weighing them takes seconds."""
    rounds = [one for one in history.rounds if one.replayable and one.num_jobs]
    if not rounds:
        return ()
    mean_jobs = statistics.fmean(one.num_jobs for one in rounds)
    most = min(max(int(_MOST_WEIGHED_JOBS / mean_jobs), _LEAST_WEIGHED), _MOST_WEIGHED)
    return tuple(rounds[place] for place in spread(rounds, most))


def weigh(round_: ShadowRound, problem: Problem, decision: Decision, tables: TableCache) -> WeighedRound:
    """Compare a round's decision with what stood, over the jobs that took part in it.

    Raises `InvalidProblemError` for a decision that is not about this problem.
    """
    known = {node.name for node in problem.nodes}
    if not known.issuperset(name for job in decision.jobs for name in job.allocation.nodes):
        raise InvalidProblemError(f"round {round_.round_id} gave nodes that its problem does not have")
    excluded = {job_id for job_id, _ in decision.excluded}
    current = {job.job_id: job.current for job in problem.jobs}
    decided = {job.job_id: job.allocation for job in decision.jobs}
    before, after = evaluate(problem, current, decided, without=excluded, tables=tables)
    taking_part = list(before.speedups)
    return WeighedRound(
        round=round_,
        num_jobs=len(taking_part),
        fitness_stood=before.fitness,
        fitness_decided=after.fitness,
        speedup_stood=_mean(before.speedups),
        speedup_decided=_mean(after.speedups),
        gpus_stood=sum(current[job_id].num_gpus for job_id in taking_part),
        gpus_decided=sum(decided.get(job_id, Allocation()).num_gpus for job_id in taking_part),
        kept={
            job.job_id: job.goodput
            for job in decision.jobs
            if job.goodput is not None and job.allocation and job.allocation == current.get(job.job_id)
        },
    )


def _mean(speedups: Mapping[str, float]) -> float:
    return statistics.fmean(speedups.values()) if speedups else 0.0


def windows_of(
    weighed: Sequence[WeighedRound], history: ShadowHistory
) -> tuple[tuple[datetime, datetime], ...]:
    """Return, for each weighed round, the time up to the round after it, two minutes at least."""
    following = {
        one.round_id: after.at for one, after in zip(history.rounds, history.rounds[1:], strict=False)
    }
    return tuple(
        (
            one.round.at,
            max(
                min(following.get(one.round.round_id, one.round.at), one.round.at + timedelta(hours=1)),
                one.round.at + _LEAST_WINDOW,
            ),
        )
        for one in weighed
    )


def predictions_of(
    weighed: Sequence[WeighedRound],
    windows: Sequence[tuple[datetime, datetime]],
    measured: Sequence[Mapping[str, MeasuredGoodput]],
    intervals: Mapping[str, Sequence[AllocationInterval]],
) -> tuple[ShadowPrediction, ...]:
    """Return predicted against measured goodput of the jobs that rounds left as they were.

    A window counts only if the job had one allocation from its begin to its end. `intervals` are by
    Slurm's number.
    """
    found = []
    for one, (begin, end), by_job in zip(weighed, windows, measured, strict=True):
        for job_id, predicted in one.kept.items():
            sample = by_job.get(job_id)
            held = next(
                (
                    interval.allocation
                    for interval in intervals.get(job_id, ())
                    if interval.started_at <= begin
                    and (interval.ended_at is None or interval.ended_at >= end)
                ),
                None,
            )
            if sample is None or not held or not sample.goodput > 0 or not math.isfinite(predicted):
                continue
            found.append(
                ShadowPrediction(
                    slurm_job_id=job_id,
                    num_gpus=held.num_gpus,
                    predicted=predicted,
                    measured=sample.goodput,
                    num_samples=sample.num_samples,
                )
            )
    return tuple(found)


_ROUND_COLUMNS = (
    replace(AT, value=lambda one: one.round.at),
    replace(ROUND, value=lambda one: one.round.round_id),
    NUM_JOBS,
    GPUS_STOOD,
    GPUS_DECIDED,
    Column("speedup_stood", "mean speedup that stood"),
    Column("speedup_decided", "mean speedup decided"),
    Column("gain", "gain", Kind.SHARE),
    Column("fitness_stood", "fitness that stood"),
    Column("fitness_decided", "fitness decided"),
    Column("fitness_gain", "gain in fitness", Kind.SHARE),
)


def gain_part(weighed: Sequence[WeighedRound], range_: Range) -> Part:
    """Return what decisions were worth by the daemon's own models, against what stood."""
    title = "Predicted gain"
    data = table_of(
        "shadow_rounds",
        weighed,
        _ROUND_COLUMNS,
        keep="spread",
        note="Speedups are over each job's fair share, restarts paid for; fitness is the objective's own "
        "mean, in which a job that waits counts as next to nothing.",
    )
    if not weighed:
        return Part(title=title, text="No round of this time has its problem kept.", tables=(data,))
    stood = [(one.round.at.timestamp(), one.speedup_stood) for one in weighed]
    decided = [(one.round.at.timestamp(), one.speedup_decided) for one in weighed]
    middle = median_gain(weighed)
    summary = (
        "No job held anything to compare with."
        if middle is None
        else f"By the jobs' models, decisions were worth {change_text(middle)} in mean speedup over what "
        f"stood, at the median of {len(weighed):,} rounds."
    )
    chart = LineChart(
        title="Mean speedup, as it stood and as it was decided",
        text=summary,
        x=time_axis([range_.since, range_.until]),
        panels=(
            Panel(
                y=linear_axis("mean speedup", [value for _, value in (*stood, *decided)]),
                series=(
                    Series(label="decided", points=averaged(decided), style=2, step=True),
                    Series(label="stood", points=averaged(stood), style=5, step=True),
                ),
                height=170.0,
            ),
        ),
    )
    caption = (
        "Speedups over each job's fair share, as the daemon's models predict them, averaged over the jobs "
        "that took part: for the allocations that Slurm had given, and for those that the round decided on, "
        "with the price of each restart taken off."
    )
    return Part(title=title, text=summary, plots=(Plot(chart=chart, caption=caption, data=data),))


def median_gain(weighed: Sequence[WeighedRound]) -> float | None:
    """Return the median over rounds of the gain in mean speedup; None where nothing stood."""
    gains = [one.gain for one in weighed if one.gain is not None]
    return statistics.median(gains) if gains else None


_PREDICTION_COLUMNS = (
    JOB,
    NUM_GPUS,
    NUM_ROUNDS,
    NUM_SAMPLES,
    Column("predicted_goodput", "predicted (examples/s)"),
    Column("goodput", "measured (examples/s)"),
    MEAN_ERROR,
    MEAN_ABS_ERROR,
)


def predictions_part(predictions: Sequence[ShadowPrediction]) -> Part:
    """Return predicted against measured goodput by job and GPUs, the worst first."""
    groups: defaultdict[tuple[str, int], list[ShadowPrediction]] = defaultdict(list)
    for one in predictions:
        groups[one.slurm_job_id, one.num_gpus].append(one)
    rows = [
        (
            job_id,
            gpus,
            len(found),
            sum(one.num_samples for one in found),
            statistics.fmean(one.predicted for one in found),
            statistics.fmean(one.measured for one in found),
            statistics.fmean(one.error for one in found),
            statistics.fmean(abs(one.error) for one in found),
        )
        for (job_id, gpus), found in groups.items()
    ]
    rows.sort(key=lambda row: (-row[-1], row[0], row[1]))
    data = Data(
        key="goodput_predictions",
        columns=_PREDICTION_COLUMNS,
        rows=tuple(rows),
        note="What a round predicted for a job that it left as it was, against what the job measured up to "
        "the next round. Mean error: predicted over measured goodput, less 1; above 0 the model promised too "
        "much.",
    )
    text = "" if rows else "No job was left as it was and measured its goodput meanwhile."
    return Part(title="Predicted against measured goodput", text=text, tables=(data,))
