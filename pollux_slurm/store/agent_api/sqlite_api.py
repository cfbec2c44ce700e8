"""A job's calls on SQLite: each is one transaction of the statements that PostgreSQL has in its functions."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from pollux_slurm.errors import UnknownJobError
from pollux_slurm.store.access.database import Database
from pollux_slurm.store.access.sanitizing import utc
from pollux_slurm.store.agent_api.generation_checks import (
    checked_generation_question,
    checked_newcomer,
    checked_step,
)
from pollux_slurm.store.agent_api.report_checks import checked_report, checked_request_id, checked_run_number
from pollux_slurm.store.agent_api.report_message import report_message
from pollux_slurm.store.agent_api.statements import RECORDING, REFUSALS, move_of, promise_of, statements
from pollux_slurm.store.agent_api.token_hashes import hash_token, user_of_token
from pollux_slurm.store.contract.interface import (
    GenerationRecord,
    GenerationState,
    Move,
    Poll,
    PromiseRecord,
    Report,
)
from pollux_slurm.store.journal.generations import newest_generation


class SqliteAgentStore:
    """`JobStore` over an SQLite database. `limited`: a report names no more nodes than Slurm gave."""

    def __init__(self, database: Database, *, limited: bool = True) -> None:
        self._database = database
        self._limited = limited

    def report(self, token: str, report: Report, *, at: datetime) -> int | None:
        """Record a report: see `AgentStore.report`."""
        message = report_message(checked_report(report))
        lists = {name: json.dumps(message[name]) for name in ("gpus_per_node", "warnings")}
        values = message | lists | {"at": _text(at), "limited": self._limited}
        with self._database.write() as connection:
            values |= _job(connection, token)
            values |= _row(connection, "admitted", values)
            fitting: int | None = values["admitted_fitting_atomic"]
            if values["admitted_is_repeated"]:
                return fitting
            for step in RECORDING:
                if step.part is not None and message[step.part] is None:
                    continue
                if step.keeps:
                    values |= _row(connection, step.statement, values)
                else:
                    connection.exec_driver_sql(statements("sqlite")[step.statement], values)
        return fitting

    def poll(self, token: str, run_number: int, *, at: datetime) -> Poll:
        """Return what the job should do: see `AgentStore.poll`."""
        values = {"run_number": checked_run_number(run_number), "at": _text(at)}
        with self._database.read() as connection:
            found = _row(connection, "poll", values | _job(connection, token))
            return Poll(checkpoint_request=found["poll_request_id"])

    def move(self, token: str, request_id: int) -> Move | None:
        """Return what a reallocation of the job moves: see `AgentStore.move`."""
        values = {"request_id": checked_request_id(request_id)}
        with self._database.read() as connection:
            values |= _job(connection, token)
            return move_of(connection.exec_driver_sql(statements("sqlite")["move"], values).all())

    def promise(self, token: str) -> PromiseRecord | None:
        """Return the answer to the job's moment: see `JobStore.promise`."""
        with self._database.read() as connection:
            values = _job(connection, token)
            return promise_of(connection.exec_driver_sql(statements("sqlite")["promise"], values).all())

    def generation(self, token: str, *, after: int, restart_count: int) -> GenerationRecord | None:
        """Return the job's newest generation after a number: see `MembershipStore.generation`."""
        question = checked_generation_question(after=after, restart_count=restart_count)
        values: dict[str, Any] = question._asdict()
        with self._database.read() as connection:
            values |= _job(connection, token)
            return newest_generation(
                connection.exec_driver_sql(statements("sqlite")["generation"], values).all()
            )

    def report_ready(self, token: str, member: str, *, number: int, restart_count: int) -> None:
        """Report a newcomer that waits to join: see `MembershipStore.report_ready`."""
        newcomer = checked_newcomer(member, number=number, restart_count=restart_count)
        values: dict[str, Any] = newcomer._asdict()
        with self._database.write() as connection:
            values |= _job(connection, token)
            connection.exec_driver_sql(statements("sqlite")["ready"], values)

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
        values = checked_step(
            number,
            state,
            restart_count=restart_count,
            meeting=meeting,
            standstill_s=standstill_s,
            reason=reason,
        )
        values["at"] = _text(at)
        with self._database.write() as connection:
            values |= _job(connection, token)
            connection.exec_driver_sql(statements("sqlite")["advance"], values)
            return bool(_row(connection, "advanced", values)["advanced_is_there"])

    def close(self) -> None:
        """Give back the connections."""
        self._database.close()


def _job(connection: Connection, token: str) -> dict[str, Any]:
    if not isinstance(token, str):
        raise UnknownJobError("a job's token is a text; this one is none")
    values = {"token_sha256": hash_token(token), "token_user_id": user_of_token(token)}
    return _row(connection, "job", values)


def _row(connection: Connection, statement: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a statement, with nulls for none; raises the error that it refuses with."""
    result = connection.exec_driver_sql(statements("sqlite")[statement], values)
    names, row = list(result.keys()), result.one_or_none()
    found: dict[str, Any] = dict(zip(names, row or [None] * len(names), strict=True))
    if found.get("code") is not None:
        raise REFUSALS[found["code"]](found["words"])
    return {f"{statement}_{name}": value for name, value in found.items()}


def _text(at: datetime) -> str:
    """Return a time as SQLite has it in its tables."""
    return utc(at).replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")
