"""`pollux simulate generate`, `import-sacct` and `export`: where workloads come from."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from pollux_slurm.cli.shared.settings_and_store import ConfigOption, StoreOption, opened_store, settings
from pollux_slurm.errors import UsageError

if TYPE_CHECKING:
    from pollux_slurm.simulator.inputs.workload import WorkloadJob

OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE.csv", help="Instead of standard output.")
]
OutputJsonOption = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE.json", help="Instead of standard output.")
]


def generate(
    load: Annotated[float, typer.Option(help="1: the paper's, 2.5 jobs a GPU in eight hours.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Another seed, another workload.")] = 0,
    hours: Annotated[float, typer.Option(help="From the first to the last submission.")] = 8.0,
    nodes: Annotated[int, typer.Option(min=1)] = 16,
    gpus_per_node: Annotated[int, typer.Option(min=1)] = 4,
    accounts: Annotated[int, typer.Option(min=0, help="Share the jobs among so many accounts.")] = 0,
    users: Annotated[
        int, typer.Option(min=0, help="Share them among so many users, the k-th having 1/k of the first's.")
    ] = 0,
    traces: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Tune GPUs and batch sizes on these, not on the artifact's traces."),
    ] = None,
    output: OutputOption = None,
) -> None:
    """Make a workload by the recipe of the Pollux paper.

    Example: pollux simulate generate --load 1.5 --seed 7 --output workload.csv
    """
    from pollux_slurm.simulator import read_applications
    from pollux_slurm.simulator.inputs.generate import (
        PUBLISHED_CHOICES,
        generate_workload,
        tuned_choices,
        with_users,
    )

    choices = PUBLISHED_CHOICES
    if traces is not None:
        choices = {name: tuned_choices(made) for name, made in read_applications(traces).items()}
    jobs = generate_workload(
        seed=seed,
        load=load,
        hours=hours,
        num_gpus=nodes * gpus_per_node,
        num_accounts=accounts,
        choices=choices,
    )
    _write(with_users(jobs, users, seed=seed) if users else jobs, output)


def import_sacct(
    file: Annotated[str, typer.Argument(metavar="FILE", help="What sacct wrote; - is standard input.")],
    traces: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder with the traces of each application in a folder.")
    ],
    seed: Annotated[int, typer.Option(help="Draws among applications of one class.")] = 0,
    output: OutputOption = None,
) -> None:
    """Make a workload of a site's own jobs, from Slurm's accounting.

    Each job is played by an application of its class of GPU time.

    Example: SLURM_TIME_FORMAT=%s sacct -a -X -P -S 2026-01-01 -E 2026-01-31
    --format=JobIDRaw,Account,Submit,ElapsedRaw,AllocTRES,State
    | pollux simulate import-sacct - --traces traces --output workload.csv
    """
    from pollux_slurm.simulator import read_applications
    from pollux_slurm.simulator.site.sacct import import_sacct as read

    applications = read_applications(traces)
    with _opened(file) as lines:
        found = read(lines, applications, seed=seed)
    _write(found.jobs, output)
    typer.echo(
        f"{len(found.jobs)} jobs; left out: {found.num_without_gpus} without GPUs, "
        f"{found.num_not_ended} that have not ended",
        err=True,
    )


def export(
    since: Annotated[
        datetime | None, typer.Option(help="Jobs submitted from then on (UTC), such as 2026-01-31.")
    ] = None,
    until: Annotated[datetime | None, typer.Option(help="Jobs submitted before then (UTC).")] = None,
    output: OutputJsonOption = None,
    config_file: ConfigOption = None,
    store_url: StoreOption = None,
) -> None:
    """Write the jobs of the store as they measured themselves, and what moves have cost, for simulations.

    Example: pollux simulate export --since 2026-01-01 --output january.json;
    pollux simulate --traces january.json --rules slurm --nodes 8 --policy pollux --policy slurm
    """
    from pollux_slurm.simulator.site.export import export_queue
    from pollux_slurm.simulator.site.measured_jobs import queue_text

    with opened_store(settings(config_file, store_url)) as store:
        found = export_queue(store, since=_utc(since), until=_utc(until))
    for job_id, reason in found.left_out:
        typer.echo(f"job {job_id} left out: {reason}", err=True)
    if not found.queue.jobs:
        raise UsageError("the store tells of no job that could be simulated")
    _write_text(queue_text(found.queue), output)
    told = found.queue.delays
    measured = (
        "no delays" if told is None else f"delays of {told.num_moves} moves and {told.num_starts} starts"
    )
    typer.echo(f"{len(found.queue.jobs)} jobs, {measured}; {len(found.left_out)} jobs left out", err=True)


def _utc(when: datetime | None) -> datetime | None:
    return None if when is None else when.replace(tzinfo=timezone.utc)


def _write(jobs: Sequence[WorkloadJob], output: Path | None) -> None:
    from pollux_slurm.simulator.inputs.workload import workload_text

    _write_text(workload_text(jobs), output)


def _write_text(text: str, output: Path | None) -> None:
    from pollux_slurm.simulator.results.output import check_writable, write_text

    if output is None:
        typer.echo(text, nl=False)
    else:
        check_writable(output)
        write_text(output, text)


@contextmanager
def _opened(file: str) -> Iterator[TextIO]:
    if file == "-":
        yield sys.stdin
        return
    try:
        with Path(file).open(encoding="utf-8", errors="replace") as stream:
            yield stream
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from None
