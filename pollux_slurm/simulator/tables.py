"""CSV files with named, numeric columns, read with one clear error for what does not fit."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path

from pollux_slurm.errors import TraceError


def read_rows(file: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """Return the rows of `file`, which must have at least `columns`. Raises `TraceError`."""
    try:
        with file.open(encoding="utf-8", newline="") as stream:
            reader = csv.DictReader(stream)
            missing = [column for column in columns if column not in (reader.fieldnames or ())]
            if missing:
                raise TraceError(f"{file}: no column {missing[0]!r}; expected {', '.join(columns)}")
            rows = list(reader)
    except OSError as error:
        raise TraceError(f"{file}: {error.strerror or error}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{file}: not a CSV file ({error})") from None
    for number, row in enumerate(rows, start=2):
        if any(row[column] is None or row[column] == "" for column in columns):
            raise TraceError(f"{file}: line {number} is incomplete")
    return rows


def number(file: Path, row: dict[str, str], column: str, *, low: float = 0.0) -> float:
    """Return a finite number ≥ `low` of a row. Raises `TraceError`."""
    try:
        value = float(row[column])
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= low):
        raise TraceError(f"{file}: {column} is {row[column]!r}; expected a number of {low:g} or more")
    return value


def whole(file: Path, row: dict[str, str], column: str, *, low: int = 0) -> int:
    """Return a whole number ≥ `low` of a row. Raises `TraceError`."""
    value = number(file, row, column, low=low)
    if value != int(value):
        raise TraceError(f"{file}: {column} is {row[column]!r}; expected a whole number")
    return int(value)
