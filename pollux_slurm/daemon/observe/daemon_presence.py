"""What is true now: jobs as Slurm shows them, and whether a daemon looks after them. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from pollux_slurm.daemon.observe.cluster_picture import is_recorded_job
from pollux_slurm.model import Allocation, ClusterSnapshot, JobState, ReallocationStep, SlurmJob
from pollux_slurm.store.contract.interface import DaemonStatus, JobRecord, Reallocation

# Clocks of two hosts may differ a little: only so long after the end of its lease a daemon counts as silent.
_SKEW = timedelta(seconds=10)
# What came so long ago, a daemon that looks at Slurm and serves the job would know.
_LATE = timedelta(minutes=2)
# At these steps of a move a job is being stopped, waits for its other GPUs, or is being started there.
_STOPPED = (
    ReallocationStep.CHECKPOINTED,
    ReallocationStep.REQUEUED,
    ReallocationStep.RESHAPED,
    ReallocationStep.RELEASED,
)
# At these steps the daemon holds the job; at RELEASED it may, where it died before the command.
_HOLDING = (ReallocationStep.REQUEUED, ReallocationStep.RESHAPED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownJob:
    """One job as it is now. `held` and `state` are Slurm's where `is_now`, else what the store last knew."""

    record: JobRecord
    is_now: bool = False
    held: bool = False


def shown_now(records: Iterable[JobRecord], snapshot: ClusterSnapshot | None) -> tuple[ShownJob, ...]:
    """Return the jobs with what Slurm shows of those that are not over for the store.

    A job whose Comment carries other terms than were registered is another cluster's, or another job.
    """
    by_id = {} if snapshot is None else {job.job_id: job for job in snapshot.jobs}
    found = []
    for record in records:
        job = by_id.get(record.slurm_job_id)
        if job is None or record.state.is_over or not is_recorded_job(job, record):
            found.append(ShownJob(record=record))
            continue
        now = dataclasses.replace(
            record,
            state=job.state,
            allocation=Allocation() if job.state.is_over else job.allocation,
            finished_at=job.ended_at if job.state.is_over else None,
        )
        held = job.held and job.state is JobState.PENDING
        found.append(ShownJob(record=now, is_now=True, held=held))
    return tuple(found)


def left_held(jobs: Iterable[ShownJob]) -> tuple[str, ...]:
    """Return the jobs that are held in the midst of a move; by the journal, where Slurm was not asked."""
    return tuple(
        job.record.slurm_job_id
        for job in jobs
        if (move := job.record.open_reallocation) is not None
        and (
            job.held and move.step in (*_HOLDING, ReallocationStep.RELEASED)
            if job.is_now
            else move.step in _HOLDING
        )
    )


def held_by_journal(moves: Iterable[Reallocation]) -> tuple[str, ...]:
    """Return the jobs that are held in the midst of a move, by the journal alone."""
    return tuple(move.slurm_job_id for move in moves if move.step in _HOLDING)


def is_silent(seen: DaemonStatus, now: datetime) -> bool:
    """Whether a daemon died, or hangs, without having given its lease back."""
    return seen.expires_at is not None and now > seen.expires_at + _SKEW


def absence(seen: DaemonStatus, now: datetime, held: Iterable[str] = ()) -> str | None:
    """Return what there is to say where no daemon acts, with the jobs left `held`; None where one does."""
    if seen.owner is None:
        ran = seen.last_round_at
        text = (
            "no daemon has run on this store yet"
            if ran is None
            else f"no daemon runs: the last one was stopped, its last round is {ago(now - ran)} old"
        )
    elif is_silent(seen, now) and seen.renewed_at is not None:
        host, _, rest = seen.owner.partition(":")
        text = (
            f"the daemon is silent: process {rest.partition(':')[0] or '?'} on {host} gave its last sign "
            f"{ago(now - seen.renewed_at)} ago and was not stopped"
        )
    else:
        return None
    held = list(held)
    if not held:
        return text
    return (
        f"{text}; held in the midst of a move: {', '.join(held)}; the next daemon goes on with them, or let "
        f"them start by hand: scontrol release {' '.join(held)}"
    )


def next_look(seen: DaemonStatus, now: datetime) -> str:
    """Say when a daemon will have looked at what is new to it, or that none will."""
    missing = absence(seen, now)
    if missing is not None:
        return missing
    if seen.watch_s is None:
        return "the daemon looks at Slurm every few seconds"
    return f"the daemon looks at Slurm every {seen.watch_s:g} s, and a round about what is new comes at once"


def newcomer(job: SlurmJob, seen: DaemonStatus, now: datetime) -> str:
    """Say of an adaptive job in Slurm that the store does not know it yet, and when it will."""
    came = "" if job.submitted_at is None else f" {ago(now - job.submitted_at)} ago"
    why = f" ({job.reason})" if job.state is JobState.PENDING and job.reason not in ("", "None") else ""
    text = f"job {job.job_id} was submitted{came} and is {job.state.value}{why}"
    missing = absence(seen, now)
    if missing is not None:
        return f"{text}, and nobody has looked at it: {missing}"
    text += f"; it is not looked at yet: {next_look(seen, now)}"
    if job.submitted_at is None or now - job.submitted_at <= _LATE:
        return text
    return f"{text}; it may serve other partitions or other users' jobs only, its log says so"


def is_moving(job: ShownJob) -> bool:
    """Whether a job that does not run just now is on its way to other GPUs."""
    move = job.record.open_reallocation
    stands = job.record.state in (JobState.PENDING, JobState.COMPLETING)
    return stands and move is not None and move.moves_running and move.step in _STOPPED


def ago(delta: timedelta) -> str:
    """Return a time that has passed as people say it: `34 s`, `12 min`, `5 h`, `3 d`."""
    seconds = max(delta.total_seconds(), 0.0)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
