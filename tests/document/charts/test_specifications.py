"""Charts as Vega-Lite gets them: each value where it belongs, in words that cannot leave their place."""

from __future__ import annotations

import json
import math
import re
import sys
from datetime import datetime, timezone
from typing import Any

import pytest

from pollux_slurm.document.charts.line_charts import LineChart, Mark, Panel, Series
from pollux_slurm.document.charts.move_bars import MoveChart, MoveRow
from pollux_slurm.document.charts.palette import DARK, LIGHT
from pollux_slurm.document.charts.rendering import notebook_chart, page_svg, picture, script, specification
from pollux_slurm.document.charts.scales import linear_axis
from pollux_slurm.document.charts.stacked_bars import Stack, StackedBars
from pollux_slurm.document.charts.time_axes import time_axis
from pollux_slurm.document.charts.timeline import Bar, Timeline
from pollux_slurm.errors import UsageError

NOON = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
HOSTILE = "</script><b>\x1b[31m"
GAP = math.nan


def lines(*series: Series, marks: tuple[Mark, ...] = ()) -> LineChart:
    return LineChart(
        title="Lines",
        text="Some lines.",
        x=time_axis([NOON, datetime(2026, 3, 1, 13, tzinfo=timezone.utc)]),
        panels=(Panel(y=linear_axis("y", [0, 4]), series=series),),
        marks=marks,
    )


def at(second: float) -> float:
    return NOON.timestamp() + second


def rows(chart: Any) -> list[dict[str, Any]]:
    """Return the values of all layers of a chart, each once."""
    return [row for values in json.loads(specification(chart))["datasets"].values() for row in values]


def test_that_a_line_breaks_at_its_gaps_and_a_lone_point_is_seen() -> None:
    points = (
        (at(0), 1.0),
        (at(1), 2.0),
        (at(2), GAP),
        (at(3), 3.0),
        (at(4), GAP),
        (at(5), 4.0),
        (at(6), 4.0),
    )
    seen = {
        row["x"]: (row["y"], row["part"], row.get("dot", False))
        for row in rows(lines(Series(label="a", points=points)))
        if "y" in row
    }
    assert [seen[1000 * at(second)] for second in (0, 1, 3, 5)] == [
        (1.0, 0, False),
        (2.0, 0, False),
        (3.0, 1, True),
        (4.0, 2, False),
    ]


def test_that_numbers_that_json_does_not_have_are_null() -> None:
    endless = Series(label="a", points=((at(0), 1.0),), ranges=((-math.inf, math.inf),))
    assert [(row["low"], row["high"]) for row in rows(lines(endless)) if "low" in row] == [(None, None)]


def test_that_a_line_of_steps_is_one_and_an_area_is_not_stacked() -> None:
    chart = lines(Series(label="a", points=((at(0), 1.0), (at(9), 2.0)), step=True, filled=True))
    text = specification(chart)
    assert '"interpolate":"step-after"' in text
    assert '"stack":null' in text


def test_that_the_same_label_has_the_same_colour_and_dash() -> None:
    found = json.loads(specification(lines(Series(label="a", points=((at(0), 1.0),), style=3))))
    encodings = [layer["encoding"] for layer in found["layer"] if "color" in layer.get("encoding", {})]
    assert {one["color"]["scale"]["range"][0] for one in encodings} == {"var(--s3)"}
    assert any(
        one.get("strokeDash", {}).get("scale", {}).get("range") == [[12, 3, 3, 3]] for one in encodings
    )


def test_that_a_chart_shows_all_of_its_axis_and_its_marks() -> None:
    found = rows(lines(Series(label="a", points=((at(5), 1.0),)), marks=(Mark(x=at(7), text="a move"),)))
    assert [row["end"] for row in found if "end" in row] == [1000 * at(0), 1000 * at(3600)]
    assert next(row["x"] for row in found if row.get("text") == "a move") == 1000 * at(7)


def bars() -> StackedBars:
    return StackedBars(
        title="Bars",
        text="Some bars.",
        x=time_axis([NOON, datetime(2026, 3, 1, 13, tzinfo=timezone.utc)]),
        y=linear_axis("GPU hours", [3]),
        labels=(HOSTILE, "vision"),
        stacks=(
            Stack(name="noon", low=at(0), high=at(100), parts=(1.0, 2.0)),
            Stack(name="one", low=at(100), high=at(200), parts=(0.0, 3.0)),
        ),
        value_text="{:.1f} GPU hours".format,
    )


