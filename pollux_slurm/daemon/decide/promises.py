"""The answers to jobs that ask to be finished by a moment, as the store keeps them. Pure.

`pollux_slurm.policy.promises` decides them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from pollux_slurm.daemon.observe.cluster_picture import ManagedJob
from pollux_slurm.daemon.observe.used_time import used_s
from pollux_slurm.model import JobState, Promise, PromiseState
from pollux_slurm.slurm.parsing.comment_terms import decode_comment
from pollux_slurm.store.contract.interface import AllocationRecord, JobRecord, PromiseRecord
from pollux_slurm.text import duration_text, moment_text

# A prediction that moves by less is the same answer.
_SAME = timedelta(minutes=1)


def finish_by_s(record: JobRecord, now: datetime) -> float | None:
    """Return the seconds until a job's moment; None for no moment."""
    by = record.terms.finish_by
    return None if by is None else (by - now).total_seconds()


def counts_total_time(job: ManagedJob) -> bool:
    """Whether a job's promise is bounded by the time of all its runs together."""
    terms = decode_comment(job.slurm.comment)
    return terms is not None and terms.total_s is not None and terms.finish_by is not None


def time_left_s(job: ManagedJob, now: datetime, history: Iterable[AllocationRecord] = ()) -> float | None:
    """Return for how long its time limit, or its total time, lets a job have GPUs; None without a limit.

    Slurm counts a limit from each start. A job that a move has stopped gets what its last run has left
    (`pollux_slurm.daemon.enact.time_limits`), and one in place has the limit of its wings. `history` are the
    job's allocations, which count where `counts_total_time`.
    """
    terms, slurm, move = decode_comment(job.slurm.comment), job.slurm, job.record.open_reallocation
    if slurm.time_limit_s is None or terms is None:
        return None
    if slurm.state is JobState.RUNNING and slurm.started_at is not None:
        of_run_s = slurm.time_left_s(now)
    else:
        stopped_with_s = None if move is None else move.time_left_s
        of_run_s = slurm.time_limit_s if stopped_with_s is None else stopped_with_s
    if terms.total_s is None or of_run_s is None:
        return of_run_s
    return max(of_run_s, terms.total_s - used_s(slurm, history, now))


def new_answers(
    jobs: Iterable[ManagedJob], answers: Mapping[str, Promise], now: datetime
) -> dict[str, PromiseRecord]:
    """Return the answers that differ from those on record, by job id.

    A promise that has ended keeps its answer.
    """
    found = {}
    for job in jobs:
        record = job.record
        answer, known = answers.get(record.slurm_job_id), record.promise
        if answer is None or (known is not None and known.state is PromiseState.ENDED):
            continue
        new = PromiseRecord(
            state=answer.state,
            least_gpus=answer.least_gpus if answer.state is PromiseState.ACCEPTED else None,
            finish_at=None if answer.finish_s is None else now + timedelta(seconds=answer.finish_s),
            reason=answer.reason or _limit_text(job, answer.time_left_s, now),
        )
        if known is None or not _is_same(known, new):
            found[record.slurm_job_id] = new
    return found


def _limit_text(job: ManagedJob, left_s: float | None, now: datetime) -> str | None:
    """Return when its time limit, or its total time, ends a job, where that is before it is finished."""
    if left_s is None:
        return None
    ends = f"{duration_text(left_s)} after its start"
    if job.record.allocation:
        ends = f"at {moment_text(now + timedelta(seconds=left_s))} UTC"
    limit, more = "time limit", "--time or --total-time"
    if counts_total_time(job):
        limit, more = "total time", "--total-time"
    return f"its {limit} ends it {ends}, before it is finished: ask for more {more}"


def _is_same(known: PromiseRecord, new: PromiseRecord) -> bool:
    if (known.state, known.least_gpus, known.reason) != (new.state, new.least_gpus, new.reason):
        return False
    if known.finish_at is None or new.finish_at is None:
        return known.finish_at is new.finish_at
    return abs(known.finish_at - new.finish_at) < _SAME
