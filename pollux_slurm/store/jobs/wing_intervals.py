"""Allocation intervals of a job that moves in place, from the starts and ends of its wings. Pure.

Slurm counts each wing by itself, from its start to its end (`ElapsedRaw` of sacct). The intervals of the job
add up to the sum over its wings, to the second: `JobObservation.changes` are Slurm's own times, and all of
them since the newest recorded interval began are followed, however many rounds were missed.

slurmctld forgets a wing MinJobAge (300 s by default) after its end, and with it, what the wing had. So the
changes of a later read begin later, or lack that wing. What was recorded stays: only what comes after the
beginning of the newest interval is taken from a read. Where the changes do not have, at that beginning, what
the interval has, no round has read Slurm between the end of a wing and MinJobAge after it. Nothing shows
when that wing ended, then: the interval ends at the next change, and is marked as estimated.

Of a wing that was suspended more than once, Slurm shows the last time only. If no round has seen one of the
others, its seconds are not booked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from pollux_slurm.model import Allocation
from pollux_slurm.store.contract.interface import JobObservation
from pollux_slurm.store.jobs.allocation_intervals import (
    EndBounds,
    IntervalChange,
    KnownInterval,
    NewInterval,
    follow_changes,
)

_Changes = Sequence[tuple[datetime, Allocation]]


def wings_change(
    last: KnownInterval | None, seen: JobObservation, *, at: datetime, end_bounds: EndBounds | None = None
) -> IntervalChange:
    """Return what an observation at `at` changes for a job whose newest interval is `last`."""
    change = IntervalChange()
    since = None if last is None else last.ended_at or last.started_at
    known = [entry for entry in seen.changes if since is not None and entry[0] <= since]
    shown = known[-1][1] if known else Allocation()
    # Of several changes at one time, the last.
    later = [*dict(seen.changes[len(known) :]).items()]
    has_all = bool(known)
    if last is None or since is None:
        follow_changes(change, Allocation(), later)
    elif last.ended_at is not None:
        # It has GPUs at the end of an interval if that ended because its owner gave it another token.
        follow_changes(change, Allocation(), [(since, shown), *later])
    elif _is_same(shown, last.allocation):
        follow_changes(change, shown, later)
    elif _is_within_second(known, last):
        follow_changes(change, last.allocation, [(since, shown), *later])
    elif not known and _has_later_start(last, seen):
        change.new_start = later[0][0]
    else:
        has_all = False
        _follow_after_lost_end(change, last, seen, shown, later, at, end_bounds)
    change.has_missed_run = _number_starts(change, last, seen) and not has_all
    return change


def _is_same(shown: Allocation, recorded: Allocation) -> bool:
    """Whether both are the same GPUs. Of a wing that is over, Slurm shows nodes and the sum of GPUs only."""
    return (shown.nodes, shown.num_gpus) == (recorded.nodes, recorded.num_gpus)


def _is_within_second(known: _Changes, last: KnownInterval) -> bool:
    """Whether the interval is of a read between two changes within one second, Slurm's unit of time."""
    before = next((on for at, on in reversed(known) if at < last.started_at), Allocation()).as_dict()
    of_second = [on.as_dict() for at, on in known if at == last.started_at]
    if not of_second:
        return False
    most, after, recorded = of_second[0], of_second[-1], last.allocation.as_dict()

    def is_between(node: str) -> bool:
        first, highest, final = before.get(node, 0), most.get(node, 0), after.get(node, 0)
        lowest = min(first, final, first + final - highest)
        return lowest <= recorded.get(node, 0) <= max(first, highest, final)

    return all(is_between(node) for node in {*before, *most, *after, *recorded})


def _has_later_start(last: KnownInterval, seen: JobObservation) -> bool:
    """Whether Slurm has set a later start for the recorded wing, as it does once its nodes have booted."""
    return last.restart_count == seen.restart_count and [on for _, on in seen.changes] == [last.allocation]


def _follow_after_lost_end(
    change: IntervalChange,
    last: KnownInterval,
    seen: JobObservation,
    shown: Allocation,
    later: _Changes,
    at: datetime,
    end_bounds: EndBounds | None,
) -> None:
    """End the open interval, of which a wing is forgotten, and follow what is known after it."""
    until = later[0][0] if later else min(at, seen.ended_at or at)
    if end_bounds is not None and end_bounds.last_report_at is not None:
        until = min(until, end_bounds.last_report_at)
    until = max(until, last.started_at)
    follow_changes(change, last.allocation, [(until, Allocation()), *(later or [(until, shown)])])
    change.closed_is_estimated = True


def _number_starts(change: IntervalChange, last: KnownInterval | None, seen: JobObservation) -> bool:
    """Give each new interval the number of its start; return whether a start of the job is missing.

    Between two starts a job has no GPUs.
    """
    if seen.restart_count is None:
        return False
    known = -1 if last is None or last.restart_count is None else last.restart_count
    number, ended_at = known, change.closed_at
    numbered: list[NewInterval] = []
    for interval in change.opened:
        number += interval.started_at != ended_at or change.closed_is_estimated
        is_newest = seen.started_at is not None and interval.started_at >= seen.started_at
        earlier = max(min(number, seen.restart_count - 1), 0)
        numbered.append(replace(interval, restart_count=seen.restart_count if is_newest else earlier))
        ended_at = interval.ended_at
    change.opened = numbered
    return number < seen.restart_count - (seen.started_at is None)