def test_that_bars_have_their_values_and_stay_within_their_intervals() -> None:
    found = [row for row in rows(bars()) if "value" in row]
    assert [(row["name"], row["value"], row["text"]) for row in found] == [
        ("noon", 1.0, "1.0 GPU hours"),
        ("noon", 2.0, "2.0 GPU hours"),
        ("one", 3.0, "3.0 GPU hours"),
    ]
    assert all(1000 * at(0) < row["low"] < row["high"] < 1000 * at(200) for row in found)
    assert found[0]["high"] <= found[2]["low"]


def timeline() -> Timeline:
    return Timeline(
        title="Timeline",
        text="Two jobs.",
        x=time_axis([NOON, datetime(2026, 3, 1, 13, tzinfo=timezone.utc)]),
        bars=(
            Bar(
                name="7 train",
                group=HOSTILE,
                begin=at(0),
                end=at(90),
                gpu_changes=((at(4), 2), (at(30), 0), (at(40), 9)),
            ),
            Bar(name="8 waits", group="vision", begin=at(5), end=at(60), gpu_changes=()),
        ),
    )


def test_that_a_job_has_a_bar_while_it_holds_gpus_and_a_line_while_it_waits() -> None:
    found = rows(timeline())
    held = [
        (row["begin"], row["end"], row["kind"], row["high"] - row["low"]) for row in found if "kind" in row
    ]
    assert [one[:3] for one in held] == [
        (1000 * at(4), 1000 * at(30), "2"),
        (1000 * at(40), 1000 * at(90), "9–16"),
    ]
    assert held[0][3] < held[1][3], "more GPUs are thicker"
    lives = {row["name"]: (row["begin"], row["end"]) for row in found if "most" in row and "kind" not in row}
    assert lives["8 waits"] == (1000 * at(5), 1000 * at(60))
    assert [row["text"] for row in found if row.get("text") == "vision"] == ["vision"]


def moves() -> MoveChart:
    return MoveChart(
        title="Moves",
        text="Two moves.",
        rows=(
            MoveRow(label="one", description="grew", cost_s=(0.5, 6.0, 6.0, 0.0), before=60.0, after=160.0),
            MoveRow(label=HOSTILE, description="shrank", note="rolled back", before=160.0, after=60.0),
        ),
    )


def test_that_a_move_has_its_cost_by_parts_and_its_goodput() -> None:
    found = rows(moves())
    assert [row["s"] for row in found if "s" in row] == [0.5, 6.0, 6.0, 0.0]
    assert [row["total"] for row in found if row.get("note") == "rolled back" and "before" not in row] == [0]
    gains = {row["place"]: (row["before"], row["after"], row["loss"]) for row in found if "before" in row}
    assert gains == {0: (60.0, 160.0, False), 1: (160.0, 60.0, True)}


CHARTS = {
    "lines": lines(Series(label=HOSTILE, points=((at(0), 1.0), (at(9), 2.0)))),
    "bars": bars(),
    "timeline": timeline(),
    "moves": moves(),
}


@pytest.mark.parametrize("chart", CHARTS.values(), ids=CHARTS)
def test_that_every_chart_has_every_form(chart: Any) -> None:
    assert "<" not in specification(chart), "it cannot leave its script element"
    svg = page_svg(specification(chart), "first")
    assert svg.startswith("<svg")
    assert "var(--" in svg
    assert "</script>" not in svg
    assert "<b>" not in svg
    assert "\x1b" not in svg
    assert set(_ids(svg)) == {name for name in _ids(svg) if name.startswith("first-")}
    assert picture(chart, "png").startswith(b"\x89PNG")
    assert picture(chart, "pdf").startswith(b"%PDF")
    drawn = picture(chart, "svg").decode()
    assert "var(--" not in drawn
    assert LIGHT["grid"] in drawn or LIGHT["s2"] in drawn
    assert notebook_chart(chart).to_dict(), "Altair takes it as it is"


@pytest.mark.parametrize("chart", CHARTS.values(), ids=CHARTS)
def test_that_every_text_is_readable_on_a_dark_screen(chart: Any) -> None:
    texts = re.findall(r"<text[^>]*>", page_svg(specification(chart), "first"))
    assert texts
    assert [text for text in texts if 'fill="var(--' not in text and 'style="fill:var(--' not in text] == []


def _ids(svg: str) -> list[str]:
    return re.findall(r' id="([^"]+)"', svg)


def test_that_both_screens_have_every_colour() -> None:
    assert LIGHT.keys() == DARK.keys()


def test_that_the_script_cannot_end_its_element() -> None:
    assert "</script" not in script().lower()


@pytest.mark.parametrize("package", ["altair", "vl_convert"])
def test_that_what_is_missing_is_said_in_one_line(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UsageError, match=r"pip install '\.\[view\]'"):
        specification(bars())
