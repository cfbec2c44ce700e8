"""`pollux simulate generate`, `import-sacct`, `import-trace` and `export`: make workloads for simulations."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from pollux_slurm.cli.shared.settings_and_store import (
    ConfigOption,
    StoreOption,
    opened_store,
    print_line,
    print_note,
    print_text,
    settings,
)
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
    load: Annotated[
        float, typer.Option(help="Load; 1 is the paper's: 2.5 jobs per GPU in eight hours.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of the random numbers.")] = 0,
    hours: Annotated[float, typer.Option(help="Time from the first to the last submission.")] = 8.0,
    nodes: Annotated[int, typer.Option(min=1, help="Number of nodes.")] = 16,
    gpus_per_node: Annotated[int, typer.Option(min=1, help="GPUs of each node.")] = 4,
    accounts: Annotated[int, typer.Option(min=0, help="Distribute the jobs over this many accounts.")] = 0,
    users: Annotated[
        int,
        typer.Option(
            min=0, help="Distribute them over this many users; the k-th has 1/k of the first's jobs."
        ),
    ] = 0,
    traces: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Tune GPUs and batch sizes by these traces, not by the artifact's."),
    ] = None,
    output: OutputOption = None,
) -> None:
    """Generate a workload as the Pollux paper does.

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
    file: Annotated[str, typer.Argument(metavar="FILE", help="Output of sacct; - is standard input.")],
    traces: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder with a folder of traces for each application.")
    ],
    seed: Annotated[int, typer.Option(help="Seed for the choice among applications of one class.")] = 0,
    output: OutputOption = None,
) -> None:
    """Make a workload of a site's own jobs, from Slurm's accounting.

    Each job is simulated as an application of the same class of GPU time, and keeps its own GPU time.

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
    print_note(
        f"{len(found.jobs)} jobs with {found.gpu_hours:,.1f} GPU hours; left out: "
        f"{found.num_without_gpus} without GPUs, {found.num_not_ended} that have not ended"
    )


def import_trace(
    form: Annotated[str, typer.Argument(metavar="FORM", help="philly, helios or pai: whose public trace.")],
    file: Annotated[Path, typer.Argument(help="Its cluster_job_log, cluster_log.csv or pai_task_table.csv.")],
    traces: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder with a folder of traces for each application.")
    ],
    skip_hours: Annotated[float, typer.Option(min=0, help="Leave out the first hours.")] = 0.0,
    hours: Annotated[float | None, typer.Option(min=0, help="How many hours of it; default: all.")] = None,
    seed: Annotated[int, typer.Option(help="Seed for the choice among applications of one class.")] = 0,
    output: OutputOption = None,
) -> None:
    """Make a workload of a public trace of another cluster.

    Each job is simulated as an application of the same class of GPU time, and keeps its own GPU time.

    Example: pollux simulate import-trace helios cluster_log.csv --traces traces --hours 8 --output venus.csv
    """
    from pollux_slurm.simulator import read_applications
    from pollux_slurm.simulator.site.public_traces import read_public_trace
    from pollux_slurm.simulator.site.used_jobs import as_workload

    found = read_public_trace(form, file, skip_hours=skip_hours, hours=math.inf if hours is None else hours)
    _write(as_workload(found.jobs, read_applications(traces), seed=seed), output)
    gpu_hours = sum(job.gpu_s for job in found.jobs) / 3600
    print_note(
        f"{len(found.jobs)} jobs with {gpu_hours:,.1f} GPU hours; {found.num_left_out} jobs left out: "
        "without GPUs, or not ended"
    )


def export(
    since: Annotated[
        datetime | None, typer.Option(help="Only jobs submitted from this time on (UTC), such as 2026-01-31.")
    ] = None,
    until: Annotated[
        datetime | None, typer.Option(help="Only jobs submitted before this time (UTC).")
    ] = None,
    output: OutputJsonOption = None,
    config_file: ConfigOption = None,
    store_url: StoreOption = None,
) -> None:
    """Write the store's jobs, as measured, and the delays of their moves, for simulations.

    Example: pollux simulate export --since 2026-01-01 --output january.json;
    pollux simulate --traces january.json --rules slurm --nodes 8x4 --policy pollux --policy slurm
    """
    from pollux_slurm.simulator.site.export import export_queue
    from pollux_slurm.simulator.site.measured_jobs import queue_text

    with opened_store(settings(config_file, store_url)) as store:
        found = export_queue(store, since=_utc(since), until=_utc(until))
    for job_id, reason in found.excluded:
        print_note(f"job {job_id} left out: {reason}")
    if not found.queue.jobs:
        raise UsageError("the store contains no job that can be simulated")
    _write_text(queue_text(found.queue), output)
    delays = found.queue.delays
    measured = (
        "no delays"
        if delays is None
        else f"delays of {delays.num_moves} moves and {delays.num_starts} starts"
    )
    print_note(f"{len(found.queue.jobs)} jobs, {measured}; {len(found.excluded)} jobs left out")


def _utc(when: datetime | None) -> datetime | None:
    return None if when is None else when.replace(tzinfo=timezone.utc)


def _write(jobs: Sequence[WorkloadJob], output: Path | None) -> None:
    from pollux_slurm.simulator.inputs.workload import workload_text

    _write_text(workload_text(jobs), output)


def _write_text(text: str, output: Path | None) -> None:
    from pollux_slurm.simulator.results.files import check_writable, write_text

    if output is None:
        print_text(text)
    else:
        check_writable(output)
        write_text(output, text)
        print_line(f"wrote {output}")


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
