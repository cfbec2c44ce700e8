"""What a real browser shows of reports: the plotted values, where they belong, in light and dark."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pollux_slurm.report import Figure, LineChart, Page, Panel, Section, Series, linear_axis, render_page
from pollux_slurm.report.charts.time_axes import Range
from pollux_slurm.report.document.html import document_html
from pollux_slurm.report.group import cluster_document
from pollux_slurm.report.job import job_document
from pollux_slurm.report.reading import read_group, read_job
from pollux_slurm.store.reporting.queries import open_view_reader
from tests.report.browser import contrast, only_first_figure, probe, require_browser, rgb, screenshot
from tests.report.stories import AFTER, BEFORE, HOSTILE, filled_store
from tests.store.builders import at

NOW = at(7200)
GOODPUT = "Goodput and GPUs over time"
MOVES = "What each reallocation cost and brought"


@pytest.fixture(scope="module")
def pages(store_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Return pages of a store with the story in it, as HTML text."""
    require_browser()
    url = filled_store(store_template, tmp_path_factory.mktemp("described"))
    day = Range(since=at(0), until=at(120))
    with open_view_reader(url) as reports:
        jobs = {number: job_document(read_job(reports, number), made_at=NOW) for number in ("1", "2")}
        cluster = cluster_document(read_group(reports, day), day, made_at=NOW, command="c")
    return {
        **{f"job {number}": document_html(one) for number, one in jobs.items()},
        "cluster": document_html(cluster),
    }


@pytest.fixture(scope="module", params=["light", "dark"])
def job_page(
    request: pytest.FixtureRequest, pages: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], bool]:
    """Return what Chromium makes of job 1's page on a light and on a dark screen."""
    folder = tmp_path_factory.mktemp("browser")
    dark = request.param == "dark"
    return probe(pages["job 1"], folder, dark=dark), dark


def line_pieces(figure: Mapping[str, Any], shape: Mapping[str, Any]) -> list[list[tuple[float, float]]]:
    """Return the corners of each piece of a path of M, L, H and V in pixels of the screen."""
    x = y = 0.0
    found: list[list[tuple[float, float]]] = []
    for command, numbers in re.findall(r"([MLHV])([-0-9. ]+)", shape["d"]):
        values = [float(number) for number in numbers.split()]
        x = values[0] if command in "MLH" else x
        y = values[-1] if command in "MLV" else y
        if command == "M":
            found.append([])
        found[-1].append((figure["left"] + figure["scale"] * x, figure["top"] + figure["scale"] * y))
    return found


def vertices(figure: Mapping[str, Any], shape: Mapping[str, Any]) -> list[tuple[float, float]]:
    return [corner for piece in line_pieces(figure, shape) for corner in piece]


def shapes(figure: Mapping[str, Any], kind: str, title: str | None = None) -> list[dict[str, Any]]:
    return [
        one for one in figure["shapes"] if one["kind"] == kind and (title is None or one["title"] == title)
    ]


def scale_of(ticks: list[tuple[float, float]]) -> tuple[float, float]:
    """Return offset and factor from pixels to values, from two texts of an axis and their positions."""
    (at_low, low), (at_high, high) = ticks[0], ticks[-1]
    factor = (high - low) / (at_high - at_low)
    return low - at_low * factor, factor


def y_scale(figure: Mapping[str, Any], *, panel: int = 0) -> tuple[float, float]:
    """Return how pixels become values on the y axis of a panel: its ticks ascend upwards."""
    panels: list[list[tuple[float, float]]] = []
    for text in figure["texts"]:
        if text["anchor"] != "end" or not re.fullmatch(r"[\d.,]+", text["text"]):
            continue
        tick = (text["box"][1] + text["box"][3] / 2, float(text["text"].replace(",", "")))
        if not panels or tick[0] > panels[-1][-1][0]:
            panels.append([])
        panels[-1].append(tick)
    return scale_of(panels[panel])


def x_scale(figure: Mapping[str, Any]) -> tuple[float, float]:
    """Return how pixels become seconds after the story's noon, from the times below the plot."""
    ticks = []
    for text in figure["texts"]:
        if text["anchor"] == "middle" and (time := re.fullmatch(r"12:(\d\d):(\d\d)", text["text"])):
            ticks.append((text["box"][0] + text["box"][2] / 2, 60.0 * int(time[1]) + int(time[2])))
    return scale_of(ticks)


def described(
    points: list[tuple[float, float]], x: tuple[float, float], y: tuple[float, float]
) -> list[tuple[float, float]]:
    return [(x[0] + x[1] * px, y[0] + y[1] * py) for px, py in points]


