"""Rows of reallocations as SVG text."""

from __future__ import annotations

import re

import pytest

from pollux_slurm.report.charts.move_bars import MoveChart, MoveRow
from tests.report.parsed import Element, parse


def drawn(*rows: MoveRow) -> Element:
    return parse(MoveChart(title="t", text="x", rows=rows).svg("c"))


UP = MoveRow(
    label="2 → 4", description="grown", link="move-1", cost_s=(1.0, 6.0, 3.0), before=50.0, after=100.0
)
DOWN = MoveRow(
    label="4 → 2", description="shrunk", link="move-2", cost_s=(1.0, 1.0, 1.0), before=100.0, after=50.0
)


def test_that_costs_are_as_long_as_they_lasted() -> None:
    """Costs lie from 208 on, 318 wide for 10 s; each part begins where the one before ends."""
    (row,) = drawn(UP).all("a")
    bars = [one for style in (0, 4, 7) for one in row.all("rect", kind=f"bar s{style}")]
    assert [float(bar.attributes["x"]) for bar in bars] == pytest.approx([208, 239.8, 430.6], abs=0.1)
    assert [float(bar.attributes["width"]) for bar in bars] == pytest.approx([31.8, 190.8, 95.4], abs=0.1)


def test_that_gains_and_losses_look_different_and_end_at_the_goodput_after() -> None:
    up, down = drawn(UP, DOWN).all("a")
    for row, style, before, after in ((up, 2, 723, 882), (down, 1, 882, 723)):
        (line,) = row.all("path", kind=f"gain s{style}")
        assert [float(x) for x in re.findall(r"[MH]([0-9.]+)", line.attributes["d"])] == [before, after]
        assert float(row.all("circle", kind=f"hollow s{style}")[0].attributes["cx"]) == before
        assert float(row.all("circle", kind=f"dot s{style}")[0].attributes["cx"]) == after


def test_that_each_row_is_a_link_with_a_name_in_a_group() -> None:
    page = drawn(UP, DOWN)
    assert page.all("svg")[0].attributes["role"] == "group", "what is in an image is not reached"
    assert [(row.attributes["href"], row.attributes["aria-label"]) for row in page.all("a")] == [
        ("#move-1", "grown"),
        ("#move-2", "shrunk"),
    ]


def test_that_what_is_not_known_is_not_drawn() -> None:
    row = drawn(MoveRow(label="2 → 4", description="x", link="m", note="rolled back", before=50.0)).all("a")[
        0
    ]
    assert [text.text for text in row.all("text")] == ["2 → 4", "rolled back"]
    assert (len(row.all("path")), len(row.all("circle"))) == (0, 1)
    assert drawn().all("a") == []
