"""`pollux report`: reports on a job, an account or the cluster, as text, CSV, JSON or one HTML page."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pollux_slurm.cli.shared import clock
from pollux_slurm.cli.shared.completion import choices, complete_accounts, complete_jobs
from pollux_slurm.cli.shared.settings_and_store import opened_store, print_text
from pollux_slurm.cli.site.report_output import Wanted, report_command
from pollux_slurm.errors import StoreError, UsageError

if TYPE_CHECKING:
    from pollux_slurm.config import Config
    from pollux_slurm.document.charts.time_axes import Range
    from pollux_slurm.document.document import Document
    from pollux_slurm.report.group import GroupHistory
    from pollux_slurm.report.job import Told

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
    str | None, typer.Option("--until", metavar="TIME", help="Up to this time, exclusive; default: now.")
]


@app.command()
@report_command
def job(
    wanted: Wanted,
    job_ids: Annotated[
        list[str],
        typer.Argument(
            metavar="ID...",
            help="The Slurm job id; several jobs are compared.",
            autocompletion=complete_jobs,
        ),
    ],
    since: JobSinceOption = None,
    until: UntilOption = None,
    tracker: Annotated[
        list[Path] | None,
        typer.Option(
            "--tracker",
            metavar="FOLDER",
            help="A job's TensorBoard files, for each job in turn: compares losses at equal examples.",
        ),
    ] = None,
) -> Document:
    """Report on one job: goodput and GPUs over time, batch size, what each move cost and brought.

    Several jobs are compared: time, GPU hours, goodput, and their course since submission.

    Examples: pollux report job 1234
    · pollux report job 1234 1240
    · pollux report job 1234 1240 --tracker runs/small --tracker runs/large
    · pollux report job 1234 -o job.html
    · pollux report job 1234 -o job.png
    · pollux report job 1234 --csv --table samples
    · pollux report job 1234 --json
    """
    from pollux_slurm.report.job import job_document
    from pollux_slurm.report.jobs import jobs_document
    from pollux_slurm.report.reading import read_job
    from pollux_slurm.report.tracked_loss import read_losses
    from pollux_slurm.store.reporting.queries import open_view_reader

    now = clock.now()
    range_ = None if since is None and until is None else _range(since or _ALWAYS, until, now)
    several = list(dict.fromkeys(job_ids))
    if len(several) > 1 and range_ is not None:
        raise UsageError("--since and --until are for one job: several are compared over their whole lives")
    if tracker and (len(several) == 1 or len(tracker) != len(several)):
        raise UsageError("--tracker is for several jobs that are compared: give one for each, in their order")
    losses = [read_losses(folder) for folder in tracker or ()]
    config = wanted.settings()
    with open_view_reader(config.require_store_url()) as reports:
        histories = [read_job(reports, one, range_, told=_told(config, one)) for one in several]
    if len(histories) > 1:
        return jobs_document(histories, made_at=now, losses=losses)
    return job_document(histories[0], made_at=now, range_=range_)


@app.command()
@report_command
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
    from pollux_slurm.report.group import account_document

    now = clock.now()
    history, range_ = _group(wanted, since, until, now, account=name)
    command = _command("account", name or "", since, until)
    return account_document(history, range_, account=name, made_at=now, command=command)


@app.command()
@report_command
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
    from pollux_slurm.report.group import cluster_document

    now = clock.now()
    history, range_ = _group(wanted, since, until, now)
    return cluster_document(history, range_, made_at=now, command=_command("cluster", "", since, until))


@app.command()
@report_command
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
    from pollux_slurm.document.charts.time_axes import range_of
    from pollux_slurm.report.shadow import read_shadow, shadow_document
    from pollux_slurm.store.reporting.queries import open_view_reader

    now = clock.now()
    range_ = _range(since or _WEEK, until, now)
    with open_view_reader(wanted.settings().require_store_url()) as reports:
        findings = read_shadow(reports, range_)
    if since is None and until is None:
        range_ = range_of((one.at for one in findings.history.rounds), range_)
    return shadow_document(findings, range_, made_at=now, command=_command("shadow", "", since, until))


@app.command("before-after")
@report_command
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

    from pollux_slurm.cli.site.accounted_spans import both_spans
    from pollux_slurm.document.charts.time_axes import parse_span
    from pollux_slurm.report.spans.document import before_after_document

    now = clock.now()
    ranges = (
        parse_span(before, now=now, option="--before"),
        parse_span(after, now=now, option="--after"),
    )
    if ranges[1].since < ranges[0].until:
        raise UsageError(f"--after {after} begins before --before {before} ends")
    words = ["pollux", "report", "before-after", "--before", before, "--after", after]
    for file in sacct or ():
        words += ["--sacct", str(file)]
    spans = both_spans(wanted.settings(), ranges, sacct or [], now=now)
    return before_after_document(*spans, made_at=now, command=shlex.join(words))


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
    print_text(files[database].read_text(encoding="utf-8"))


@app.command()
def alerts() -> None:
    """Print alerts on the daemon's metrics, for Prometheus' rule_files.

    Example: pollux report alerts > /etc/prometheus/pollux.yml
    """
    from pollux_slurm.resources import resource_dir

    text = (resource_dir("sql") / "prometheus" / "alerts.yml").read_text(encoding="utf-8")
    print_text(text)


def _group(
    wanted: Wanted, since: str | None, until: str | None, now: datetime, *, account: str | None = None
) -> tuple[GroupHistory, Range]:
    """Return what was in a range, and that range; without one, the last month's part with anything in it."""
    from pollux_slurm.report.group import life_of
    from pollux_slurm.report.reading import read_group
    from pollux_slurm.store.reporting.queries import open_view_reader

    range_ = _range(since or _MONTH, until, now)
    with open_view_reader(wanted.settings().require_store_url()) as reports:
        history = read_group(reports, range_, account=account)
    return history, life_of(history, range_) if since is None and until is None else range_


def _range(since: str, until: str | None, now: datetime) -> Range:
    from pollux_slurm.document.charts.time_axes import parse_range

    return parse_range(since, until, now=now)


def _command(kind: str, name: str, since: str | None, until: str | None) -> str:
    """Return the command that prints this report again."""
    import shlex

    words = ["pollux", "report", kind, *([name] if name else [])]
    words += ["--since", since] if since is not None else []
    return shlex.join([*words, *(["--until", until] if until is not None else [])])


def _told(config: Config, job_id: str) -> Told:
    """Return what the tables tell of a job; nothing if this login may only read the reporting views."""
    from pollux_slurm.now.decision_text import told_of
    from pollux_slurm.report.job import Told

    try:
        with opened_store(config) as store:
            return told_of(store, job_id)
    except StoreError:
        return Told()
