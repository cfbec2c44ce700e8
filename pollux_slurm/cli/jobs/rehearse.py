"""`pollux rehearse`: move a training script for real on this machine, before a cluster does."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from pollux_slurm.cli.shared.duration_options import parse_span
from pollux_slurm.cli.shared.settings_and_store import JsonOption, print_json, print_text
from pollux_slurm.errors import UsageError


def rehearse(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="COMMAND...", help="What each process runs.")
    ] = None,
    time: Annotated[
        str, typer.Option(metavar="TIME", help="About how long the whole rehearsal takes: 90s, 5m, 1h.")
    ] = "5m",
    processes: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,...",
            help="How many processes the runs have, in turn (default: 1,2,3; at most one per GPU).",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run a training script on this machine, move it for real, and report what goes wrong.

    It needs no Slurm and no store. The script really runs: its output files are written; only checkpoints go
    to a temporary folder. Exit code 1: the script must change; 3: the time was too short to tell.

    Example: pollux rehearse -- python train.py --lr 0.1
    """
    from pollux_slurm.cli.jobs.rehearse_progress import ProgressLines
    from pollux_slurm.rehearsal.all_findings import all_findings
    from pollux_slurm.rehearsal.rehearse import rehearse as run_rehearsal
    from pollux_slurm.rehearsal.rehearse import require_command
    from pollux_slurm.rehearsal.result import as_json as result_as_json
    from pollux_slurm.rehearsal.result import as_text, exit_code
    from pollux_slurm.rehearsal.runs.interruption import Interruption

    counts = None if processes is None else _counts(processes)
    time_s = parse_span(time).total_seconds()
    require_command(command or [], os.environ)
    interruption = Interruption()
    with interruption.watched():
        folder = Path(tempfile.mkdtemp(prefix="pollux-rehearsal-"))
        try:
            rehearsed = run_rehearsal(
                command or [],
                environ=os.environ,
                folder=folder,
                time_s=time_s,
                processes=counts,
                progress=ProgressLines(),
                raise_if_interrupted=interruption.raise_if_interrupted,
            )
        finally:
            for checkpoints in folder.glob("*/job"):
                shutil.rmtree(checkpoints, ignore_errors=True)
        interruption.raise_if_interrupted()
    findings = all_findings(rehearsed)
    if as_json:
        print_json(result_as_json(rehearsed, findings))
    else:
        print_text(as_text(rehearsed, findings) + "\n")
    raise typer.Exit(exit_code(rehearsed, findings))


def _counts(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch("[0-9]{1,2}", part) and 0 < int(part) <= 64 for part in parts):
        raise UsageError(f"--processes {text}: write numbers from 1 to 64, such as 1,2,3")
    return [int(part) for part in parts]
