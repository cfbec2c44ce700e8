"""A page that needs nothing but itself, and that a real browser shows."""

from __future__ import annotations

import re
from pathlib import Path

from pollux_slurm.report import (
    Figure,
    LineChart,
    Page,
    Panel,
    Section,
    Series,
    Table,
    linear_axis,
    render_page,
)
from tests.report.browser import dom
from tests.report.parsed import parse

HOSTILE = "</svg><script>document.title='taken'</script>"


def chart(title: str) -> LineChart:
    return LineChart(
        title=title,
        text="A line.",
        x=linear_axis("x", [0, 1]),
        panels=(Panel(y=linear_axis("y", [0, 1]), series=(Series(label=HOSTILE, points=((0, 0), (1, 1))),)),),
    )


def page() -> Page:
    table = Table(columns=("name", "value"), rows=((HOSTILE, "1"),), note="A note.")
    return Page(
        title=f"Page {HOSTILE}",
        lead="What it is about.",
        facts=(("Rules", "osdi21"),),
        sections=(
            Section(title="Numbers", tables=(table,)),
            Section(
                title="Plots",
                figures=(Figure(chart=chart("One"), caption="c"), Figure(chart=chart("Two"), caption="c")),
            ),
        ),
    )


def assert_self_contained(text: str) -> None:
    """No script, nothing to load, no address but those of namespaces and the page's own parts."""
    parsed = parse(text.replace("<!DOCTYPE html>", ""))
    for name in ("script", "link", "img", "iframe", "object", "embed", "base", "form"):
        assert parsed.all(name) == [], name
    assert "url(" not in text
    assert "@import" not in text
    assert re.search(r"https?:", text) is None
    for element in parsed.all("a"):
        assert element.attributes["href"].startswith("#")


def test_that_the_page_loads_nothing_and_runs_nothing() -> None:
    text = render_page(page())
    assert_self_contained(text)
    assert "<script" not in text
    assert text.count(HOSTILE.replace("<", "&lt;").replace(">", "&gt;").replace("'", "&#39;")) >= 2


def test_that_tables_and_figures_stand_in_their_sections() -> None:
    parsed = parse(render_page(page()).replace("<!DOCTYPE html>", ""))
    first, second = parsed.all("section")
    assert [cell.text for cell in first.all("td")] == ["1"]
    assert [head.text for head in second.all("h3")] == ["One", "Two"]
    assert [len(figure.all("svg")) for figure in second.all("figure")] == [1, 1]
    links = [link.attributes["href"] for link in parsed.all("a")]
    assert links == ["#main", *(f"#{section.attributes['id']}" for section in (first, second))]


def test_that_ids_are_unique() -> None:
    ids = re.findall(r' id="([^"]+)"', render_page(page()))
    assert len(ids) == len(set(ids)) == 9


def test_that_a_browser_shows_the_page(tmp_path: Path) -> None:
    shown = dom(render_page(page()), tmp_path)
    assert "<title>Page &lt;/svg&gt;" in shown, "no script has run"
    assert shown.count("<svg") == 2
    assert shown.count('class="line s0"') == 4, "two lines and their legends"
