"""`pollux report`: reports on a job, an account or the cluster, as text, CSV, JSON or one HTML page."""

from __future__ import annotations

import functools
import inspect
import re
import sys
import typing
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pollux_slurm.cli.shared.completion import choices, complete_accounts, complete_jobs
from pollux_slurm.cli.shared.progress_bar import ProgressBar
from pollux_slurm.cli.shared.settings_and_store import (
    ConfigOption,
    StoreOption,
    escaped_json,
    opened_store,
    settings,
)
from pollux_slurm.errors import SlurmError, SlurmUnavailable, StoreError, TraceError, UsageError

if TYPE_CHECKING:
    from pollux_slurm.config import Config
    from pollux_slurm.report.charts.time_axes import Range
    from pollux_slurm.report.document.document import Document
    from pollux_slurm.report.spans.jobs import Span
    from pollux_slurm.slurm.parsing.sacct_text import SacctJob

app = typer.Typer(
    name="report",
    add_completion=False,
    help="Report on a job, an account, the cluster, a shadow daemon or two spans of time: on the terminal, "
    "as CSV, JSON or one HTML page.",
    no_args_is_help=True,
    epilog="Examples: pollux report job 1234 · pollux report account vision --since 30d · "
    "pollux report cluster --since 7d --html > week.html · "
    "pollux report cluster --since 2026-10-01 --until 2026-11-01 --csv --table jobs · "
    "pollux report job 1234 --json · pollux report shadow --since 7d · "
    "pollux report dashboard sqlite > grafana.json",
)

_FORM_OF_SUFFIX = {
    **{".html": "html", ".htm": "html", ".csv": "csv", ".json": "json", ".txt": "text"},
    **{".svg": "svg", ".png": "png", ".pdf": "pdf"},
}

_ALWAYS = "1970-01-01"
_MONTH, _WEEK = "30d", "7d"

SinceOption = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="TIME",
        help="From: 30d, 12h or 2w ago, or 2026-10-01 (UTC); default: all data, at most a month.",
    ),
]
ShadowSinceOption = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="TIME",
        help="From: 30d, 12h or 2w ago, or 2026-10-01 (UTC); default: all data, at most a week.",
    ),
]
JobSinceOption = Annotated[
    str | None, typer.Option("--since", metavar="TIME", help="From: 12h ago, or 2026-10-01 (UTC).")
]
UntilOption = Annotated[
    str | None, typer.Option("--until", metavar="TIME", help="Up to, but not at, this time; default: now.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The options of every report: its store, its format and its destination."""

    config_file: Path | None
    store_url: str | None
    form: str
    table: str | None
    output: Path | None
    static: bool

    def settings(self) -> Config:
        return settings(self.config_file, self.store_url)

    @property
    def is_pictures(self) -> bool:
        """Whether each plot is written to a file of its own."""
        from pollux_slurm.report.charts.rendering import PICTURES

        return self.output is not None and self.form in PICTURES


def _wanted(
    as_html: Annotated[
        bool, typer.Option("--html", help="One HTML page with plots, for any browser.")
    ] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="One table of the report as CSV.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The whole report as JSON.")] = False,
    table: Annotated[
        str | None,
        typer.Option("--table", metavar="NAME", help="The table that --csv prints; default: the main one."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write to a file; its ending sets the format: .html, .csv, .json, .txt; .svg, .png and .pdf "
            "draw the plots.",
        ),
    ] = None,
    static: Annotated[bool, typer.Option("--static", help="An HTML page without a script.")] = False,
    config_file: ConfigOption = None,
    store_url: StoreOption = None,
) -> Wanted:
    """Return the options of every report. Raises `UsageError` for those that exclude each other."""
    form = _form(as_html, as_csv, as_json, table, output)
    if static and form != "html":
        raise UsageError("--static is for an HTML page: the other formats have no script")
    return Wanted(
        config_file=config_file,
        store_url=store_url,
        form=form,
        table=table,
        output=output,
        static=static,
    )


def _report(make: Callable[..., Document]) -> Callable[..., None]:
    """Turn a function that returns a document into a command that prints it, with the common options."""
    shared = inspect.signature(_wanted, eval_str=True).parameters

    @functools.wraps(make)
    def command(**given: Any) -> None:
        wanted = _wanted(**{name: given.pop(name) for name in shared})
        with ProgressBar(2, "report") as bar:
            document = make(wanted, **given)
            bar.update(1)
            text = "" if wanted.is_pictures else _text(document, wanted)
        _write_report(document, text, wanted)

    # Without `wanted`, and without the return type, which is not imported here.
    hints = {name: hint for name, hint in make.__annotations__.items() if name not in ("wanted", "return")}
    types = typing.get_type_hints(
        SimpleNamespace(__annotations__=hints), globalns=make.__globals__, include_extras=True
    )
    own = inspect.signature(make).parameters
    parameters = [*(own[name].replace(annotation=hint) for name, hint in types.items()), *shared.values()]
    # typer reads both attributes.
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command


