"""An untrusted client with a login for jobs: a connection, and unchecked reports as JSON."""

from __future__ import annotations

import json
from typing import Any

import psycopg

from pollux_slurm.store.agent_api.postgresql_api import report_json
from pollux_slurm.store.agent_api.report_checks import checked_report
from tests.store.builders import report, token_of
from tests.store.connections import await_ends, connections
from tests.store.postgres import PostgresServer

BAD_REPORT = ("PX003", "22001", "22P02", "22P05", "22003", "22023", "23502", "23514", "54001")
"""The SQLSTATEs of a refused report: by the function, as no JSON, as no number, by a column's check."""

Connection = psycopg.Connection[tuple[Any, ...]]


def connect(server: PostgresServer, login: str = "jobs", database: str = "store") -> Connection:
    """Connect as `login`; the default is the one that jobs of many users share."""
    made = psycopg.connect(server.url(database, login=login), autocommit=True)
    if login == "jobs":  # the server would end it soon on a busy machine
        made.execute("SET idle_session_timeout = 0")
        made.execute("SET idle_in_transaction_session_timeout = 0")
    return made


def await_other_ends(server: PostgresServer, *kept: Connection) -> None:
    """Wait until only `kept` are left of the connections that the daemon may end."""
    url = server.url("store")
    spared = {pid for pid, login in connections(url).items() if login in ("pollux_test", "the_daemon")}
    await_ends(url, but=spared | {one.info.backend_pid for one in kept})


def raw_report(sequence: int = 1, /, **changes: Any) -> str:
    """Return a good report as JSON text, with unchecked `changes`."""
    return json.dumps({**json.loads(report_json(checked_report(report(sequence)))), **changes})


def send(connection: Connection, text: str, *, token: str | None = None) -> None:
    """Call pollux_report, by default with job 1's token."""
    connection.execute("SELECT pollux_report(%s, %s)", (token_of(1) if token is None else token, text))
