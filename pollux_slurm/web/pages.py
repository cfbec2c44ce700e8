"""What each page shows: documents of reports, for a range of time that the address names."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pollux_slurm.document.charts.time_axes import Range, parse_range
from pollux_slurm.document.columns import in_order, matches
from pollux_slurm.document.document import Document, Part
from pollux_slurm.document.forms.html import MOST_ROWS as PAGE_ROWS
from pollux_slurm.errors import UsageError
from pollux_slurm.report.group import account_document, lead_of
from pollux_slurm.report.job import Told, job_document
from pollux_slurm.report.parts.common import JOB_COLUMNS, jobs_part
from pollux_slurm.report.parts.fairness import fairness_part
from pollux_slurm.report.parts.gpus_over_time import MOST_JOBS, gpus_over_time_part
from pollux_slurm.report.parts.moves_by_day import moves_by_day_part
from pollux_slurm.report.parts.rounds import nodes_part, rounds_part
from pollux_slurm.report.parts.usage import usage_part
from pollux_slurm.report.reading import read_group, read_job
from pollux_slurm.store.reporting.queries import ViewReader
from pollux_slurm.store.reporting.view_rows import (
    AccountUsage,
    Fairness,
    JobGoodput,
    ListedJob,
    ReallocationEntry,
    RoundEntry,
)
from pollux_slurm.text import plural

MOST_ROWS = 10_000
_SORTED_BY = ("submitted_at", "gpu_hours", "goodput", "waited_s", "restarts")
SORTS = tuple(column for column in JOB_COLUMNS if column.key in _SORTED_BY)
"""By what the page of jobs may be sorted, the largest first."""

Words = Mapping[str, str]
"""The query of an address, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What pages are made from: the views that the reader's login may see, and the time."""

    reader: ViewReader
    now: datetime
    truncated: list[str] = field(default_factory=list)
    """Views that had more rows than a page reads; it has the newest."""

    def range(self, words: Words, default: str) -> Range:
        """Return the range that `since` and `until` name. Raises `UsageError`."""
        return parse_range(words.get("since") or default, words.get("until") or None, now=self.now)

    def rows(
        self, kind: type[Any], range_: Range, *, account: str | None = None, user_name: str | None = None
    ) -> tuple[Any, ...]:
        found = self.reader.rows(
            kind,
            since=range_.since,
            until=range_.until,
            account=account,
            user_name=user_name,
            limit=MOST_ROWS,
        )
        if found.truncated:
            self.truncated.append(kind.VIEW)
        return tuple(found.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanPage:
    """A page about a range of time, which begins so long ago as `since` says unless the address names it."""

    title: str
    lead: str
    since: str
    parts: Callable[[Site, Range], Iterable[Part]]

    def document(self, site: Site, words: Words) -> Document:
        range_ = site.range(words, self.since)
        return _document(site, self.title, self.lead, range_, *self.parts(site, range_))


def _usage(site: Site, range_: Range) -> Part:
    return usage_part(site.rows(AccountUsage, range_), range_, by="account", title="Usage")


SPAN_PAGES = {
    "cluster": SpanPage(
        title="GPUs over time",
        lead="GPU hours of adaptive jobs, and who held what when.",
        since="7d",
        parts=lambda site, range_: (
            _usage(site, range_),
            *gpus_over_time_part(
                site.reader.gpu_holders(range_.since, range_.until, most_jobs=MOST_JOBS), range_, by="account"
            ),
            nodes_part(site.reader.node_sums(range_.since, range_.until), range_),
        ),
    ),
    "rounds": SpanPage(
        title="Rounds",
        lead="What each round of the daemon had, decided, and expected. "
        "A job's page says why it has its GPUs.",
        since="1d",
        parts=lambda site, range_: [rounds_part(site.rows(RoundEntry, range_), range_)],
    ),
    "fairness": SpanPage(
        title="Fairness",
        lead="What sharing cost each job, against a fair share of the cluster of its own.",
        since="7d",
        parts=lambda site, range_: [fairness_part(site.rows(Fairness, range_), by="account")],
    ),
    "moves": SpanPage(
        title="Moves",
        lead="Reallocations of running jobs: the standstill of each day by its parts, and the longest ones.",
        since="7d",
        parts=lambda site, range_: [moves_by_day_part(site.rows(ReallocationEntry, range_), range_)],
    ),
    "accounts": SpanPage(
        title="Accounts",
        lead="GPU hours of each account, and what was made of them.",
        since="30d",
        parts=lambda site, range_: [_usage(site, range_)],
    ),
}
"""Pages of the whole cluster, by address."""


def account(site: Site, words: Words, name: str) -> Document:
    """Return one account. Raises `StoreError` for one without a job in the range."""
    range_ = site.range(words, "30d")
    history = read_group(site.reader, range_, account=name, most_rows=MOST_ROWS)
    command = _command(range_, "account", name)
    return account_document(history, range_, account=name, made_at=site.now, command=command)


def job(site: Site, words: Words, number: str, told: Callable[[str], Told]) -> Document:
    """Return one job, with the words of its last decision. Raises `UnknownJobError`."""
    history = read_job(site.reader, number, told=told(number))
    return job_document(history, made_at=site.now)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobList:
    """A page of jobs: `document` has `PAGE_ROWS` of the `total` that match."""

    document: Document
    total: int
    page: int
    states: tuple[str, ...]

    @property
    def pages(self) -> int:
        return max(-(-self.total // PAGE_ROWS), 1)


def jobs(site: Site, words: Words) -> JobList:
    """Return the jobs that match `q` (words in any column), `account`, `user` and `state`.

    `sort` is the key of one of `SORTS`, `page` counts from 1. Raises `UsageError` for another.
    """
    range_ = site.range(words, "7d")
    sort, number = words.get("sort") or SORTS[0].key, words.get("page") or "1"
    column = next((one for one in SORTS if one.key == sort), None)
    if column is None:
        raise UsageError(f"jobs are not sorted by {sort!r}; use {', '.join(one.key for one in SORTS)}")
    if re.fullmatch("[0-9]{1,6}", number) is None or int(number) == 0:
        raise UsageError(f"there is no page {number[:20]!r}")
    rows = site.rows(
        ListedJob, range_, account=words.get("account") or None, user_name=words.get("user") or None
    )
    states = tuple(sorted({row.state for row in rows} | {words.get("state") or ""} - {""}))
    found = [
        row
        for row in rows
        if words.get("state") in (None, "", row.state) and matches(row, JOB_COLUMNS, words.get("q") or "")
    ]
    found = in_order(sorted(found, key=lambda row: str(row.slurm_job_id)), column)
    page = min(int(number), max(-(-len(found) // PAGE_ROWS), 1))
    shown = [row.job_id for row in found[(page - 1) * PAGE_ROWS : page * PAGE_ROWS]]
    whole = {row.job_id: row for row in site.reader.rows(JobGoodput, job_ids=shown).rows}
    part = jobs_part([whole[job_id] for job_id in shown if job_id in whole], ordered=True)
    document = _document(site, "Jobs", f"{plural(len(found), 'adaptive job')}, submitted from", range_, part)
    return JobList(document=document, total=len(found), page=page, states=states)


def _document(site: Site, title: str, lead: str, range_: Range, *parts: Part) -> Document:
    return Document(
        kind="web",
        title=title,
        lead=lead_of(lead, range_, site.truncated, site.reader.last_round_at()),
        parts=parts,
        made_at=site.now,
        range=range_,
        command=_command(range_, "cluster"),
    )


def _command(range_: Range, *words: str) -> str:
    """Return the command that prints all rows of what a page shows."""
    begin, end = (f"{moment:%Y-%m-%dT%H:%M:%S}" for moment in (range_.since, range_.until))
    return shlex.join(["pollux", "report", *words, "--since", begin, "--until", end])
