"""Tables before they have a form: columns, raw values, the filter by words, the order, which rows are shown.

Values are plain: texts, numbers, booleans, aware times, days, None for unknown ones; a `Kind` selects how
people read them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import date, datetime
from operator import attrgetter, itemgetter
from typing import Any, Literal

from pollux_slurm.text import (
    UNKNOWN,
    bytes_text,
    duration_text,
    moment_text,
    number_text,
    share_text,
    shortened,
    shown,
)

_LONGEST_SENTENCE = 1000
Value = str | int | float | bool | datetime | date | None


class Kind(enum.Enum):
    """How a value is shown to people."""

    TEXT = "text"
    NUMBER = "number"
    COUNT = "count"
    SECONDS = "seconds"
    AGO = "ago"
    BYTES = "bytes"
    SHARE = "share"
    MOMENT = "moment"
    DAY = "day"


@dataclass(frozen=True, slots=True)
class Column:
    """`key` names it for programs, `title`, with the unit, for people.

    `value` returns a record's value, by default its attribute, or its item, of that key. A column that is
    not `shown` is for programs only. Where a terminal has no room for all, those of the highest `rank` are
    left out first, and words, of which at most `most` characters are shown, are cut to `least`. A column of
    sentences is never cut: it is printed below the table then.
    """

    key: str
    title: str
    kind: Kind = Kind.NUMBER
    _: KW_ONLY
    value: Callable[[Any], Value] | None = None
    shown: bool = True
    is_sentence: bool = False
    rank: int = 0
    least: int = 28
    most: int = 120

    @property
    def is_words(self) -> bool:
        return self.kind is Kind.TEXT

    @property
    def heading(self) -> str:
        """The title in capitals, but for its unit."""
        name, slash, unit = self.title.partition("/")
        return f"{name.upper()}{slash}{unit}"

    def of(self, record: Any) -> Value:
        """Return the value of a record."""
        return self.getter(record)(record)

    def getter(self, record: Any) -> Callable[[Any], Value]:
        """Return what gives the value of any record of the kind of this one."""
        if self.value is not None:
            return self.value
        return itemgetter(self.key) if isinstance(record, Mapping) else attrgetter(self.key)

    def text_of(self, value: Value) -> str:
        """Return a value of the column as people read it."""
        return text_of(value, self.kind, most=_LONGEST_SENTENCE if self.is_sentence else self.most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """A table of raw values.

    `keep` selects which of too many rows are shown: the `first` (of a ranking), the `last`, or rows `spread`
    evenly over all.
    """

    key: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]
    title: str = ""
    note: str = ""
    keep: Literal["first", "last", "spread"] = "first"

    @property
    def shown_columns(self) -> list[tuple[int, Column]]:
        """The columns that people see, with their places in a row."""
        return [(place, column) for place, column in enumerate(self.columns) if column.shown]

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


def table_of(
    key: str,
    records: Iterable[object],
    columns: Sequence[Column],
    *,
    title: str = "",
    note: str = "",
    keep: Literal["first", "last", "spread"] = "first",
) -> Data:
    """Return a table with a row for each record, all of one kind."""
    found = tuple(records)
    values = (map(column.getter(found[0]), found) for column in columns if found)
    return Data(
        key=key,
        title=title,
        columns=tuple(columns),
        rows=tuple(zip(*values, strict=True)),
        note=note,
        keep=keep,
    )


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
    if kind is Kind.AGO:
        return f"{duration_text(value)} ago"
    if kind is Kind.BYTES:
        return bytes_text(int(value))
    texts = {Kind.SECONDS: duration_text, Kind.SHARE: share_text}
    return texts.get(kind, number_text)(value)


def in_order(records: Iterable[Any], column: Column, *, turned: bool = False) -> list[Any]:
    """Return records by a column: numbers and times from large to small, texts from small to large.

    Unknown ones come last, first where the order is `turned`; equal ones stay as they are.
    """

    def place(record: Any) -> tuple[bool, str, float]:
        value = column.of(record)
        if value is None or isinstance(value, str):
            return value is None, (value or "").casefold(), 0.0
        if isinstance(value, datetime):
            return False, "", -value.timestamp()
        return False, "", -float(value.toordinal() if isinstance(value, date) else value)

    return sorted(records, key=place, reverse=turned)


def matches(record: Any, columns: Iterable[Column], words: str) -> bool:
    """Whether a record has every one of the words: `user:ada state:running resnet`. Case does not matter.

    A word after a title of a column of words looks into that column, others look into all.
    """
    if not words:
        return True
    fields = {one.title: str(one.of(record) or "").casefold() for one in columns if one.is_words}
    for word in words.casefold().split():
        name, colon, wanted = word.partition(":")
        if colon and name in fields:
            if wanted not in fields[name]:
                return False
        elif not any(word in text for text in fields.values()):
            return False
    return True


def spread(rows: Sequence[Any], most: int) -> list[int]:
    """Return the indices of at most `most` evenly spaced rows, including the first and the last."""
    if len(rows) <= most:
        return list(range(len(rows)))
    return sorted({round(index * (len(rows) - 1) / (most - 1)) for index in range(most)})