@app.command()
@_report
def job(
    wanted: Wanted,
    job_id: Annotated[
        str, typer.Argument(metavar="ID", help="The Slurm job id.", autocompletion=complete_jobs)
    ],
    since: JobSinceOption = None,
    until: UntilOption = None,
) -> Document:
    """Report on one job: goodput and GPUs over time, batch size, what each move cost and brought.

    Examples: pollux report job 1234
    · pollux report job 1234 -o job.html
    · pollux report job 1234 -o job.png
    · pollux report job 1234 --csv --table samples
    · pollux report job 1234 --json
    """
    from pollux_slurm.report.job import job_document
    from pollux_slurm.report.reading import read_job
    from pollux_slurm.store.reporting.queries import open_view_reader

    now = datetime.now(timezone.utc)
    range_ = None if since is None and until is None else _range(since or _ALWAYS, until, now)
    config = wanted.settings()
    with open_view_reader(config.require_store_url()) as reports:
        history = read_job(reports, job_id, range_, explanation=_explanation(config, job_id))
    return job_document(history, made_at=now, range_=range_)


@app.command()
@_report
def account(
    wanted: Wanted,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="The account; default: all accounts, compared.",
            autocompletion=complete_accounts,
        ),
    ] = None,
    since: SinceOption = None,
    until: UntilOption = None,
) -> Document:
    """Report on an account, or on all: GPU hours by user and day, progress, fairness, jobs.

    Examples: pollux report account vision
    · pollux report account vision --since 2026-10-01 --until 2026-11-01 -o october.html
    · pollux report account --csv --table account_usage
    · pollux report account vision --json
    """
    from pollux_slurm.report.group import account_document, life_of
    from pollux_slurm.report.reading import read_group
    from pollux_slurm.store.reporting.queries import open_view_reader

    now = datetime.now(timezone.utc)
    range_ = _range(since or _MONTH, until, now)
    with open_view_reader(wanted.settings().require_store_url()) as reports:
        history = read_group(reports, range_, account=name)
    if since is None and until is None:
        range_ = life_of(history, range_)
    command = _command("account", name or "", since, until)
    return account_document(history, range_, account=name, made_at=now, command=command)


@app.command()
@_report
def cluster(
    wanted: Wanted,
    since: SinceOption = None,
    until: UntilOption = None,
) -> Document:
    """Report on the whole cluster: usage by account and day, rounds, fairness, moves, nodes, jobs.

    Examples: pollux report cluster --since 30d
    · pollux report cluster --since 7d -o week.html
    · pollux report cluster --since 30d --csv --table jobs
    · pollux report cluster --since 30d --json
    """
    from pollux_slurm.report.group import cluster_document, life_of
    from pollux_slurm.report.reading import read_group
    from pollux_slurm.store.reporting.queries import open_view_reader

    now = datetime.now(timezone.utc)
    range_ = _range(since or _MONTH, until, now)
    with open_view_reader(wanted.settings().require_store_url()) as reports:
        history = read_group(reports, range_)
    if since is None and until is None:
        range_ = life_of(history, range_)
    return cluster_document(history, range_, made_at=now, command=_command("cluster", "", since, until))


@app.command()
@_report
def shadow(
    wanted: Wanted,
    since: ShadowSinceOption = None,
    until: UntilOption = None,
) -> Document:
    """Report on a daemon in shadow mode: moves that it would have made, their predicted gain, its accuracy.

    Examples: pollux report shadow --since 7d
    · pollux report shadow --since 12h -o shadow.html
    · pollux report shadow --since 7d --csv --table shadow_moves
    · pollux report shadow --since 7d --json
    """
    from pollux_slurm.report.charts.time_axes import range_of
    from pollux_slurm.report.shadow import read_shadow, shadow_document
    from pollux_slurm.store.reporting.queries import open_view_reader

    now = datetime.now(timezone.utc)
    range_ = _range(since or _WEEK, until, now)
    with open_view_reader(wanted.settings().require_store_url()) as reports:
        findings = read_shadow(reports, range_)
    if since is None and until is None:
        range_ = range_of((one.at for one in findings.history.rounds), range_)
    return shadow_document(findings, range_, made_at=now, command=_command("shadow", "", since, until))


