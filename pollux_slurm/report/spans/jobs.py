"""The jobs of a span of time, from Slurm's accounting and the store, and what they have in common."""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from pollux_slurm.document.charts.time_axes import Range
from pollux_slurm.slurm.parsing.sacct_text import SacctJob
from pollux_slurm.store.reporting.view_rows import AccountUsage, JobGoodput

SIZES = ("1 GPU", "2–3 GPUs", "4–7 GPUs", "8–15 GPUs", "16 GPUs or more")
_SMALLEST = (1, 2, 4, 8, 16)
# A slowdown of a job of seconds says nothing about its time in the queue.
_SHORTEST_RUN_S = 60.0
# slurmctld may start its job ids anew.
_SAME_JOB = timedelta(days=7)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanJob:
    """One job with GPUs. `num_gpus` is the mean from its start to its end, or now, for an adaptive job."""

    user_name: str
    account: str
    state: str
    submitted_at: datetime
    started_at: datetime
    ended_at: datetime | None
    num_gpus: float
    gpu_hours: float
    adaptive: bool

    @property
    def waited_s(self) -> float:
        return max((self.started_at - self.submitted_at).total_seconds(), 0.0)

    @property
    def completion_s(self) -> float | None:
        """From submission to end; None for a job that has not ended."""
        return (
            None if self.ended_at is None else max((self.ended_at - self.submitted_at).total_seconds(), 0.0)
        )

    @property
    def slowdown(self) -> float | None:
        """Completion time over the time since its start, which counts as a minute at least."""
        completion_s = self.completion_s
        if completion_s is None:
            return None
        return max(completion_s / max(completion_s - self.waited_s, _SHORTEST_RUN_S), 1.0)

    @property
    def size(self) -> str:
        return SIZES[sum(self.num_gpus >= least for least in _SMALLEST[1:])]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Jobs that were submitted in `range` and had GPUs; `num_without` had none or never started.

    `first_at` and `last_at` are the first and the last submission in it that Slurm accounts for.
    `trained_gpu_hours` and `useful_gpu_hours` are those of `measured_gpu_hours`, which the store measured.
    """

    name: str
    range: Range
    jobs: tuple[SpanJob, ...]
    num_without: int = 0
    first_at: datetime | None = None
    last_at: datetime | None = None
    measured_gpu_hours: float = 0.0
    trained_gpu_hours: float = 0.0
    useful_gpu_hours: float = 0.0

    @property
    def days(self) -> float:
        return (self.range.until - self.range.since).total_seconds() / 86400.0

    @property
    def gpu_hours(self) -> float:
        return sum(job.gpu_hours for job in self.jobs)

    def share(self, counts: Callable[[SpanJob], bool]) -> float | None:
        """Return the share of the GPU hours that belongs to some of its jobs."""
        total = self.gpu_hours
        return sum(job.gpu_hours for job in self.jobs if counts(job)) / total if total else None

    def shares_by(self, key: Callable[[SpanJob], str]) -> dict[str, float]:
        """Return the share of the GPU hours by group."""
        hours: defaultdict[str, float] = defaultdict(float)
        for job in self.jobs:
            hours[key(job)] += job.gpu_hours
        total = self.gpu_hours or 1.0
        return {name: found / total for name, found in hours.items()}


def span_of(
    name: str,
    range_: Range,
    accounted: Iterable[SacctJob],
    adaptive: Sequence[JobGoodput] = (),
    usage: Sequence[AccountUsage] = (),
    *,
    now: datetime,
) -> Span:
    """Join the jobs of Slurm's accounting and of the store that were submitted in a range, as of `now`.

    What the store knows of a job counts: it adds up the parts of a job that moves in place. Its wings, which
    Slurm counts as jobs of their own, are recognised by user and name.
    """
    own = [row for row in adaptive if range_.since <= row.submitted_at < range_.until]
    by_id: defaultdict[str, list[JobGoodput]] = defaultdict(list)
    for row in own:
        by_id[row.slurm_job_id].append(row)
    names = {(row.user_name, row.name) for row in adaptive}
    inside = [one for one in accounted if range_.since <= one.submitted_at < range_.until]
    jobs = [_of_store(row, now) for row in own]
    without = 0
    for one in inside:
        if _is_wing(one, names):
            continue
        if any(abs(row.submitted_at - one.submitted_at) < _SAME_JOB for row in by_id[one.job_id]):
            continue
        without += one.started_at is None
        jobs.append(_of_accounting(one))
    found = tuple(job for job in jobs if job is not None)
    return Span(
        name=name,
        range=range_,
        jobs=found,
        num_without=without + sum(row.started_at is None for row in own),
        first_at=min((one.submitted_at for one in inside), default=None),
        last_at=max((one.submitted_at for one in inside), default=None),
        measured_gpu_hours=sum(row.gpu_hours for row in usage),
        trained_gpu_hours=sum(row.trained_gpu_hours for row in usage),
        useful_gpu_hours=sum(row.useful_gpu_hours for row in usage),
    )


def _is_wing(job: SacctJob, names: set[tuple[str, str]]) -> bool:
    found = re.fullmatch(r"(.*)\+[0-9]+", job.name, re.DOTALL)
    return found is not None and (job.user_name, found[1]) in names


def _of_accounting(job: SacctJob) -> SpanJob | None:
    if job.started_at is None:
        return None
    return SpanJob(
        user_name=job.user_name,
        account=job.account,
        state=job.state.lower(),
        submitted_at=job.submitted_at,
        started_at=job.started_at,
        ended_at=job.ended_at if job.has_ended else None,
        num_gpus=job.num_gpus,
        gpu_hours=job.gpu_s / 3600.0,
        adaptive=False,
    )


def _of_store(row: JobGoodput, now: datetime) -> SpanJob | None:
    if row.started_at is None:
        return None
    ran_s = ((row.finished_at or now) - row.started_at).total_seconds()
    return SpanJob(
        user_name=row.user_name,
        account=row.account,
        state=row.state,
        submitted_at=row.submitted_at,
        started_at=row.started_at,
        ended_at=row.finished_at,
        num_gpus=max(row.gpu_hours * 3600.0 / ran_s, 1.0) if ran_s > 0 else 1.0,
        gpu_hours=row.gpu_hours,
        adaptive=True,
    )


def quartiles(values: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """Return the first quartile, the median and the third; None for no values."""
    if not values:
        return None, None, None
    if len(values) == 1:
        return values[0], values[0], values[0]
    first, median, third = statistics.quantiles(values, n=4, method="inclusive")
    return first, median, third


def relative(before: float | None, after: float | None) -> float | None:
    """Return by which share `after` differs from `before`; None where that says nothing."""
    return None if before is None or after is None or before <= 0 else after / before - 1.0