def test_that_the_goodput_line_lies_where_the_axes_say_that_the_values_are(
    job_page: tuple[dict[str, Any], bool],
) -> None:
    """As an eye reads it: from the line's pixels, over the texts of the axes, to values: the store's."""
    figure = job_page[0]["figures"][GOODPUT]
    (line,) = shapes(figure, "line s0", "goodput (throughput × efficiency)")
    read = described(vertices(figure, line), x_scale(figure), y_scale(figure))
    wanted = [(8.0 + 2 * i, a * b) for i, (a, b) in enumerate(BEFORE)]
    wanted += [(40.0 + 2 * i, a * b) for i, (a, b) in enumerate(AFTER)]
    for second, goodput in wanted:
        near = [value for x, value in read if abs(x - second) < 0.5]
        assert near, f"no corner at {second} s"
        assert near[0] == pytest.approx(goodput, abs=2.5)


def test_that_the_gpus_held_are_read_from_the_picture(job_page: tuple[dict[str, Any], bool]) -> None:
    figure = job_page[0]["figures"][GOODPUT]
    (area,) = shapes(figure, "area s2", "GPUs held")
    read = described(vertices(figure, area), x_scale(figure), y_scale(figure, panel=1))
    tops = [(round(x), round(y)) for x, y in read if y > 0.5]
    assert tops[0] == (4, 2)
    assert (29, 4) in tops
    assert (89, 4) in tops


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_that_the_line_is_painted_in_its_colour(pages: Mapping[str, str], tmp_path: Path, dark: bool) -> None:
    """Pixels at each corner, nothing in the gap between the two runs."""
    page = only_first_figure(pages["job 1"])
    probed, picture = probe(page, tmp_path, dark=dark), screenshot(page, tmp_path, dark=dark)
    figure = probed["figures"][GOODPUT]
    (line,) = shapes(figure, "line s0", "goodput (throughput × efficiency)")
    pieces = line_pieces(figure, line)
    for x, y in (corner for piece in pieces for corner in piece):
        assert picture.has_near(x, y, rgb(line["stroke"])), f"nothing of {line['stroke']} at {x}, {y}"
    ends = [(before[-1], after[0]) for before, after in pairwise(pieces)]
    assert ends
    for (ax, ay), (bx, by) in ends:
        assert not picture.has_near((ax + bx) / 2, (ay + by) / 2, rgb(line["stroke"]))
    assert picture.colour(3, 3) == rgb(probed["background"])


def test_that_what_a_move_cost_and_brought_is_read_from_the_picture(
    job_page: tuple[dict[str, Any], bool],
) -> None:
    """12.5 s in all, of which half a second for the checkpoint."""
    figure = job_page[0]["figures"][MOVES]
    ticks = [
        (text["box"][0] + text["box"][2] / 2, float(text["text"]))
        for text in figure["texts"]
        if text["anchor"] == "middle" and re.fullmatch(r"[\d.]+", text["text"])
    ]
    # Both axes begin at 0: the second 0 begins the axis of goodput.
    second = [index for index, (_, value) in enumerate(ticks) if value == 0][1]
    costs, goodputs = scale_of(ticks[:second]), scale_of(ticks[second:])
    widths = [shapes(figure, f"bar s{style}")[-1]["box"][2] * costs[1] for style in (0, 4, 7)]
    assert widths == pytest.approx([0.5, 6.0, 6.0], abs=0.15)
    before, after = (
        goodputs[0] + goodputs[1] * (one["box"][0] + one["box"][2] / 2)
        for one in (shapes(figure, "hollow s2")[0], shapes(figure, "dot s2")[0])
    )
    row = job_page[0]["stops"][[stop["href"] for stop in job_page[0]["stops"]].index("#move-1")]
    match = re.search(r"goodput ([\d.]+) before, ([\d.]+) after", row["name"])
    assert match is not None
    assert (before, after) == pytest.approx((float(match[1]), float(match[2])), abs=2)


def test_that_values_stand_in_a_table_beside_the_plot(job_page: tuple[dict[str, Any], bool]) -> None:
    rows = job_page[0]["figures"][GOODPUT]["values"]
    shown = {(row[0][-8:], row[6]) for row in rows}
    for index, (throughput, efficiency) in enumerate(AFTER):
        assert (f"12:00:{40 + 2 * index}", f"{throughput * efficiency:.0f}") in shown


def test_that_a_keyboard_reaches_everything_and_sees_where_it_is(
    job_page: tuple[dict[str, Any], bool],
) -> None:
    probed = job_page[0]
    assert probed["focus"]
    assert probed["landmarks"] == [1, 1, 1]
    stops = probed["stops"]
    assert stops[0]["href"] == "#main", "the first stop leads past the links"
    for stop in stops:
        assert stop["focused"], stop
        assert stop["outlined"], f"nobody sees the focus on {stop}"
        assert stop["name"].strip(), f"no name for {stop}"
    assert {stop["role"] for stop in stops} >= {"link", "region"}
    assert len([stop for stop in stops if stop["tag"] == "summary"]) == 1


