"""A job's calls on PostgreSQL: seven functions (`sql/security/functions.sql`), called by their names.

A job's login has no right on any table. Each call opens a connection, asks once and closes it again: between
its calls, seconds apart, a job holds none of the server's connections.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from sqlalchemy.exc import DBAPIError

from pollux_slurm.errors import (
    PolluxError,
    ReportRateError,
    ReportRefusedError,
    SchemaVersionError,
    StoreError,
    StoreUnavailable,
    UnknownJobError,
)
from pollux_slurm.store.access.database import Database
from pollux_slurm.store.access.sanitizing import utc
from pollux_slurm.store.agent_api.generation_checks import (
    checked_generation_question,
    checked_newcomer,
    checked_step,
)
from pollux_slurm.store.agent_api.report_checks import checked_report, checked_request_id, checked_run_number
from pollux_slurm.store.agent_api.report_message import report_message
from pollux_slurm.store.agent_api.statements import REFUSALS, UNKNOWN_TOKEN, move_of, promise_of
from pollux_slurm.store.contract.interface import (
    GenerationRecord,
    GenerationState,
    Move,
    Poll,
    PromiseRecord,
    Report,
)
from pollux_slurm.store.journal.generations import newest_generation

# What PostgreSQL itself finds bad: it is no JSON, too deep, too large, or a column does not take it.
_BAD_VALUES = ("22", "54", "23502", "23514")


class PostgresqlAgentStore:
    """`JobStore` by seven functions of the database. The time is the server's: `at` is not sent."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def report(self, token: str, report: Report, *, at: datetime) -> int | None:
        """Record a report: see `AgentStore.report`; raises `ReportRateError` for too many of them."""
        utc(at)
        values = _sendable(token), report_json(checked_report(report))
        return _fitting(self._call("SELECT pollux_report(%s, %s)", *values))

    def poll(self, token: str, run_number: int, *, at: datetime) -> Poll:
        """Return what the job should do: see `AgentStore.poll`."""
        utc(at)
        rows = self._call("SELECT pollux_poll(%s, %s)", _sendable(token), checked_run_number(run_number))
        return Poll(checkpoint_request=rows[0][0])

    def move(self, token: str, request_id: int) -> Move | None:
        """Return what a reallocation of the job moves: see `AgentStore.move`."""
        return move_of(
            self._call("SELECT * FROM pollux_move(%s, %s)", _sendable(token), checked_request_id(request_id))
        )

    def promise(self, token: str) -> PromiseRecord | None:
        """Return the answer to the job's moment: see `JobStore.promise`."""
        return promise_of(self._call("SELECT * FROM pollux_promise(%s)", _sendable(token)))

    def generation(self, token: str, *, after: int, restart_count: int) -> GenerationRecord | None:
        """Return the job's newest generation after a number: see `MembershipStore.generation`."""
        values = checked_generation_question(after=after, restart_count=restart_count)
        rows = self._call("SELECT * FROM pollux_generation(%s, %s, %s)", _sendable(token), *values)
        return newest_generation(rows)

    def report_ready(self, token: str, member: str, *, number: int, restart_count: int) -> None:
        """Report a newcomer that waits to join: see `MembershipStore.report_ready`."""
        values = checked_newcomer(member, number=number, restart_count=restart_count)
        self._call("SELECT pollux_ready(%s, %s, %s, %s)", _sendable(token), *values)

    def advance_generation(
        self,
        token: str,
        number: int,
        state: GenerationState,
        *,
        restart_count: int,
        at: datetime,
        meeting: str | None = None,
        standstill_s: float | None = None,
        reason: str | None = None,
    ) -> bool:
        """Bring a generation into a state: see `MembershipStore.advance_generation`."""
        utc(at)
        step = checked_step(
            number,
            state,
            restart_count=restart_count,
            meeting=meeting,
            standstill_s=standstill_s,
            reason=reason,
        )
        names = ("restart_count", "number", "state", "meeting", "standstill_s", "reason")
        values = (step[name] for name in names)
        rows = self._call("SELECT pollux_advance(%s, %s, %s, %s, %s, %s, %s)", _sendable(token), *values)
        return bool(rows[0][0])

    def close(self) -> None:
        """Give back the connections."""
        self._database.close()

    def _call(self, statement: str, *values: Any) -> Sequence[Any]:
        with _named_errors(self._database), self._database.autocommit() as connection:
            return connection.exec_driver_sql(statement, values).all()


class TrustedPostgresqlAgentStore(PostgresqlAgentStore):
    """The same for whoever may read and write all tables, at the caller's time and without a limit."""

    def report(self, token: str, report: Report, *, at: datetime) -> int | None:
        """Record a report: see `AgentStore.report`."""
        values = _sendable(token), report_json(checked_report(report)), utc(at)
        return _fitting(self._call("SELECT pollux_record(%s, %s, %s, false)", *values))

    def poll(self, token: str, run_number: int, *, at: datetime) -> Poll:
        """Return what the job should do: see `AgentStore.poll`."""
        values = (_sendable(token), checked_run_number(run_number), utc(at))
        return Poll(checkpoint_request=self._call("SELECT pollux_answer(%s, %s, %s)", *values)[0][0])


def _fitting(rows: Sequence[Any]) -> int | None:
    """Return the answer to a report; a store of an earlier schema has none."""
    answer: int | str | None = rows[0][0]
    return answer if isinstance(answer, int) else None


def report_json(report: Report) -> str:
    """Return a checked report as the JSON text that `pollux_report` takes."""
    return json.dumps(report_message(report), allow_nan=False, separators=(",", ":"))


def _sendable(token: str) -> str:
    """Return a token that can reach the database; one that cannot is nobody's."""
    try:
        if isinstance(token, str) and "\0" not in token and len(token.encode()) <= 1024:
            return token
    except UnicodeEncodeError:
        pass
    raise UnknownJobError(UNKNOWN_TOKEN)


@contextmanager
def _named_errors(database: Database) -> Iterator[None]:
    """Raise the error that a function's SQLSTATE stands for; any other passes as it is."""
    try:
        yield
    except StoreError as error:
        cause = error.__cause__
        named = _named(cause, database) if isinstance(cause, DBAPIError) else None
        if named is None:
            raise
        raise named from error


def _named(error: DBAPIError, database: Database) -> PolluxError | None:
    state = getattr(error.orig, "sqlstate", None) or ""
    diagnosis = getattr(error.orig, "diag", None)
    words = getattr(diagnosis, "message_primary", None) or str(error.orig)
    if state in REFUSALS:
        return REFUSALS[state](words)
    match state:
        case "PX004":
            return ReportRateError(f"the store {database.url}: {words}")
        case "55P03":
            return StoreUnavailable(
                f"the store {database.url}: another report of this job is just being recorded"
            )
        case "42883":
            return SchemaVersionError(
                f"the store {database.url} has no functions for this release's jobs; stop the daemon and run "
                f"as its admin: {database.url.command('upgrade')}"
            )
        case "42501":
            return StoreError(
                f"the login of {database.url} may not report for jobs; an admin can grant it: "
                "GRANT pollux_agent TO <login>"
            )
    if state.startswith(_BAD_VALUES):
        return ReportRefusedError(f"report refused: {words}")
    return None
