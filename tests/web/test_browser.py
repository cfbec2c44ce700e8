"""The pages in a real browser: either screen, a phone, a keyboard, and a page that updates itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from pollux_slurm.store import open_store
from pollux_slurm.web.app import NAVIGATION, make_app
from pollux_slurm.web.connections import Connections
from pollux_slurm.web.guard import LOOPBACK
from pollux_slurm.web.server import listening, opened_source
from tests.report.browser import opened_browser, opened_page, overhang, require_browser, violations
from tests.report.stories import filled_store
from tests.store.builders import at, observation
from tests.web.serving import served

PATHS = [*(path for path, _ in NAVIGATION), "jobs/1", "accounts/vision"]
# What is now, and a page with every kind of part: the others are made of the same parts.
FIRST = {"", "jobs/1"}


@pytest.fixture(scope="module")
def story_store(store_template: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    return filled_store(store_template, tmp_path_factory.mktemp("browser"))


@pytest.fixture(scope="module")
def address(story_store: str) -> Iterator[str]:
    """Serve the pages on a port of their own; return their address."""
    require_browser()
    with opened_source(story_store) as source, listening("127.0.0.1", 0) as listener:
        connections = Connections()
        later = replace(source, clock=lambda: at(120))
        app = make_app(later, hosts=LOOPBACK, token=None, connections=connections)
        with served(app, connections, listener) as port:
            yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with opened_browser() as found:
        yield found


def wait_for_charts(page: Any) -> None:
    page.wait_for_function("document.querySelectorAll('.chart:not(.live)').length === 0")


@pytest.mark.parametrize(
    "path", [pytest.param(path, marks=[] if path in FIRST else [pytest.mark.full]) for path in PATHS]
)
def test_that_everybody_can_use_every_page(address: str, browser: Any, path: str) -> None:
    with opened_page(browser, f"{address}/{path}") as page:
        wait_for_charts(page)
        assert violations(page) == []
        # One style sheet colours them all: the page with every kind of part stands for them on a dark screen.
        if path == "jobs/1":
            page.emulate_media(color_scheme="dark")
            assert violations(page) == []
        page.set_viewport_size({"width": 390, "height": 900})
        assert overhang(page) <= 0, "plots and tables scroll in their own boxes"


def test_that_a_keyboard_gets_from_now_to_a_job(address: str, browser: Any) -> None:
    with opened_page(browser, f"{address}/") as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "To the page"
        for _ in range(40):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.getAttribute('href')") == "jobs/2":
                break
        page.keyboard.press("Enter")
        page.wait_for_url(f"{address}/jobs/2")
        assert page.locator("h1").inner_text().startswith("Job 2")


def test_that_a_page_updates_itself_and_keeps_what_is_open(
    address: str, browser: Any, story_store: str
) -> None:
    with opened_page(browser, f"{address}/jobs/1") as page:
        wait_for_charts(page)
        page.locator("summary").first.click()
        before = page.locator(".chart.live svg").first.element_handle()
        page.evaluate("document.querySelector('main').dataset.seen = 'yes'")
        page.evaluate("document.querySelector('h1').textContent = 'old'")
        page.evaluate("window.updatePage()")
        assert page.locator("h1").inner_text() == "old", "what has not changed is left alone"
        assert before.evaluate("one => one.isConnected")
    with opened_page(browser, f"{address}/") as page:
        assert page.locator("a.block", has_text="2").count() == 1
        store = open_store(story_store)
        store.jobs.observe([observation(2, gpus={"n3": 1, "n4": 2}, started_at=at(5))], at=at(119))
        store.close()
        page.evaluate("window.updatePage()")
        page.locator("a.block", has_text="2 ×2").wait_for()
