"""Merge the wings of each anchor into one job. Pure.

A wing counts only if Slurm shows it with the user, account and QOS of its anchor, and its Comment has the
hash of the anchor's token. Any other job that calls itself a wing stays a job of its own.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime

from pollux_slurm.model import Allocation, ClusterSnapshot, JobState, JobTerms, SlurmJob
from pollux_slurm.slurm.parsing.comment_terms import decode_comment
from pollux_slurm.slurm.parsing.wing_comment import WingTerms, parse_wing_comment


def merge_wings(snapshot: ClusterSnapshot) -> ClusterSnapshot:
    """Return the snapshot with each anchor merged with its wings, which are no jobs of their own there."""
    claims = {job.job_id: terms for job in snapshot.jobs if (terms := parse_wing_comment(job.comment))}
    # Nearly always empty, and cheaper to see than which jobs are anchors.
    if not claims:
        return snapshot
    named = {terms.anchor_id for terms in claims.values()}
    anchors = {job.job_id: (job, decode_comment(job.comment)) for job in snapshot.jobs if job.job_id in named}
    wings: defaultdict[str, list[SlurmJob]] = defaultdict(list)
    others = []
    for job in snapshot.jobs:
        claim = claims.get(job.job_id)
        if (
            claim is not None
            and claim.anchor_id in anchors
            and _is_wing(job, claim, *anchors[claim.anchor_id])
        ):
            wings[claim.anchor_id].append(job)
        else:
            others.append(job)
    merged = (_merge(job, wings[job.job_id]) if job.job_id in wings else job for job in others)
    return dataclasses.replace(snapshot, jobs=tuple(merged))


def wings_of_start(wings: Iterable[SlurmJob]) -> list[SlurmJob]:
    """Return the wings of the newest start: first the one that it began with, then by plan and number."""
    numbered = [(terms, wing) for wing in wings if (terms := parse_wing_comment(wing.comment))]
    newest = max((terms.restart_count for terms, _ in numbered), default=None)
    of_start = [
        (terms.plan, int(wing.job_id), wing) for terms, wing in numbered if terms.restart_count == newest
    ]
    return [wing for *_, wing in sorted(of_start, key=lambda entry: entry[:2])]


def _is_wing(job: SlurmJob, claim: WingTerms, anchor: SlurmJob, terms: JobTerms | None) -> bool:
    return (
        terms is not None
        and terms.in_place
        and terms.user_id == anchor.user_id
        and claim.token_sha256 == terms.token_sha256
        and (job.user_id, job.account, job.qos) == (anchor.user_id, anchor.account, anchor.qos)
    )


def _merge(anchor: SlurmJob, found: Sequence[SlurmJob]) -> SlurmJob:
    """Return one job: the anchor's identity, its wings' resources, and the request of its start's wing."""
    wings = tuple(sorted(found, key=lambda wing: int(wing.job_id)))
    of_start = wings_of_start(wings)
    # The wing that a start begins with has the request of the job's owner.
    first = of_start[0]
    state = _state(anchor, wings, of_start)
    is_over, waits = state.is_over, state is JobState.PENDING and anchor.state is JobState.RUNNING
    in_queue = first if waits else anchor
    ended_at = _latest(job.ended_at for job in (anchor, *wings))
    return dataclasses.replace(
        anchor,
        state=state,
        held=in_queue.held,
        held_by_slurm=in_queue.held_by_slurm,
        held_since_requeue=in_queue.held_since_requeue,
        reason=in_queue.reason,
        begins_at=in_queue.begins_at,
        blocked_because=in_queue.blocked_because,
        priority=first.priority,
        partition=first.partition,
        requested_gpus=first.requested_gpus,
        requested_gpu_type=first.requested_gpu_type,
        num_cpus=first.num_cpus,
        cpus_per_gpu=first.cpus_per_gpu,
        memory_per_gpu_mb=first.memory_per_gpu_mb,
        memory_by_node=first.memory_by_node,
        feature_sets=first.feature_sets,
        excluded_nodes=first.excluded_nodes,
        required_nodes=first.required_nodes,
        allocation=Allocation.of(dict(_sum(job.allocation.gpus_by_node for job in wings))),
        cpus_by_node=_sum(job.cpus_by_node for job in (anchor, *wings)),
        memory_mb_by_node=_sum(job.memory_mb_by_node for job in (anchor, *wings)),
        last_allocation=_last_allocation(of_start) if is_over else Allocation(),
        restart_count=_restart_count(first),
        started_at=None if waits else min((j.started_at for j in of_start if j.started_at), default=None),
        ended_at=ended_at if is_over or state is JobState.COMPLETING else None,
        time_limit_s=first.time_limit_s,
        resized_at=_resized_at(of_start),
        wings=wings,
    )


def _restart_count(wing: SlurmJob) -> int:
    terms = parse_wing_comment(wing.comment)
    assert terms is not None
    return terms.restart_count


def _state(anchor: SlurmJob, wings: Sequence[SlurmJob], of_start: Sequence[SlurmJob]) -> JobState:
    """Return the state of anchor and wings together. It is over when the last wing is."""
    if anchor.state is not JobState.RUNNING:
        is_leaving = anchor.state.is_over and any(job.allocation for job in wings)
        return JobState.COMPLETING if is_leaving else anchor.state
    states = {job.state for job in of_start}
    for state in (JobState.SUSPENDED, JobState.RUNNING):
        if state in states:
            return state
    # Between two starts: the processes of the last one end, or the next one is about to be submitted.
    if JobState.PENDING in states and not any(job.allocation for job in wings):
        return JobState.PENDING
    return JobState.COMPLETING


def _last_allocation(wings: Sequence[SlurmJob]) -> Allocation:
    """Return what those had that ended last; the others had left before."""
    ended_at = _latest(job.ended_at for job in wings)
    last = (job.last_allocation.gpus_by_node for job in wings if job.ended_at == ended_at)
    return Allocation.of(dict(_sum(last)))


def _resized_at(wings: Sequence[SlurmJob]) -> datetime | None:
    """Return when a wing last joined or left; None where the start has had one wing only."""
    if len(wings) < 2:
        return None
    changes = [at for job in wings for at in (job.started_at, job.ended_at) if at is not None]
    return max(changes, default=None)


def _sum(amounts: Iterable[Sequence[tuple[str, int]]]) -> tuple[tuple[str, int], ...]:
    total: Counter[str] = Counter()
    for by_node in amounts:
        for node, amount in by_node:
            total[node] += amount
    return tuple(sorted(total.items()))


def _latest(times: Iterable[datetime | None]) -> datetime | None:
    return max((at for at in times if at is not None), default=None)
