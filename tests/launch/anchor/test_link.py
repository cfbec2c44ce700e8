"""The connection between an anchor and its wings: who is let in, and what a silence means."""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import threading
from collections.abc import Iterator

import pytest

from pollux_slurm.errors import LaunchError
from pollux_slurm.launch.anchor import link
from pollux_slurm.launch.anchor.link import Link, LinkListener, _answer, connect, watch_anchor
from pollux_slurm.system.unproved_connections import MOST_OF_ADDRESS, WITHIN_S

SECRET = "a secret"
DEADLINE_S = 60.0


@pytest.fixture
def listener() -> Iterator[LinkListener]:
    made = LinkListener(SECRET, beat_s=0.02)
    yield made
    made.close()


def test_that_a_wing_and_its_anchor_talk(listener: LinkListener) -> None:
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


def test_that_a_wing_with_another_secret_is_not_heard(listener: LinkListener) -> None:
    with pytest.raises(LaunchError, match="is not this job's anchor"):
        connect("127.0.0.1", listener.port, "another secret", timeout_s=0)
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
            connect("127.0.0.1", server.getsockname()[1], SECRET, timeout_s=0)
        thread.join(DEADLINE_S)


def test_that_a_stranger_who_says_a_byte_now_and_then_does_not_keep_a_wing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link, "WITHIN_S", 0.2)
    sent, is_over = [], threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):
                while not is_over.wait(0.02):
                    sent.append(connection.send(b"x"))

        thread = threading.Thread(target=drip)
        thread.start()
        with pytest.raises(LaunchError, match="is not this job's anchor"):
            connect("127.0.0.1", server.getsockname()[1], SECRET, timeout_s=0)
        is_over.set()
        thread.join(DEADLINE_S)
    assert len(sent) < 250, "it has not waited for what is too long"


JUNK = [
    *(b"GET / HTTP/1.0\r\n\r\n", b"\x00" * 4000, b"[1]\n", b"{}\n", b"", b"[" * 60_000 + b"\n"),
    *(b'{"answer": "\xc3\xa9"}\n', b'{"answer": "\\ud800"}\n', b'{"answer": ' + b"1" * 250 + b"}\n"),
]


@pytest.mark.parametrize("junk", JUNK)
def test_that_junk_ends_its_own_connection_only(listener: LinkListener, junk: bytes) -> None:
    with socket.create_connection(("127.0.0.1", listener.port)) as stranger:
        with contextlib.suppress(OSError):  # it may be closed already
            stranger.sendall(junk)
            stranger.shutdown(socket.SHUT_WR)
        wing = connect("127.0.0.1", listener.port, SECRET)
        wing.send({"wing": "1"})
        assert listener.messages.get(timeout=DEADLINE_S)[1] == {"wing": "1"}
        wing.close()


@contextlib.contextmanager
def strangers(port: int, number: int) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S))
            for _ in range(number)
        ]


def hears(listener: LinkListener, wing: Link) -> None:
    wing.send({"wing": "1"})
    assert listener.messages.get(timeout=DEADLINE_S)[1] == {"wing": "1"}


def test_that_strangers_that_say_nothing_do_not_keep_out_a_wing_at_their_address(
    listener: LinkListener,
) -> None:
    with strangers(listener.port, 300) as idle:
        wing = connect("127.0.0.1", listener.port, SECRET, timeout_s=0)
        hears(listener, wing)
        with strangers(listener.port, MOST_OF_ADDRESS + 1) as later:
            # It has proved itself, and so others go, one that came later too.
            assert all(is_ended(one) for one in (*idle, later[0]))
            hears(listener, wing)
        wing.close()


@pytest.mark.parametrize("said", [b"", b"x"])
def test_that_strangers_who_have_left_again_cost_no_thread(
    listener: LinkListener, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    """Somebody who makes connections as fast as it can would else keep a wing waiting behind them."""
    accept, start, have_left = socket.socket.accept, threading.Thread.start, threading.Event()
    served: list[str] = []

    def accept_late(port: socket.socket) -> tuple[socket.socket, object]:
        accepted = accept(port)
        have_left.wait(DEADLINE_S)
        return accepted

    def note_start(thread: threading.Thread) -> None:
        served.append(thread.name)
        start(thread)

    monkeypatch.setattr(socket.socket, "accept", accept_late)
    monkeypatch.setattr(threading.Thread, "start", note_start)
    # The listener waits in the first one's `accept` already.
    with strangers(listener.port, 1), strangers(listener.port, 40) as leaving:
        for one in leaving:
            one.sendall(said)
    have_left.set()
    wing = connect("127.0.0.1", listener.port, SECRET, timeout_s=0)
    hears(listener, wing)
    assert served.count("pollux-wing") <= 2, "the first one and the wing"
    wing.close()


def is_ended(connection: socket.socket) -> bool:
    try:
        while connection.recv(4096):
            pass
    except ConnectionResetError:
        pass
    return True


def test_that_a_stranger_that_sends_a_byte_now_and_then_is_cut_off() -> None:
    now_s = [0.0]
    listener = LinkListener(SECRET, beat_s=0.02, monotonic=lambda: now_s[0])
    try:
        with strangers(listener.port, 1) as (slow,):
            assert slow.recv(4096), "its challenge: it is accepted"
            slow.send(b"x")
            now_s[0] += WITHIN_S + 1
            assert is_ended(slow)
    finally:
        listener.close()


def test_that_a_wing_tries_again_where_its_connection_was_closed_before_it_proved_itself() -> None:
    with socket.create_server(("127.0.0.1", 0)) as crowded:
        crowded.settimeout(DEADLINE_S)
        port = crowded.getsockname()[1]
        met: queue.SimpleQueue[Link] = queue.SimpleQueue()
        thread = threading.Thread(target=lambda: met.put(connect("127.0.0.1", port, SECRET)))
        thread.start()
        for _ in range(2):
            crowded.accept()[0].close()
        connection, _ = crowded.accept()
        with connection:
            anchor = Link(connection)
            anchor.send({"challenge": "c"})
            reply = anchor.receive() or {}
            anchor.send({"answer": _answer(SECRET, "anchor", reply["challenge"])})
            met.get(timeout=DEADLINE_S).close()
    thread.join(DEADLINE_S)


def test_that_a_port_that_cannot_accept_once_accepts_the_next(
    listener: LinkListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel may say of a connection that it was gone before it was accepted."""
    accept, refused = socket.socket.accept, list[OSError]()

    def accept_the_second(port: socket.socket) -> tuple[socket.socket, object]:
        connection, address = accept(port)
        if refused:
            return connection, address
        connection.close()
        refused.append(error := ConnectionAbortedError())
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(socket.socket, "accept", accept_the_second)
        # The listener waits in the first one's `accept` already.
        connect("127.0.0.1", listener.port, SECRET).close()
        wing = connect("127.0.0.1", listener.port, SECRET)
    assert refused
    wing.close()


def test_that_a_wing_is_heard_after_a_connection_for_which_no_thread_could_start(
    listener: LinkListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, refused = threading.Thread.start, threading.Event()

    def start_later(thread: threading.Thread) -> None:
        if thread.name == "pollux-wing" and not refused.is_set():
            refused.set()
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_later)
    link = connect("127.0.0.1", listener.port, SECRET, timeout_s=5)
    assert refused.is_set(), "the first try was closed"
    link.close()


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


def test_that_a_wing_without_its_anchor_notices(listener: LinkListener) -> None:
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
