"""A page that needs nothing but itself, and that a real browser shows."""

from __future__ import annotations

import re
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256

from pollux_slurm.document.charts.line_charts import LineChart, Panel, Series
from pollux_slurm.document.charts.scales import linear_axis
from pollux_slurm.document.columns import Column, Data, Kind
from pollux_slurm.document.document import Document, Fact, Part, Plot
from pollux_slurm.document.forms.html import document_html
from tests.report.parsed import parse

HOSTILE = "</svg><script>document.title='taken'</script>"


def chart(title: str) -> LineChart:
    return LineChart(
        title=title,
        text="A line.",
        x=linear_axis("x", [0, 1]),
        panels=(Panel(y=linear_axis("y", [0, 1]), series=(Series(label=HOSTILE, points=((0, 0), (1, 1))),)),),
    )


def page() -> Document:
    columns = (Column(key="name", title="name", kind=Kind.TEXT), Column(key="value", title="value"))
    table = Data(key="numbers", title="", columns=columns, rows=((HOSTILE, 1),), note="A note.")
    return Document(
        kind="made",
        title=f"Page {HOSTILE}",
        lead="What it is about.",
        facts=(Fact(key="rules", title="Rules", value="osdi21"),),
        parts=(
            Part(title="Numbers", tables=(table,)),
            Part(
                title="Plots",
                plots=(Plot(chart=chart("One"), caption="c"), Plot(chart=chart("Two"), caption="c")),
            ),
        ),
    )


def assert_self_contained(text: str) -> None:
    """Nothing to load, no address but those of namespaces and the page's own parts, no script but its own."""
    parsed = parse(text.replace("<!DOCTYPE html>", ""))
    for name in ("link", "img", "iframe", "object", "embed", "base", "form"):
        assert parsed.all(name) == [], name
    own = [one for one in parsed.all("script") if one.attributes.get("type") != "application/json"]
    (policy,) = [one.attributes["content"] for one in parsed.all("meta") if "http-equiv" in one.attributes]
    digests = [b64encode(sha256(one.text.encode()).digest()).decode() for one in own]
    assert policy.endswith(" ".join(f"script-src 'sha256-{one}'" for one in digests) or "script-src 'none'")
    assert policy.startswith("default-src 'none'")
    for element in parsed.all("a"):
        assert element.attributes["href"].startswith("#")


def test_that_a_page_runs_its_own_script_and_a_static_one_none() -> None:
    for static in (False, True):
        text = document_html(page(), static=static)
        assert_self_contained(text)
        assert ("<script" in text) is not static
        assert text.count('class="marks"') >= 2, "readable where no script runs"
        assert text.count(HOSTILE.replace("<", "&lt;").replace(">", "&gt;").replace("'", "&#39;")) >= 2


def test_that_a_page_without_plots_has_no_script() -> None:
    bare = replace(page(), parts=page().parts[:1])
    assert "<script" not in document_html(bare)


def test_that_tables_and_plots_stand_in_their_parts() -> None:
    parsed = parse(document_html(page()).replace("<!DOCTYPE html>", ""))
    first, second = parsed.all("section")
    assert [cell.text for cell in first.all("td")] == ["1"]
    assert [head.text for head in second.all("h3")] == ["One", "Two"]
    assert [len(figure.all("svg")) for figure in second.all("figure")] == [1, 1]
    links = [link.attributes["href"] for link in parsed.all("a")]
    assert links == ["#main", *(f"#{section.attributes['id']}" for section in (first, second))]


def test_that_ids_are_unique() -> None:
    ids = re.findall(r' id="([^"]+)"', document_html(page(), static=True))
    assert len(ids) == len(set(ids)) > 4
