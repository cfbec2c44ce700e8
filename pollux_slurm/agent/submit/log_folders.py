"""Folders of a job's logs that do not exist: Slurm ends such a job at its start, and no log says so."""

from __future__ import annotations

import shlex
from pathlib import Path

from pollux_slurm.slurm.sbatch.request import SbatchRequest


def missing_log_folders(request: SbatchRequest, cwd: Path, *, made: Path) -> list[str]:
    """Return what to tell the user of --output and --error. Folders that depend on the job are not known.

    `made` is the folder that the submission makes.
    """
    found: dict[Path, str] = {}
    for name in ("output", "error"):
        parent = Path(request.value(name) or "").parent
        folder = cwd / (request.value("chdir") or "") / parent
        if parent == Path() or "%" in str(parent) or folder.is_relative_to(made):
            continue
        if not folder.is_dir():
            found.setdefault(folder, request.source_of(name))
    return [
        f"{source}: there is no folder {folder} here, and without it Slurm ends the job at its start, "
        f"without a log; make it: mkdir -p {shlex.quote(str(folder))}"
        for folder, source in found.items()
    ]
