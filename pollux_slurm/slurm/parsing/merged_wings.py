"""Merge the wings of each anchor into one job. Pure.

A wing counts only if Slurm shows it with the user, account and QOS of its anchor, and its Comment has the
hash of the anchor's token. Any other job that calls itself a wing stays a job of its own.

An anchor that runs while no wing has GPUs or waits is between two starts, or before the first, or after the
last: it is shown as COMPLETING, in which nobody acts on a job. One that waits in the queue itself (it was
requeued, or has not started) has no GPUs to be given: it is unschedulable.

The job's `changes` are the sum of the GPUs of all wings that slurmctld still has, of every start, from the
time at which the first of them began. slurmctld forgets a wing MinJobAge after its end. So the changes are
complete from MinJobAge before the read, and may lack GPUs before that: whoever records them has what earlier
reads showed (`pollux_slurm.store.jobs.wing_intervals`).
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from pollux_slurm.model import Allocation, ClusterSnapshot, JobState, JobTerms, SlurmJob
from pollux_slurm.slurm.parsing.anchor_nodes import Clearances, anchors_to_move
from pollux_slurm.slurm.parsing.comment_terms import decode_comment
from pollux_slurm.slurm.parsing.wing_comment import WingTerms, parse_wing_comment

_ANCHOR_WAITS = "its anchor waits in the queue itself"


class _Wing(NamedTuple):
    terms: WingTerms
    job: SlurmJob


def merge_wings(snapshot: ClusterSnapshot, clearances: Clearances | None = None) -> ClusterSnapshot:
    """Return the snapshot with each anchor merged with its wings, which are not jobs of their own there.

    `clearances` remember for whom anchors have left.
    """
    anchors = {job.job_id: (job, terms) for job in snapshot.jobs if (terms := _anchor_terms(job))}
    if not anchors:
        return snapshot
    wings: defaultdict[str, list[_Wing]] = defaultdict(list)
    others = []
    for job in snapshot.jobs:
        claim = parse_wing_comment(job.comment)
        if (
            claim is not None
            and claim.anchor_id in anchors
            and _is_wing_of(_Wing(claim, job), *anchors[claim.anchor_id])
        ):
            wings[claim.anchor_id].append(_Wing(claim, job))
        else:
            others.append(job)
    to_move = anchors_to_move(snapshot, [anchor for anchor, _ in anchors.values()])
    leaving = (clearances or Clearances()).allowed(to_move, snapshot.read_at)
    merged = []
    for job in others:
        if job.job_id in wings:
            job = _merge(job, wings[job.job_id])
            job = dataclasses.replace(job, anchor_leaves_because=leaving.get(job.job_id))
        elif job.job_id in anchors and job.state is JobState.RUNNING:
            job = dataclasses.replace(job, state=JobState.COMPLETING)
        if job.job_id in anchors and anchors[job.job_id][0].state is JobState.PENDING:
            reason = job.unschedulable_reason or _ANCHOR_WAITS
            job = dataclasses.replace(job, unschedulable_reason=reason, anchor_waits=True)
        merged.append(job)
    return dataclasses.replace(snapshot, jobs=tuple(merged))


def may_be_anchor(job: SlurmJob) -> bool:
    """Whether its Comment may be an anchor's: cheaper to see than what it says, and nearly always false."""
    return "inplace=1" in job.comment


def _anchor_terms(job: SlurmJob) -> JobTerms | None:
    """Return the terms of an anchor, None for any other job."""
    if not may_be_anchor(job):
        return None
    terms = decode_comment(job.comment)
    return terms if terms is not None and terms.in_place and terms.user_id == job.user_id else None


def wings_of_start(wings: Iterable[SlurmJob]) -> list[SlurmJob]:
    """Return the wings of the newest start: first the one that it began with, then by plan and number.

    It is the newest of those that have GPUs. One that waits may be invented by its owner.
    """
    known = [_Wing(terms, wing) for wing in wings if (terms := parse_wing_comment(wing.comment))]
    return [wing.job for wing in _newest_start(known)]


def _newest_start(wings: Sequence[_Wing]) -> list[_Wing]:
    with_gpus = [wing for wing in wings if wing.job.allocation]
    newest = max((wing.terms.restart_count for wing in with_gpus or wings), default=None)
    of_start = [wing for wing in wings if wing.terms.restart_count == newest]
    return sorted(of_start, key=lambda wing: (wing.terms.plan, int(wing.job.job_id)))


def _is_wing_of(wing: _Wing, anchor: SlurmJob, terms: JobTerms) -> bool:
    job = wing.job
    is_of_owner = (job.user_id, job.account, job.qos) == (anchor.user_id, anchor.account, anchor.qos)
    return is_of_owner and wing.terms.token_sha256 == terms.token_sha256


