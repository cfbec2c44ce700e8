"""The application: an address in, a rendered page out. Each request reads the store once, in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any
from urllib.parse import quote, urlencode

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from pollux_slurm import __version__
from pollux_slurm.document.charts.palette import DARK, LIGHT
from pollux_slurm.document.charts.rendering import script
from pollux_slurm.document.columns import Kind, text_of
from pollux_slurm.document.document import Document
from pollux_slurm.document.forms.html import page_environment, page_pieces
from pollux_slurm.errors import PolluxError, StoreError, StoreUnavailable, UnknownJobError, UsageError
from pollux_slurm.now.cluster import ClusterNow, read_cluster
from pollux_slurm.now.decision_text import told_of
from pollux_slurm.report.job import Told
from pollux_slurm.resources import resource_dir
from pollux_slurm.store.contract.interface import Store
from pollux_slurm.store.reporting.queries import ViewReader
from pollux_slurm.web import pages
from pollux_slurm.web.connections import Connections
from pollux_slurm.web.guard import Guard
from pollux_slurm.web.now import now_page

NAVIGATION = (
    ("", "Now"),
    ("jobs", "Jobs"),
    ("cluster", "GPUs"),
    ("rounds", "Rounds"),
    ("moves", "Moves"),
    ("fairness", "Fairness"),
    ("accounts", "Accounts"),
)
RANGES = ("1d", "7d", "30d", "365d")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The store as a reader's login sees it. `store` has what is now, None for one that reads views only."""

    reader: ViewReader
    store: Store | None
    why_no_store: str
    clock: Callable[[], datetime]

    def site(self) -> pages.Site:
        return pages.Site(reader=self.reader, now=self.clock())

    def picture(self) -> ClusterNow | None:
        """Return what is now, by the store alone: a page that reloads itself costs slurmctld nothing."""
        return None if self.store is None else read_cluster(self.store, now=self.clock())

    def told(self, number: str) -> Told:
        """Return what the tables tell of a job; nothing for a login that reads views only."""
        return Told() if self.store is None else told_of(self.store, number)


def make_app(
    source: Source, *, hosts: frozenset[str] | None, token: str | None, connections: Connections | None = None
) -> Guard:
    """Return the application behind its guard; `connections` are those of its server, if it has one."""
    pictures = asyncio.Semaphore(1)

    def of_span(page: pages.SpanPage) -> Callable[[Request], Response]:
        return lambda request: _page(request, page.document(source.site(), request.query_params))

    def now(request: Request) -> Response:
        picture = source.picture()
        return _render(
            request,
            "web/now.html.j2",
            title="Now",
            now=None if picture is None else now_page(picture),
            why=source.why_no_store,
        )

    def job_list(request: Request) -> Response:
        found = pages.jobs(source.site(), request.query_params)
        return _page(request, found.document, template="web/jobs.html.j2", jobs=found, sorts=pages.SORTS)

    def job(request: Request) -> Response:
        found = pages.job(source.site(), request.query_params, request.path_params["number"], source.told)
        return _page(request, found, ranges=())

    def account(request: Request) -> Response:
        return _page(request, pages.account(source.site(), request.query_params, request.path_params["name"]))

    routes = [
        Route("/", _guarded(now, pictures)),
        Route("/jobs", _guarded(job_list, pictures)),
        Route("/jobs/{number}", _guarded(job, pictures)),
        Route("/accounts/{name:path}", _guarded(account, pictures, ranges=RANGES)),
        *(Route(f"/{path}", _guarded(of_span(page), pictures)) for path, page in pages.SPAN_PAGES.items()),
        Route("/static/{name}", _static),
    ]
    pages_app = Starlette(routes=routes, exception_handlers={404: _not_found})
    pages_app.state.clock = source.clock
    return Guard(
        app=pages_app,
        hosts=hosts,
        token=token,
        connections=connections or Connections(),
    )


def _guarded(
    endpoint: Callable[[Request], Response], pictures: asyncio.Semaphore, *, ranges: tuple[str, ...] = ()
) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint that answers errors with a page of one line, and `ranges` to choose from.

    One page with `pictures` is made at a time; the others wait without a thread.
    """

    async def in_thread(request: Request) -> Response:
        if "static" not in request.query_params:
            return await run_in_threadpool(answer, request)
        async with pictures:
            return await run_in_threadpool(answer, request)

    def answer(request: Request) -> Response:
        try:
            return endpoint(request)
        except PolluxError as error:
            kinds = ((UsageError, 400), (UnknownJobError, 404), (StoreUnavailable, 503), (StoreError, 404))
            status = next((code for kind, code in kinds if isinstance(error, kind)), 500)
            return _error(request, str(error), status, ranges=ranges)

    return in_thread


def _not_found(request: Request, error: Exception) -> Response:
    return _error(request, "there is no such page", 404)


def _error(request: Request, message: str, status: int, *, ranges: tuple[str, ...] = ()) -> Response:
    return _render(
        request, "web/error.html.j2", status=status, title="Not shown", message=message, ranges=ranges
    )


def _page(
    request: Request,
    document: Document,
    *,
    template: str = "web/report.html.j2",
    ranges: tuple[str, ...] = RANGES,
    **more: Any,
) -> Response:
    """Return a document's page; with `static=1` its charts are pictures, for readers without scripts."""
    is_static = "static" in request.query_params
    pieces = page_pieces(document, with_picture=is_static, with_specification=not is_static)
    return _render(request, template, title=document.title, ranges=ranges, **pieces, **more)


def _render(request: Request, template: str, *, status: int = 200, title: str, **more: Any) -> Response:
    # Relative addresses only: a proxy may have put a prefix before the path, and we do not know it.
    up = "../" * (request.scope["path"].removeprefix(request.scope.get("root_path", "")).count("/") - 1)

    kept = {key: request.query_params[key] for key in ("since", "until") if request.query_params.get(key)}
    kept_range = f"?{urlencode(kept)}" if kept else ""

    def link(key: str, name: str) -> str:
        if key == "slurm_job_id":
            return f"{up}jobs/{quote(name, safe='')}{kept_range}"
        return f"{up}accounts/{quote(name)}{kept_range}" if key == "account" and name else ""

    def with_words(**changes: str) -> str:
        found = {key: text for key, text in {**request.query_params, **changes}.items() if text}
        return f"?{urlencode(found)}"

    text = (
        _environment()
        .get_template(template)
        .render(
            title=title,
            up=up,
            home=up or "./",
            here=request.scope["path"]
            .removeprefix(request.scope.get("root_path", ""))
            .strip("/")
            .partition("/")[0],
            navigation=NAVIGATION,
            kept_range=kept_range,
            words=request.query_params,
            with_words=with_words,
            link=link,
            version=__version__,
            read_at=text_of(request.app.state.clock(), Kind.MOMENT) + " UTC",
            **more,
        )
    )
    return HTMLResponse(text, status_code=status)


@cache
def _environment() -> Any:
    return page_environment()


def _static(request: Request) -> Response:
    """Return a file of the pages; it may be kept, since its address has the release."""
    name = request.path_params["name"]
    if name == "charts.js":
        body, kind = script(), "text/javascript"
    elif name == "web.js":
        body, kind = (
            (resource_dir("templates") / "web" / "web.js").read_text(encoding="utf-8"),
            "text/javascript",
        )
    elif name == "style.css":
        body, kind = (
            _environment().get_template("web/style.css.j2").render(light=LIGHT, dark=DARK),
            "text/css",
        )
    else:
        return _error(request, "there is no such file", 404)
    return Response(body, media_type=kind, headers={"cache-control": "max-age=86400"})
