"""Connections to a port that anybody can reach, of those who have proved nothing yet.

Everybody is accepted: who comes may be the one that is waited for. Where there are too many, the oldest is
closed; above a few from one address, that address's own oldest. The newest is never refused, since a stranger
on a shared node has the same address. Each has ten seconds.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

MOST, MOST_OF_ADDRESS = 128, 16
WITHIN_S = 10.0
QUEUE = 4096
"""How many connections the kernel is to keep until they are accepted."""

Connection = TypeVar("Connection")


class UnprovedConnections(Generic[Connection]):
    """Those of one port; from any thread. `end` closes one, or makes whoever serves it do so."""

    def __init__(
        self, end: Callable[[Connection], None], *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._end, self._monotonic = end, monotonic
        self._lock = threading.Lock()
        self._kept: dict[Connection, tuple[str, float]] = {}  # address and begin; the oldest first

    def add(self, connection: Connection, address: str) -> None:
        """Keep one more, and close what is too much."""
        where = _host(address)
        with self._lock:
            self._kept[connection] = where, self._monotonic()
            own = [one for one, (other, _) in self._kept.items() if other == where]
            if len(own) > MOST_OF_ADDRESS:
                self._close(own[0])
            elif len(self._kept) > MOST:
                self._close(next(iter(self._kept)))

    def remove(self, connection: Connection) -> None:
        """Forget one that has proved itself, or is closed."""
        with self._lock:
            self._kept.pop(connection, None)

    def close_late(self, *, keeps: Callable[[Connection], bool] = lambda _connection: False) -> None:
        """Close those whose time is over, but for what `keeps`; to be called about each second."""
        with self._lock:
            oldest_s = self._monotonic() - WITHIN_S
            for connection in [one for one, (_, since_s) in self._kept.items() if since_s < oldest_s]:
                if not keeps(connection):
                    self._close(connection)

    def _close(self, connection: Connection) -> None:
        del self._kept[connection]
        self._end(connection)


def is_silent(connection: socket.socket) -> bool:
    """Whether the other side of a connection that was just accepted has neither closed it nor sent a byte."""
    try:
        connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def has_ended(connection: socket.socket) -> bool:
    """Whether the other side has closed a connection that was just accepted, and sent nothing."""
    try:
        return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _host(address: str) -> str:
    """Return an address, one for all of loopback: each process may choose any of 127.0.0.0/8."""
    plain = address.removeprefix("::ffff:")
    return "loopback" if plain == "::1" or plain.startswith("127.") else plain
