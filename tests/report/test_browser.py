"""Report pages in a real browser: charts that react, for any screen, and for those who do not see them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pollux_slurm.document.charts.time_axes import Range
from pollux_slurm.document.forms.html import document_html
from pollux_slurm.report.group import cluster_document
from pollux_slurm.report.job import job_document
from pollux_slurm.report.reading import read_group, read_job
from pollux_slurm.store.reporting.queries import open_view_reader
from tests.report.browser import opened_browser, opened_page, overhang, require_browser, violations
from tests.report.stories import AFTER, HOSTILE, filled_store
from tests.store.builders import at

NOW = at(7200)
GOODPUT = "Goodput and GPUs over time"


@pytest.fixture(scope="module")
def pages(store_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Return the addresses of pages of a store with the story in it."""
    require_browser()
    folder = tmp_path_factory.mktemp("described")
    day = Range(since=at(0), until=at(120))
    with open_view_reader(filled_store(store_template, folder)) as reports:
        found = {number: job_document(read_job(reports, number), made_at=NOW) for number in ("1", "2")}
        found["cluster"] = cluster_document(read_group(reports, day), day, made_at=NOW, command="c")
    addresses = {}
    for name, document in found.items():
        file = folder / f"{name}.html"
        file.write_text(document_html(document), encoding="utf-8")
        addresses[name] = file.as_uri()
    return addresses


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with opened_browser() as found:
        yield found


def wait_for_charts(page: Any) -> int:
    """Wait until the script has drawn every chart; return their number."""
    page.wait_for_function("document.querySelectorAll('.chart:not(.live)').length === 0")
    return int(page.locator(".chart.live svg").count())


@pytest.mark.parametrize("name", ["1", "cluster"])
def test_that_everybody_can_use_a_page_on_any_screen(
    pages: Mapping[str, str], browser: Any, name: str
) -> None:
    with opened_page(browser, pages[name]) as page:
        assert wait_for_charts(page) >= 3
        assert page.get_by_role("img", name=GOODPUT if name == "1" else "GPU hours by account").count() == 1
        for screen in ("light", "dark"):
            page.emulate_media(color_scheme=screen)
            assert violations(page) == []
        page.set_viewport_size({"width": 390, "height": 900})
        assert overhang(page) <= 0, "plots and tables scroll in their own boxes"


def test_that_a_pointer_gets_the_values_of_a_bar(pages: Mapping[str, str], browser: Any) -> None:
    """Job 2 held one GPU from 12:00:05 to midnight."""
    with opened_page(browser, pages["cluster"]) as page:
        wait_for_charts(page)
        page.locator(".chart.live").first.locator(".mark-rect path").first.hover()
        tooltip = page.locator("#vg-tooltip-element")
        tooltip.wait_for(state="visible")
        assert "12.0 GPU hours" in tooltip.inner_text()
        assert "physics" in tooltip.inner_text()


def test_that_a_click_in_the_legend_shows_an_account_alone(pages: Mapping[str, str], browser: Any) -> None:
    with opened_page(browser, pages["cluster"]) as page:
        wait_for_charts(page)
        chart = page.locator(".chart.live").first
        before = chart.locator(".mark-rect path").count()
        chart.locator(".role-legend-label text", has_text="vision").click()
        page.wait_for_function(
            "most => document.querySelector('.chart.live').querySelectorAll('.mark-rect path').length < most",
            arg=before,
        )
        assert chart.locator(".mark-rect path").count() == 1


def test_that_a_page_is_read_without_a_script(pages: Mapping[str, str], browser: Any) -> None:
    with opened_page(browser, pages["1"], scripts=False) as page:
        assert page.locator(".chart > svg").count() == 3
        assert page.locator(".chart > svg").first.bounding_box()["height"] > 200
        page.get_by_text(f"Values of “{GOODPUT}” as a table").click()
        throughput, efficiency = AFTER[-1]
        assert page.get_by_role("cell", name=f"{throughput * efficiency:.0f}").count() >= 1


def test_that_a_keyboard_reaches_everything_and_sees_where_it_is(
    pages: Mapping[str, str], browser: Any
) -> None:
    with opened_page(browser, pages["1"]) as page:
        wait_for_charts(page)
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.getAttribute('href')") == "#main"
        reached = set()
        for _ in range(40):
            page.keyboard.press("Tab")
            style = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            name = page.evaluate("document.activeElement.tagName.toLowerCase()")
            if name == "body":
                break
            reached.add(name)
            assert style != "none", f"nobody sees the focus on {name}"
        assert reached >= {"a", "summary", "div"}


def test_that_a_hostile_name_does_nothing(pages: Mapping[str, str], browser: Any) -> None:
    with opened_page(browser, pages["2"]) as page:
        wait_for_charts(page)
        assert page.title().startswith("Job 2 =</title><script>")
        assert HOSTILE not in page.title(), "control and override characters are replaced"


def test_that_a_printed_page_has_its_charts(pages: Mapping[str, str], browser: Any) -> None:
    """A sheet with wide margins is 620 pixels wide."""
    with opened_page(browser, pages["1"], width=620) as page:
        wait_for_charts(page)
        page.emulate_media(media="print")
        assert overhang(page) <= 0
        assert not page.locator("nav").is_visible()
        assert page.pdf().startswith(b"%PDF")
