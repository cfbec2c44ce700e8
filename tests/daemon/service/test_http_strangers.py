"""Strangers at the port of `/metrics` and `/health`: what they are answered, and what they hold up."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from pollux_slurm.daemon.service.http_endpoint import _own_names, serve_metrics
from pollux_slurm.daemon.service.metrics import DaemonMetrics
from pollux_slurm.system.unproved_connections import MOST_OF_ADDRESS, WITHIN_S
from tests.daemon.service.test_http_endpoint import Clock, asked
from tests.waiting import wait_until

DEADLINE_S = 60.0


@contextmanager
def slow_peers(port: int | None, number: int) -> Iterator[list[socket.socket]]:
    """Open connections without a request, more than the listen queue has room for."""
    assert port is not None
    with ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S))
            for _ in range(number)
        ]


def read_all(peer: socket.socket) -> bytes:
    found = b""
    with suppress(ConnectionResetError):  # it has not read all that was sent
        while received := peer.recv(65536):
            found += received
    return found


def num_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_that_no_header_of_a_stranger_s_ends_in_the_daemon_s_log(capfd: pytest.CaptureFixture[str]) -> None:
    with serve_metrics(DaemonMetrics(monotonic=Clock()), listen="127.0.0.1:0") as port:
        for header in ("application/openmetrics-text; version=x.0.0", "text/plain; version=", "\x1b[31m"):
            status, text = asked(port, "/metrics", Accept=header)
            assert status == 200
            assert text.startswith("# HELP ")
    assert capfd.readouterr().err == ""


def test_that_only_get_and_head_are_answered() -> None:
    with serve_metrics(DaemonMetrics(monotonic=Clock()), listen="127.0.0.1:0") as port:
        for method in ("POST", "TRACE", "PUT", "OPTIONS"):
            assert asked(port, "/metrics", method) == (405, "there are GET and HEAD\n")
        with slow_peers(port, 1) as (peer,):
            peer.sendall(b"HEAD /metrics HTTP/1.0\r\n\r\n")
            head, end, body = read_all(peer).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 200 OK")
    assert (end, body) == (b"\r\n\r\n", b"")


def test_that_a_page_whose_name_points_here_reads_nothing() -> None:
    full = socket.getfqdn()
    own = ["localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:9748", "10.1.0.5:9748"]
    own += [socket.gethostname(), f"{full}:9748", f"{full.partition('.')[0]}:1"]
    with serve_metrics(DaemonMetrics(monotonic=Clock()), listen="127.0.0.1:0") as port:
        for host in own:
            assert asked(port, "/health", Host=host)[0] == 200, host
        for host in (
            "evil.example",
            "evil.example:9748",
            "127.0.0.1.evil.example",
            "localhost,evil.example",
            "",
        ):
            assert asked(port, "/health", Host=host) == (403, "unknown host name: call by the IP address\n")
        # What of its header is read does not reach to the Host.
        with slow_peers(port, 1) as (peer,):
            peer.sendall(b"GET /health?" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: evil.example\r\n\r\n")
            assert read_all(peer).endswith(b"unknown host name: call by the IP address\n")


def test_that_it_is_called_by_the_name_in_the_settings_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getfqdn", lambda name="": "ctl.example.org")
    assert {"localhost", "metrics.site", "metrics", "ctl.example.org", "ctl"} <= _own_names("Metrics.site")


def test_that_a_peer_that_goes_away_leaves_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def gone(_metrics: DaemonMetrics) -> tuple[bool, dict[str, object]]:
        raise BrokenPipeError

    monkeypatch.setattr(DaemonMetrics, "health", gone)
    with (
        serve_metrics(DaemonMetrics(monotonic=Clock()), listen="127.0.0.1:0") as port,
        pytest.raises(OSError),  # noqa: PT011
    ):
        asked(port, "/health")
    assert "Traceback" not in capfd.readouterr().err


def test_that_the_beginning_of_a_header_is_read_only() -> None:
    """A hundred lines of 64 kB from each client would fill the daemon's memory."""
    with serve_metrics(DaemonMetrics(monotonic=Clock()), listen="127.0.0.1:0") as port:
        # More lines than are read of a header that is read to its end.
        header = b"a: " + b"x" * 20_000 + b"\r\n" + b"b: c\r\n" * 200
        with slow_peers(port, 1) as (peer,):
            peer.sendall(b"GET /health HTTP/1.0\r\n" + header + b"\r\n")
            assert peer.recv(15) == b"HTTP/1.0 200 OK"


def test_that_slow_peers_leave_file_descriptors_and_do_not_block_others() -> None:
    with serve_metrics(DaemonMetrics(monotonic=Clock()), listen="127.0.0.1:0") as port:
        before = num_descriptors()
        with slow_peers(port, 300) as peers:
            assert asked(port, "/health")[0] == 200
            # Connections are accepted in order: all were by that answer, and all but the last are closed.
            assert all(peer.recv(1) == b"" for peer in peers[:-MOST_OF_ADDRESS])
            allowed = before + len(peers) + MOST_OF_ADDRESS
            wait_until(lambda: num_descriptors() <= allowed, timeout_s=120, what="closed connections")


def test_that_peers_who_have_left_again_cost_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who makes connections as fast as it can would else close a reader's."""
    accept, start, have_left = socket.socket.accept, threading.Thread.start, threading.Event()
    served: list[str] = []

    def accept_late(port: socket.socket) -> tuple[socket.socket, object]:
        have_left.wait(DEADLINE_S)
        return accept(port)

    def note_start(thread: threading.Thread) -> None:
        served.append(thread.name)
        start(thread)

    with serve_metrics(DaemonMetrics(monotonic=Clock()), listen="127.0.0.1:0") as port:
        monkeypatch.setattr(socket.socket, "accept", accept_late)
        monkeypatch.setattr(threading.Thread, "start", note_start)
        with slow_peers(port, 40):
            pass
        have_left.set()
        assert asked(port, "/health")[0] == 200
    assert len(served) == 1, "the reader's"


def test_that_a_peer_that_sends_a_byte_now_and_then_is_cut_off() -> None:
    clock = Clock()
    metrics = DaemonMetrics(monotonic=clock)
    with serve_metrics(metrics, listen="127.0.0.1:0") as port, slow_peers(port, 1) as (peer,):
        peer.sendall(b"GET /hea")
        assert asked(port, "/health")[0] == 200
        clock.now_s += WITHIN_S + 1
        assert peer.recv(1) == b""
