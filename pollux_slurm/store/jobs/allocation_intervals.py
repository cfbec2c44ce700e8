"""How a job's stretches of allocation follow from what Slurm shows of it, by Slurm's own clock. Pure.

Slurm counts a run from its start to its end, less the time for which it was suspended (`ElapsedRaw` of
sacct). A *stretch* is a part of a run in which it held the same GPUs; the stretches of a run add up to what
Slurm counts. Of a run that was requeued, slurmctld no longer tells the end: the job's time of submission,
which a requeue resets once the last process is gone, is the nearest that it shows. What is not known to a
second is marked as estimated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from pollux_slurm.model import Allocation, JobState
from pollux_slurm.store.contract.interface import JobObservation

# Slurm's times are whole seconds.
_EXACT = timedelta(seconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A stretch that is known; `ended_at` is None while it lasts, and only then `allocation` is filled."""

    number: int
    started_at: datetime
    ended_at: datetime | None
    restart_count: int | None
    allocation: Allocation = field(default_factory=Allocation)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewStretch:
    """A stretch to be written."""

    started_at: datetime
    ended_at: datetime | None
    allocation: Allocation
    estimated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """What else bounds the end of a run that nobody saw: the last complete look at Slurm, its last report."""

    looked_at: datetime | None = None
    last_report_at: datetime | None = None


@dataclass(slots=True, kw_only=True)
class Change:
    """What a look changes. `moved_start` is the later start that Slurm has given to a run under way.

    `is_gap`: there was a run of which nothing is known.
    """

    closed_at: datetime | None = None
    closed_by_guess: bool = False
    moved_start: datetime | None = None
    opened: list[NewStretch] = field(default_factory=list)
    is_gap: bool = False

    @property
    def is_estimated(self) -> bool:
        return self.closed_by_guess or self.is_gap or any(new.estimated for new in self.opened)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """The run that Slurm shows, under way or over. `started_at` is None where nobody told."""

    started_at: datetime | None
    ended_at: datetime | None
    allocation: Allocation
    suspended: bool
    resumed_at: datetime | None
    counted_s: float

    @classmethod
    def of(cls, seen: JobObservation) -> _Run | None:
        """Return the run; None for a job that waits, or of whose last run Slurm shows no times any more."""
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
    def is_untold(self) -> bool:
        """Whether it held something, and Slurm does not tell what. A job that never ran has no duration."""
        has_lasted = None not in (self.started_at, self.ended_at) and self.started_at != self.ended_at
        return has_lasted and not self.allocation

    def pieces(self, at: datetime) -> list[NewStretch]:
        """Return the stretches of a run that was not known, less what it was suspended."""
        start, is_guess = (at, True) if self.started_at is None else (self.started_at, False)
        if not self.suspended and self.resumed_at is None:
            whole = NewStretch(
                started_at=start, ended_at=self.ended_at, allocation=self.allocation, estimated=is_guess
            )
            return [whole]
        paused_at = start + timedelta(seconds=self.counted_s)
        first = NewStretch(started_at=start, ended_at=paused_at, allocation=self.allocation)
        if self.resumed_at is None or self.ended_at == self.resumed_at:
            return [first]
        rest = NewStretch(started_at=self.resumed_at, ended_at=self.ended_at, allocation=self.allocation)
        return [first, rest]


def change_of(
    last: Stretch | None,
    seen: JobObservation,
    *,
    at: datetime,
    others_s: float = 0.0,
    hints: Hints | None = None,
) -> Change:
    """Return what a look at `at` changes for a job whose newest stretch is `last`.

    `others_s` is what the ended stretches of the run that Slurm shows add up to, in seconds.
    """
    run, change = _Run.of(seen), Change()
    is_new = run is not None and (last is None or _is_other(run, last, seen))
    change.is_gap = _is_gap(last, seen) or (is_new and run is not None and run.is_untold)
    if last is not None and last.ended_at is None and (run is None or is_new):
        _close_unseen(change, last, seen, at, hints or Hints())
    if run is None:
        return change
    if is_new:
        if run.allocation:
            change.opened = run.pieces(at)
    elif last is not None and last.ended_at is None:
        _go_on(change, last, run, seen, at, others_s)
    elif last is not None and last.ended_at is not None:
        _begin_again(change, last.ended_at, run, at, others_s)
    return change


