"""Jobs as they are now: the store's record, with what Slurm shows. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from pollux_slurm.model import Allocation, ClusterSnapshot, JobState, ReallocationStep, SlurmJob
from pollux_slurm.now.known_jobs import is_recorded_job
from pollux_slurm.store.contract.interface import JobRecord, Reallocation, Sample

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
class JobNow:
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


def jobs_now(records: Iterable[JobRecord], snapshot: ClusterSnapshot | None) -> tuple[JobNow, ...]:
    """Return the jobs, with Slurm's state for those that have not ended in the store.

    Slurm's job of the same id is ignored when its Comment has other terms: it is another job.
    """
    by_id = {} if snapshot is None else {job.job_id: job for job in snapshot.jobs}
    found = []
    for record in records:
        job = by_id.get(record.slurm_job_id)
        if job is None or record.state.is_over or not is_recorded_job(job, record):
            found.append(JobNow(record=record))
            continue
        now = dataclasses.replace(
            record,
            state=job.state,
            allocation=Allocation() if job.state.is_over else job.allocation,
            finished_at=job.ended_at if job.state.is_over else None,
        )
        held = job.held and job.state is JobState.PENDING
        found.append(JobNow(record=now, is_now=True, held=held, job=job))
    return tuple(found)


def jobs_left_held(jobs: Iterable[JobNow]) -> tuple[str, ...]:
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


def is_moving(job: JobNow) -> bool:
    """Whether a job that does not run now is in the middle of a move."""
    move = job.record.open_reallocation
    is_stopped = job.record.state in (JobState.PENDING, JobState.COMPLETING)
    return is_stopped and move is not None and move.moves_running and move.step in _STOPPED
