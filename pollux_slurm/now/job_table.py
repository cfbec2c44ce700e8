"""The table of jobs as they are now: each column once, for `status`, `top` and the page."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pollux_slurm.now.decision_text import has_maximum, move_text, paused
from pollux_slurm.now.present_state import missing_reports, present_state
from pollux_slurm.now.promises import slack_of
from pollux_slurm.text import (
    UNKNOWN,
    ago_text,
    bytes_text,
    number_text,
    shortened,
    shown,
    since_text,
)

if TYPE_CHECKING:
    from datetime import datetime

    from pollux_slurm.now.cluster import ClusterNow
    from pollux_slurm.now.jobs import JobNow


@dataclass(frozen=True, slots=True, kw_only=True)
class JobColumn:
    """`key` names a column for programs, `heading` on a terminal, `title` on a page.

    `text` returns a job's cell, `UNKNOWN` where there is no value. Columns of words are flush left, and cut
    where there is no room; numbers never are.
    """

    key: str
    heading: str
    title: str
    text: Callable[[JobNow, ClusterNow], str]
    is_words: bool = False


def _words(text: str, most: int) -> str:
    return shortened(shown(text), most) or UNKNOWN


def _reported_at(job: JobNow) -> datetime | None:
    sample = job.record.sample
    return None if sample is None else sample.at


def _batch(job: JobNow) -> str:
    batch = None if job.measured is None else job.measured.batch
    return number_text(None if batch is None else batch.global_batch_size)


def _epoch(job: JobNow) -> str:
    sample = job.record.sample
    return UNKNOWN if sample is None else f"{sample.epoch}/{sample.total_epochs or '?'}"


def _share(job: JobNow) -> str:
    return number_text(job.record.last_decision_speedup if job.record.model else None)


def _decision(job: JobNow) -> str:
    """Return a move, or what a paused job waits for, else the present state and the last decision."""
    record = job.record
    if record.open_reallocation is not None:
        return move_text(record.open_reallocation, record.state)
    if record.paused_at is not None:
        return paused(record)
    now = present_state(job)
    first = "" if now is None else now.removeprefix("is ")
    if record.last_decision is None:
        return first or UNKNOWN
    bound = None if record.state.is_over else record.last_decision_bound_by
    if bound is not None and has_maximum(record.allocation.num_gpus, record.terms.max_gpus, bound):
        bound = "max_gpus"
    decided = f"{record.last_decision}" + (f" (bound by {bound})" if bound and bound != "nothing" else "")
    return f"{first}; {decided}" if first else decided


COLUMNS = {
    one.key: one
    for one in (
        JobColumn(
            key="slurm_job_id",
            heading="JOB",
            title="job",
            text=lambda job, _: job.record.slurm_job_id,
            is_words=True,
        ),
        JobColumn(
            key="name",
            heading="NAME",
            title="name",
            text=lambda job, _: _words(job.record.name, 24),
            is_words=True,
        ),
        JobColumn(
            key="user_name",
            heading="USER",
            title="user",
            text=lambda job, _: _words(job.record.user_name, 20),
            is_words=True,
        ),
        JobColumn(
            key="account",
            heading="ACCOUNT",
            title="account",
            text=lambda job, _: _words(job.record.account, 30),
            is_words=True,
        ),
        JobColumn(
            key="state",
            heading="STATE",
            title="state",
            text=lambda job, now: now.state_of(job) + (" !" if has_warning(job, now) else ""),
            is_words=True,
        ),
        JobColumn(
            key="gpus",
            heading="GPUS",
            title="GPUs",
            text=lambda job, _: number_text(job.record.allocation.num_gpus),
        ),
        JobColumn(key="batch", heading="BATCH", title="batch", text=lambda job, _: _batch(job)),
        JobColumn(
            key="goodput",
            heading="GOODPUT/s",
            title="goodput (/s)",
            text=lambda job, _: number_text(None if job.measured is None else job.measured.goodput),
        ),
        JobColumn(key="speedup", heading="×SHARE", title="× share", text=lambda job, _: _share(job)),
        JobColumn(key="epoch", heading="EPOCH", title="epoch", text=lambda job, _: _epoch(job)),
        JobColumn(key="slack", heading="SLACK", title="slack", text=lambda job, _: slack_of(job.record)),
        JobColumn(
            key="restarts",
            heading="RESTARTS",
            title="restarts",
            text=lambda job, _: number_text(job.record.num_restarts),
        ),
        JobColumn(
            key="checkpoint_bytes",
            heading="CHECKPOINT",
            title="checkpoint",
            text=lambda job, _: bytes_text(job.record.checkpoint_bytes),
        ),
        JobColumn(
            key="age",
            heading="AGE",
            title="age",
            text=lambda job, now: since_text(job.record.submitted_at, job.record.finished_at or now.read_at),
        ),
        JobColumn(
            key="at",
            heading="REPORTED",
            title="reported",
            text=lambda job, now: ago_text(_reported_at(job), now.read_at),
        ),
        JobColumn(
            key="nodes",
            heading="NODES",
            title="nodes",
            text=lambda job, _: str(job.record.allocation),
            is_words=True,
        ),
        JobColumn(
            key="decision",
            heading="DECISION",
            title="decision",
            text=lambda job, _: _decision(job),
            is_words=True,
        ),
    )
}
"""All columns, in the order in which tables have them."""


def columns_for(jobs: Iterable[JobNow], *, without: Iterable[str] = ()) -> tuple[JobColumn, ...]:
    """Return the columns of a table of jobs; that of slack only where one asks to be finished by a moment."""
    left_out = {*without}
    if all(job.record.terms.finish_by is None for job in jobs):
        left_out.add("slack")
    return tuple(column for key, column in COLUMNS.items() if key not in left_out)


def has_warning(job: JobNow, now: ClusterNow) -> bool:
    """Whether `pollux explain` says what to look at."""
    return bool(job.record.warnings) or missing_reports(job.record, now.read_at) is not None


def terminal_cell(text: str) -> str:
    """Return a cell as a terminal of any encoding shows it."""
    return "-" if text == UNKNOWN else shown(text)