@app.command("before-after")
@_report
def before_after(
    wanted: Wanted,
    before: Annotated[
        str,
        typer.Option("--before", metavar="FROM..TO", help="Without Pollux: 2026-09-01..2026-10-01 (UTC)."),
    ],
    after: Annotated[str, typer.Option("--after", metavar="FROM..TO", help="With Pollux.")],
    sacct: Annotated[
        list[Path] | None,
        typer.Option(
            "--sacct",
            metavar="FILE",
            help="Text of sacct --parsable2 to read instead of asking Slurm; may be repeated.",
        ),
    ] = None,
) -> Document:
    """Compare two spans of time: completion and waiting times, GPU hours, fairness, what is not comparable.

    Jobs are read from Slurm's accounting, and adaptive ones from the store, where there is one.

    Examples: pollux report before-after --before 2026-09-01..2026-10-01
    --after 2026-10-15..2026-11-15 -o page.html
    · TZ=UTC sacct -a -D -X -P -S 2026-09-01 -E 2026-10-01
    --format=JobIDRaw,User,Account,Submit,Start,End,ElapsedRaw,AllocTRES,State,JobName > september.txt
    """
    import shlex

    from pollux_slurm.report.charts.time_axes import parse_span
    from pollux_slurm.report.spans.document import before_after_document

    now = datetime.now(timezone.utc)
    ranges = (
        parse_span(before, now=now, option="--before"),
        parse_span(after, now=now, option="--after"),
    )
    if ranges[1].since < ranges[0].until:
        raise UsageError(f"--after {after} begins before --before {before} ends")
    words = ["pollux", "report", "before-after", "--before", before, "--after", after]
    for file in sacct or ():
        words += ["--sacct", str(file)]
    spans = _spans(wanted.settings(), ranges, sacct or [])
    return before_after_document(*spans, made_at=now, command=shlex.join(words))


def _spans(config: Config, ranges: tuple[Range, Range], files: list[Path]) -> tuple[Span, Span]:
    """Return both spans; raises `TraceError` where one has no jobs with GPUs."""
    import contextlib
    import os

    from pollux_slurm.report.spans.jobs import span_of
    from pollux_slurm.slurm.commands.accounting import JOB_COLUMNS
    from pollux_slurm.slurm.connection import accounting
    from pollux_slurm.slurm.parsing.sacct_text import parse_sacct
    from pollux_slurm.store.reporting.queries import MOST_ROWS, open_view_reader
    from pollux_slurm.store.reporting.view_rows import AccountUsage, JobGoodput

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
                text = accounting(config.slurm, os.environ).jobs_text(range_.since, range_.until)
            except SlurmError as error:
                raise SlurmUnavailable(
                    f"{error}; or run on a host with Slurm: {command}, and give it by --sacct sacct.txt"
                ) from None
            return list(parse_sacct(text, command=command))

        def span(name: str, range_: Range) -> Span:
            jobs = accounted(range_)
            known: tuple[JobGoodput, ...] = ()
            usage: tuple[AccountUsage, ...] = ()
            if store is not None:
                since, until = range_.since, range_.until
                known = store.rows(JobGoodput, since=since, until=until, limit=MOST_ROWS).rows
                usage = store.rows(AccountUsage, since=since, until=until, limit=MOST_ROWS).rows
            found = span_of(name, range_, jobs, known, usage)
            if not found.jobs:
                raise TraceError(
                    f"no job with GPUs was submitted {name}, {range_.text()}: {_why_none(found, jobs)}"
                )
            return found

        return span("before", ranges[0]), span("after", ranges[1])


def _why_none(span: Span, accounted: list[SacctJob]) -> str:
    """Return what to check for a span without jobs with GPUs."""
    from pollux_slurm.report.charts.time_axes import moment_text

    if span.num_without:
        return (
            f"{span.num_without} had none, or never started; Slurm counts GPUs where slurm.conf has "
            "AccountingStorageTRES=gres/gpu"
        )
    if not accounted:
        return "sacct's text has no job"
    submitted = [job.submitted_at for job in accounted]
    return f"sacct's text has jobs from {moment_text(min(submitted))} to {moment_text(max(submitted))} UTC"


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from None


@app.command()
def dashboard(
    database: Annotated[
        str,
        typer.Argument(
            metavar="postgresql|sqlite|prometheus",
            help="The database that Grafana reads.",
            autocompletion=choices("postgresql", "sqlite", "prometheus"),
        ),
    ] = "postgresql",
) -> None:
    """Print a Grafana dashboard as JSON, for import: of the reporting views, or of the daemon's metrics.

    Examples: pollux report dashboard postgresql > pollux.json
    · pollux report dashboard prometheus > daemon.json
    """
    from pollux_slurm.resources import resource_dir

    files = {file.stem: file for file in sorted((resource_dir("sql") / "grafana").glob("*.json"))}
    if database not in files:
        raise UsageError(f"no dashboard for {database!r}; there is one for {' and one for '.join(files)}")
    typer.echo(files[database].read_text(encoding="utf-8"), nl=False)


