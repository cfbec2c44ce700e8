"""All that people see of a store, as texts: what commands print, the pages of `web`, `top` in its harness."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser
from unittest import mock

from starlette.testclient import TestClient
from textual.pilot import Pilot
from textual.widgets import DataTable, Static

from pollux_slurm.cli.top.app import TopApp
from pollux_slurm.cli.top.job_screen import JobScreen
from pollux_slurm.config import load_config
from pollux_slurm.web.app import NAVIGATION, make_app
from pollux_slurm.web.guard import LOOPBACK
from pollux_slurm.web.server import opened_source
from tests.cli.inside import pollux
from tests.shown.store import NOW, REGISTRATIONS

_JOBS = tuple(sorted(REGISTRATIONS, key=int))
_SACCT = "tests/shown/accounted.txt"
_SPANS = ("2100-02-01..2100-02-03", "2100-03-01..2100-03-03")
_REPORTS = {
    "job": ("job", "1"),
    "jobs": ("job", "1", "8"),
    "account": ("account", "vision"),
    "cluster": ("cluster", "--since", "3d"),
    "shadow": ("shadow",),
    "before-after": ("before-after", "--before", _SPANS[0], "--after", _SPANS[1], "--sacct", _SACCT),
}
_PAGES = {path or "now": f"/{path}" for path, _ in NAVIGATION} | {
    "job-1": "/jobs/1",
    "job-9": "/jobs/9",
    "account-vision": "/accounts/vision",
    "unknown-job": "/jobs/77",
}
# More digits than people read may differ by the machine, and by the database.
_LONG_NUMBER = re.compile(r"-?[0-9]+\.[0-9]{6,}(?:e[-+]?[0-9]+)?")


def rounded(text: str) -> str:
    """Return a text without blanks at the ends of its lines, its numbers with six digits."""
    short = _LONG_NUMBER.sub(lambda found: f"{float(found.group()):.6g}", text)
    return "".join(f"{line.rstrip()}\n" for line in short.splitlines())


def commands(several: tuple[tuple[str, ...], ...], width: int, url: str) -> str:
    """Return what commands print, each below the line that one types."""
    found = []
    for words in several:
        with mock.patch.dict("os.environ", {"COLUMNS": str(width)}):
            done = pollux(*words, "--store", url)
        found += [f"$ pollux {shlex.join(words)}", done.stdout, done.stderr]
    return "\n".join(found)


def page(path: str, url: str) -> str:
    """Return the texts of a page of `web`."""
    with opened_source(url) as source:
        app = make_app(replace(source, clock=lambda: NOW), hosts=LOOPBACK, token=None)
        return page_text(TestClient(app, base_url="http://127.0.0.1").get(path).text)


def report_page(words: tuple[str, ...], url: str) -> str:
    """Return the texts of a report as a page without a script."""
    return page_text(pollux("report", *words, "--html", "--static", "--store", url).stdout)


class _PageText(HTMLParser):
    """Keeps the texts of a page: a line for each block, and for each row of a table."""

    _SKIPPED = ("style", "script", "svg")
    _IN_LINE = ("a", "abbr", "b", "code", "em", "i", "small", "span", "strong")

    def __init__(self) -> None:
        super().__init__()
        self.text, self._skipped = "", 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._skipped += tag in self._SKIPPED
        if tag not in self._IN_LINE:
            self.text += " | " if tag in ("td", "th", "dd", "option") else "\n"

    def handle_endtag(self, tag: str) -> None:
        self._skipped -= tag in self._SKIPPED
        if tag not in (*self._IN_LINE, "td", "th", "dt"):
            self.text += "\n"

    def handle_data(self, data: str) -> None:
        if not self._skipped:
            self.text += re.sub(r"\s+", " ", data)


def page_text(html: str) -> str:
    """Return the texts of an HTML page, without its pictures: charts have tests of their own."""
    parser = _PageText()
    parser.feed(html)
    lines = (" ".join(line.split()).removeprefix("| ") for line in parser.text.splitlines())
    return "\n".join(line for line in lines if line)


def top(size: tuple[int, int], keys: tuple[str, ...], url: str) -> str:
    """Return what `pollux top` shows on a terminal of a size, after some keys."""
    config = load_config({})
    config = dataclasses.replace(config, store=dataclasses.replace(config.store, url=url))
    app = TopApp(config, every_s=3600, clock=lambda: NOW)

    async def look() -> str:
        async with app.run_test(size=size) as pilot:
            await _until(pilot, lambda: app.picture is not None)
            await pilot.press(*keys)
            if isinstance(app.screen, JobScreen):
                await _until(pilot, lambda: "GPUs over time" in "".join(_screen(app)))
            await pilot.pause()
            return "\n".join(_screen(app))

    return asyncio.run(look())


async def _until(pilot: Pilot[None], holds: Callable[[], bool]) -> None:
    for _ in range(3000):
        if holds():
            return
        await pilot.pause(0.02)
    raise AssertionError("nothing was shown within a minute")


def _screen(app: TopApp) -> Iterator[str]:
    for shown in app.screen.query("Static, DataTable"):
        if isinstance(shown, DataTable):
            columns = shown.ordered_columns
            rows = [[str(column.label) for column in columns]]
            rows += [[str(cell) for cell in shown.get_row_at(row)] for row in range(shown.row_count)]
            for row in rows:
                yield "  ".join(f"{cell:<{column.width}}" for cell, column in zip(row, columns, strict=True))
        elif isinstance(shown, Static) and shown.display:
            yield str(shown.render())


def _printed(*several: tuple[str, ...], width: int = 200) -> Callable[[str], str]:
    return partial(commands, several, width)


def _every(job_ids: Iterable[str], *more: str) -> tuple[tuple[str, ...], ...]:
    return tuple(("explain", job, *more) for job in job_ids)


SURFACES: dict[str, Callable[[str], str]] = {
    **{
        f"status/{width}.txt": _printed(("status", "--all"), ("status", "1"), ("status", "2"), width=width)
        for width in (80, 120, 200)
    },
    "status/json.txt": _printed(("status", "--all", "--json")),
    "explain/plain.txt": _printed(*_every(_JOBS)),
    "explain/details.txt": _printed(*_every("145", "--details")),
    "explain/json.txt": _printed(*_every("134569", "--json")),
    "explain/round.txt": _printed(*_every("14", "--round", "1"), *_every("14", "--round", "1", "--json")),
    **{
        f"report/{name}.txt": _printed(("report", *words), ("report", *words, "--csv"), width=120)
        for name, words in _REPORTS.items()
    },
    **{f"report/{name}.json": _printed(("report", *words, "--json")) for name, words in _REPORTS.items()},
    **{f"report/{name}.html.txt": partial(report_page, words) for name, words in _REPORTS.items()},
    **{f"web/{name}.txt": partial(page, path) for name, path in _PAGES.items()},
    "top/80.txt": partial(top, (80, 24), ()),
    "top/160.txt": partial(top, (160, 50), ()),
    "top/job.txt": partial(top, (80, 24), ("enter",)),
}
"""What a file of `goldens` has, by its name: a function from the store's URL to a text."""

OF_EACH_DATABASE = tuple(name for name in SURFACES if "json" in name or name.startswith("web/"))
"""What has all facts: the other texts are made from the same, and are compared once."""
