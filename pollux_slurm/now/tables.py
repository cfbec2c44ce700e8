"""The tables of now: jobs, moves under way, last decisions, kinds; for `status`, `top` and the page."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from pollux_slurm.document.columns import Column, Data, Kind, table_of
from pollux_slurm.now.decision_text import move_text, paused, present_bound, short_reason
from pollux_slurm.now.present_state import missing_reports, present_state
from pollux_slurm.now.promises import slack_of
from pollux_slurm.report.parts.columns import (
    ACCOUNT,
    EPOCH,
    GOODPUT,
    JOB,
    KIND,
    NAME,
    NUM_JOBS,
    STATE,
    USER,
    WAY,
)
from pollux_slurm.text import plural, seconds_since

if TYPE_CHECKING:
    from pollux_slurm.now.cluster import ClusterNow
    from pollux_slurm.now.jobs import JobNow
    from pollux_slurm.store.contract.interface import KindRecord


def jobs_data(
    now: ClusterNow, jobs: Iterable[JobNow], *, without: Iterable[str] = (), note: str = ""
) -> Data:
    """Return the table of some jobs of a picture, but for some columns."""
    columns = tuple(column for column in job_columns(now) if column.key not in {*without})
    return table_of("jobs", jobs, columns, note=note)


def job_columns(now: ClusterNow) -> tuple[Column, ...]:
    """Return the columns of jobs of a picture; that of slack only where one asks to be finished by a moment.

    A narrow terminal leaves out first what is furthest from what a job makes of its GPUs.
    """
    text, count, seconds = Kind.TEXT, Kind.COUNT, Kind.SECONDS
    columns = (
        replace(JOB, value=lambda job: job.record.slurm_job_id),
        replace(NAME, least=10, most=24, value=lambda job: job.record.name),
        replace(USER, rank=7, least=10, most=20, value=lambda job: job.record.user_name),
        replace(ACCOUNT, most=30, value=lambda job: job.record.account),
        replace(STATE, value=lambda job: now.state_of(job) + (" !" if has_warning(job, now) else "")),
        Column("gpus", "GPUs", count, value=lambda job: job.record.allocation.num_gpus),
        Column("batch", "batch", count, rank=2, value=_batch),
        replace(GOODPUT, value=lambda job: job.measured and job.measured.goodput),
        Column(
            "speedup",
            "×share",
            rank=1,
            value=lambda job: job.record.last_decision_speedup if job.record.model else None,
        ),
        replace(EPOCH, rank=4, value=_epoch),
        Column("slack", "slack", rank=3, value=lambda job: slack_of(job.record)),
        Column("restarts", "restarts", count, rank=9, value=lambda job: job.record.num_restarts),
        Column(
            "checkpoint_bytes",
            "checkpoint",
            Kind.BYTES,
            rank=10,
            value=lambda job: job.record.checkpoint_bytes,
        ),
        Column("age", "age", seconds, rank=6, value=lambda job: _age_s(job, now)),
        Column("at", "reported", Kind.AGO, rank=5, value=lambda job: _reported_s(job, now)),
        Column("nodes", "nodes", text, rank=8, least=10, value=lambda job: str(job.record.allocation)),
        Column("decision", "decision", text, least=10, value=_decision),
    )
    asked = any(job.record.terms.finish_by is not None for job in now.jobs)
    return tuple(column for column in columns if asked or column.key != "slack")


def moves_data(now: ClusterNow) -> Data:
    """Return the table of the moves under way."""
    text = Kind.TEXT
    columns = (
        replace(JOB, value=lambda one: one[0].record.slurm_job_id),
        replace(NAME, most=30, value=lambda one: one[0].record.name),
        Column("source", "from", text, value=lambda one: str(one[1].source)),
        Column("target", "to", text, value=lambda one: str(one[1].target)),
        replace(WAY, value=lambda one: "in place" if one[1].way.value == "in_place" else "by requeue"),
        Column("step", "step", text, value=lambda one: one[1].step.text),
        Column(
            "planned", "planned", Kind.AGO, value=lambda one: seconds_since(one[1].times[0][1], now.read_at)
        ),
    )
    return table_of("moves", now.moves, columns)


def decisions_data(now: ClusterNow, *, most: int) -> Data:
    """Return the table of the newest decisions about jobs that are not being moved."""
    columns = (
        replace(JOB, value=lambda job: job.record.slurm_job_id),
        Column("allocation", "allocation", Kind.TEXT, value=lambda job: str(job.record.last_decision)),
        Column("reason", "bound by", Kind.TEXT, value=lambda job: short_reason(job.record)),
        Column(
            "at",
            "decided",
            Kind.AGO,
            value=lambda job: seconds_since(job.record.last_decision_at, now.read_at),
        ),
    )
    return table_of("decisions", now.decided[:most], columns)


def kinds_data(kinds: Iterable[KindRecord]) -> Data:
    """Return the table of kinds of jobs."""
    text = Kind.TEXT
    columns = (
        KIND,
        USER,
        Column("newest_job", "newest job", text, value=lambda one: f"{one.newest_job} ({one.newest_name})"),
        NUM_JOBS,
        Column("num_completed", "completed", Kind.COUNT),
        Column("max_gpus_seen", "measured on", text, value=_measured_on),
    )
    return table_of("kinds", kinds, columns)


def _measured_on(kind: KindRecord) -> str:
    return f"up to {plural(kind.max_gpus_seen, 'GPU')}" if kind.max_gpus_seen else "not yet"


def has_warning(job: JobNow, now: ClusterNow) -> bool:
    """Whether `pollux explain` says what to look at."""
    return bool(job.record.warnings) or missing_reports(job.record, now.read_at) is not None


def _batch(job: JobNow) -> int | None:
    batch = None if job.measured is None else job.measured.batch
    return None if batch is None else batch.global_batch_size


def _epoch(job: JobNow) -> str | None:
    sample = job.record.sample
    return None if sample is None else f"{sample.epoch}/{sample.total_epochs or '?'}"


def _age_s(job: JobNow, now: ClusterNow) -> int:
    return seconds_since(job.record.submitted_at, job.record.finished_at or now.read_at)


def _reported_s(job: JobNow, now: ClusterNow) -> int | None:
    sample = job.record.sample
    return None if sample is None else seconds_since(sample.at, now.read_at)


def _decision(job: JobNow) -> str | None:
    """Return a move, or what a paused job waits for, else the present state and the last decision."""
    record = job.record
    if record.open_reallocation is not None:
        return move_text(record.open_reallocation, record.state)
    if record.paused_at is not None:
        return paused(record)
    now = present_state(job)
    first = "" if now is None else now.removeprefix("is ")
    if record.last_decision is None:
        return first or None
    bound = (None if record.state.is_over else record.last_decision_bound_by) or "nothing"
    bound = present_bound(record.allocation.num_gpus, record.terms.max_gpus, bound)
    decided = f"{record.last_decision}" + (f" (bound by {bound})" if bound != "nothing" else "")
    return f"{first}; {decided}" if first else decided
