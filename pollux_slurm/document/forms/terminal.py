"""A report on a terminal: facts, a sparkline for each line of a plot, tables as wide as there is room."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from pollux_slurm.document.charts.line_charts import LineChart
from pollux_slurm.document.charts.scales import Axis, Scale
from pollux_slurm.document.charts.stacked_bars import StackedBars
from pollux_slurm.document.columns import Column, Data, Value
from pollux_slurm.document.document import Document, Plot
from pollux_slurm.text import UNKNOWN, minute_text, number_text, range_text, shortened, shown

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
    if document.facts:
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
            print_data(data, console, command=document.command)
    console.print()
    console.print(
        Text(f"A page with plots: {shown(document.command)} --output report.html", style="dim"),
        soft_wrap=True,
    )


def document_text(document: Document, console: Console) -> str:
    """Return what `print_document` would print."""
    with console.capture() as captured:
        print_document(document, console)
    return captured.get()


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


def print_data(data: Data, console: Console, *, command: str = "", most: int = MOST_ROWS) -> None:
    """Print a table, sentences without room in it, and what was left out; `command` prints all of it."""
    from rich.text import Text

    if data.title:
        console.print(Text(f"\n{data.title}", style="bold"))
    places, table = data.places(most), terminal_table(data, console.width, most=most)
    console.print(table.drawn)
    for index in (place for place in table.left_out if data.columns[place].is_sentence):
        column = data.columns[index]
        rows = [(data.columns[0].text_of(data.rows[one][0]), data.rows[one][index]) for one in places]
        sentences = [(first, column.text_of(value)) for first, value in rows if value is not None]
        for line in _below(column.title, sentences, console.width):
            console.print(line)
    columns = [data.columns[place].key for place in table.left_out if not data.columns[place].is_sentence]
    hints = [data.hint(len(places)), f"no room for {', '.join(columns)}" if columns else ""]
    if any(hints):
        all_of_it = f": {shown(command)} --csv --table {data.key}" if command else ""
        console.print(Text("; ".join(filter(None, hints)) + all_of_it, style="dim"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalTable:
    """A table as wide as there is room, and the places of the columns that it has no room for."""

    drawn: Table
    left_out: tuple[int, ...]


def terminal_table(
    data: Data, width: int, *, most: int = MOST_ROWS, in_capitals: bool = False
) -> TerminalTable:
    """Return the first `most` rows for a terminal of `width` characters.

    `in_capitals` is as Slurm's commands print tables: titles so, and a hyphen for what is not known.
    """
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    titles = {place: column.heading if in_capitals else column.title for place, column in data.shown_columns}
    cells = {
        place: [cell_of(column, data.rows[row][place], in_capitals) for row in data.places(most)]
        for place, column in data.shown_columns
    }
    # A column is as wide as its widest cell and word of its title: titles wrap, cells do not.
    widths = {
        place: max(map(cell_len, (*titles[place].split(), *cells[place])), default=0) for place in titles
    }
    kept = _with_room(data.columns, widths, max(width, _NARROWEST))
    table = Table(box=None, header_style="bold", pad_edge=False)
    for place, wide in kept.items():
        left = data.columns[place].is_words or place == 0
        title = Text("\n".join(textwrap.wrap(titles[place], wide)))
        table.add_column(title, justify="left" if left else "right", no_wrap=True, width=wide)
    for row in zip(*(cells[place] for place in kept), strict=True):
        table.add_row(*(Text(cell, overflow="ellipsis") for cell in row))
    return TerminalTable(drawn=table, left_out=tuple(place for place in titles if place not in kept))


def cell_of(column: Column, value: Value, in_capitals: bool) -> str:
    """Return a cell's text, in a table `in_capitals` with a hyphen for what is not known."""
    text = column.text_of(value)
    return "-" if in_capitals and text == UNKNOWN else text


def _below(title: str, rows: Sequence[tuple[str, str]], width: int) -> Iterator[RenderableType]:
    """Yield the sentences of a column that has no room in its table, each with the first cell of its row."""
    from rich.text import Text

    if rows:
        yield Text(f"{title}:", style="bold")
    for first, sentence in rows:
        lead = f"  {first}  "
        lines = textwrap.wrap(
            sentence, max(width, _NARROWEST), initial_indent=lead, subsequent_indent=" " * len(lead)
        )
        yield Text("\n".join(lines))


def _with_room(columns: Sequence[Column], widths: dict[int, int], room: int) -> dict[int, int]:
    """Return the places and widths of the columns that fit: some are left out, then words are cut.

    Left out first are sentences, then the highest rank, then what stands furthest to the right.
    """

    def needed(found: dict[int, int]) -> int:
        return sum(found.values()) + 2 * (len(found) - 1)

    def is_cut(column: Column) -> bool:
        return column.is_words and not column.is_sentence

    least = {
        place: min(wide, columns[place].least) if is_cut(columns[place]) else wide
        for place, wide in widths.items()
    }
    while len(least) > 1 and needed(least) > room:
        del least[max(least, key=lambda place: (columns[place].is_sentence, columns[place].rank, place))]
    kept = {place: widths[place] for place in least}
    while needed(kept) > room and (longer := [place for place in kept if kept[place] > least[place]]):
        kept[max(longer, key=lambda place: kept[place])] -= 1
    return kept
