"""A report before it is a page, a terminal's text, CSV or JSON: facts, plots and tables with raw values.

Every form is made from the same document, so that all agree. Values are plain: texts, numbers, booleans,
aware times, days, None for unknown ones; a `Kind` selects how they are formatted.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Literal

from pollux_slurm.errors import UsageError
from pollux_slurm.report.charts.rendering import Chart
from pollux_slurm.report.charts.time_axes import Range
from pollux_slurm.text import UNKNOWN, duration_text, moment_text, number_text, share_text, shortened, shown

_LONGEST_SENTENCE = 1000
Value = str | int | float | bool | datetime | date | None


class Kind(enum.Enum):
    """How a value is shown to people."""

    TEXT = "text"
    NUMBER = "number"
    COUNT = "count"
    SECONDS = "seconds"
    SHARE = "share"
    MOMENT = "moment"
    DAY = "day"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """`key` names it in CSV and JSON, `title`, with the unit, for people.

    A column that is not `shown` is for programs only. A column of sentences is never cut: where a terminal is
    too narrow for it, it is printed below the table.
    """

    key: str
    title: str
    kind: Kind = Kind.NUMBER
    shown: bool = True
    is_sentence: bool = False

    def text_of(self, value: Value) -> str:
        """Return a value of the column as people read it."""
        return text_of(value, self.kind, most=_LONGEST_SENTENCE if self.is_sentence else 120)


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """A table of raw values.

    `keep` selects which of too many rows are shown: the `first` (of a ranking), the `last`, or rows `spread`
    evenly over all.
    """

    key: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]
    note: str = ""
    keep: Literal["first", "last", "spread"] = "first"

    def places(self, most: int) -> list[int]:
        """Return the indices of the rows that are shown, at most `most`."""
        everything = range(len(self.rows))
        if self.keep == "spread":
            return spread(self.rows, most)
        return list(everything[:most] if self.keep == "first" else everything[-most:])

    def hint(self, num_shown: int) -> str:
        """Return a hint where only some rows are shown, empty where all are."""
        if num_shown >= len(self.rows):
            return ""
        which = {"first": "the first", "last": "the last", "spread": "evenly apart"}[self.keep]
        return f"{num_shown:,} of {len(self.rows):,} rows, {which}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One value of the report's subject. `text` is shown instead of the value where it is clearer;
    `wide` values take a line of their own.
    """

    key: str
    title: str
    value: Value
    kind: Kind = Kind.TEXT
    text: str = ""
    wide: bool = False

    def shown(self) -> str:
        return self.text or text_of(self.value, self.kind, most=1000 if self.wide else 120)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A chart, how to read it, and the values in it: None where a table of its part shows them."""

    chart: Chart
    caption: str
    data: Data | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part with a title. `text` comes first; it is alone where there is nothing to plot yet."""

    title: str
    text: str = ""
    plots: tuple[Plot, ...] = ()
    tables: tuple[Data, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A whole report. `subject` is a name that stands beside the title, as its owner wrote it; `command` is
    what prints the report again, for hints to its other forms.
    """

    kind: str
    title: str
    subject: str
    lead: str
    facts: tuple[Fact, ...]
    parts: tuple[Part, ...]
    made_at: datetime
    range: Range | None
    command: str

    def tables(self) -> dict[str, Data]:
        """Return all tables by key, those behind plots, too; the first is the one that matters most."""
        found: dict[str, Data] = {}
        for part in self.parts:
            for data in (*(plot.data for plot in part.plots if plot.data is not None), *part.tables):
                found[data.key] = data
        return found

    def table(self, key: str | None) -> Data:
        """Return one table, the first without a key. Raises `UsageError` with the keys there are."""
        tables = self.tables()
        if key is None:
            return next(iter(tables.values()))
        if key not in tables:
            raise UsageError(f"this report has no table {key!r}; it has {', '.join(tables)}")
        return tables[key]


def rows_of(records: Iterable[object], columns: Sequence[Column]) -> tuple[tuple[Value, ...], ...]:
    """Return a row for each record: its attributes that have the columns' keys."""
    return tuple(tuple(getattr(record, column.key) for column in columns) for record in records)


def text_of(value: Value, kind: Kind, *, most: int = 120) -> str:
    """Return a value as people read it; an en dash for what is not known."""
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return moment_text(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, str):
        return shortened(shown(value), most) or UNKNOWN
    if kind is Kind.SECONDS:
        return duration_text(value)
    if kind is Kind.SHARE:
        return share_text(value)
    return number_text(value)


def spread(rows: Sequence[Any], most: int) -> list[int]:
    """Return the indices of at most `most` evenly spaced rows, including the first and the last."""
    if len(rows) <= most:
        return list(range(len(rows)))
    return sorted({round(index * (len(rows) - 1) / (most - 1)) for index in range(most)})
