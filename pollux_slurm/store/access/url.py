"""Parse a store's URL, with a one-line error for an invalid one. No connection is made here."""

from __future__ import annotations

import contextlib
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from pollux_slurm.errors import ConfigError
from pollux_slurm.store.access.secrets_in_url import redacted

_EXAMPLES = "sqlite:////path/to/pollux.db or postgresql://user@host/database"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreUrl:
    """A parsed store URL. `path` is the file of an SQLite store, None for PostgreSQL."""

    url: URL
    path: Path | None

    def __str__(self) -> str:
        """Return the URL without its passwords, in a form that can be parsed."""
        if self.path is not None:
            return "sqlite:///" + str(self.path).replace("%", "%25").replace("?", "%3F")
        return redacted(self.url.render_as_string(hide_password=True))

    def command(self, action: str) -> str:
        """Return a complete `pollux db` command for this store."""
        return f"pollux db {action} --store {shlex.quote(str(self))}"


def parse_store_url(text: str) -> StoreUrl:
    """Parse a store's URL; raises `ConfigError` with what to write instead."""
    if not unquote(text).isprintable():
        raise ConfigError(f"a store URL cannot hold control characters; write {_EXAMPLES}")
    try:
        url = make_url(text)
        backend = url.get_backend_name()
    except (ArgumentError, ValueError):
        raise ConfigError(f"not a store URL: {redacted(text)[:200]!r}; write {_EXAMPLES}") from None
    if backend == "sqlite":
        return StoreUrl(url=url, path=_sqlite_path(text))
    if backend == "postgresql":
        if "@" in (url.host or ""):  # the end of a password
            raise ConfigError(f"not a store URL: {redacted(text)[:200]!r}; an @ in a password is written %40")
        if not url.database:
            raise ConfigError(f"the store URL {redacted(text)} names no database; write {_EXAMPLES}")
        if url.drivername not in ("postgresql", "postgresql+psycopg"):
            raise ConfigError(
                f"the store URL asks for the driver {url.drivername!r}; pollux uses psycopg 3: write postgresql://"
            )
        return StoreUrl(url=url.set(drivername="postgresql+psycopg"), path=None)
    raise ConfigError(f"no store can be kept in {backend!r}; write {_EXAMPLES}")


def _sqlite_path(text: str) -> Path:
    # Not by make_url: SQLAlchemy 2.0 and 2.1 differ about %-escapes in a path.
    found = re.fullmatch(r"sqlite(?:\+pysqlite)?://(?:/(?P<path>[^?]*))?", text, re.DOTALL)
    if found is None:
        raise ConfigError(
            f"the store URL {redacted(text)[:200]!r} has more than a path in it; write "
            "sqlite:////absolute/path (four slashes)"
        )
    name = unquote(found["path"] or "")
    if name in ("", ":memory:"):
        raise ConfigError(
            "a store in memory cannot be shared by jobs and daemon; write sqlite:////path/to/pollux.db"
        )
    path = Path(name)
    if not path.is_absolute():
        whole = path
        with contextlib.suppress(RuntimeError):  # there is no such home directory
            whole = path.expanduser()
        meant = shlex.quote(str(StoreUrl(url=make_url("sqlite://"), path=whole.absolute())))
        raise ConfigError(
            f"the store's path {str(path)!r} is relative, and jobs and daemon start in different folders; "
            f"write {meant}"
        )
    return path