def _is_other(run: _Run, last: Stretch, seen: JobObservation) -> bool:
    if run.started_at is None:
        return last.ended_at is not None and run.ended_at is None
    if run.started_at <= last.started_at:
        return False
    # Slurm starts a run anew by its clock once nodes that had to boot are up.
    is_same_open = last.ended_at is None and last.restart_count == seen.restart_count is not None
    return not (is_same_open and run.ended_at is None and run.allocation == last.allocation)


def _go_on(
    change: Change, last: Stretch, run: _Run, seen: JobObservation, at: datetime, others_s: float
) -> None:
    """Follow a run whose newest stretch is open."""
    start = last.started_at
    if run.started_at is not None and run.started_at > start:
        change.moved_start = start = run.started_at
    has_resumed = run.resumed_at is not None and run.resumed_at > start
    if run.suspended or has_resumed:
        change.closed_at = start + timedelta(seconds=max(run.counted_s - others_s, 0.0))
        if has_resumed and run.resumed_at is not None and run.ended_at != run.resumed_at:
            allocation = run.allocation if run.ended_at is None else last.allocation
            change.opened = [
                NewStretch(started_at=run.resumed_at, ended_at=run.ended_at, allocation=allocation)
            ]
    elif run.ended_at is not None:
        change.closed_at, change.closed_by_guess = max(run.ended_at, start), seen.estimated
    elif run.allocation != last.allocation:
        is_told = seen.resized_at is not None and start < seen.resized_at
        resized_at = seen.resized_at if is_told and seen.resized_at is not None else max(at, start)
        change.closed_at, change.closed_by_guess = resized_at, not is_told
        if run.allocation:
            change.opened = [NewStretch(started_at=resized_at, ended_at=None, allocation=run.allocation)]


def _begin_again(change: Change, ended_at: datetime, run: _Run, at: datetime, others_s: float) -> None:
    """Follow a run whose newest stretch has ended: it was suspended, and perhaps goes on."""
    if not run.allocation:
        return

    def add(started_at: datetime, until: datetime | None, *, estimated: bool = False) -> None:
        change.opened.append(
            NewStretch(started_at=started_at, ended_at=until, allocation=run.allocation, estimated=estimated)
        )

    unseen_s = run.counted_s - others_s
    if (run.suspended or run.resumed_at is not None) and unseen_s >= 1.0:  # it went on for so long meanwhile
        add(ended_at, ended_at + timedelta(seconds=unseen_s))
    if run.suspended:
        return
    if run.resumed_at is not None and run.resumed_at >= ended_at:
        if run.ended_at is None or run.ended_at > run.resumed_at:
            add(run.resumed_at, run.ended_at)
    elif run.ended_at is None:
        add(max(at, ended_at), None, estimated=True)


def _close_unseen(change: Change, last: Stretch, seen: JobObservation, at: datetime, hints: Hints) -> None:
    """End the stretch of a run of which Slurm shows no end: another has come, or the job waits again.

    Known to a second is only what lies between two of Slurm's own times: `at` and those of the hints are by
    another clock.
    """
    begun = last.started_at
    # The start of a job that waits is only foretold.
    started_at = None if seen.state is JobState.PENDING else seen.started_at
    shown = (moment for moment in (seen.submitted_at, started_at) if moment is not None)
    later = min((moment for moment in shown if moment > begun), default=None)
    latest = max(at, begun) if later is None else later
    if not _is_gap(last, seen):
        change.closed_at, change.closed_by_guess = latest, later is None or later - begun > _EXACT
        return
    looked_at = begun if hints.looked_at is None else hints.looked_at
    earliest = min(max(begun, looked_at), latest)
    # `latest` is the end of a later run.
    told = hints.last_report_at
    change.closed_at = earliest if told is None else min(max(told, earliest), latest)
    change.closed_by_guess = True


def _is_gap(last: Stretch | None, seen: JobObservation) -> bool:
    """Whether there was a run between the newest stretch and what is seen now.

    The count grows with the requeue itself: a job that waits, requeued n times, has ended its run n - 1.
    """
    if seen.restart_count is None or (last is not None and last.restart_count is None):
        return False
    known = -1 if last is None or last.restart_count is None else last.restart_count
    return known < seen.restart_count - 1


def counted_s(stretches: Sequence[tuple[datetime, datetime]], since: datetime) -> float:
    """Return what ended stretches of a run that started at `since` add up to, in seconds."""
    return sum((end - start).total_seconds() for start, end in stretches if start >= since)
