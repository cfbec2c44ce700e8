"""Write the files of results: summaries as JSON, and tables of all jobs and all rounds.

summary.json contains `{"runs": [...]}`, one object for each run as `pollux simulate --json` prints it.
jobs.csv and rounds.csv have one row for each job and round of each run.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pollux_slurm.errors import UsageError
from pollux_slurm.simulator.results.summary import RunOutcome, Summary
from pollux_slurm.system.private_files import write_data

_RUN_COLUMNS = ("workload", "policy", "objective")


def summary_as_dict(summary: Summary) -> dict[str, Any]:
    """Return a summary as plain containers, the form of `--json`."""
    return dataclasses.asdict(summary)


def write_results(
    folder: Path, summaries: Sequence[Mapping[str, Any]], outcomes: Sequence[RunOutcome]
) -> tuple[Path, ...]:
    """Write summary.json, and jobs.csv and rounds.csv of `outcomes`, into an existing folder.

    Raises `UsageError` where that is not possible.
    """
    texts = {"summary.json": json.dumps({"runs": [dict(one) for one in summaries]}, indent=1) + "\n"}
    if outcomes:
        texts |= {
            "jobs.csv": csv_text(_rows(outcomes, "jobs")),
            "rounds.csv": csv_text(_rows(outcomes, "rounds")),
        }
    files = tuple(folder / name for name in texts)
    for file, text in zip(files, texts.values(), strict=True):
        write_text(file, text)
    return files


def csv_text(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows with equal columns as CSV; None is an empty field."""
    out = io.StringIO()
    writer = None
    for row in rows:
        if writer is None:
            writer = csv.DictWriter(out, list(row), lineterminator="\n")
            writer.writeheader()
        writer.writerow(row)
    return out.getvalue()


def make_folder(folder: Path) -> None:
    """Create `folder` in an existing folder. Raises `UsageError`."""
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make folder {folder}: {error.strerror}") from None


def check_writable(file: Path) -> None:
    """Raise `UsageError` unless `file` can be written; called before a long simulation, not after it."""
    parent = file.parent
    if not parent.is_dir():
        raise UsageError(f"cannot write {file}: there is no folder {parent}")
    if file.is_dir():
        raise UsageError(f"cannot write {file}: it is a folder")
    if not os.access(file if file.exists() else parent, os.W_OK):
        raise UsageError(f"cannot write {file}: permission denied")


def write_text(file: Path, text: str) -> None:
    """Write `file` atomically, even beside other writers. Raises `UsageError` if that is not possible.

    A link, a pipe or a device such as /dev/stdout is written to in place.
    """
    try:
        if file.is_symlink() or (file.exists() and not file.is_file()):
            file.write_text(text, encoding="utf-8")
        else:
            write_data(file, text.encode(), is_synced=False)
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}") from None


def _rows(outcomes: Sequence[RunOutcome], what: str) -> Iterable[dict[str, Any]]:
    for one in outcomes:
        run = {column: getattr(one.summary, column) for column in _RUN_COLUMNS}
        for record in getattr(one, what):
            row = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
            row.pop("gpu_changes", None)
            yield run | row
