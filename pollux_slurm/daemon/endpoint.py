"""A small HTTP server for `/metrics` and `/health`, on the loopback interface unless told otherwise."""

from __future__ import annotations

import json
import logging
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pollux_slurm.daemon import metrics
from pollux_slurm.daemon.presence import absence, is_silent
from pollux_slurm.daemon.telemetry import Telemetry
from pollux_slurm.errors import ConfigError

_log = logging.getLogger(__name__)

OFF = "off"
# A leader that has not finished a round for so many intervals is not well, nor is one whose round under way
# has come no further for as long: a round that is long, of many jobs, comes from phase to phase.
_SILENT_INTERVALS = 3
# An answer takes milliseconds. Who takes longer to ask is cut off, and the oldest of too many first: slow
# peers neither keep the descriptors that Slurm's commands need nor shut out a quick one.
_MAX_CONNECTIONS = 16
_CONNECTION_S = 10.0


def address(text: str) -> tuple[str, int] | None:
    """Return (host, port) of `host:port`, None for "off"; raises `ConfigError` for anything else."""
    if text == OFF:
        return None
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"daemon.metrics_listen: expected host:port or {OFF}, not {text!r}")
    return host.strip("[]"), int(port)


def health(telemetry: Telemetry, now_utc: datetime | None = None) -> tuple[bool, dict[str, object]]:
    """Return whether the daemon is well, and what it says of itself.

    One that waits for the lease is, unless the one that has it is silent: then nobody acts.
    """
    at = now_utc or datetime.now(timezone.utc)
    missing = None if telemetry.is_leader else absence(telemetry.lease, at)
    silent = missing is not None and is_silent(telemetry.lease, at)
    now = telemetry.monotonic()
    age_s = None if telemetry.last_round_s is None else now - telemetry.last_round_s
    # Of one that has never finished a round: Slurm or the store may have been away from the start.
    since_s = telemetry.first_tried_s if telemetry.last_round_s is None else telemetry.last_round_s
    patience_s = _SILENT_INTERVALS * telemetry.interval_s + 60.0
    until_s = now if telemetry.round_began_s is None else telemetry.round_began_s
    hangs = (
        telemetry.round_began_s is not None
        and now - telemetry.moved_on_s > patience_s + telemetry.decision_limit_s
    )
    late = telemetry.is_leader and (hangs or (since_s is not None and until_s - since_s > patience_s))
    heard = telemetry.lease.renewed_at
    return not (late or silent), {
        "status": "no round for too long" if late else missing if silent else "ok",
        "leader": telemetry.is_leader,
        "waits_for": None if telemetry.is_leader else telemetry.lease.owner,
        "waits_for_heard_age_s": None
        if telemetry.is_leader or heard is None
        else round((at - heard).total_seconds(), 1),
        "held_jobs": list(telemetry.held_jobs),
        "round": telemetry.round_id,
        "last_round_age_s": None if age_s is None else round(age_s, 1),
        "skipped_rounds": dict(telemetry.skipped),
        "reallocations_open": telemetry.open_moves,
    }


@contextmanager
def serving(telemetry: Telemetry, *, listen: str) -> Iterator[int | None]:
    """Serve until the block ends; yields the port, None where nothing is served.

    An address that is taken costs the endpoint, not the daemon.
    """
    where = address(listen)
    server = _server(where, telemetry) if where is not None else None
    if server is None:
        yield None
        return
    thread = threading.Thread(target=server.serve_forever, name="endpoint", daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self, where: tuple[str, int], handler: type[BaseHTTPRequestHandler], clock: Callable[[], float]
    ) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._opened_s: dict[socket.socket, float] = {}  # the oldest first
        super().__init__(where, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread; of too many connections the oldest ends."""
        with self._lock:
            self._opened_s[request] = self._clock()
            if len(self._opened_s) > _MAX_CONNECTIONS:
                self._cut(next(iter(self._opened_s)))
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Forget a connection that its thread has done with."""
        with self._lock:
            self._opened_s.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Cut off, each half second, who has had a connection for too long."""
        with self._lock:
            late_s = self._clock() - _CONNECTION_S
            for request in [one for one, opened_s in self._opened_s.items() if opened_s < late_s]:
                self._cut(request)

    def _cut(self, request: socket.socket) -> None:
        # Its thread, which waits for it, finds the end of the connection and closes it.
        del self._opened_s[request]
        with suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: object, client_address: object) -> None:
        """Leave no traceback in the journal of a peer that went away before its answer."""
        error = sys.exc_info()[1]
        if isinstance(error, OSError):
            _log.debug("endpoint: %s: %s", client_address, error)
        else:
            _log.exception("endpoint: %s", client_address)


def _server(where: tuple[str, int], telemetry: Telemetry) -> ThreadingHTTPServer | None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/metrics":
                try:
                    self._answer(200, metrics.render(telemetry), metrics.CONTENT_TYPE)
                except ConfigError as error:
                    self._answer(501, f"{error}\n".encode(), "text/plain")
            elif self.path == "/health":
                well, facts = health(telemetry)
                self._answer(200 if well else 503, json.dumps(facts).encode() + b"\n", "application/json")
            else:
                self._answer(404, b"there are /metrics and /health\n", "text/plain")

        def _answer(self, code: int, body: bytes, kind: str) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            _log.debug("endpoint: " + format, *args)

    try:
        return _Server(where, Handler, telemetry.monotonic)
    except OSError as error:
        _log.warning("no metrics: %s:%d: %s", *where, error.strerror or error)
        return None
