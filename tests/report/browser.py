"""A real Chromium that shows a page, as a person with a pointer, a keyboard or a screen reader meets it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

LIMIT_MS = 120_000.0
"""The longest wait for anything in the browser."""


def require_browser() -> str:
    """Return Chromium's path; skip the test where there is none."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium to run this test")
    return browser


@contextmanager
def opened_browser() -> Iterator[Any]:
    """Run Chromium; yield Playwright's browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=require_browser(), args=["--no-sandbox", "--disable-gpu"]
        )
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened_page(browser: Any, address: str, *, width: int = 1200, scripts: bool = True) -> Iterator[Any]:
    """Open an address on a screen of its own. No request may go elsewhere, no script may complain."""
    context = browser.new_context(viewport={"width": width, "height": 900}, java_script_enabled=scripts)
    context.set_default_timeout(LIMIT_MS)
    page = context.new_page()
    origin = re.match(r"\w+://[^/]*", address)
    assert origin is not None
    elsewhere: list[str] = []
    complaints: list[str] = []
    page.on(
        "request",
        lambda request: (
            None if request.url.startswith((origin[0], "data:")) else elsewhere.append(request.url)
        ),
    )
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "console",
        lambda message: complaints.append(message.text) if message.type in ("error", "warning") else None,
    )
    try:
        page.goto(address)
        yield page
        assert elsewhere == []
        assert complaints == []
    finally:
        context.close()


def overhang(page: Any) -> int:
    """Return by how many pixels a page is wider than its window."""
    return int(page.evaluate("document.documentElement.scrollWidth - window.innerWidth"))


def violations(page: Any) -> list[str]:
    """Return what axe finds that keeps people out (WCAG 2.1, A and AA)."""
    from axe_playwright_python.sync_playwright import Axe

    options = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}
    found = Axe().run(page, options=options).response["violations"]
    return [f"{one['id']}: {node['html'][:160]}" for one in found for node in one["nodes"]]
