"""`pollux status`: a table of adaptive jobs with state, GPUs, goodput and last decision."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pollux_slurm.cli.shared import clock
from pollux_slurm.cli.shared.completion import complete_jobs
from pollux_slurm.cli.shared.duration_options import LEAST_REFRESH_S, seconds
from pollux_slurm.cli.shared.settings_and_store import (
    ConfigOption,
    JsonOption,
    StoreOption,
    opened_store,
    print_json,
    print_line,
    print_note,
    settings,
)
from pollux_slurm.errors import StoreUnavailable, UnknownJobError, UsageError
from pollux_slurm.now.decision_text import has_maximum, move_text, paused, summary
from pollux_slurm.now.job_warnings import missing_reports, warning_lines, warnings_as_dicts
from pollux_slurm.now.known_jobs import describe_unknown_job, unregistered_lines
from pollux_slurm.now.present_state import present_state
from pollux_slurm.now.slurm_reading import read_slurm
from pollux_slurm.text import UNKNOWN, ago_text, bytes_text, number_text, shortened, since_text
from pollux_slurm.text import shown as shown_words

if TYPE_CHECKING:
    from rich.table import Table

    from pollux_slurm.config import Config
    from pollux_slurm.now.cluster import ClusterNow
    from pollux_slurm.now.jobs import JobNow
    from pollux_slurm.store.contract.interface import JobRecord, Store


def status(
    job: Annotated[
        str | None,
        typer.Argument(help="A Slurm job id; default: all active jobs.", autocompletion=complete_jobs),
    ] = None,
    all_jobs: Annotated[bool, typer.Option("--all", "-a", help="Also finished jobs.")] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show it again until Ctrl-C.")] = False,
    every_s: Annotated[
        float,
        typer.Option("--every", parser=seconds(), metavar="TIME", help="How often, with --watch: 5, 1m."),
    ] = 5.0,
    as_json: JsonOption = False,
    config_file: ConfigOption = None,
    store_url: StoreOption = None,
) -> None:
    """Show adaptive jobs: state, GPUs, batch size, goodput, speedup, restarts, last decision.

    States and GPUs are read from Slurm where it can be reached, else from the store.

    Examples: pollux status 1234 --json · pollux status --watch
    """
    config = settings(config_file, store_url)
    if not watch:
        with opened_store(config) as store:
            _show(config, store, job, all_jobs=all_jobs, as_json=as_json)
        return
    if as_json:
        raise UsageError("--watch and --json exclude each other: for a program, repeat the command")
    _watch(config, job, every_s=max(every_s, LEAST_REFRESH_S), all_jobs=all_jobs)


def _watch(config: Config, job: str | None, *, every_s: float, all_jobs: bool) -> None:
    """Print the status every `every_s` seconds until Ctrl-C; on a terminal, over the last one."""
    import time

    from rich.console import Console

    console = Console()
    try:
        while True:
            if console.is_terminal:
                console.clear()
            print_line(f"{clock.now():%Y-%m-%d %H:%M:%S} UTC, every {every_s:g} s; end: Ctrl-C")
            try:
                with opened_store(config) as store:
                    _show(config, store, job, all_jobs=all_jobs, as_json=False)
            except StoreUnavailable as error:
                print_line(f"the store cannot be read: {error}")
            sys.stdout.flush()
            time.sleep(every_s)
    except KeyboardInterrupt:
        return


def _show(config: Config, store: Store, job: str | None, *, all_jobs: bool, as_json: bool) -> None:
    """Print the status once."""
    from pollux_slurm.now.cluster import read_cluster

    now = clock.now()
    try:
        picture = read_cluster(
            store, now=now, slurm=lambda: read_slurm(config), job_id=job, include_finished=all_jobs
        )
    except UnknownJobError:
        text = None
        if job is not None and not as_json:
            text = describe_unknown_job(config, job, store.active_jobs(), store.daemon_status(), now)
        if text is None:
            raise
        print_line(text)
        return
    seen, jobs = picture.daemon, picture.jobs
    decided = store.decision(job) if job is not None and not as_json else None
    records = tuple(shown.record for shown in jobs)
    unregistered = unregistered_lines(picture.slurm, records, seen, now) if job is None else []
    if as_json:
        if picture.missing is not None:
            print_note(f"pollux: {picture.missing}")
        print_json(
            [
                job_as_dict(shown) | {"state_from": "slurm" if shown.is_now else "store", "held": shown.held}
                for shown in jobs
            ]
        )
        return
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = 200  # a pipe or a log has no width
    if picture.missing is not None:
        print_line(picture.missing)
    for line in _freshness_lines(picture):
        print_line(line)
    for line in unregistered:
        print_line(line)
    if not records and unregistered:
        return
    if not records:
        console.print("no adaptive jobs" if all_jobs else "no active adaptive jobs (finished ones: --all)")
        return
    console.print(jobs_table(picture, width=console.width))
    for line in warning_lines(records, now):
        print_line(line)
    if decided is not None:
        text = summary(decided, records[0], present_state(jobs[0]))
        print_line(f"{text} (more: pollux explain {decided.job.job_id})")


def _freshness_lines(picture: ClusterNow) -> Iterator[str]:
    """Yield lines on how old the shown states and decisions are."""
    open_jobs = [shown for shown in picture.jobs if not shown.record.state.is_over or shown.is_now]
    if not open_jobs:
        return
    last = picture.daemon.last_round_at
    round_was = "there was none yet" if last is None else ago_text(last, picture.read_at)
    if picture.daemon.is_shadow:
        round_was += ", in shadow mode: it moved nothing"
    unknown = [shown.record.slurm_job_id for shown in open_jobs if not shown.is_now]
    if picture.slurm_missing is not None:
        yield (
            f"states as of the daemon's last round ({round_was}); Slurm cannot be read: "
            f"{picture.slurm_missing}"
        )
        return
    yield f"states and GPUs: Slurm, now; decisions: the last round ({round_was}); the rest: as REPORTED"
    if unknown:
        yield f"not known to this Slurm, shown as of the last round: {', '.join(unknown)}"


def job_as_dict(shown: JobNow) -> dict[str, Any]:
    """Return one job as plain containers, the form of `--json`."""
    from pollux_slurm.now.promises import promise_as_dict

    record, sample, measured = shown.record, shown.record.sample, shown.measured
    reallocation, batch = record.open_reallocation, measured.batch if measured else None
    return {
        "job_id": record.slurm_job_id,
        "name": record.name,
        "user": record.user_name,
        "account": record.account,
        "partition": record.partition,
        "state": record.state.value,
        "paused_at": _iso(record.paused_at),
        "submitted_at": _iso(record.submitted_at),
        "started_at": _iso(record.started_at),
        "finished_at": _iso(record.finished_at),
        "min_gpus": record.terms.min_gpus,
        "max_gpus": record.terms.max_gpus,
        "num_gpus": record.allocation.num_gpus,
        "allocation": record.allocation.as_dict(),
        "global_batch_size": batch.global_batch_size if batch else None,
        "atomic_batch_size": batch.atomic_batch_size if batch else None,
        "accumulation_steps": batch.accumulation_steps if batch else None,
        "throughput": measured.throughput if measured else None,
        "predicted_throughput": measured.predicted_throughput if measured else None,
        "efficiency": measured.efficiency if measured else None,
        "goodput": measured.goodput if measured else None,
        "epoch": sample.epoch if sample else None,
        "total_epochs": sample.total_epochs if sample else None,
        "num_restarts": record.num_restarts,
        "mean_restart_delay_s": record.mean_restart_delay_s,
        "mean_standstill_s": record.mean_standstill_s,
        "mean_warm_up_s": record.mean_warm_up_s,
        "speedup": record.last_decision_speedup,
        "last_decision": record.last_decision.as_dict() if record.last_decision else None,
        "last_decision_at": _iso(record.last_decision_at),
        "bound_by": record.last_decision_bound_by,
        "checkpoint_bytes": record.checkpoint_bytes,
        "warnings": warnings_as_dicts(record),
        "reported_at": _iso(sample.at if sample else None),
        "silent": missing_reports(record, clock.now()),
        "excluded_reason": record.not_moved_reason,
        "promise": promise_as_dict(record),
        "reallocation": None
        if reallocation is None
        else {
            "step": reallocation.step.value,
            "cause": reallocation.cause.value,
            "way": reallocation.way.value,
            "source": reallocation.source.as_dict(),
            "target": reallocation.target.as_dict(),
        },
    }


# What a table without room for all leaves out, the first first; `--json` has all.
_LEFT_OUT = (
    "CHECKPOINT",
    "RESTARTS",
    "NODES",
    "USER",
    "AGE",
    "REPORTED",
    "EPOCH",
    "SLACK",
    "BATCH",
    "×SHARE",
)
_CUT = ("NAME", "USER", "NODES", "DECISION")
_LEAST_WIDTH = 10  # of a column of words that may be cut


def jobs_table(picture: ClusterNow, *, width: int) -> Table:
    """Return the table that `pollux status` prints, for a terminal of `width` characters."""
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    rows = [
        {column: shown_words(text) for column, text in job_cells(job, picture).items()}
        for job in picture.jobs
    ]
    if all(job.record.terms.finish_by is None for job in picture.jobs):
        for row in rows:
            del row["SLACK"]
    left = ("JOB", "NAME", "USER", "STATE", "NODES", "DECISION")
    widths = {
        column: max(cell_len(text) for text in (column, *(row[column] for row in rows)))
        for column in (rows[0] if rows else ())
    }
    _make_room(widths, width)
    columns = list(widths)
    for column in columns:
        table.add_column(
            column, no_wrap=True, justify="left" if column in left else "right", width=widths[column]
        )
    for row in rows:
        table.add_row(*(Text(row[column], overflow="ellipsis") for column in columns))
    return table


def _make_room(widths: dict[str, int], width: int) -> None:
    """Leave out columns, then shorten those of words, the widest first; numbers are never cut."""

    def least(column: str) -> int:
        return min(widths[column], _LEAST_WIDTH) if column in _CUT else widths[column]

    for column in _LEFT_OUT:
        if sum(least(one) + 2 for one in widths) - 2 <= width:
            break
        widths.pop(column, None)
    words = [column for column in _CUT if column in widths]
    while sum(widths.values()) + 2 * (len(widths) - 1) > width:
        widest = max(words, key=lambda column: widths[column])
        if widths[widest] <= _LEAST_WIDTH:
            return
        widths[widest] -= 1


def job_cells(shown: JobNow, picture: ClusterNow) -> dict[str, str]:
    """Return one job's row as column → text, in the order of the columns."""
    from pollux_slurm.now.promises import slack_of

    record, sample, now = shown.record, shown.record.sample, picture.read_at
    measured = shown.measured
    batch = measured.batch if measured else None
    return {
        "JOB": record.slurm_job_id,
        "NAME": shortened(record.name, 20),
        "USER": shortened(record.user_name, 12),
        "STATE": picture.state_of(shown) + (" !" if record.warnings or missing_reports(record, now) else ""),
        "GPUS": str(record.allocation.num_gpus or "-"),
        "BATCH": _cell(number_text(batch.global_batch_size if batch else None)),
        "GOODPUT/s": _cell(number_text(measured.goodput if measured else None)),
        "×SHARE": _cell(number_text(record.last_decision_speedup if record.model else None)),
        "EPOCH": _epochs(record),
        "SLACK": _cell(slack_of(record)),
        "RESTARTS": str(record.num_restarts),
        "CHECKPOINT": _cell(bytes_text(record.checkpoint_bytes)),
        "AGE": since_text(record.submitted_at, record.finished_at or now),
        "REPORTED": _cell(ago_text(sample.at if sample else None, now)),
        "NODES": str(record.allocation),
        "DECISION": _decision(shown),
    }


def _decision(shown: JobNow) -> str:
    record = shown.record
    if record.open_reallocation is not None:
        return move_text(record.open_reallocation, record.state)
    if record.paused_at is not None:
        return paused(record)
    now = present_state(shown)
    first = "" if now is None else now.removeprefix("is ")
    if record.last_decision is None:
        return first or "-"
    bound = None if record.state.is_over else record.last_decision_bound_by
    if bound is not None and has_maximum(record.allocation.num_gpus, record.terms.max_gpus, bound):
        bound = "max_gpus"
    decided = f"{record.last_decision}" + (f" (bound by {bound})" if bound and bound != "nothing" else "")
    return f"{first}; {decided}" if first else decided


def _epochs(record: JobRecord) -> str:
    if record.sample is None:
        return "-"
    return f"{record.sample.epoch}/{record.sample.total_epochs or '?'}"


def _cell(text: str) -> str:
    """Return a value as a terminal of any encoding shows it."""
    return "-" if text == UNKNOWN else text


def _iso(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment is not None else None