def _merge(anchor: SlurmJob, found: Sequence[_Wing]) -> SlurmJob:
    """Return one job: the anchor's identity, its wings' resources, and the request of its start's wing."""
    wings = tuple(sorted((wing.job for wing in found), key=lambda job: int(job.job_id)))
    newest = _newest_start(found)
    of_start = [wing.job for wing in newest]
    # The wing that a start begins with has the request of the job's owner.
    first = of_start[0]
    state = _state(anchor, of_start)
    is_over, waits = state.is_over, state is JobState.PENDING and anchor.state is JobState.RUNNING
    in_queue = first if waits else anchor
    ended_at = _latest(job.ended_at for job in (anchor, *wings))
    return dataclasses.replace(
        anchor,
        state=state,
        submitted_at=first.submitted_at if newest[0].terms.restart_count else anchor.submitted_at,
        unschedulable_reason=next(
            (job.unschedulable_reason for job in (anchor, *of_start) if job.unschedulable_reason), None
        ),
        held=in_queue.held,
        held_by_slurm=in_queue.held_by_slurm,
        held_since_requeue=in_queue.held_since_requeue,
        reason=in_queue.reason,
        begins_at=in_queue.begins_at,
        blocked_because=in_queue.blocked_because,
        priority=anchor.priority if anchor.state is JobState.PENDING else first.priority,
        partition=first.partition,
        requested_gpus=first.requested_gpus,
        requested_gpu_type=first.requested_gpu_type,
        num_cpus=first.num_cpus,
        cpus_per_gpu=first.cpus_per_gpu,
        memory_per_gpu_mb=first.memory_per_gpu_mb,
        memory_by_node=first.memory_by_node,
        least_memory_mb=first.least_memory_mb,
        feature_sets=first.feature_sets,
        excluded_nodes=first.excluded_nodes,
        required_nodes=first.required_nodes,
        one_node=first.one_node,
        allocation=Allocation.of(dict(_sum(job.allocation.gpus_by_node for job in wings))),
        cpus_by_node=_sum(job.cpus_by_node for job in (anchor, *wings)),
        memory_mb_by_node=_sum(job.memory_mb_by_node for job in (anchor, *wings)),
        last_allocation=_last_allocation(of_start) if is_over else Allocation(),
        restart_count=newest[0].terms.restart_count,
        started_at=None if waits else _start(of_start),
        ended_at=ended_at if is_over or state is JobState.COMPLETING else None,
        time_limit_s=first.time_limit_s,
        suspended_at=None,
        resumed_at=None,
        counted_s=0.0,
        changes=_changes(wings),
        wings=wings,
    )


def _state(anchor: SlurmJob, of_start: Sequence[SlurmJob]) -> JobState:
    """Return the state of anchor and wings together. It waits, or is over, once its last wing is."""
    if anchor.state is not JobState.RUNNING:
        is_leaving = anchor.state is JobState.PENDING or anchor.state.is_over
        return JobState.COMPLETING if is_leaving and any(job.allocation for job in of_start) else anchor.state
    states = {job.state for job in of_start}
    for state in (JobState.SUSPENDED, JobState.RUNNING):
        if state in states:
            return state
    # Between two starts: the processes of the last one end, or the next one is about to be submitted.
    if JobState.PENDING in states and not any(job.allocation for job in of_start):
        return JobState.PENDING
    return JobState.COMPLETING


def _last_allocation(wings: Sequence[SlurmJob]) -> Allocation:
    """Return what those had that ended last; the others had left before."""
    ended_at = _latest(job.ended_at for job in wings)
    last = (job.last_allocation.gpus_by_node for job in wings if job.ended_at == ended_at)
    return Allocation.of(dict(_sum(last)))


def _changes(wings: Iterable[SlurmJob]) -> tuple[tuple[datetime, Allocation], ...]:
    """Return the times at which a wing began, ended, or was suspended, and what all had from then on.

    Slurm's times are whole seconds. Where wings began and ended within one, a first change has them all.
    """
    began: defaultdict[datetime, Counter[str]] = defaultdict(Counter)
    ended: defaultdict[datetime, Counter[str]] = defaultdict(Counter)
    for wing in wings:
        gpus = (wing.allocation or wing.last_allocation).as_dict()
        for start, end in _spans(wing):
            began[start].update(gpus)
            if end is not None:
                ended[end].update(gpus)
    now: Counter[str] = Counter()
    changes: list[tuple[datetime, Allocation]] = []
    for at in sorted({*began, *ended}):
        before = Allocation.of(now)
        now.update(began[at])
        most = Allocation.of(now)
        now.subtract(ended[at])
        after = Allocation.of(now)
        if most not in (before, after):
            changes.append((at, most))
        if after != before or most != before:
            changes.append((at, after))
    return tuple(changes)


def _spans(wing: SlurmJob) -> Iterator[tuple[datetime, datetime | None]]:
    """Yield the times for which Slurm counts a wing's GPUs, up to None while it runs."""
    start, end = wing.started_at, wing.ended_at
    if start is None:
        return
    spans: list[tuple[datetime, datetime | None]] = [(start, end)]
    counted = timedelta(seconds=wing.counted_s)
    if wing.suspended_at is not None:
        spans = [(max(start, wing.suspended_at - counted), wing.suspended_at)]
    elif wing.resumed_at is not None:
        spans = [(start, start + counted), (wing.resumed_at, end)]
    yield from ((since, until) for since, until in spans if until is None or until >= since)


def _start(wings: Iterable[SlurmJob]) -> datetime | None:
    """Return when the first of them began, without those that never ran."""
    return min((start for wing in wings for start, end in _spans(wing) if end != start), default=None)


def _sum(amounts: Iterable[Sequence[tuple[str, int]]]) -> tuple[tuple[str, int], ...]:
    total: Counter[str] = Counter()
    for by_node in amounts:
        for node, amount in by_node:
            total[node] += amount
    return tuple(sorted(total.items()))


def _latest(times: Iterable[datetime | None]) -> datetime | None:
    return max((at for at in times if at is not None), default=None)