def test_that_a_screen_reader_gets_a_description(job_page: tuple[dict[str, Any], bool]) -> None:
    figures = job_page[0]["figures"]
    assert figures[GOODPUT]["described"]["role"] in ("image", "img")
    assert figures[MOVES]["described"]["role"] == "group"
    name = figures[GOODPUT]["described"]["name"]
    assert name.startswith(GOODPUT)
    assert "Goodput was 50 to 192 examples per second, on 2 to 4 GPUs, with 1 completed reallocation" in name


def test_that_colours_have_contrast_on_either_screen(job_page: tuple[dict[str, Any], bool]) -> None:
    """Texts 4.5 to 1, lines and bars 3 to 1 (WCAG 2.1 AA)."""
    probed, dark = job_page
    background = probed["background"]
    assert probed["dark"] is dark
    assert sum(rgb(background)) < 150 if dark else sum(rgb(background)) > 700
    assert contrast(probed["color"], background) >= 4.5
    for figure in probed["figures"].values():
        for text in figure["texts"]:
            assert contrast(text["fill"], background) >= 4.5, text
        for shape in figure["shapes"]:
            kind = (shape["kind"] or "").split()
            if kind and kind[0] in ("line", "gain", "area"):
                assert contrast(shape["stroke"], background) >= 3, shape
            if kind and kind[0] in ("bar", "dot"):
                assert contrast(shape["fill"], background) >= 3, shape


@pytest.mark.parametrize("name", ["job 1", "cluster"])
def test_that_nothing_hangs_over_on_paper_or_a_phone(
    pages: Mapping[str, str], tmp_path: Path, name: str
) -> None:
    """A sheet with wide margins is 620 pixels wide. Rules for print are tried as rules for all."""
    printed = probe(pages[name].replace("@media print", "@media all"), tmp_path, width=620)
    assert printed["width"] <= 620
    assert printed["nav"] == [False]
    assert set(printed["details"]) == {False}
    for figure in printed["figures"].values():
        left, _, width, _ = figure["described"]["box"]
        assert left >= 0
        assert left + width <= 620
    narrow = probe(pages[name], tmp_path, width=500)
    assert narrow["width"] <= 500, "plots and tables scroll in their own boxes"


def test_that_the_usage_bars_are_as_high_as_the_hours(pages: Mapping[str, str], tmp_path: Path) -> None:
    """Job 1 held 25 s · 2 and 60 s · 4 GPUs; job 2 one GPU from 12:00:05 to midnight."""
    figure = probe(pages["cluster"], tmp_path)["figures"]["GPU hours by account and day"]
    _, factor = y_scale(figure)
    (bar,) = [one for one in shapes(figure, "bar s0") if (one["title"] or "").startswith("1 Mar 2026")]
    assert bar["title"] == "1 Mar 2026, physics: 12.0 GPU hours"
    assert bar["box"][3] * -factor == pytest.approx(12 - 5 / 3600, abs=0.1)
    (other,) = [one for one in shapes(figure, "bar s1") if (one["title"] or "").startswith("1 Mar 2026")]
    assert other["box"][3] * -factor == pytest.approx((25 * 2 + 60 * 4) / 3600, abs=0.06)


def test_that_a_hostile_name_does_nothing(pages: Mapping[str, str], tmp_path: Path) -> None:
    probed = probe(pages["job 2"], tmp_path)
    assert probed["title"].startswith("Job 2 =</title><script>")
    assert HOSTILE not in probed["title"], "control and override characters are replaced"


@pytest.mark.parametrize("width", [390, 1000])
def test_that_names_at_the_ends_of_lines_are_not_cut_off(tmp_path: Path, width: int) -> None:
    """They are bold, and in the widest of the page's fonts."""
    require_browser()
    names = ("generalized-mean", "generalized-mean, amortised", "price-rank (declared), workload-6, paper")
    chart = LineChart(
        title="Load",
        text="x",
        x=linear_axis("load", [0, 2]),
        panels=(
            Panel(
                y=linear_axis("s", [0, 100]),
                series=tuple(
                    Series(label=name, style=index, points=((0, 0), (2, 90 - 30 * index)))
                    for index, name in enumerate(names)
                ),
            ),
        ),
        end_labels=True,
    )
    page = Page(
        title="t",
        lead="l",
        facts=(),
        sections=(Section(title="s", figures=(Figure(chart=chart, caption="c"),)),),
    )
    figure = probe(render_page(page), tmp_path, width=width)["figures"]["Load"]
    left, _, whole, _ = figure["described"]["box"]
    for text in figure["texts"]:
        if text["text"] in names:
            assert text["box"][0] + text["box"][2] <= left + whole, text["text"]
    assert {text["text"] for text in figure["texts"]} >= set(names)
