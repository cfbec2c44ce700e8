"""Allocation intervals of a job, from what Slurm shows of it, by Slurm's own clock. Pure.

Slurm counts a run from its start to its end, less the time for which it was suspended (`ElapsedRaw` of
sacct). An *allocation interval* is a part of a run with one allocation. The intervals of a run add up to what
Slurm counts. slurmctld does not show the end of a run that was requeued. The nearest that it shows is the
job's submission time, which a requeue resets once the last process is gone. An interval whose limits are not
known to a second is marked as estimated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from pollux_slurm.model import Allocation, JobState
from pollux_slurm.store.contract.interface import JobObservation

# Slurm's times are whole seconds.
_EXACT = timedelta(seconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownInterval:
    """A recorded interval. While it lasts `ended_at` is None; only then `allocation` is filled."""

    number: int
    started_at: datetime
    ended_at: datetime | None
    restart_count: int | None
    allocation: Allocation = field(default_factory=Allocation)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewInterval:
    """An interval to be recorded. `restart_count` is None for one of the run that Slurm shows."""

    started_at: datetime
    ended_at: datetime | None
    allocation: Allocation
    estimated: bool = False
    restart_count: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndBounds:
    """Bounds of an end that Slurm does not show: the last round, and the run's last report."""

    last_round_at: datetime | None = None
    last_report_at: datetime | None = None


@dataclass(slots=True, kw_only=True)
class IntervalChange:
    """What one observation changes in a job's intervals.

    `new_start` is a later start that Slurm has set for the current run. `has_missed_run`: no round observed
    one of its runs.
    """

    closed_at: datetime | None = None
    closed_is_estimated: bool = False
    new_start: datetime | None = None
    opened: list[NewInterval] = field(default_factory=list)
    has_missed_run: bool = False

    @property
    def is_estimated(self) -> bool:
        return self.closed_is_estimated or self.has_missed_run or any(new.estimated for new in self.opened)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """The run that Slurm shows, current or over. `started_at` is None where unknown."""

    started_at: datetime | None
    ended_at: datetime | None
    allocation: Allocation
    suspended: bool
    resumed_at: datetime | None
    counted_s: float

    @classmethod
    def of(cls, seen: JobObservation) -> _Run | None:
        """Return the run; None for a pending job, and where Slurm shows no end of the last run."""
        is_over = seen.state.is_over or seen.state is JobState.COMPLETING
        if seen.state is JobState.PENDING or (is_over and seen.ended_at is None):
            return None
        started_at, ended_at = seen.started_at, seen.ended_at if is_over else None
        if started_at is not None and ended_at is not None and ended_at < started_at:
            started_at = None
        return cls(
            started_at=started_at,
            ended_at=ended_at,
            allocation=seen.last_allocation if is_over else seen.allocation,
            suspended=seen.suspended_at is not None and not is_over,
            resumed_at=seen.resumed_at,
            counted_s=seen.counted_s,
        )

    @property
    def has_unknown_allocation(self) -> bool:
        """Whether it had GPUs that Slurm does not show. A job that never ran has no duration."""
        has_lasted = None not in (self.started_at, self.ended_at) and self.started_at != self.ended_at
        return has_lasted and not self.allocation

    def intervals(self, at: datetime) -> list[NewInterval]:
        """Return the intervals of a new run, without the time for which it was suspended."""
        start, is_estimated = (at, True) if self.started_at is None else (self.started_at, False)
        if not self.suspended and self.resumed_at is None:
            whole = NewInterval(
                started_at=start, ended_at=self.ended_at, allocation=self.allocation, estimated=is_estimated
            )
            return [whole]
        suspended_at = start + timedelta(seconds=self.counted_s)
        first = NewInterval(started_at=start, ended_at=suspended_at, allocation=self.allocation)
        if self.resumed_at is None or self.ended_at == self.resumed_at:
            return [first]
        rest = NewInterval(started_at=self.resumed_at, ended_at=self.ended_at, allocation=self.allocation)
        return [first, rest]


def interval_change(
    last: KnownInterval | None,
    seen: JobObservation,
    *,
    at: datetime,
    others_s: float = 0.0,
    end_bounds: EndBounds | None = None,
) -> IntervalChange:
    """Return what an observation at `at` changes for a job whose newest interval is `last`.

    `others_s` is the sum of the ended intervals of the run that Slurm shows, in seconds.
    """
    run, change = _Run.of(seen), IntervalChange()
    is_new = run is not None and (last is None or _is_new_run(run, last, seen))
    change.has_missed_run = _has_missed_run(last, seen) or (
        is_new and run is not None and run.has_unknown_allocation
    )
    if last is not None and last.ended_at is None and (run is None or is_new):
        _close_without_end(change, last, seen, at, end_bounds or EndBounds())
    if run is None:
        return change
    if is_new:
        if run.allocation:
            change.opened = run.intervals(at)
    elif last is not None and last.ended_at is None:
        _update_open(change, last, run, seen, at, others_s)
    elif last is not None and last.ended_at is not None:
        _extend_ended(change, last.ended_at, run, at, others_s)
    return change


