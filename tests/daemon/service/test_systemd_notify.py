"""Which states systemd gets, and when."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from pollux_slurm.daemon.service.systemd_notify import Notifier


class Clock:
    def __init__(self) -> None:
        self.now_s = 5.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(tmp_path / "notify"))
        server.setblocking(False)
        yield server


def heard(server: socket.socket) -> list[str]:
    found = []
    while True:
        try:
            found.append(server.recv(4096).decode())
        except BlockingIOError:
            return found


def test_that_systemd_hears_of_every_change(systemd: socket.socket) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": systemd.getsockname()}, monotonic=Clock())
    notifier.ready()
    notifier.reloading()
    notifier.status("round 1:\n2 jobs")
    notifier.stopping()
    notifier.alive()  # there is no watchdog
    assert heard(systemd) == [
        "READY=1",
        "RELOADING=1\nMONOTONIC_USEC=5000000",
        "STATUS=round 1: 2 jobs",
        "STOPPING=1",
    ]


def test_that_the_watchdog_is_fed_at_a_third_of_its_time_out(systemd: socket.socket) -> None:
    clock = Clock()
    environ = {"NOTIFY_SOCKET": systemd.getsockname(), "WATCHDOG_USEC": "30000000"}
    notifier = Notifier(environ, monotonic=clock)
    counts = []
    for _ in range(31):
        notifier.alive()
        counts.append(len(heard(systemd)))
        clock.now_s += 1
    assert [second for second, count in enumerate(counts) if count] == [0, 10, 20, 30]


@pytest.mark.parametrize("path", ["", "relative", "/no/such/socket", "@no-such-name"])
def test_that_a_missing_socket_is_no_error(path: str) -> None:
    Notifier({"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "x"}, monotonic=Clock()).ready()
