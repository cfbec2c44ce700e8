"""A report on a terminal."""

from __future__ import annotations

import io
from datetime import timedelta

from rich.console import Console

from pollux_slurm.document.charts.line_charts import LineChart, Panel, Series
from pollux_slurm.document.charts.scales import linear_axis
from pollux_slurm.document.columns import Column, Data, Kind
from pollux_slurm.document.document import Document, Fact, Part, Plot
from pollux_slurm.document.forms.terminal import print_document, sparkline
from tests.document.test_document import NOW, document, table

NAN = float("nan")


def printed(shown: Document, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    with console.capture() as captured:
        print_document(shown, console)
    return captured.get()


def test_that_blocks_are_as_high_as_means() -> None:
    axis = linear_axis("x", [0, 4])
    assert sparkline([(0, 7), (1, 0), (2, 3), (2.5, 4), (3, 3)], axis, 4) == "█▁▅▄"
    assert sparkline([(0, 7), (3, 7)], axis, 4) == "█  █"
    assert sparkline([], axis, 4) == "    "
    assert sparkline([(0, 0)], axis, 2) == "▁ "


def test_that_steps_go_on_until_their_end_or_gap() -> None:
    axis = linear_axis("x", [0, 8])
    assert sparkline([(0, 7), (4, 7)], axis, 8, step=True) == "█████   "
    assert sparkline([(0, 7), (2, NAN), (6, 7)], axis, 8, step=True) == "███   █ "
    # What ended and began again within one part goes on with the new value.
    assert sparkline([(0, 8), (2, 8), (2.1, NAN), (2.2, 4), (6, 4)], axis, 8, step=True) == "██▆▅▅▅▅ "


def test_that_nothing_that_strangers_wrote_reaches_the_terminal() -> None:
    text = printed(document(table(("[red]x[/]\x1b[2J\N{RIGHT-TO-LEFT OVERRIDE}", NOW, 1.0, 7))))
    assert "\x1b" not in text
    assert "\N{RIGHT-TO-LEFT OVERRIDE}" not in text
    assert "[red]x[/]\N{REPLACEMENT CHARACTER}[2J\N{REPLACEMENT CHARACTER}" in text, "no markup either"


def test_that_a_narrow_terminal_leaves_columns_out_and_says_which() -> None:
    rows = table(*((f"job number {i:>8}", NOW, 1.0, i) for i in range(30)))
    text = printed(document(rows), width=42)
    assert max(len(line) for line in text.splitlines() if line.startswith("job number")) <= 42
    flat = " ".join(text.split())
    assert (
        "20 of 30 rows, the first; no room for rho: pollux report cluster --since 1d --csv --table jobs"
        in flat
    )


def test_that_sentences_without_room_in_their_table_stand_whole_below_it() -> None:
    columns = (
        Column(key="at", title="planned", kind=Kind.MOMENT),
        Column(key="reason", title="reason", kind=Kind.TEXT, is_sentence=True),
        Column(key="gpus", title="GPUs", kind=Kind.COUNT),
    )
    why = "the GPUs of its target were taken by another job, and the job got what was left of it"
    rows = ((NOW, why, 4), (NOW + timedelta(hours=1), None, 2))
    moves = Data(key="moves", title="", columns=columns, rows=rows)
    for width in (80, 100):
        lines = printed(document(moves), width=width).splitlines()
        begin = lines.index("reason:")
        end = next(place for place, line in enumerate(lines) if place > begin and not line.startswith("  "))
        assert lines[begin + 1].startswith("  2026-11-21 11:03:07  the GPUs of its target")
        below = lines[begin + 1 : end]
        assert " ".join(" ".join(below).split()).endswith(why)
        assert max(len(line) for line in below) <= width
        assert not any("no room for" in line for line in lines)
    wide = printed(document(moves), width=140)
    assert "reason:" not in wide
    assert f"2026-11-21 11:03:07  {why}  " in wide
    silent = Data(key="moves", title="", columns=columns, rows=((NOW, None, 4),))
    assert "reason:" not in printed(document(silent), width=40)


def test_that_lines_are_sparks_with_their_range() -> None:
    chart = LineChart(
        title="Use",
        text="t",
        x=linear_axis("time (h)", [0, 10]),
        panels=(
            Panel(
                y=linear_axis("efficiency (%)", [0, 1], percent=True),
                series=(
                    Series(label="efficiency", points=((0, 0.25), (10, 0.5))),
                    Series(label="none", points=()),
                ),
            ),
        ),
    )
    shown = Document(
        kind="job",
        title="Job 1",
        subject="",
        lead="",
        facts=(Fact(key="a", title="A", value=1),),
        parts=(Part(title="P", plots=(Plot(chart=chart, caption="c"),)),),
        made_at=NOW,
        range=None,
        command="pollux report job 1",
    )
    lines = printed(shown).splitlines()
    (line,) = [line for line in lines if line.startswith("efficiency")]
    assert line.endswith("25 to 50 %")
    assert (line.count("▅"), line.count("█")) == (1, 1)
    assert not [line for line in lines if line.startswith("none")]
    assert lines[-1] == "A page with plots: pollux report job 1 --output report.html"
