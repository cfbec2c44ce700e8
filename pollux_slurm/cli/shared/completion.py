"""What the shell offers after TAB: job numbers, accounts, and the choices of an option.

A shell waits for the answer and shows all that is printed. So an answer that takes long or fails is none.
Only plain words are offered, because zsh evaluates them.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from sqlalchemy import Connection

ANSWER_S = 0.7
_MOST = 100
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]*")

Items = list[tuple[str, str]]


def complete_jobs(ctx: typer.Context, incomplete: str) -> Items:
    """Offer the jobs of the store: those that are not over, then the newest others."""
    return _from_store(ctx, lambda connection: _jobs(connection, incomplete, finished=True))


def complete_active_jobs(ctx: typer.Context, incomplete: str) -> Items:
    """Offer the jobs of the store that are not over."""
    return _from_store(ctx, lambda connection: _jobs(connection, incomplete, finished=False))


def complete_accounts(ctx: typer.Context, incomplete: str) -> Items:
    """Offer the accounts of the store."""
    return _from_store(ctx, lambda connection: _accounts(connection, incomplete))


def choices(*words: str) -> Callable[[str], list[str]]:
    """Return a function that offers fixed words."""

    def complete(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return complete


def setting_choices(section: str, key: str) -> Callable[[str], list[str]]:
    """Return a function that offers the choices of a setting."""

    def complete(incomplete: str) -> list[str]:
        # Imported here: the help of a command needs no settings.
        from pollux_slurm.config import Config

        kind = type(getattr(Config(), section))
        return choices(*kind.__dataclass_fields__[key].metadata["choices"])(incomplete)

    return complete


def _from_store(ctx: typer.Context, read: Callable[[Connection], Iterable[tuple[str, str]]]) -> Items:
    """Return what `read` finds in the store of the command line or of the settings, in time or not at all."""
    found: Items = []

    def work() -> None:
        with contextlib.suppress(Exception):  # whatever fails, the shell offers nothing
            from pollux_slurm.cli.shared.settings_and_store import settings
            from pollux_slurm.store.access.opening import open_database

            config = settings(ctx.params.get("config_file"), ctx.params.get("store_url"))
            database = open_database(config.require_store_url())
            with contextlib.closing(database), database.read() as connection:
                found.extend(_printable(read(connection)))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(ANSWER_S)
    return [] if thread.is_alive() else found


def _jobs(connection: Connection, incomplete: str, *, finished: bool) -> Iterable[tuple[str, str]]:
    from sqlalchemy import select

    from pollux_slurm.store.schema import JobRow

    of_prefix = select(JobRow.slurm_job_id, JobRow.state, JobRow.name).where(
        JobRow.slurm_job_id.startswith(incomplete, autoescape=True)
    )
    newest = of_prefix.order_by(JobRow.id.desc()).limit(_MOST)
    for over in (False, True)[: 2 if finished else 1]:
        rows = connection.execute(newest.where(JobRow.finished_at.is_not(None) == over))
        yield from ((row.slurm_job_id, f"{row.state.value} {row.name}") for row in rows)


def _accounts(connection: Connection, incomplete: str) -> Iterable[tuple[str, str]]:
    from sqlalchemy import select

    from pollux_slurm.store.schema import AccountRow

    names = select(AccountRow.account).where(AccountRow.account.startswith(incomplete, autoescape=True))
    for (name,) in connection.execute(names.order_by(AccountRow.account).limit(_MOST)):
        yield name, ""


def _printable(items: Iterable[tuple[str, str]]) -> Items:
    """Leave out words that a shell would read as more than a word; mask other characters of the meaning."""
    return [
        (word, re.sub(r"[^A-Za-z0-9_.@+ -]", "_", meaning)[:60])
        for word, meaning in items
        if _WORD.fullmatch(word)
    ]
