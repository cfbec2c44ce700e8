"""A report on a terminal."""

from __future__ import annotations

import io

from rich.console import Console

from pollux_slurm.report.charts import LineChart, Panel, Series
from pollux_slurm.report.document import Document, Fact, Part, Plot
from pollux_slurm.report.scales import linear_axis
from pollux_slurm.report.terminal import print_document, sparkline
from tests.report.test_document import NOW, document, table

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


def test_that_nothing_that_strangers_wrote_reaches_the_terminal() -> None:
    text = printed(document(table(("[red]x[/]\x1b[2J\N{RIGHT-TO-LEFT OVERRIDE}", NOW, 1.0, 7))))
    assert "\x1b" not in text
    assert "\N{RIGHT-TO-LEFT OVERRIDE}" not in text
    assert "[red]x[/]\N{REPLACEMENT CHARACTER}[2J\N{REPLACEMENT CHARACTER}" in text, "no markup either"


def test_that_a_narrow_terminal_leaves_columns_out_and_says_which() -> None:
    rows = table(*((f"job number {i:>8}", NOW, 1.0, i) for i in range(30)))
    text = printed(document(rows), width=44)
    assert max(len(line) for line in text.splitlines() if line.startswith("job number")) <= 44
    flat = " ".join(text.split())
    assert (
        "20 of 30 rows, the first; no room for rho: pollux report cluster --since 1d --csv --table jobs"
        in flat
    )


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
