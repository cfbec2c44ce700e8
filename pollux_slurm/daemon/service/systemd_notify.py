"""Report the daemon's state to systemd (sd_notify): ready, alive, reloading, stopping. Else do nothing."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Mapping

from pollux_slurm.text import one_line


class Notifier:
    """Sends states to the socket that systemd names in the environment, if there is one.

    `alive` may be called at any rate; it is sent at a third of the watchdog's time-out.
    """

    def __init__(self, environ: Mapping[str, str], *, monotonic: Callable[[], float]) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")
        self._monotonic = monotonic
        microseconds = environ.get("WATCHDOG_USEC", "")
        self._period_s = int(microseconds) / 3e6 if microseconds.isdecimal() else None
        self._next_s = float("-inf")

    def ready(self) -> None:
        self._send("READY=1")

    def reloading(self) -> None:
        self._send(f"RELOADING=1\nMONOTONIC_USEC={int(self._monotonic() * 1e6)}")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def status(self, text: str) -> None:
        """Set the line that `systemctl status` shows."""
        self._send("STATUS=" + one_line(text))

    def alive(self) -> None:
        if self._period_s is None or self._monotonic() < self._next_s:
            return
        self._next_s = self._monotonic() + self._period_s
        self._send("WATCHDOG=1")

    def _send(self, message: str) -> None:
        if not self._address.startswith(("/", "@")):
            return
        # A name that begins with @ is an abstract socket: its first byte is 0.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as client,
        ):
            client.setblocking(False)  # do not wait for systemd
            client.sendto(message.encode(), address)
