"""A private PostgreSQL server for the tests, from Debian's package: a socket in a folder, no TCP port."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.waiting import wait_until

_SUPERUSER = "pollux_test"
# pg_ctl waits a minute for the server, which is not long on a busy machine.
_PATIENTLY = ("-t", "240")


class PostgresMissingError(Exception):
    """No PostgreSQL can be started here, for the reason in the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresServer:
    """A running server. With `stop` and `start` a test makes an outage."""

    folder: Path
    bin_dir: Path
    user: str | None
    settings: tuple[tuple[str, str], ...] = (
        ("fsync", "off"),
        ("max_connections", "60"),
        ("shared_buffers", "32MB"),
    )

    @property
    def port(self) -> str:
        """The port that also names the socket."""
        return dict(self.settings).get("port", "5432")

    def url(self, database: str, *, login: str = _SUPERUSER) -> str:
        more = "" if self.port == "5432" else f"&port={self.port}"
        return f"postgresql://{login}@/{database}?host={self.folder}{more}"

    def create_database(self, name: str, *, template: str = "template1") -> str:
        """Create a database and return its URL."""
        self.sql(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        return self.url(name)

    def drop_database(self, name: str) -> None:
        self.sql(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def sql(self, statement: str, *, database: str = "postgres") -> None:
        import psycopg

        with psycopg.connect(self.url(database), autocommit=True) as connection:
            connection.execute(statement)  # type: ignore[call-overload]

    def secret_of(self, login: str) -> str:
        """Return the SCRAM secret of a login's password, as a pooler's list of users wants it."""
        import psycopg

        with psycopg.connect(self.url("postgres")) as connection:
            row = connection.execute(
                "SELECT rolpassword FROM pg_authid WHERE rolname = %s", (login,)
            ).fetchone()
        assert row is not None
        return str(row[0])

    def start(self) -> None:
        settings = {
            "unix_socket_directories": str(self.folder),
            "listen_addresses": "",
            **dict(self.settings),
        }
        options = " ".join(f"-c {key}={value!r}" for key, value in settings.items())
        self._run(
            "pg_ctl",
            "-D",
            f"{self.folder}/data",
            "-l",
            f"{self.folder}/log",
            "-o",
            options,
            "-w",
            *_PATIENTLY,
            "start",
        )
        wait_until(self._answers, timeout_s=120, what="PostgreSQL")

    def stop(self) -> None:
        self._run("pg_ctl", "-D", f"{self.folder}/data", "-m", "immediate", "-w", *_PATIENTLY, "stop")

    def initialize(self, *options: str) -> None:
        self._run(
            "initdb", "-D", f"{self.folder}/data", "-A", "trust", "-U", _SUPERUSER,
            "-E", "UTF8", "--no-locale", "--no-sync", *options,
        )  # fmt: skip

    def _answers(self) -> bool:
        import psycopg

        with contextlib.suppress(psycopg.OperationalError):
            self.sql("SELECT 1")
            return True
        return False

    def _run(self, program: str, *arguments: str) -> None:
        # The server keeps the log's descriptor, not a pipe of ours, or this call would wait for it to end.
        with Path(f"{self.folder}/commands.log").open("a") as log:
            done = subprocess.run(
                [self.bin_dir / program, *arguments],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=self.folder,
                user=self.user,
                group=None if self.user is None else pwd.getpwnam(self.user).pw_gid,
                extra_groups=None if self.user is None else [],
                timeout=300,
            )
        if done.returncode:
            words = Path(f"{self.folder}/commands.log").read_text()[-500:]
            raise PostgresMissingError(f"{program} failed: {words}")


@contextlib.contextmanager
def running_postgres(*options: str, **settings: str) -> Iterator[PostgresServer]:
    """Run a server in a short path (its socket must fit); raises `PostgresMissingError`.

    `options` are initdb's; `settings` replace the ones of tests, which are quick and survive no power cut.
    """
    try:
        import psycopg  # noqa: F401
    except ImportError:
        raise PostgresMissingError("psycopg is not installed: pip install 'psycopg[binary]'") from None
    folder = Path(tempfile.mkdtemp(prefix="pollux-pg-", dir="/tmp"))
    try:
        user = _unprivileged_user()
        if user is not None:
            shutil.chown(folder, user)
        server = PostgresServer(folder=folder, bin_dir=_find_bin_dir(), user=user)
        if settings:
            server = dataclasses.replace(server, settings=tuple(settings.items()))
        server.initialize(*options)
        server.start()
        try:
            yield server
        finally:
            with contextlib.suppress(PostgresMissingError):  # a test may have stopped it
                server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def postgres_of_test(*options: str, **settings: str) -> Iterator[PostgresServer]:
    """Run a server as `running_postgres` does; skip where there is none; on CI, where it always is, fail."""
    try:
        with running_postgres(*options, **settings) as server:
            yield server
    except PostgresMissingError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


def _unprivileged_user() -> str | None:
    """Return the user to run the server as, because it refuses root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    raise PostgresMissingError("PostgreSQL refuses to run as root, and there is no user postgres or nobody")


def _find_bin_dir() -> Path:
    """Return the folder of initdb and pg_ctl; Debian keeps them out of PATH."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for folder in folders:
        if all((folder / program).is_file() for program in ("initdb", "pg_ctl", "postgres")):
            return folder
    raise PostgresMissingError("PostgreSQL is not installed: apt install postgresql")
