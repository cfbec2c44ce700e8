"""Charts as SVG text."""

from __future__ import annotations

import dataclasses
import re
from itertools import pairwise

import pytest

from pollux_slurm.report import (
    Bar,
    LineChart,
    Mark,
    Panel,
    Series,
    Timeline,
    linear_axis,
    value_axis,
)
from pollux_slurm.report.charts.line_charts import Tip
from pollux_slurm.report.charts.timeline import class_of
from tests.report.parsed import Element, parse


def drawn(chart: LineChart | Timeline) -> Element:
    (svg,) = parse(chart.svg("c")).all("svg")
    return svg


def numbers(path: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?[0-9.]+", path)]


def line_chart(*series: Series, end_labels: bool = False, marks: tuple[Mark, ...] = ()) -> LineChart:
    return LineChart(
        title="Title & more",
        text="What is to be seen.",
        x=linear_axis("hours (h)", [0, 10]),
        panels=(Panel(y=linear_axis("GPUs", [0, 100]), series=series),),
        end_labels=end_labels,
        marks=marks,
    )


def test_that_a_line_goes_through_its_points() -> None:
    """The plot is 820 wide from 64 on and 300 high; below a legend of one row it begins at 30."""
    svg = drawn(line_chart(Series(label="a", points=((0, 0), (5, 50), (10, 100)))))
    line = svg.all("path", kind="line s0")[1]
    assert numbers(line.attributes["d"]) == [64, 330, 474, 180, 884, 30]


def test_that_steps_hold_until_the_next_point() -> None:
    svg = drawn(line_chart(Series(label="a", points=((0, 0), (5, 0), (10, 100)), step=True)))
    assert svg.all("path", kind="line s0")[1].attributes["d"] == "M64.0 330.0H474.0H884.0V30.0"


def test_that_axes_are_labelled_and_the_chart_is_told_in_words() -> None:
    svg = drawn(line_chart(Series(label="a <b>", points=((0, 1), (10, 1)))))
    assert [text.text for text in svg.all("text", kind="label")] == ["hours (h)", "GPUs"]
    assert svg.attributes["role"] == "img"
    assert svg.attributes["aria-labelledby"] == "c-title c-text"
    assert svg.all("title", id="c-title")[0].text == "Title & more"
    assert svg.all("desc", id="c-text")[0].text == "What is to be seen."
    assert "a <b>" in [text.text for text in svg.all("text")]


@pytest.mark.parametrize("level", [0, 50, 100])
def test_that_labels_at_line_ends_stay_apart_and_inside(level: float) -> None:
    series = [Series(label=f"s{i}", points=((0, 0), (10, level)), style=i, markers=True) for i in range(6)]
    svg = drawn(line_chart(*series, end_labels=True))
    ys = sorted(float(text.attributes["y"]) for text in svg.all("text") if re.fullmatch(r"s\d", text.text))
    assert len(ys) == 6
    assert all(later - one >= 16.9 for one, later in pairwise(ys))
    top, bottom = numbers(svg.all("path", kind="axis")[0].attributes["d"])[1:3]
    assert top <= ys[0] < ys[-1] <= bottom + 5
    assert len(svg.all("circle")) == 12


def test_that_seeds_span_a_bar_and_a_mark_has_a_text() -> None:
    one = Series(label="a", points=((0, 50), (10, 50)), ranges=((25, 75), (50, 50)))
    svg = drawn(line_chart(one, marks=(Mark(x=5, text="half"),)))
    first = svg.all("path", kind="range s0")[0]
    assert numbers(first.attributes["d"])[1:] == [269, 119]
    assert [text.text for text in svg.all("text", kind="note")] == ["half"]


def test_that_tick_texts_never_run_into_each_other() -> None:
    chart = LineChart(
        title="t",
        text="t",
        x=value_axis("delay (s)", [0, 1, 2, 3, 60, 120, 121]),
        panels=(Panel(y=linear_axis("y", [1]), series=()),),
    )
    shown = [
        text
        for text in drawn(chart).all("text")
        if re.fullmatch(r"\d+", text.text) and text.attributes["y"] != ""
    ]
    on_x = [text for text in shown if text.attributes.get("text-anchor") == "middle"]
    assert [text.text for text in on_x][-1] == "121"
    places = [float(text.attributes["x"]) for text in on_x]
    assert all(later - one > 15 for one, later in pairwise(places))


@pytest.mark.parametrize("end_labels", [False, True])
def test_that_a_long_name_leaves_room_for_the_plot(end_labels: bool) -> None:
    one = Series(label="long " * 100, points=((0, 0), (10, 100)))
    svg = drawn(line_chart(one, end_labels=end_labels))
    left, _, _, right = numbers(svg.all("path", kind="axis")[0].attributes["d"])
    assert right - left > 400
    (name,) = [text for text in svg.all("text") if text.text.startswith("long")]
    assert float(name.attributes["x"]) + 7 * len(name.text) < 900


def test_that_a_series_without_points_draws_nothing() -> None:
    assert len(drawn(line_chart(Series(label="a", points=()))).all("path", kind="line s0")) == 1, "its legend"


def test_that_a_timeline_shows_what_was_held_when() -> None:
    """From 2 h to 4 h one GPU, then eight to the end at 10 h; the plot is 734 wide from 150 on."""
    bar = Bar(name="job <1>", group="app", begin=1, end=10, gpu_changes=((2, 1), (4, 8), (6, 0), (8, 8)))
    chart = Timeline(title="t", text="x", x=linear_axis("h", [0, 10]), bars=(bar,))
    svg = drawn(chart)
    (row,) = svg.all("g")
    assert row.all("title")[0].text == "job <1>: up to 8 GPUs"
    one, eight = row.all("path", kind="g0")[0], row.all("path", kind="g3")[0]
    assert numbers(one.attributes["d"])[0] == pytest.approx(150 + 73.4 * 2, abs=0.1)
    assert numbers(one.attributes["d"])[2] == pytest.approx(73.4 * 2, abs=0.1)
    assert eight.attributes["d"].count("M") == 2
    waiting = row.all("path", kind="waiting")[0]
    assert numbers(waiting.attributes["d"])[::2] == pytest.approx([223.4, 884], abs=0.1)


def test_that_rows_are_grouped_and_a_thousand_fit_a_page() -> None:
    bars = tuple(
        Bar(name=f"j{i}", group=f"app{i % 2}", begin=i, end=i + 1, gpu_changes=((i, 1),)) for i in range(1000)
    )
    svg = drawn(Timeline(title="t", text="x", x=linear_axis("h", [1001]), bars=bars))
    assert float(svg.attributes["viewbox"].split()[3]) < 1150
    assert [text.text for text in svg.all("text", kind="group")] == ["app0", "app1"]
    assert [text.text for text in svg.all("text", kind="note")] == ["500 jobs", "500 jobs"]


def test_that_gpus_are_told_in_classes() -> None:
    assert [class_of(gpus) for gpus in (1, 2, 3, 4, 5, 8, 9, 16, 17, 4096)] == [0, 1, 2, 2, 3, 3, 4, 4, 5, 5]


def test_that_a_gap_stays_open_and_a_lone_point_is_seen() -> None:
    nan = float("nan")
    points = ((0, 0), (2, 50), (2, nan), (5, 100), (5, nan), (8, 0), (10, 50))
    svg = drawn(line_chart(Series(label="a", points=points)))
    assert svg.all("path", kind="line s0")[1].attributes["d"] == (
        "M64.0 330.0L228.0 180.0M474.0 30.0M720.0 330.0L884.0 180.0"
    )
    (dot,) = svg.all("circle")
    assert (dot.attributes["cx"], dot.attributes["cy"]) == ("474.0", "30.0")


def test_that_a_step_holds_until_its_gap() -> None:
    points = ((0.0, 100.0), (5.0, float("nan")), (10.0, 100.0))
    svg = drawn(line_chart(Series(label="a", points=points, step=True)))
    assert svg.all("path", kind="line s0")[1].attributes["d"].startswith("M64.0 30.0H474.0M884.0")


def test_that_a_pointer_is_told_the_values_under_it() -> None:
    chart = LineChart(
        title="t",
        text="t",
        x=linear_axis("x", [0, 10]),
        panels=(
            Panel(y=linear_axis("y", [1]), series=(), height=100),
            Panel(y=linear_axis("z", [1]), series=(), height=50),
        ),
        tips=(Tip(low=2, high=4, text="a <b>"),),
    )
    (area,) = drawn(chart).all("rect", kind="hit")
    assert area.all("title")[0].text == "a <b>"
    assert [float(area.attributes[key]) for key in ("x", "width", "height")] == [228, 164, 164]


def test_that_there_is_no_legend_where_axes_name_the_lines() -> None:
    one = Series(label="name", points=((0, 0), (10, 100)))
    chart = dataclasses.replace(line_chart(one), legend=False)
    assert "name" not in [text.text for text in drawn(chart).all("text")]
