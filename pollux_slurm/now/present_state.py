"""A job's present state in a few words, where the last round's decision does not describe it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux_slurm.model import Allocation, JobState, ReallocationStep
from pollux_slurm.now.decision_text import move_text

if TYPE_CHECKING:
    from pollux_slurm.model import SlurmJob
    from pollux_slurm.now.jobs import JobNow

# Slurm's reasons for a hold.
_HOLDERS = {"JobHeldUser": " by its owner", "JobHeldAdmin": " by an admin"}


def present_state(shown: JobNow) -> str | None:
    """Return what to say of a job before its last decision; None where that says all.

    A job that is over, or paused, has texts of its own.
    """
    record, job = shown.record, shown.job
    if record.state.is_over or record.paused_at is not None:
        return None
    if record.open_reallocation is not None:
        return f"is being moved: {move_text(record.open_reallocation, record.state)}"
    if shown.held:
        release = f"scontrol release {record.slurm_job_id}"
        if job is not None and job.held_by_slurm:
            return f"is held by Slurm, which could not start it ({release})"
        return f"is held{_HOLDERS.get('' if job is None else job.reason, '')} ({release})"
    if job is None:
        return None
    if record.terms.in_place and job.state in (JobState.PENDING, JobState.COMPLETING):
        sample = record.sample
        is_trained = (
            sample is not None and sample.total_epochs is not None and sample.epoch >= sample.total_epochs
        )
        return _without_wings(job, is_trained=is_trained)
    if job.state is JobState.SUSPENDED:
        return "is suspended"
    decided = record.last_decision
    if not decided:
        return None
    if job.state is JobState.PENDING:
        return f"waits in the queue{_because(job)}"
    lost = [node for node in decided.nodes if node not in job.allocation.nodes]
    if record.terms.in_place and lost and _had(shown, decided):
        return f"has lost its wing on {', '.join(lost)}"
    return None


def _without_wings(job: SlurmJob, *, is_trained: bool) -> str:
    """Return what a job in place that does not train waits for; `is_trained` is one without an epoch left."""
    from pollux_slurm.slurm.parsing.merged_wings import anchor_waits, wings_of_start

    if job.state is JobState.PENDING:
        waiting = [wing for wing in wings_of_start(job.wings) if wing.state is JobState.PENDING]
        if waiting and not anchor_waits(job):
            return f"waits for its wing, job {waiting[0].job_id}{_because(waiting[0])}"
        return f"waits for its anchor to start{_because(job)}"
    if any(wing.allocation for wing in job.wings):
        return "ends this run: its wings are being stopped"
    if is_trained:
        return "has trained all its epochs, and is ending"
    return "has no GPUs now: it is ending, or starts again within two minutes"


def _had(shown: JobNow, decided: Allocation) -> bool:
    """Whether the job had what was decided: its last move is done, or there was none."""
    last = shown.record.last_reallocation
    return last is None or (last.target == decided and last.step is ReallocationStep.CONFIRMED)


def _because(job: SlurmJob) -> str:
    return "" if job.reason in ("", "None") else f" ({job.reason})"
