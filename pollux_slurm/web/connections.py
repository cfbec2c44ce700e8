"""The server's connections: what waits for a request's header is unproved, what is being answered is not.

An answer is handed over as a whole. A reader who does not fetch it waits as well, and for as long as nobody
needs the place.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from pollux_slurm.system.unproved_connections import MOST, MOST_OF_ADDRESS, QUEUE, UnprovedConnections

# A connection whose request is here when it is accepted is read before so many others are made. That takes
# the loop three turns, in each of which it accepts so many.
_ACCEPTED_AT_ONCE = MOST_OF_ADDRESS // 4
# Here uvicorn refuses whoever comes: it has to stand far above what may wait.
_MOST_IN_ALL = 2 * MOST
_END_S = 2

Client = tuple[str, int]


class Connections:
    """Those of one server, in its event loop."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._open: dict[Client, asyncio.Transport] = {}
        self._unproved = UnprovedConnections[asyncio.Transport](
            lambda transport: transport.abort(), monotonic=monotonic
        )

    def made(self, transport: asyncio.Transport) -> None:
        """Take note of one that was accepted."""
        client = _client_of(transport)
        self._open[client] = transport
        self._unproved.add(transport, client[0])

    def lost(self, transport: asyncio.Transport) -> None:
        """Forget one that is closed."""
        self._open.pop(_client_of(transport), None)
        self._unproved.remove(transport)

    @contextmanager
    def answering(self, client: Any) -> Iterator[None]:
        """Do not close the connection of `client`, of a request's scope, meanwhile."""
        transport = self._open.get(client)
        if transport is not None:
            self._unproved.remove(transport)
        try:
            yield
        finally:
            if transport is not None and self._open.get(client) is transport:
                self._unproved.add(transport, client[0])

    async def close_late(self) -> None:
        """Close those that have sent no header for too long, unless they still fetch an answer."""
        self._unproved.close_late(keeps=lambda transport: transport.get_write_buffer_size() > 0)

    def abort(self) -> None:
        """Close all."""
        for transport in list(self._open.values()):
            transport.abort()


def make_server(app: Any, connections: Connections, *, root_path: str = "") -> uvicorn.Server:
    """Return a server that closes connections by the rule. What strangers send is not logged."""

    class Protocol(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            connections.made(transport)

        def connection_lost(self, exc: Exception | None) -> None:
            connections.lost(self.transport)
            super().connection_lost(exc)

    return _Server(
        uvicorn.Config(
            app,
            http=Protocol,
            loop="asyncio",
            ws="none",
            root_path=root_path,
            # Else a header could change the client by which a request's connection is found.
            proxy_headers=False,
            server_header=False,
            access_log=False,
            log_level="error",
            backlog=_ACCEPTED_AT_ONCE,
            limit_concurrency=_MOST_IN_ALL,
            callback_notify=connections.close_late,
            timeout_notify=1,
            # Who does not fetch an answer would keep the server from ending.
            timeout_graceful_shutdown=_END_S,
        ),
        connections,
    )


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, connections: Connections) -> None:
        super().__init__(config)
        self._connections = connections

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        # `backlog` is both how many are accepted at once, and how many may wait for it.
        for listener in sockets or ():
            listener.listen(QUEUE)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        self._connections.abort()


def _client_of(transport: asyncio.Transport) -> Client:
    host, port, *_ = transport.get_extra_info("peername")
    return str(host), int(port)