@app.command()
def alerts() -> None:
    """Print alerts on the daemon's metrics, for Prometheus' rule_files.

    Example: pollux report alerts > /etc/prometheus/pollux.yml
    """
    from pollux_slurm.resources import resource_dir

    text = (resource_dir("sql") / "prometheus" / "alerts.yml").read_text(encoding="utf-8")
    typer.echo(text, nl=False)


def _range(since: str, until: str | None, now: datetime) -> Range:
    from pollux_slurm.report.charts.time_axes import parse_range

    return parse_range(since, until, now=now)


def _form(as_html: bool, as_csv: bool, as_json: bool, table: str | None, output: Path | None) -> str:
    """Return the format; raises `UsageError` for several, or for a file that cannot be written."""
    asked = [form for form, wanted in (("html", as_html), ("csv", as_csv), ("json", as_json)) if wanted]
    if len(asked) > 1:
        raise UsageError(f"--{asked[0]} and --{asked[1]} exclude each other")
    form = asked[0] if asked else "text"
    if output is not None and not asked:
        if output.suffix.lower() not in _FORM_OF_SUFFIX:
            raise UsageError(
                f"{output}: its ending is not a known format; use {', '.join(_FORM_OF_SUFFIX)}, or add --html"
            )
        form = _FORM_OF_SUFFIX[output.suffix.lower()]
    if table is not None and form != "csv":
        raise UsageError(f"--table {table} is for --csv: the other formats contain all tables")
    if output is not None:
        from pollux_slurm.simulator.results.files import check_writable

        check_writable(output)
    elif form == "html" and sys.stdout.isatty():
        raise UsageError("an HTML page is for a browser: write it to a file with --output report.html")
    return form


def _write_report(document: Document, text: str, wanted: Wanted) -> None:
    """Print or write a report's text, or write its pictures."""
    from pollux_slurm.simulator.results.files import write_text

    if wanted.output is None:
        _print(text, for_people=wanted.form == "text")
    elif wanted.is_pictures:
        _write_pictures(document, wanted.form, wanted.output)
    else:
        write_text(wanted.output, text)
        typer.echo(f"wrote {wanted.output}")


def _write_pictures(document: Document, kind: str, output: Path) -> None:
    """Write each plot to a file of its own; where there are several, its title is in the file's name."""
    from pollux_slurm.report.charts.rendering import picture

    plots = [plot for part in document.parts for plot in part.plots]
    if not plots:
        raise UsageError("this report has no plot in this time: there is nothing to draw")
    for plot in plots:
        title = re.sub(r"[^a-z0-9]+", "-", plot.chart.title.lower()).strip("-")
        file = output if len(plots) == 1 else output.with_name(f"{output.stem}-{title}{output.suffix}")
        file.write_bytes(picture(plot.chart, kind))
        typer.echo(f"wrote {file}")


def _print(text: str, *, for_people: bool) -> None:
    """Print in UTF-8 for programs, and in the terminal's encoding for people."""
    binary = getattr(sys.stdout, "buffer", None)
    if binary is not None and not for_people:
        sys.stdout.flush()
        binary.write(text.encode("utf-8"))
        binary.flush()
        return
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    typer.echo(text.encode(encoding, "replace").decode(encoding), nl=False)


def _text(document: Document, wanted: Wanted) -> str:
    from pollux_slurm.report.document.exports import data_csv, document_json
    from pollux_slurm.report.document.html import document_html

    if wanted.form == "html":
        return document_html(document, static=wanted.static)
    if wanted.form == "json":
        return escaped_json(document_json(document))
    if wanted.form == "csv":
        return data_csv(document.table(wanted.table))
    from rich.console import Console

    from pollux_slurm.report.document.terminal import print_document

    console = Console() if wanted.output is None else Console(no_color=True, force_terminal=False)
    if not console.is_terminal:
        console.width = 120  # a pipe or a file has no width
    with console.capture() as captured:
        print_document(document, console)
    return captured.get()


def _command(kind: str, name: str, since: str | None, until: str | None) -> str:
    """Return the command that prints this report again."""
    import shlex

    words = ["pollux", "report", kind, *([name] if name else [])]
    words += ["--since", since] if since is not None else []
    return shlex.join([*words, *(["--until", until] if until is not None else [])])


def _explanation(config: Config, job_id: str) -> str:
    """Return one line on the job's last decision; empty if this login may only read the reporting views."""
    from pollux_slurm.live.decision_text import summary

    try:
        with opened_store(config) as store:
            decided, record = store.decision(job_id), store.job(job_id)
    except StoreError:
        return ""
    return "" if decided is None else summary(decided, record)
