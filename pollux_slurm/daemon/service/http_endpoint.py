"""A small HTTP server for `/metrics` and `/health`, on the loopback interface by default."""

from __future__ import annotations

import ipaddress
import json
import logging
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import generate_latest

from pollux_slurm.daemon.service.metrics import DaemonMetrics
from pollux_slurm.errors import ConfigError
from pollux_slurm.system.unproved_connections import QUEUE, UnprovedConnections, has_ended

_log = logging.getLogger(__name__)

OFF = "off"
_TEXT_FORMAT = "text/plain; version=0.0.4; charset=utf-8"
# What `http.client` reads of one client, a hundred lines of 64 kB, takes 30 MB of the daemon's memory.
_MOST_HEADER_BYTES = 16_384


def parse_address(text: str) -> tuple[str, int] | None:
    """Return (host, port) of `host:port`, None for "off"; raises `ConfigError` for anything else."""
    if text == OFF:
        return None
    host, colon, port = text.rpartition(":")
    if not colon or not host or re.fullmatch("[0-9]{1,5}", port) is None or int(port) > 65535:
        raise ConfigError(f"daemon.metrics_listen: expected host:port or {OFF}, not {text!r}")
    return host.strip("[]"), int(port)


@contextmanager
def serve_metrics(metrics: DaemonMetrics, *, listen: str) -> Iterator[int | None]:
    """Serve until the block ends; yields the port, None where nothing is served.

    If the address is in use, a warning is logged and the daemon runs without the endpoint.
    """
    where = parse_address(listen)
    server = None
    if where is not None:
        try:
            server = _Server(where, _wsgi_application(metrics, _own_names(where[0])), metrics.monotonic)
        except OSError as error:
            _log.warning("no metrics: %s:%d: %s", *where, error.strerror or error)
    if server is None:
        yield None
        return
    thread = threading.Thread(target=server.serve_forever, name="endpoint", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _wsgi_application(metrics: DaemonMetrics, names: frozenset[str]) -> Callable[..., Iterable[bytes]]:
    """Return the WSGI application for `/metrics` and `/health`; `names` are those that it is called by."""

    def answer(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
        headers, kind = [], "text/plain"
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            status, body = "405 Method Not Allowed", b"there are GET and HEAD\n"
            headers.append(("Allow", "GET, HEAD"))
        elif not _is_called_by(environ, names):
            status, body = "403 Forbidden", b"unknown host name: call by the IP address\n"
        elif environ["PATH_INFO"] == "/metrics":
            # Not by `make_wsgi_app`, which fails on some headers and logs that (prometheus_client 0.26).
            status, kind, body = "200 OK", _TEXT_FORMAT, generate_latest(metrics.registry)
        elif environ["PATH_INFO"] == "/health":
            healthy, facts = metrics.health()
            status, kind = "200 OK" if healthy else "503 Service Unavailable", "application/json"
            body = json.dumps(facts).encode() + b"\n"
        else:
            status, body = "404 Not Found", b"there are /metrics and /health\n"
        start_response(status, [*headers, ("Content-Type", kind), ("Content-Length", str(len(body)))])
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]

    return answer


def _own_names(host: str) -> frozenset[str]:
    """Return the names of this machine, long and short, and of the address `host` that is listened on."""
    names = {"localhost", host, socket.getfqdn(host), socket.gethostname(), socket.getfqdn()}
    return frozenset(part.lower() for name in names for part in (name, name.partition(".")[0]))


def _is_called_by(environ: dict[str, Any], names: frozenset[str]) -> bool:
    """Whether a request's Host is an address or one of `names`: a browser sends that of the page it shows.

    A page of another site that makes its own name point here (DNS rebinding) is refused by its name. Without
    a Host are requests of HTTP/1.0, which no browser sends.
    """
    host = environ.get("HTTP_HOST", "localhost" if environ["SERVER_PROTOCOL"] == "HTTP/1.0" else "")
    name = re.sub(":[0-9]*$", "", host).strip("[]").lower()
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name in names
    return True


class _Beginning:
    """The first bytes of a stream, as if it ended there."""

    def __init__(self, stream: Any, most_bytes: int) -> None:
        self._stream, self._left = stream, most_bytes
        self.close = stream.close

    def readline(self, most_bytes: int) -> bytes:
        """Return the next line, or what there is of it."""
        line: bytes = self._stream.readline(min(most_bytes, self._left))
        self._left -= len(line)
        return line


class _Handler(WSGIRequestHandler):
    def setup(self) -> None:
        """Read the beginning of a header only: no line of it changes an answer."""
        super().setup()
        self.rfile = _Beginning(self.rfile, _MOST_HEADER_BYTES)  # type: ignore[assignment]

    def log_message(self, format: str, *args: object) -> None:
        _log.debug("endpoint: " + format, *args)


class _Server(ThreadingMixIn, WSGIServer):
    """Nobody proves anything here, and a request takes milliseconds: so all connections are counted.

    Slow clients neither use up the file descriptors that Slurm's commands need nor keep others out.
    """

    daemon_threads = True
    request_queue_size = QUEUE

    def __init__(
        self, where: tuple[str, int], application: Callable[..., Iterable[bytes]], clock: Callable[[], float]
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in where[0] else socket.AF_INET
        self._connections = UnprovedConnections(_end, monotonic=clock)
        super().__init__(where, _Handler)
        self.set_app(application)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread."""
        if has_ended(request):
            self.shutdown_request(request)
            return
        self._connections.add(request, client_address[0])
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Forget a connection when its thread is done."""
        self._connections.remove(request)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Called each half second."""
        self._connections.close_late()

    def handle_error(self, request: object, client_address: object) -> None:
        """Log no traceback for a client that disconnected before its answer."""
        error = sys.exc_info()[1]
        if isinstance(error, OSError):
            _log.debug("endpoint: %s: %s", client_address, error)
        else:
            _log.exception("endpoint: %s", client_address)


def _end(request: socket.socket) -> None:
    # The thread that waits for it reads the end of the stream and closes it.
    with suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)
