"""Live status for commands: jobs as Slurm shows them now, and whether a daemon runs. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from pollux_slurm.daemon.observe.cluster_picture import is_recorded_job
from pollux_slurm.model import Allocation, ClusterSnapshot, JobState, ReallocationStep, SlurmJob
from pollux_slurm.store.contract.interface import DaemonStatus, JobRecord, Reallocation, Sample
from pollux_slurm.text import ago_text, since_text

# A daemon counts as silent only this long after its lease ended: two hosts' clocks may differ.
_MAX_CLOCK_SKEW = timedelta(seconds=10)
# A running daemon that serves the job has registered it by then.
_REGISTERED_WITHIN = timedelta(minutes=2)
# Steps of a move in which the job is being stopped, waits, or is being started.
_STOPPED = (
    ReallocationStep.CHECKPOINTED,
    ReallocationStep.REQUEUED,
    ReallocationStep.RESHAPED,
    ReallocationStep.RELEASED,
)
# Steps in which the daemon holds the job. At RELEASED it may, if it died before the command.
_HOLDING = (ReallocationStep.REQUEUED, ReallocationStep.RESHAPED)


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentJob:
    """One job as it is now. `held` and `state` are Slurm's if `is_now`, else the store's last.

    `job` is what Slurm shows, None unless `is_now`.
    """

    record: JobRecord
    is_now: bool = False
    held: bool = False
    job: SlurmJob | None = None

    @property
    def measured(self) -> Sample | None:
        """The newest sample of the present run; None while that is not known to use the job's present GPUs.

        A requeue shows in Slurm's count. Else the GPUs held are compared with the run's processes, by node.
        """
        record, run, sample = self.record, self.record.run, self.record.sample
        if run is None or sample is None or sample.at < run.first_report_at:
            return None
        if self.job is not None:
            if run.restart_count < self.job.restart_count:
                return None
            if not record.terms.in_place:
                return sample
        held = [num_gpus for _, num_gpus in record.allocation.gpus_by_node]
        return sample if sorted(run.gpus_per_node) == sorted(held) else None


def current_jobs(records: Iterable[JobRecord], snapshot: ClusterSnapshot | None) -> tuple[CurrentJob, ...]:
    """Return the jobs, with Slurm's state for those that have not ended in the store.

    Slurm's job of the same id is ignored when its Comment has other terms: it is another job.
    """
    by_id = {} if snapshot is None else {job.job_id: job for job in snapshot.jobs}
    found = []
    for record in records:
        job = by_id.get(record.slurm_job_id)
        if job is None or record.state.is_over or not is_recorded_job(job, record):
            found.append(CurrentJob(record=record))
            continue
        now = dataclasses.replace(
            record,
            state=job.state,
            allocation=Allocation() if job.state.is_over else job.allocation,
            finished_at=job.ended_at if job.state.is_over else None,
        )
        held = job.held and job.state is JobState.PENDING
        found.append(CurrentJob(record=now, is_now=True, held=held, job=job))
    return tuple(found)


def jobs_left_held(jobs: Iterable[CurrentJob]) -> tuple[str, ...]:
    """Return the ids of jobs that are held in the middle of a move; by the journal, if Slurm was not read."""
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


def jobs_held_by_journal(moves: Iterable[Reallocation]) -> tuple[str, ...]:
    """Return the ids of jobs that are held in the middle of a move, by the journal alone."""
    return tuple(move.slurm_job_id for move in moves if move.step in _HOLDING)


def is_silent(seen: DaemonStatus, now: datetime) -> bool:
    """Whether a daemon died or hangs, and did not release its lease."""
    return seen.expires_at is not None and now > seen.expires_at + _MAX_CLOCK_SKEW


def daemon_absence_text(seen: DaemonStatus, now: datetime, held: Iterable[str] = ()) -> str | None:
    """Return a text for people when no daemon runs, naming the jobs left `held`; None when one runs."""
    if seen.owner is None:
        ran = seen.last_round_at
        text = (
            "no daemon has run on this store yet"
            if ran is None
            else f"no daemon runs: the last one was stopped, its last round is {since_text(ran, now)} old"
        )
    elif is_silent(seen, now) and seen.renewed_at is not None:
        host, _, rest = seen.owner.partition(":")
        text = (
            f"the daemon is silent: process {rest.partition(':')[0] or '?'} on {host} renewed its lease "
            f"{ago_text(seen.renewed_at, now)} for the last time, and was not stopped"
        )
    else:
        return None
    held = list(held)
    if not held:
        return text
    return (
        f"{text}; held in the middle of a move: {', '.join(held)}; the next daemon "
        f"continues them; to start them without it: scontrol release {' '.join(held)}"
    )


def next_read_text(seen: DaemonStatus, now: datetime) -> str:
    """Return a text for people on when the daemon reads Slurm next, or why none does."""
    missing = daemon_absence_text(seen, now)
    if missing is not None:
        return missing
    if seen.watch_s is None:
        return "the daemon reads Slurm every few seconds"
    return f"the daemon reads Slurm every {seen.watch_s:g} s, and runs a round at once when something changed"


def unregistered_job_text(job: SlurmJob, seen: DaemonStatus, now: datetime) -> str:
    """Return a text for people about an adaptive job in Slurm that is not registered yet."""
    came = "" if job.submitted_at is None else f" {ago_text(job.submitted_at, now)}"
    why = f" ({job.reason})" if job.state is JobState.PENDING and job.reason not in ("", "None") else ""
    # An anchor that has submitted no wing yet is shown as COMPLETING.
    is_starting = job.state is JobState.COMPLETING and job.ended_at is None
    state = "starting" if is_starting else job.state.value
    text = f"job {job.job_id} was submitted{came} and is {state}{why}"
    missing = daemon_absence_text(seen, now)
    if missing is not None:
        return f"{text}; it is not registered: {missing}"
    text += f"; it is not registered yet: {next_read_text(seen, now)}"
    if job.submitted_at is None or now - job.submitted_at <= _REGISTERED_WITHIN:
        return text
    return f"{text}; it may serve only other partitions or other users, see its log"


def is_moving(job: CurrentJob) -> bool:
    """Whether a job that does not run now is in the middle of a move."""
    move = job.record.open_reallocation
    is_stopped = job.record.state in (JobState.PENDING, JobState.COMPLETING)
    return is_stopped and move is not None and move.moves_running and move.step in _STOPPED