def _is_new_run(run: _Run, last: KnownInterval, seen: JobObservation) -> bool:
    if run.started_at is None:
        return last.ended_at is not None and run.ended_at is None
    if run.started_at <= last.started_at:
        return False
    # Slurm sets a later start once nodes that had to boot are up.
    is_same_open = last.ended_at is None and last.restart_count == seen.restart_count is not None
    return not (is_same_open and run.ended_at is None and run.allocation == last.allocation)


def _update_open(
    change: IntervalChange,
    last: KnownInterval,
    run: _Run,
    seen: JobObservation,
    at: datetime,
    others_s: float,
) -> None:
    """Update the open interval of a run."""
    start = last.started_at
    if run.started_at is not None and run.started_at > start:
        change.new_start = start = run.started_at
    has_resumed = run.resumed_at is not None and run.resumed_at > start
    if run.suspended or has_resumed:
        change.closed_at = start + timedelta(seconds=max(run.counted_s - others_s, 0.0))
        if has_resumed and run.resumed_at is not None and run.ended_at != run.resumed_at:
            allocation = run.allocation if run.ended_at is None else last.allocation
            change.opened = [
                NewInterval(started_at=run.resumed_at, ended_at=run.ended_at, allocation=allocation)
            ]
    elif run.ended_at is not None:
        change.closed_at, change.closed_is_estimated = max(run.ended_at, start), seen.estimated
    elif run.allocation != last.allocation:
        later = [entry for entry in seen.changes if entry[0] > start]
        is_exact = bool(later) and later[-1][1] == run.allocation
        follow_changes(change, last.allocation, later if is_exact else [(max(at, start), run.allocation)])
        change.closed_is_estimated = not is_exact


def follow_changes(
    change: IntervalChange, allocation: Allocation, changes: Iterable[tuple[datetime, Allocation]]
) -> None:
    """End the interval that has `allocation` at the first of `changes`, and begin one at each of them.

    With an empty `allocation`, no interval is open.
    """
    for changed_at, changed in changes:
        if changed == allocation:
            continue
        if allocation and change.opened:
            change.opened[-1] = replace(change.opened[-1], ended_at=changed_at)
        elif allocation:
            change.closed_at = changed_at
        if changed:
            change.opened.append(NewInterval(started_at=changed_at, ended_at=None, allocation=changed))
        allocation = changed


def _extend_ended(
    change: IntervalChange, ended_at: datetime, run: _Run, at: datetime, others_s: float
) -> None:
    """Add intervals to a run whose newest one has ended: it was suspended, and may have resumed."""
    if not run.allocation:
        return

    def add(started_at: datetime, until: datetime | None, *, estimated: bool = False) -> None:
        change.opened.append(
            NewInterval(started_at=started_at, ended_at=until, allocation=run.allocation, estimated=estimated)
        )

    unrecorded_s = run.counted_s - others_s
    # It was resumed and suspended again since the last round.
    if (run.suspended or run.resumed_at is not None) and unrecorded_s >= 1.0:
        add(ended_at, ended_at + timedelta(seconds=unrecorded_s))
    if run.suspended:
        return
    if run.resumed_at is not None and run.resumed_at >= ended_at:
        if run.ended_at is None or run.ended_at > run.resumed_at:
            add(run.resumed_at, run.ended_at)
    elif run.ended_at is None:
        add(max(at, ended_at), None, estimated=True)


def _close_without_end(
    change: IntervalChange, last: KnownInterval, seen: JobObservation, at: datetime, end_bounds: EndBounds
) -> None:
    """End the interval of a run whose end Slurm does not show: a new run has begun, or the job is pending.

    Only a time between two of Slurm's own times is exact: `at` and the end bounds are by another clock.
    """
    began_at = last.started_at
    # Slurm shows an expected start for a pending job.
    started_at = None if seen.state is JobState.PENDING else seen.started_at
    shown = (moment for moment in (seen.submitted_at, started_at) if moment is not None)
    later = min((moment for moment in shown if moment > began_at), default=None)
    latest = max(at, began_at) if later is None else later
    if not _has_missed_run(last, seen):
        change.closed_at, change.closed_is_estimated = latest, later is None or later - began_at > _EXACT
        return
    last_round_at = began_at if end_bounds.last_round_at is None else end_bounds.last_round_at
    earliest = min(max(began_at, last_round_at), latest)
    # `latest` may be the end of a later run.
    reported_at = end_bounds.last_report_at
    change.closed_at = earliest if reported_at is None else min(max(reported_at, earliest), latest)
    change.closed_is_estimated = True


def _has_missed_run(last: KnownInterval | None, seen: JobObservation) -> bool:
    """Return whether there was a run between the newest interval and the one that Slurm shows.

    The restart count grows with the requeue itself: a pending job, requeued n times, has ended its run n - 1.
    """
    if seen.restart_count is None or (last is not None and last.restart_count is None):
        return False
    known = -1 if last is None or last.restart_count is None else last.restart_count
    return known < seen.restart_count - 1


def counted_s(intervals: Sequence[tuple[datetime, datetime]], since: datetime) -> float:
    """Return the sum of the ended intervals of a run that started at `since`, in seconds."""
    return sum((end - start).total_seconds() for start, end in intervals if start >= since)
