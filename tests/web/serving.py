"""The pages on a port of their own."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pollux_slurm.web.connections import Connections, make_server
from tests.waiting import wait_until

DEADLINE_S = 60.0


@contextmanager
def served(app: Any, connections: Connections, listener: socket.socket) -> Iterator[int]:
    """Serve an application; yield the port."""
    server = make_server(app, connections)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started, timeout_s=DEADLINE_S, what="the server to start", every_s=0.02)
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(DEADLINE_S)
        assert not thread.is_alive(), "it has ended"


def asked(port: int, path: str, headers: dict[str, str] | None = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    try:
        connection.request("GET", path, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def is_ended(connection: socket.socket) -> bool:
    """Read to the end of a connection, which its other side has closed or closes."""
    try:
        while connection.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True
