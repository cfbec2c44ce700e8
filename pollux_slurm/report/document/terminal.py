"""A report on a terminal: facts, a sparkline for each line of a plot, tables as wide as there is room."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from pollux_slurm.report.charts.line_charts import LineChart
from pollux_slurm.report.charts.scales import Axis, Scale
from pollux_slurm.report.charts.stacked_bars import StackedBars
from pollux_slurm.report.document.document import Data, Document, Kind, Plot, text_of
from pollux_slurm.text import minute_text, number_text, range_text, shortened, shown

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

_BLOCKS = "▁▂▃▄▅▆▇█"
_GAP = " "
# What fits a screen without scrolling far; the rest is in the other forms.
MOST_ROWS = 20
_NARROWEST = 40
# What is more was not measured, and a sum of it may be no number.
_MOST = 1e200


def print_document(document: Document, console: Console) -> None:
    """Print the report; untrusted texts are printed without control characters."""
    from rich.text import Text

    console.print(Text(shown(document.title), style="bold"))
    console.print(Text(shown(document.lead)))
    console.print()
    console.print(_facts(document, console.width))
    for part in document.parts:
        console.print()
        console.rule(Text(shown(part.title), style="bold"), align="left", style="dim")
        if part.text:
            console.print(Text(shown(part.text)))
        for plot in part.plots:
            for one in _plot(plot, console.width):
                console.print(one)
        for data in (one for one in part.tables if one.rows):
            for one in _table(data, document, console.width):
                console.print(one)
    console.print()
    console.print(
        Text(f"A page with plots: {shown(document.command)} --output report.html", style="dim"),
        soft_wrap=True,
    )


def sparkline(points: Sequence[tuple[float, float]], x: Axis, width: int, *, step: bool = False) -> str:
    """Return a line of `width` blocks: means of the values in each part of the axis, from 0 to the highest.

    A part without a point is blank, or goes on with the last value before it where the line is one of steps.
    """
    sums, counts, latest = [0.0] * width, [0] * width, dict[int, float]()
    for at, value in points:
        place = min(int(x.at(at) * width), width - 1)
        if abs(value) < _MOST:
            sums[place] += value
            counts[place] += 1
        latest[place] = value if abs(value) < _MOST else math.nan
    last = max(latest, default=-1)
    most = max((total / count for total, count in zip(sums, counts, strict=True) if count), default=0.0)
    text, held = [], math.nan
    for place, (total, count) in enumerate(zip(sums, counts, strict=True)):
        value = total / count if count else held
        text.append(_GAP if math.isnan(value) else _block(value, most))
        held = latest.get(place, held) if step and place < last else math.nan
    return "".join(text)


def _block(value: float, most: float) -> str:
    if most <= 0 or value <= 0:
        return _BLOCKS[0]
    return _BLOCKS[min(int(value / most * (len(_BLOCKS) - 1) + 0.5), len(_BLOCKS) - 1)]


def _facts(document: Document, width: int) -> Table:
    from rich.table import Table
    from rich.text import Text

    pairs = [(Text(fact.title, style="dim"), Text(shown(fact.shown()))) for fact in document.facts]
    across = 2 if width >= 100 else 1
    table = Table(box=None, show_header=False, pad_edge=False)
    down = -(-len(pairs) // across)
    for row in range(down):
        cells = [cell for pair in pairs[row::down] for cell in pair]
        table.add_row(*cells)
    return table


def _plot(plot: Plot, width: int) -> Iterator[RenderableType]:
    """Yield what a plot shows as far as letters can: lines as sparklines, stacks as one of their sums."""
    from rich.text import Text

    chart = plot.chart
    if isinstance(chart, LineChart) and not chart.x.scale.is_log:
        lines = [
            (one.label, one.points, one.step, panel.y.label) for panel in chart.panels for one in panel.series
        ]
    elif isinstance(chart, StackedBars):
        # A stack is drawn in the middle of its interval.
        points = tuple(((stack.low + stack.high) / 2, sum(stack.parts)) for stack in chart.stacks)
        lines = [("in all", points, True, chart.y.label)]
    else:  # the rows of a table have the same
        return
    yield Text(f"\n{chart.title}", style="bold", overflow="ellipsis", no_wrap=True)
    room = max(min(width - 60, 100), 20)
    for label, points, step, unit in lines:
        values = [value for _, value in points if math.isfinite(value)]
        if not values:
            continue
        line = Text(f"{shortened(shown(label), 22):<22} ", overflow="ellipsis", no_wrap=True)
        line.append(sparkline(points, chart.x, room, step=step), style="cyan")
        scale = 100 if "(%)" in unit else 1
        line.append(f" {range_text(scale * value for value in values)} {_unit(unit)}".rstrip(), style="dim")
        yield line
    ends = " to ".join(_end_text(end, chart.x) for end in (chart.x.low, chart.x.high))
    yield Text(f"{'':<22} {chart.x.label}: {ends}", style="dim")


def _end_text(value: float, axis: Axis) -> str:
    if axis.scale is Scale.TIME:
        return minute_text(datetime.fromtimestamp(value, timezone.utc))
    return number_text(value)


def _unit(label: str) -> str:
    """Return the unit that an axis's label has in brackets, else the label."""
    return label[label.rindex("(") + 1 : -1] if label.endswith(")") and "(" in label else label


