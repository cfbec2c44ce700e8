"""The connection between an anchor and a wing: one TCP connection, messages of JSON, a line each.

Both prove to know the order's secret before anything else is read:

    anchor → wing    its challenge
    wing → anchor    its challenge, and the anchor's answered
    anchor → wing    the wing's answered

An answer is HMAC-SHA256 over the side's name and the challenge. What follows is not encrypted: it holds no
secret. The anchor sends a beat each second, so that a wing notices when it is alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import math
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from pollux_slurm.errors import LaunchError
from pollux_slurm.json_texts import parse_json
from pollux_slurm.launch.node.watched_processes import start_thread
from pollux_slurm.system.unproved_connections import QUEUE, WITHIN_S, UnprovedConnections, is_silent

SILENCE_S = 10.0
"""A wing that has heard nothing for so long is alone."""

_BEAT_S = 1.0
_RETRY_S = 0.2
_MAX_LINE_BYTES = 1_000_000
_MAX_CHALLENGE_BYTES = 300

Message = Mapping[str, Any]


class Link:
    """One end of a connection whose two sides know each other."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._buffer = b""

    def send(self, message: Message) -> bool:
        """Send a message; False where the connection is broken."""
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            try:
                self._connection.sendall(line)
            except OSError:
                return False
        return True

    def receive(self, max_bytes: int = _MAX_LINE_BYTES, *, until_s: float = math.inf) -> Message | None:
        """Return the next message; None at the connection's end, or for anything that is not a message.

        None also at the time `until_s`, by `time.monotonic`: a stranger may send a byte now and then.
        """
        try:
            while b"\n" not in self._buffer:
                if len(self._buffer) > max_bytes or time.monotonic() >= until_s:
                    return None
                received = self._connection.recv(min(max_bytes + 1, 65536))
                if not received:
                    return None
                self._buffer += received
            line, _, self._buffer = self._buffer.partition(b"\n")
            message = parse_json(line)
        except (OSError, ValueError):
            return None
        return message if isinstance(message, dict) else None

    def set_timeout(self, timeout_s: float) -> None:
        """Let `send` and `receive` fail after so long."""
        self._connection.settimeout(timeout_s)

    def end(self) -> None:
        """Let both sides read the connection's end."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection, also for a thread that receives from it."""
        self.end()
        self._connection.close()


def _answer(secret: str, side: str, challenge: object) -> str:
    message = f"{side} {challenge}".encode(errors="replace")
    return hmac.new(secret.encode(), message, hashlib.sha256).hexdigest()


def _is_answer(reply: Message, secret: str, side: str, challenge: str) -> bool:
    given = str(reply.get("answer")).encode(errors="replace")
    return hmac.compare_digest(given, _answer(secret, side, challenge).encode())


def connect(address: str, port: int, secret: str, *, timeout_s: float = 60.0) -> Link:
    """Return a wing's link to its anchor. Raises `LaunchError`.

    It tries for so long: strangers may crowd out one try.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return _connect_once(address, port, secret)
        except LaunchError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(_RETRY_S)


def _connect_once(address: str, port: int, secret: str) -> Link:
    try:
        link = Link(socket.create_connection((address, port), timeout=WITHIN_S))
    except OSError as error:
        raise LaunchError(f"the anchor cannot be reached at {address}, port {port}: {error}") from None
    until_s = time.monotonic() + WITHIN_S
    greeting = link.receive(_MAX_CHALLENGE_BYTES, until_s=until_s) or {}
    challenge = secrets.token_hex(32)
    link.send({"challenge": challenge, "answer": _answer(secret, "wing", greeting.get("challenge"))})
    reply = link.receive(_MAX_CHALLENGE_BYTES, until_s=until_s) or {}
    if not _is_answer(reply, secret, "anchor", challenge):
        link.close()
        raise LaunchError(f"what answers at {address}, port {port}, is not this job's anchor")
    link.set_timeout(SILENCE_S)
    return link


class LinkListener:
    """The anchor's side: accepts wings, beats, and collects what they say.

    `messages` has (link, message) in the order of arrival, and (link, None) when a link ends. The main thread
    of `pollux run` reads them; it may be busy with Slurm for a while, and beats go on meanwhile.
    """

    def __init__(
        self, secret: str, *, beat_s: float = _BEAT_S, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.messages: queue.SimpleQueue[tuple[Link, Message | None]] = queue.SimpleQueue()
        self._secret, self._beat_s = secret, beat_s
        self._socket = socket.create_server(
            ("", 0), family=_family(), backlog=QUEUE, dualstack_ipv6=socket.has_dualstack_ipv6()
        )
        self.port: int = self._socket.getsockname()[1]
        self._links: set[Link] = set()
        self._lock = threading.Lock()
        self._unproved = UnprovedConnections(Link.end, monotonic=monotonic)
        self._closed = threading.Event()
        for target in (self._accept, self._beat):
            start_thread(f"pollux{target.__name__}", target)

    def close(self) -> None:
        """End all connections."""
        self._closed.set()
        # Wakes `accept`, which would go on waiting after a mere close.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with self._lock:
            links = list(self._links)
        for link in links:
            link.close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                connection, (address, *_) = self._socket.accept()
            except OSError:  # this port is closed, or the connection that was to be accepted
                self._closed.wait(_RETRY_S)
                continue
            if not is_silent(connection):
                # It is not a wing: the anchor speaks first. Somebody may make such connections as fast as it
                # can: they are not to cost a thread, or another's place.
                connection.close()
                continue
            link = Link(connection)
            self._unproved.add(link, address)
            try:
                start_thread("pollux-wing", self._serve, link)
            except RuntimeError:  # no thread can be started now; a wing comes again
                self._unproved.remove(link)
                link.close()

    def _serve(self, link: Link) -> None:
        if self._shake_hands(link):
            with self._lock:
                self._links.add(link)
            while (message := link.receive()) is not None:
                self.messages.put((link, message))
            with self._lock:
                self._links.discard(link)
            self.messages.put((link, None))
        self._unproved.remove(link)
        link.close()

    def _shake_hands(self, link: Link) -> bool:
        challenge = secrets.token_hex(32)
        link.send({"challenge": challenge})
        reply = link.receive(_MAX_CHALLENGE_BYTES) or {}
        if not _is_answer(reply, self._secret, "wing", challenge):
            return False
        self._unproved.remove(link)
        return link.send({"answer": _answer(self._secret, "anchor", reply.get("challenge"))})

    def _beat(self) -> None:
        while not self._closed.wait(self._beat_s):
            self._unproved.close_late()
            with self._lock:
                links = list(self._links)
            for link in links:
                link.send({})


def _family() -> socket.AddressFamily:
    return socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET


def watch_anchor(link: Link, take: Callable[[Message], None], alone: Callable[[], None]) -> None:
    """Pass on what the anchor says, in a thread, and call `alone` once when it is heard no more."""

    def watch() -> None:
        while (message := link.receive()) is not None:
            if message:
                take(message)
        alone()

    start_thread("pollux-anchor", watch)
