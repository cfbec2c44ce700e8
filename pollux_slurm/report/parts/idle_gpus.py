"""Idle GPUs that a job could have used: when, how many, and why it did not.

A GPU is idle where no job has it, and where its job has made no step on it. A job could use one that nobody
has while it waits or has fewer than its maximum, unless no larger number would make it faster. Reasons are
the journal's, and those of the last round before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise

from pollux_slurm.document.charts.time_axes import Range
from pollux_slurm.document.columns import Column, Kind, table_of
from pollux_slurm.document.document import Part
from pollux_slurm.model import ReallocationStep, ReallocationWay
from pollux_slurm.policy import BOUND_TEXTS
from pollux_slurm.report.parts.columns import SINCE, UNTIL
from pollux_slurm.store.contract.interface import Reallocation
from pollux_slurm.store.reporting.gpu_use import DecidedSize, FirstStep, GpuUse, HeldGpus, JobUse
from pollux_slurm.text import number_text, plural

SHORTEST = timedelta(seconds=30)
"""Shorter times are left out: a round, a start and a move take some seconds each."""
_SECOND = timedelta(seconds=1)
_NAMED_JOBS = 3
# A job bound by one of these could not use free GPUs.
_NEEDS_NO_MORE = frozenset({"nothing", "max_gpus", "rigid", "partition"})


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleTime:
    """A time in which so many GPUs were idle that jobs could have used, and why: a reason for each such job.

    Of times that adjoin, `begins` is true for the first.
    """

    since: datetime
    until: datetime
    num_gpus: int
    reasons: tuple[str, ...]
    begins: bool = True

    @property
    def duration_s(self) -> float:
        return (self.until - self.since).total_seconds()

    @property
    def gpu_s(self) -> float:
        return self.num_gpus * self.duration_s


def idle_times(use: GpuUse, range_: Range, *, shortest: timedelta = SHORTEST) -> tuple[IdleTime, ...]:
    """Return the times within a range, oldest first; those that adjoin last for `shortest` at least."""
    found: list[IdleTime] = []
    kept: list[IdleTime] = []
    for one in _merged(_pieces(use, range_)):
        if found and one.since != found[-1].until:
            kept += _if_long(found, shortest)
            found = []
        found.append(replace(one, begins=not found))
    return (*kept, *_if_long(found, shortest))


def idle_gpus_part(use: GpuUse | None, range_: Range) -> Part:
    """Return the part of a report; `use` is None for a login that reads views only."""
    times = () if use is None else idle_times(use, range_)
    columns = (
        SINCE,
        UNTIL,
        Column("duration_s", "for", Kind.SECONDS),
        Column("num_gpus", "idle GPUs", Kind.COUNT),
        Column("reasons", "why", Kind.TEXT, is_sentence=True, value=why_text),
    )
    data = table_of(
        "idle_gpus",
        times,
        columns,
        keep="last",
        note="GPUs that no job had, or on which a job had made no step yet, while a job waited or had fewer "
        f"than its maximum. Times that last for less than {SHORTEST.seconds} s together are left out.",
    )
    return Part(title="Idle GPUs that a job could have used", text=idle_text(use, times), tables=(data,))


def idle_text(use: GpuUse | None, times: Sequence[IdleTime]) -> str:
    """Return what the times add up to."""
    if use is None:
        return "This login reads the reporting views only, and they have no round's decision about a job."
    long = f"{SHORTEST.seconds} s or more"
    if not times:
        return f"There was no time of {long} in which GPUs were idle and a job could have used them."
    gpu_s = sum(one.gpu_s for one in times)
    used = f"{number_text(gpu_s / 3600)} GPU hours" if gpu_s >= 3600 else f"{number_text(gpu_s)} GPU seconds"
    number = plural(sum(one.begins for one in times), "time")
    return f"GPUs were idle for {long} while a job could have used them, {number}: {used} in all."


def why_text(time: IdleTime) -> str:
    """Return the reasons of the first jobs in one line."""
    more = len(time.reasons) - _NAMED_JOBS
    some = "; ".join(time.reasons[:_NAMED_JOBS])
    return some if more <= 0 else f"{some}; and {plural(more, 'more job')}"


def _if_long(times: Sequence[IdleTime], shortest: timedelta) -> Sequence[IdleTime]:
    return times if times and times[-1].until - times[0].since >= shortest else ()


def _merged(pieces: Iterator[IdleTime]) -> Iterator[IdleTime]:
    """Join pieces that say the same; those of less than a second join the one before or after."""
    last: IdleTime | None = None
    for one in pieces:
        if last is None:
            last = one
        elif one.since - last.until >= _SECOND:
            yield last
            last = one
        elif one.until - one.since < _SECOND or (one.num_gpus, one.reasons) == (last.num_gpus, last.reasons):
            last = replace(last, until=one.until)
        elif last.until - last.since < _SECOND:
            last = replace(one, since=last.since)
        else:
            yield replace(last, until=one.since)
            last = one
    if last is not None:
        yield last


def _pieces(use: GpuUse, range_: Range) -> Iterator[IdleTime]:
    """Yield the idle times between any two events."""
    if not use.rounds:
        return
    jobs = [_Job(job) for job in use.jobs]
    changed: defaultdict[datetime, list[int]] = defaultdict(list)
    for number, job in enumerate(jobs):
        for at in job.moments:
            changed[at].append(number)
    moments = {at for at, _ in use.rounds} | changed.keys()
    begin, end = max(range_.since, min(moments)), range_.until
    times = sorted({begin, end, *(at for at in moments if begin < at < end)})
    rounds, total_gpus, next_round = use.rounds, use.rounds[0][1], 0
    freed_at = begin - _SECOND  # nothing has become free yet
    alive: dict[int, _Job] = {}
    for since, until in pairwise(times):
        while next_round < len(rounds) and rounds[next_round][0] <= since:
            total_gpus = rounds[next_round][1]
            next_round += 1
        for number in range(len(jobs)) if since == begin else changed[since]:
            if jobs[number].go_to(since):
                freed_at = since
            if jobs[number].is_alive:
                alive[number] = jobs[number]
            else:
                alive.pop(number, None)
        free = max(total_gpus - sum(job.held for job in alive.values()), 0)
        idle, room, reasons = 0, 0, []
        for job in alive.values():
            because = job.why_not_training()
            idle += job.held - job.training
            if free and job.could_use_more:
                because = because or job.why_not_more(freed_at)
                room += job.room(free)
            if because is not None:
                reasons.append(f"{job.name}: {because}")
        idle += min(free, room)
        if idle:
            yield IdleTime(since=since, until=until, num_gpus=idle, reasons=tuple(reasons))


class _Job:
    """One job at a moment, from its submission to its end."""

    def __init__(self, use: JobUse) -> None:
        self.name = f"{use.slurm_job_id} {use.name}"
        self.held = 0
        self.is_alive = False
        self._use = use
        self._stepped = 0
        self._move: Reallocation | None = None
        self._step = ReallocationStep.PLANNED
        self._moved_at: datetime | None = None
        self._decided: DecidedSize | None = None
        self._wished: DecidedSize | None = None
        begins = {one.since for one in use.held}
        changes: list[tuple[datetime, int, _Change]] = [(use.submitted_at, 0, True)]
        changes += [(one.since, 1, one) for one in use.held]
        changes += [
            (_left_at(use, one.until), 1, None)
            for one in use.held
            if one.until is not None and one.until not in begins
        ]
        changes += [(one.at, 2, one) for one in use.first_steps]
        changes += [(at, 3, (move, step)) for move in use.moves for step, at in move.times]
        changes += [(one.at, 4, one) for one in use.decided]
        end = _end(use)
        changes += [(end, 5, False)] if end is not None else []
        self._changes = sorted(changes, key=lambda change: change[:2])
        self._next = 0

    @property
    def moments(self) -> set[datetime]:
        """The times at which something of it changes."""
        return {at for at, _, _ in self._changes}

    @property
    def training(self) -> int:
        """The GPUs on which its present run has made a step."""
        return min(self._stepped, self.held)

    def go_to(self, moment: datetime) -> bool:
        """Go on to a moment; return whether the job has left GPUs since the one before."""
        before = self.held
        while self._next < len(self._changes) and self._changes[self._next][0] <= moment:
            at, _, change = self._changes[self._next]
            self._change(at, change)
            self._next += 1
        return self.held < before

    def _change(self, at: datetime, change: _Change) -> None:
        if isinstance(change, bool):
            self.is_alive = change
        elif change is None:
            self.held = self._stepped = 0
        elif isinstance(change, HeldGpus):
            self.held = change.num_gpus
        elif isinstance(change, FirstStep):
            self._stepped = change.num_gpus
        elif isinstance(change, DecidedSize):
            self._decided = change
            # While it is pinned, what bound it before is all that is known.
            self._wished = self._wished if change.because is not None else change
        else:
            self._move, self._step = change
            if self._step is ReallocationStep.REQUEUED:
                self._stepped = 0
            if self._step.is_end:
                self._move, self._moved_at = None, at

    def why_not_training(self) -> str | None:
        """Return why not all of its GPUs train, None where they do."""
        if self.training == self.held:
            return None
        if self._move is not None:
            return self._moves(self._move)
        if self.training:
            return f"trains on {self.training} of its {plural(self.held, 'GPU')}"
        return ReallocationStep.RUNNING.text

    @property
    def could_use_more(self) -> bool:
        """Whether it has fewer GPUs than its maximum, and a larger number might make it faster."""
        wished = self._wished
        needs_no_more = (
            wished is not None and wished.num_gpus <= self.held and wished.bound_by in _NEEDS_NO_MORE
        )
        return self.room(1) > 0 and not needs_no_more

    def why_not_more(self, freed_at: datetime) -> str:
        """Return why it has no more GPUs although some are free.

        What was decided before GPUs became free, at `freed_at`, does not tell.
        """
        if self._move is not None:
            return self._moves(self._move)
        decided = self._decided
        if decided is None:
            return "no round has decided about it yet"
        if decided.at <= max(freed_at, self._moved_at or freed_at):
            return "waits for the next round to decide"
        if decided.because is not None:
            return decided.because
        if decided.num_gpus > self.held:
            return (
                f"was given {plural(decided.num_gpus, 'GPU')} by the last round, and does not have them yet"
            )
        return BOUND_TEXTS[decided.bound_by]

    def room(self, free: int) -> int:
        """Return how many of the free GPUs it could use."""
        most = self._use.max_gpus
        return free if most is None else max(min(free, most - self.held), 0)

    def _moves(self, move: Reallocation) -> str:
        way = " in place" if move.way is ReallocationWay.IN_PLACE else ""
        return f"{move.source} → {move.target}{way}, {self._step.text}"


# Slurm shows the end of a job only after it has left its GPUs.
_ENDING = timedelta(seconds=10)


def _end(use: JobUse) -> datetime | None:
    """Return when a job ended: when it left its last GPUs, where that is just before Slurm says so."""
    left = use.held[-1].until if use.held else None
    if left is None or use.finished_at is None or use.finished_at - left > _ENDING:
        return use.finished_at
    return _left_at(use, left)


def _left_at(use: JobUse, until: datetime) -> datetime:
    """Return when a job left GPUs. Slurm's time is whole seconds, and a round may have seen them after it."""
    return max([until, *(one.at for one in use.decided if until <= one.at < until + _SECOND)])


# A job begins or ends (True, False), has GPUs or none, makes a first step, goes on a step of a move, or is
# decided about.
_Change = bool | HeldGpus | None | FirstStep | tuple[Reallocation, ReallocationStep] | DecidedSize