def _table(data: Data, document: Document, width: int) -> Iterator[RenderableType]:
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    if data.title:
        yield Text(f"\n{data.title}", style="bold")
    kinds = [column.kind for column in data.columns]
    places = data.places(MOST_ROWS)
    rows = [
        [column.text_of(value) for value, column in zip(data.rows[place], data.columns, strict=True)]
        for place in places
    ]
    # A column is as wide as its widest cell and word of its title: titles wrap, cells do not.
    widths = [
        max([len(word) for word in column.title.split()] + [cell_len(row[index]) for row in rows])
        for index, column in enumerate(data.columns)
    ]
    widths = [
        min(one, 28) if column.kind is Kind.TEXT and not column.is_sentence else one
        for one, column in zip(widths, data.columns, strict=True)
    ]
    kept = _columns_with_room(data, widths, width)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for index in kept:
        title = "\n".join(textwrap.wrap(data.columns[index].title, widths[index]))
        left = kinds[index] is Kind.TEXT or index == 0
        table.add_column(Text(title), justify="left" if left else "right", no_wrap=True, width=widths[index])
    for row in rows:
        table.add_row(*(Text(row[index], overflow="ellipsis") for index in kept))
    yield table
    for index, column in enumerate(data.columns):
        if column.is_sentence and index not in kept:
            yield from _below(column.title, [(row[0], row[index]) for row in rows], width)
    left_out = [
        one.key
        for index, one in enumerate(data.columns)
        if one.shown and not one.is_sentence and index not in kept
    ]
    hints = [data.hint(len(places)), f"no room for {', '.join(left_out)}" if left_out else ""]
    if any(hints):
        hint_text = "; ".join(hint for hint in hints if hint)
        yield Text(f"{hint_text}: {shown(document.command)} --csv --table {data.key}", style="dim")


def _below(title: str, rows: Sequence[tuple[str, str]], width: int) -> Iterator[RenderableType]:
    """Yield the sentences of a column that has no room in its table, each with the first cell of its row."""
    from rich.text import Text

    sentences = [(first, sentence) for first, sentence in rows if sentence != text_of(None, Kind.TEXT)]
    if sentences:
        yield Text(f"{title}:", style="bold")
    for first, sentence in sentences:
        lead = f"  {first}  "
        lines = textwrap.wrap(
            sentence, max(width, _NARROWEST), initial_indent=lead, subsequent_indent=" " * len(lead)
        )
        yield Text("\n".join(lines))


def _columns_with_room(data: Data, widths: Sequence[int], width: int) -> list[int]:
    """Return the columns that fit, from the left; sentences come after all others."""
    room = max(width, _NARROWEST)
    shown_ones = [index for index, column in enumerate(data.columns) if column.shown]
    kept: list[int] = []
    for index in (one for one in shown_ones if not data.columns[one].is_sentence):
        room -= widths[index] + 2
        if room < 0 and kept:
            return sorted(kept)
        kept.append(index)
    for index in (one for one in shown_ones if data.columns[one].is_sentence):
        room -= widths[index] + 2
        if room >= -2:  # nothing stands behind the last one
            kept.append(index)
    return sorted(kept)
