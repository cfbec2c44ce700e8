"""`pollux explain`: why a round gave a job its allocation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pollux_slurm.cli.shared import clock
from pollux_slurm.cli.shared.completion import complete_jobs
from pollux_slurm.cli.shared.problem_files import read_problem
from pollux_slurm.cli.shared.settings_and_store import (
    ConfigOption,
    JsonOption,
    StoreOption,
    opened_store,
    print_json,
    print_line,
    settings,
)
from pollux_slurm.errors import UsageError


def explain(
    job: Annotated[str, typer.Argument(help="The Slurm job id.", autocompletion=complete_jobs)],
    round_id: Annotated[
        int | None, typer.Option("--round", min=1, help="A round other than the job's last.")
    ] = None,
    problem_file: Annotated[
        Path | None,
        typer.Option("--problem", metavar="FILE", help="Solve a saved problem, and explain one of its jobs."),
    ] = None,
    details: Annotated[
        bool, typer.Option("--details", help="Also the policy's terms: prices, fitness, batch sizes.")
    ] = False,
    as_json: JsonOption = False,
    config_file: ConfigOption = None,
    store_url: StoreOption = None,
) -> None:
    """Explain why a job has its GPUs, the predicted speed, and what would have to change for more GPUs.

    Example: pollux explain 1234
    """
    from pollux_slurm.now.explained import explain_problem, read_explained
    from pollux_slurm.now.explained_text import lines
    from pollux_slurm.now.json_forms import explained_as_dict

    if problem_file is not None and round_id is not None:
        raise UsageError("--problem and --round exclude each other: a file is one round")
    if problem_file is not None:
        known = explain_problem(read_problem(problem_file), job)
    else:
        config = settings(config_file, store_url)
        with opened_store(config) as store:
            known = read_explained(config, store, job, round_id, clock.now())
    if as_json:
        print_json(explained_as_dict(known))
    else:
        for line in lines(known, details=details):
            print_line(line)
