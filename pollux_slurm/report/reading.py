"""Questions to the store's reporting views, as histories for reports."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import TypeVar

from pollux_slurm.document.charts.time_axes import Range
from pollux_slurm.errors import StoreError, StoreUnavailable
from pollux_slurm.report.group import GroupHistory
from pollux_slurm.report.job import JobHistory, Told
from pollux_slurm.report.parts.gpus_over_time import MOST_JOBS
from pollux_slurm.store.reporting.gpu_use import GpuUse
from pollux_slurm.store.reporting.queries import MOST_ROWS, ViewReader
from pollux_slurm.store.reporting.view_rows import (
    AccountUsage,
    Fairness,
    JobEvent,
    JobGoodput,
    ModelAccuracy,
    ReallocationEntry,
    RoundEntry,
    UserUsage,
)
from pollux_slurm.text import some_of

_Row = TypeVar("_Row")
# A job that reports every 30 s for a week: no plot needs more, and a longer one is averaged.
MOST_SAMPLES = 20_000
_NAMES_SHOWN = 10


def read_job(
    reports: ViewReader,
    slurm_job_id: str,
    range_: Range | None = None,
    *,
    told: Told | None = None,
    most_samples: int = MOST_SAMPLES,
) -> JobHistory:
    """Return the history of a job, what happened within `range_` where it is given; accuracy by whole days.

    More than `most_samples` are averaged.

    Raises `UnknownJobError` for a job that the store does not know, or that this login may not see.
    """
    jobs = reports.rows(JobGoodput, slurm_job_id=slurm_job_id).rows
    events = reports.rows(JobEvent, slurm_job_id=slurm_job_id, limit=MOST_ROWS).rows
    moves = reports.rows(ReallocationEntry, slurm_job_id=slurm_job_id, limit=MOST_ROWS).rows
    since, until = (None, None) if range_ is None else (range_.since, range_.until)
    accuracy = reports.rows(
        ModelAccuracy, since=since, until=until, slurm_job_id=slurm_job_id, limit=MOST_ROWS
    ).rows
    fairness = reports.rows(Fairness, slurm_job_id=slurm_job_id).rows
    samples = reports.samples(slurm_job_id, max_points=most_samples)
    if range_ is not None:
        # An allocation interval that began earlier counts for its part within the range; an open one lasts.
        samples = tuple(one for one in samples if range_.since <= one.at < range_.until)
        moves = tuple(one for one in moves if range_.since <= one.planned_at < range_.until)
        events = tuple(
            one
            for one in events
            if one.at < range_.until
            and ((one.until or one.at) >= range_.since or (one.event == "allocated" and one.until is None))
        )
    return JobHistory(
        job=jobs[0],
        samples=samples,
        events=events,
        moves=moves,
        accuracy=accuracy,
        fairness=fairness[0] if fairness else None,
        told=told or Told(),
    )


def read_group(
    reports: ViewReader, range_: Range, *, account: str | None = None, most_rows: int = MOST_ROWS
) -> GroupHistory:
    """Return the history of one account; without a name that of all, with rounds and nodes.

    Of each view the newest `most_rows` rows, at most; the history marks where there were more.

    Raises `StoreError` for an account without a job in the range, with what to ask instead.
    """
    truncated: list[str] = []

    def ask(kind: type[_Row]) -> tuple[_Row, ...]:
        found = reports.rows(kind, since=range_.since, until=range_.until, account=account, limit=most_rows)
        if found.truncated:
            truncated.append(kind.VIEW)  # type: ignore[attr-defined]
        return found.rows

    usage, jobs = ask(AccountUsage), ask(JobGoodput)
    if account is not None and not usage and not jobs:
        everyone = reports.rows(AccountUsage, since=range_.since, until=range_.until).rows
        names = sorted({row.account for row in everyone if row.account})
        raise StoreError(
            f"account {account!r} has no adaptive job from {range_.text()}; {_known_names(account, names)}; "
            "choose another time (--since)"
        )
    return GroupHistory(
        usage=usage,
        users=ask(UserUsage),
        jobs=jobs,
        moves=ask(ReallocationEntry),
        accuracy=ask(ModelAccuracy),
        fairness=ask(Fairness),
        held=reports.gpu_holders(range_.since, range_.until, account=account, most_jobs=MOST_JOBS),
        rounds=() if account is not None else ask(RoundEntry),
        nodes=() if account is not None else reports.node_sums(range_.since, range_.until),
        gpu_use=None if account is not None else _gpu_use(reports, range_),
        truncated=tuple(truncated),
        last_round_at=reports.last_round_at(),
    )


def _known_names(wanted: str, names: Sequence[str]) -> str:
    """Return a sentence's part that names the account that may be meant, and those that there are."""
    if not names:
        return "no account has any"
    similar = difflib.get_close_matches(wanted, names, n=1)
    meant = f"did you mean {similar[0]}? " if similar else ""
    return f"{meant}accounts with usage in it: {some_of(names, _NAMES_SHOWN)}"


def _gpu_use(reports: ViewReader, range_: Range) -> GpuUse | None:
    """Return who used which GPUs, None for a login that may not read the tables."""
    try:
        return reports.gpu_use(range_.since, range_.until)
    except StoreUnavailable:
        raise
    except StoreError:
        return None
