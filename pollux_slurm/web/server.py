"""Serve the application on one address until it is interrupted."""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone

from pollux_slurm.errors import StoreError, StoreUnavailable, UsageError
from pollux_slurm.store import open_store
from pollux_slurm.store.reporting.queries import open_view_reader
from pollux_slurm.system.unproved_connections import QUEUE
from pollux_slurm.web.app import Source, make_app
from pollux_slurm.web.connections import Connections, make_server
from pollux_slurm.web.guard import LOOPBACK


@contextmanager
def opened_source(url: str) -> Iterator[Source]:
    """Open the store for the pages; what is now needs more rights than the views."""
    with contextlib.ExitStack() as stack:
        reader = stack.enter_context(open_view_reader(url))
        store, why = None, ""
        try:
            store = open_store(url)
            stack.callback(store.close)
            store.lease.daemon_status()
        except StoreUnavailable:
            raise
        except StoreError as error:
            store, why = None, str(error)
        yield Source(reader=reader, store=store, why_no_store=why, clock=lambda: datetime.now(timezone.utc))


def serve(
    url: str,
    *,
    host: str,
    port: int,
    with_token: bool,
    host_names: tuple[str, ...],
    root_path: str,
    say: Callable[[str], None],
) -> None:
    """Serve until SIGINT or SIGTERM, having said the link. Raises `UsageError` where the port is taken."""
    token = secrets.token_urlsafe(24) if with_token or host not in LOOPBACK else None
    hosts = None if host not in LOOPBACK else LOOPBACK | {name.lower() for name in host_names}
    with opened_source(url) as source, listening(host, port) as listener:
        connections = Connections()
        app = make_app(source, hosts=hosts, token=token, connections=connections)
        number = listener.getsockname()[1]
        name = socket.getfqdn() if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
        say(f"http://{name}:{number}{root_path}/" + (f"?token={token}" if token else ""))
        with contextlib.suppress(KeyboardInterrupt):
            make_server(app, connections, root_path=root_path).run(sockets=[listener])


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """Listen on an address. Raises `UsageError` where that cannot be."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=QUEUE)
    except OSError as error:
        raise UsageError(
            f"cannot listen on {host} port {port}: {error.strerror}; try another one: --port 0 takes any"
        ) from None
    with listener:
        yield listener
