"""What is said of a job beside its last decision: its present state, where that differs, and its warnings."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from pollux_slurm.model import Allocation, JobState, ReallocationStep
from pollux_slurm.now.decision_text import move_text
from pollux_slurm.text import ago_text

if TYPE_CHECKING:
    from pollux_slurm.model import SlurmJob
    from pollux_slurm.now.jobs import JobNow
    from pollux_slurm.store.contract.interface import JobRecord

# Slurm's reasons for a hold.
_HOLDERS = {"JobHeldUser": " by its owner", "JobHeldAdmin": " by an admin"}
# Time from a start to the first report: imports on a slow file system, the claim, the first connection.
_FIRST_REPORT = timedelta(minutes=5)
_CAUSES = (
    "it never calls pollux_slurm.torch.init_process_group, or no store is set where it runs "
    "(POLLUX_STORE_URL), or that store does not answer; see the lines of its log that begin with 'pollux: '"
)


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
    from pollux_slurm.slurm.parsing.merged_wings import wings_of_start

    if job.state is JobState.PENDING:
        waiting = [wing for wing in wings_of_start(job.wings) if wing.state is JobState.PENDING]
        if waiting and not job.anchor_waits:
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


def missing_reports(record: JobRecord, now: datetime) -> str | None:
    """Return a sentence for a job that ran for minutes and has never reported; None for others."""
    if record.run is not None or record.started_at is None:
        return None
    if record.finished_at is not None:
        return f"it ended without any report: either before a daemon registered it, or {_CAUSES}"
    if not record.allocation or now - record.started_at < _FIRST_REPORT:
        return None
    return f"it started {ago_text(record.started_at, now)} and has not reported: either {_CAUSES}"


def warning_lines(records: tuple[JobRecord, ...], now: datetime) -> list[str]:
    """Return a line for each warning of the jobs."""
    found = []
    for record in records:
        job = record.slurm_job_id
        sentences = [f"{one.warning.sentence} (cure: pollux explain {job})" for one in record.warnings]
        silent = missing_reports(record, now)
        sentences += [] if silent is None else [silent]
        found += [f"! job {job}: {sentence}" for sentence in sentences]
    return found
