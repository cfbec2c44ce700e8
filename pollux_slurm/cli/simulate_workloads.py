"""`pollux simulate generate` and `import-sacct`: where workloads come from."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from pollux_slurm.errors import UsageError

if TYPE_CHECKING:
    from pollux_slurm.simulator.workload import WorkloadJob

OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE.csv", help="Instead of standard output.")
]


def generate(
    load: Annotated[float, typer.Option(help="1: the paper's, 2.5 jobs a GPU in eight hours.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Another seed, another workload.")] = 0,
    hours: Annotated[float, typer.Option(help="From the first to the last submission.")] = 8.0,
    nodes: Annotated[int, typer.Option(min=1)] = 16,
    gpus_per_node: Annotated[int, typer.Option(min=1)] = 4,
    accounts: Annotated[int, typer.Option(min=0, help="Share the jobs among so many accounts.")] = 0,
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
    from pollux_slurm.simulator.generate import PUBLISHED_CHOICES, generate_workload, tuned_choices

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
    _write(jobs, output)


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
    from pollux_slurm.simulator.sacct import import_sacct as read

    applications = read_applications(traces)
    with _opened(file) as lines:
        found = read(lines, applications, seed=seed)
    _write(found.jobs, output)
    typer.echo(
        f"{len(found.jobs)} jobs; left out: {found.num_without_gpus} without GPUs, "
        f"{found.num_not_ended} that have not ended",
        err=True,
    )


def _write(jobs: Sequence[WorkloadJob], output: Path | None) -> None:
    from pollux_slurm.simulator.output import check_writable, write_text
    from pollux_slurm.simulator.workload import workload_text

    text = workload_text(jobs)
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
