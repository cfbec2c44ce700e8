"""Two spans of time for `pollux report before-after`, from Slurm's accounting and the store."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from pollux_slurm.errors import SlurmError, SlurmUnavailable, TraceError, UsageError
from pollux_slurm.report.spans.jobs import span_of
from pollux_slurm.slurm.commands.accounting import JOB_COLUMNS
from pollux_slurm.slurm.connection import accounting
from pollux_slurm.slurm.parsing.sacct_text import parse_sacct
from pollux_slurm.store.reporting.queries import MOST_ROWS, open_view_reader
from pollux_slurm.store.reporting.view_rows import AccountUsage, JobGoodput
from pollux_slurm.text import minute_text

if TYPE_CHECKING:
    from datetime import datetime

    from pollux_slurm.config import Config
    from pollux_slurm.document.charts.time_axes import Range
    from pollux_slurm.report.spans.jobs import Span
    from pollux_slurm.slurm.parsing.sacct_text import SacctJob


def both_spans(
    config: Config, ranges: tuple[Range, Range], files: list[Path], *, now: datetime
) -> tuple[Span, Span]:
    """Return both spans as of `now`; raises `TraceError` where one has no jobs with GPUs."""
    since, until = (f"{moment:%Y-%m-%dT%H:%M}" for moment in (ranges[0].since, ranges[1].until))
    command = f"TZ=UTC sacct -a -D -X -P -S {since} -E {until} --format={','.join(JOB_COLUMNS)} > sacct.txt"
    needed = ("User", "Account", "Start", "End", "State")
    read = [parse_sacct(_lines(file), command=command, required=needed) for file in files]
    with contextlib.ExitStack() as opened:
        store = None if config.store.url is None else opened.enter_context(open_view_reader(config.store.url))

        def accounted(range_: Range) -> list[SacctJob]:
            if files:
                return [job for one in read for job in one]
            try:
                return list(accounting(config.slurm, os.environ).jobs(range_.since, range_.until))
            except SlurmError as error:
                raise SlurmUnavailable(
                    f"{error}; or run on a host with Slurm: {command}, and give it by --sacct sacct.txt"
                ) from None

        def span(name: str, range_: Range) -> Span:
            jobs = accounted(range_)
            known: tuple[JobGoodput, ...] = ()
            usage: tuple[AccountUsage, ...] = ()
            if store is not None:
                since, until = range_.since, range_.until
                known = store.rows(JobGoodput, since=since, until=until, limit=MOST_ROWS).rows
                usage = store.rows(AccountUsage, since=since, until=until, limit=MOST_ROWS).rows
            found = span_of(name, range_, jobs, known, usage, now=now)
            if not found.jobs:
                raise TraceError(
                    f"no job with GPUs was submitted {name}, {range_.text()}: {_why_none(found, jobs)}"
                )
            return found

        return span("before", ranges[0]), span("after", ranges[1])


def _why_none(span: Span, accounted: list[SacctJob]) -> str:
    """Return what to check for a span without jobs with GPUs."""
    if span.num_without:
        return (
            f"{span.num_without} had none, or never started; Slurm counts GPUs where slurm.conf has "
            "AccountingStorageTRES=gres/gpu"
        )
    if not accounted:
        return "sacct's text has no job"
    submitted = [job.submitted_at for job in accounted]
    return f"sacct's text has jobs from {minute_text(min(submitted))} to {minute_text(max(submitted))} UTC"


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from None
