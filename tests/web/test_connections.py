"""Strangers at the port of the pages: who is closed, and who is not."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from starlette.responses import PlainTextResponse

from pollux_slurm.system.unproved_connections import MOST_OF_ADDRESS, WITHIN_S
from pollux_slurm.web import app as web_app
from pollux_slurm.web.app import Source, make_app
from pollux_slurm.web.connections import Connections
from pollux_slurm.web.guard import Guard
from pollux_slurm.web.server import listening
from tests.waiting import wait_until
from tests.web.serving import DEADLINE_S, asked, is_ended, served

REQUEST = b"GET /jobs HTTP/1.1\r\nHost: localhost\r\n\r\n"
LARGE = b"x" * 20_000_000


class Served:
    """A port with a clock. `/slow` is answered once it is `released`, `/large` with much."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.is_reached, self.released = threading.Event(), threading.Event()
        self.connections = Connections(monotonic=lambda: self.now_s)
        self.app = Guard(app=self.answer, hosts=None, token=None, connections=self.connections)
        self.port = 0

    async def answer(self, scope: Any, receive: Callable[..., Any], send: Callable[..., Any]) -> None:
        if scope["type"] != "http":
            raise NotImplementedError("no lifespan")
        if scope["path"] == "/slow":
            self.is_reached.set()
            while not self.released.is_set():
                await asyncio.sleep(0.01)
        body = LARGE if scope["path"] == "/large" else b"pages"
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    @contextmanager
    def opened(self, number: int = 1, sends: bytes = b"") -> Iterator[list[socket.socket]]:
        with ExitStack() as stack:
            found = [
                stack.enter_context(socket.create_connection(("127.0.0.1", self.port), timeout=DEADLINE_S))
                for _ in range(number)
            ]
            for one in found:
                one.sendall(sends)
            yield found


@pytest.fixture
def site() -> Iterator[Served]:
    made = Served()
    with listening("127.0.0.1", 0) as listener, served(made.app, made.connections, listener) as made.port:
        yield made


def answer_of(connection: socket.socket) -> bytes:
    content = b""
    while not content.endswith(b"0\r\n\r\n"):
        received = connection.recv(65536)
        assert received, f"closed after {content[:80]!r}"
        content += received
    return content


def test_that_a_header_must_be_complete_within_ten_seconds(site: Served) -> None:
    """So must that of a later request; one byte now and then is no reason to wait longer."""
    with site.opened(2) as (slow, once):
        once.sendall(REQUEST)
        answer_of(once)
        for one in (slow, once):
            one.sendall(b"GET / HTTP/1.1\r\nHo")
        assert asked(site.port, "/")[0] == 200
        site.now_s += WITHIN_S + 1
        assert is_ended(slow)
        assert is_ended(once)


def test_that_a_reader_who_is_being_answered_is_not_closed(site: Served) -> None:
    with site.opened(sends=b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n") as (reader,):
        assert site.is_reached.wait(DEADLINE_S)
        with site.opened(2 * MOST_OF_ADDRESS) as idle:
            assert all(is_ended(one) for one in idle[:MOST_OF_ADDRESS])
            site.now_s += WITHIN_S + 1
            assert all(is_ended(one) for one in idle)
        site.released.set()
        assert answer_of(reader).startswith(b"HTTP/1.1 200")


def test_that_a_slow_reader_keeps_an_answer_until_others_need_the_place(site: Served) -> None:
    with site.opened(2, sends=b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n") as (slow, slower):
        for one in (slow, slower):
            assert one.recv(15) == b"HTTP/1.1 200 OK"
        with site.opened() as (idle,):
            assert asked(site.port, "/")[0] == 200
            site.now_s += WITHIN_S + 1
            assert is_ended(idle)
        assert len(answer_of(slow)) > len(LARGE)
        with site.opened(MOST_OF_ADDRESS + 1):
            assert is_ended(slower)


def test_that_a_reader_who_fetches_no_answer_does_not_keep_the_server_from_ending() -> None:
    site = Served()
    with (
        listening("127.0.0.1", 0) as listener,
        ExitStack() as opened,
        served(site.app, site.connections, listener) as site.port,
    ):
        (slow,) = opened.enter_context(site.opened(sends=b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n"))
        assert slow.recv(15) == b"HTTP/1.1 200 OK"


def test_that_a_reader_whose_request_is_there_is_answered_however_many_come_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = Served()
    with listening("127.0.0.1", 0) as listener:
        site.port = listener.getsockname()[1]
        with (
            site.opened(sends=REQUEST) as (reader,),
            site.opened(300),
            served(site.app, site.connections, listener),
        ):
            assert answer_of(reader).endswith(b"pages\r\n0\r\n\r\n")


def test_that_what_strangers_send_is_not_logged(capfd: pytest.CaptureFixture[str], site: Served) -> None:
    upgrade = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
    for junk in (b"\x00\xff\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", upgrade):
        with site.opened(sends=junk) as (one,):
            one.shutdown(socket.SHUT_WR)
            assert is_ended(one)
    assert capfd.readouterr().err == ""


def test_that_one_page_with_pictures_is_made_at_a_time_and_others_meanwhile(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, released = list[str](), threading.Event()
    make_page = web_app._page

    def page(request: Any, *positional: Any, **more: Any) -> Any:
        if "static" in request.query_params:
            begun.append(request.url.path)
            released.wait(DEADLINE_S)
            return PlainTextResponse("drawn")
        return make_page(request, *positional, **more)

    monkeypatch.setattr(web_app, "_page", page)
    app = make_app(source, hosts=None, token=None, connections=(connections := Connections()))
    with (
        listening("127.0.0.1", 0) as listener,
        served(app, connections, listener) as port,
        ExitStack() as all_,
    ):
        # More than there are threads.
        for _ in range(50):
            one = all_.enter_context(socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S))
            one.sendall(b"GET /moves?static=1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wait_until(lambda: begun, timeout_s=DEADLINE_S, what="the first page", every_s=0.02)
        assert asked(port, "/jobs")[0] == 200
        assert len(begun) == 1
        released.set()
