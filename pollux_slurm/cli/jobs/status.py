"""`pollux status`: a table of adaptive jobs with state, GPUs, goodput and last decision."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from pollux_slurm.cli.shared import clock
from pollux_slurm.cli.shared.completion import complete_jobs
from pollux_slurm.cli.shared.duration_options import LEAST_REFRESH_S, seconds
from pollux_slurm.cli.shared.settings_and_store import (
    ConfigOption,
    JsonOption,
    StoreOption,
    console,
    opened_store,
    print_json,
    print_line,
    print_note,
    settings,
)
from pollux_slurm.errors import StoreUnavailable, UnknownJobError, UsageError

if TYPE_CHECKING:
    from pollux_slurm.config import Config
    from pollux_slurm.now.cluster import ClusterNow
    from pollux_slurm.store.contract.interface import Store


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

    out = console()
    try:
        while True:
            if out.is_terminal:
                out.clear()
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
    from pollux_slurm.document.forms.terminal import terminal_table
    from pollux_slurm.now.cluster import read_cluster
    from pollux_slurm.now.decision_text import summary
    from pollux_slurm.now.json_forms import job_as_dict
    from pollux_slurm.now.known_jobs import describe_unknown_job, unregistered_lines
    from pollux_slurm.now.present_state import present_state, warning_lines
    from pollux_slurm.now.slurm_reading import read_slurm
    from pollux_slurm.now.tables import jobs_data

    now = clock.now()
    try:
        picture = read_cluster(
            store, now=now, slurm=lambda: read_slurm(config), job_id=job, include_finished=all_jobs
        )
    except UnknownJobError:
        text = None
        if job is not None and not as_json:
            text = describe_unknown_job(config, job, store.jobs.active(), store.lease.daemon_status(), now)
        if text is None:
            raise
        print_line(text)
        return
    seen, jobs = picture.daemon, picture.jobs
    decided = store.rounds.decision(job) if job is not None and not as_json else None
    records = tuple(shown.record for shown in jobs)
    unregistered = unregistered_lines(picture.slurm, records, seen, now) if job is None else []
    if as_json:
        if picture.missing is not None:
            print_note(f"pollux: {picture.missing}")
        print_json([job_as_dict(shown, now) for shown in jobs])
        return
    out = console()
    if picture.missing is not None:
        print_line(picture.missing)
    for line in _freshness_lines(picture):
        print_line(line)
    for line in unregistered:
        print_line(line)
    if not records and unregistered:
        return
    if not records:
        out.print("no adaptive jobs" if all_jobs else "no active adaptive jobs (finished ones: --all)")
        return
    table = jobs_data(picture, jobs, without=("account",))
    out.print(terminal_table(table, out.width, most=len(jobs), in_capitals=True).drawn)
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
    round_was = picture.last_round_text or "there was none yet"
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
