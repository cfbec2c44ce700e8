"""A report for programs: JSON with everything in it, CSV of one of its tables."""

from __future__ import annotations

import csv
import io
import json
import math
from datetime import date, datetime, timezone
from typing import Any

from pollux_slurm.document.columns import Data, Value
from pollux_slurm.document.document import Document
from pollux_slurm.text import shown_lines

# What a spreadsheet takes for a formula at the beginning of a cell.
_FORMULA = ("=", "+", "-", "@")


def document_json(document: Document) -> str:
    """Return the report as JSON: `report`, `made_at`, `since`, `until`, `facts` and `tables` of row objects.

    Times are ISO 8601 in UTC; what is not known, or no finite number, is null.
    """
    found = {
        "report": document.kind,
        "made_at": plain(document.made_at),
        "since": plain(document.range.since) if document.range else None,
        "until": plain(document.range.until) if document.range else None,
        "facts": {fact.key: plain(fact.value) for fact in document.facts},
        "tables": {key: _rows(data) for key, data in document.tables().items()},
    }
    return json.dumps(found, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def data_csv(data: Data) -> str:
    """Return a table as CSV with the columns' keys as its head; what is not known is an empty field.

    Job names are untrusted: a text that a spreadsheet would run as a formula gets an apostrophe before
    it, and a character that a terminal would obey is replaced. JSON has them as they are.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([column.key for column in data.columns])
    writer.writerows([_cell(value) for value in row] for row in data.rows)
    return out.getvalue()


def _rows(data: Data) -> list[dict[str, Any]]:
    keys = [column.key for column in data.columns]
    return [dict(zip(keys, map(plain, row), strict=True)) for row in data.rows]


def plain(value: Value) -> Any:
    """Return a value for JSON: times in ISO 8601 and UTC, null for what is no finite number."""
    if isinstance(value, datetime):
        return value.astimezone(timezone.utc).isoformat()
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _cell(value: Value) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        text = shown_lines(value)
        return f"'{text}" if text.startswith(_FORMULA) else text
    return plain(value)
