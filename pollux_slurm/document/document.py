"""A document before it is a page, a terminal's text, CSV or JSON: facts, plots and tables with raw values.

Every form is made from the same document, so that all agree.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from datetime import datetime

from pollux_slurm.document.charts.rendering import Chart
from pollux_slurm.document.charts.time_axes import Range
from pollux_slurm.document.columns import Data, Kind, Value, text_of
from pollux_slurm.errors import UsageError


@dataclass(frozen=True, slots=True)
class Fact:
    """One value of the report's subject. `text` is shown instead of the value where it is clearer;
    `wide` values take a line of their own.
    """

    key: str
    title: str
    value: Value
    kind: Kind = Kind.TEXT
    _: KW_ONLY
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
    what prints the report again, for hints to its other forms, if there is one.
    """

    kind: str
    title: str
    lead: str
    parts: tuple[Part, ...]
    subject: str = ""
    facts: tuple[Fact, ...] = ()
    made_at: datetime | None = None
    range: Range | None = None
    command: str = ""

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
