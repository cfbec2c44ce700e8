"""Parts of a store: a method of one is a function of a connection, in a transaction of its own.

    class SqlJobs(StorePart):
        register = writing(registration.register_jobs)

`register_jobs(connection, jobs, at=...)` is then `store.jobs.register(jobs, at=...)`. So the function's
signature stands once, and other functions can call it within their own transaction.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection

from pollux_slurm.store.access.database import Database
from pollux_slurm.store.access.url import StoreUrl

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class StorePart:
    """Calls on one subject of a database."""

    def __init__(self, database: Database) -> None:
        self._database = database


def reading(
    function: Callable[Concatenate[Connection, _Arguments], _Result],
) -> Callable[Concatenate[StorePart, _Arguments], _Result]:
    """Return the method that calls `function` in a transaction that sees one snapshot of the database."""

    @functools.wraps(function)
    def method(self: StorePart, /, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        with self._database.read() as connection:
            return function(connection, *args, **kwargs)

    return method


def writing(
    function: Callable[Concatenate[Connection, _Arguments], _Result],
    *,
    check: Callable[[StoreUrl, Connection], object] | None = None,
) -> Callable[Concatenate[StorePart, _Arguments], _Result]:
    """Return the method that calls `function` in a transaction that is committed when it returns.

    In it, `check` comes first, and may refuse the store.
    """

    @functools.wraps(function)
    def method(self: StorePart, /, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        with self._database.write() as connection:
            if check is not None:
                check(self._database.url, connection)
            return function(connection, *args, **kwargs)

    return method
