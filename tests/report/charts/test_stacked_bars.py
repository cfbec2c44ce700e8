"""Stacked bars as SVG text."""

from __future__ import annotations

from pollux_slurm.report.charts.scales import linear_axis
from pollux_slurm.report.charts.stacked_bars import Stack, StackedBars
from tests.report.parsed import Element, parse


def drawn(*stacks: Stack, labels: tuple[str, ...] = ("a", "b")) -> Element:
    chart = StackedBars(
        title="t",
        text="x",
        x=linear_axis("day", [0, 10]),
        y=linear_axis("GPU hours", [0, 100]),
        labels=labels,
        stacks=stacks,
        value_text=lambda value: f"{value:g} h",
    )
    return parse(chart.svg("c"))


def test_that_parts_stand_on_each_other_in_their_place() -> None:
    """The plot is 820 wide from 64 on and 280 high from 30 on: a hundred is 280, a day 82."""
    page = drawn(Stack(name="3 Nov", low=2, high=3, parts=(50.0, 25.0)))
    first = page.all("rect", kind="bar s0")[1]
    second = page.all("rect", kind="bar s1")[1]
    assert (first.attributes["x"], first.attributes["width"]) == ("229.0", "80.0")
    assert (first.attributes["y"], first.attributes["height"]) == ("170.00", "140.00")
    assert (second.attributes["y"], second.attributes["height"]) == ("100.00", "70.00")
    assert [one.all("title")[0].text for one in (first, second)] == ["3 Nov, a: 50 h", "3 Nov, b: 25 h"]


def test_that_nothing_is_drawn_for_nothing_and_many_days_have_no_edges() -> None:
    assert len(drawn(Stack(name="d", low=0, high=1, parts=(0.0, 1.0))).all("rect", kind="bar s0")) == 1
    page = drawn(*(Stack(name="d", low=i / 100, high=(i + 1) / 100, parts=(1.0, 1.0)) for i in range(1000)))
    assert len(page.all("rect", kind="bar thin s1")) == 1000


def test_that_names_cannot_leave_their_text() -> None:
    page = drawn(Stack(name="<script>", low=0, high=1, parts=(1.0,)), labels=('"><script>',))
    assert page.all("script") == []
    assert page.all("rect", kind="bar s0")[1].all("title")[0].text == '<script>, "><script>: 1 h'
