"""The connection between an anchor and its wings: who is let in, and what a silence means."""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import threading
from collections.abc import Iterator

import pytest

from pollux_slurm.agent.anchor.link import Link, Listener, connect, watch_anchor
from pollux_slurm.errors import LaunchError

SECRET = "a secret"
DEADLINE_S = 60.0


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = Listener(SECRET, beat_s=0.02)
    yield made
    made.close()


def test_that_a_wing_and_its_anchor_talk(listener: Listener) -> None:
    wing = connect("127.0.0.1", listener.port, SECRET)
    assert wing.send({"wing": "12"})
    anchors, message = listener.messages.get(timeout=DEADLINE_S)
    assert message == {"wing": "12"}
    anchors.send({"go": 1})
    found = wing.receive()
    while found == {}:  # a beat
        found = wing.receive()
    assert found == {"go": 1}
    wing.close()
    assert listener.messages.get(timeout=DEADLINE_S) == (anchors, None)


def test_that_a_wing_with_another_secret_is_not_heard(listener: Listener) -> None:
    with pytest.raises(LaunchError, match="is not this job's anchor"):
        connect("127.0.0.1", listener.port, "another secret")
    wing = connect("127.0.0.1", listener.port, SECRET)
    wing.send({"wing": "1"})
    assert listener.messages.get(timeout=DEADLINE_S)[1] == {"wing": "1"}
    wing.close()


def test_that_a_wing_does_not_trust_whoever_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b'{"challenge": "x"}\n')
                connection.recv(4096)
                connection.sendall(json.dumps({"answer": "0" * 64}).encode() + b"\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(LaunchError, match="is not this job's anchor"):
            connect("127.0.0.1", server.getsockname()[1], SECRET)
        thread.join(DEADLINE_S)


@pytest.mark.parametrize(
    "junk", [b"GET / HTTP/1.0\r\n\r\n", b"\x00" * 4000, b"[1]\n", b"{}\n", b"[" * 3000 + b"\n", b""]
)
def test_that_junk_ends_its_own_connection_only(listener: Listener, junk: bytes) -> None:
    with socket.create_connection(("127.0.0.1", listener.port)) as stranger:
        stranger.sendall(junk)
        stranger.shutdown(socket.SHUT_WR)
        wing = connect("127.0.0.1", listener.port, SECRET)
        wing.send({"wing": "1"})
        assert listener.messages.get(timeout=DEADLINE_S)[1] == {"wing": "1"}
        wing.close()


def test_that_strangers_that_are_slow_do_not_shut_out_a_wing() -> None:
    """All places are theirs, and each sends a byte now and then; a handshake of them would take 15 s."""
    listener, over = Listener(SECRET, handshake_s=0.5), threading.Event()
    strangers = [socket.create_connection(("127.0.0.1", listener.port)) for _ in range(64)]

    def trickle() -> None:
        while not over.wait(0.05):
            for stranger in strangers:
                with contextlib.suppress(OSError):
                    stranger.send(b"x")

    thread = threading.Thread(target=trickle)
    thread.start()
    try:
        wing = connect("127.0.0.1", listener.port, SECRET)
        wing.send({"wing": "1"})
        assert listener.messages.get(timeout=DEADLINE_S)[1] == {"wing": "1"}
        wing.close()
    finally:
        over.set()
        thread.join(DEADLINE_S)
        for stranger in strangers:
            stranger.close()
        listener.close()


def test_that_a_line_without_end_is_not_kept() -> None:
    ours, theirs = socket.socketpair()
    writer = threading.Thread(target=lambda: _send_all(theirs, b"x" * 3_000_000))
    writer.start()
    assert Link(ours).receive() is None
    ours.close()
    writer.join(DEADLINE_S)


def _send_all(connection: socket.socket, content: bytes) -> None:
    try:
        connection.sendall(content)
    except OSError:  # the other side has closed
        pass
    finally:
        connection.close()


def test_that_a_wing_without_its_anchor_notices(listener: Listener) -> None:
    wing = connect("127.0.0.1", listener.port, SECRET)
    taken: queue.SimpleQueue[object] = queue.SimpleQueue()
    watch_anchor(wing, taken.put, lambda: taken.put("alone"))
    listener.close()
    assert taken.get(timeout=DEADLINE_S) == "alone"
    wing.close()


def test_that_a_silent_anchor_counts_as_gone() -> None:
    """A suspended anchor keeps its connections and says nothing."""
    ours, theirs = socket.socketpair()
    link = Link(ours)
    link.set_timeout(0.05)
    taken: queue.SimpleQueue[object] = queue.SimpleQueue()
    watch_anchor(link, taken.put, lambda: taken.put("alone"))
    assert taken.get(timeout=DEADLINE_S) == "alone"
    link.close()
    theirs.close()
