"""A private PgBouncer in front of the tests' PostgreSQL, set up as in docs/postgresql.md."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.pages.blocks import blocks_of
from tests.store.postgres import PostgresServer
from tests.waiting import wait_until

DOCS = Path(__file__).resolve().parents[2] / "docs" / "postgresql.md"


class PgBouncerMissingError(Exception):
    """No PgBouncer can be started here, for the reason in the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooler:
    """A running PgBouncer: listens on `port` of this host."""

    port: int
    process: subprocess.Popen[bytes]

    def url(self, login: str, password: str, **query: object) -> str:
        more = "".join(f"&{key}={value}" for key, value in query.items())
        return f"postgresql://{login}:{password}@127.0.0.1:{self.port}/pollux?sslmode=require{more}"


def documented_settings() -> str:
    """Return the pgbouncer.ini of docs/postgresql.md."""
    (text,) = [block.text for block in blocks_of(DOCS) if block.text.startswith("[databases]")]
    return text


@contextlib.contextmanager
def running_pgbouncer(
    server: PostgresServer, database: str, secrets: dict[str, str], **settings: str
) -> Iterator[Pooler]:
    """Run PgBouncer in front of `database` for logins with SCRAM `secrets`, "" for another proof.

    `settings` replace documented ones. Raises `PgBouncerMissingError`.
    """
    program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None or shutil.which("openssl") is None:
        raise PgBouncerMissingError("no PgBouncer or openssl here: apt install pgbouncer openssl")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    folder = Path(tempfile.mkdtemp(prefix="pollux-pool-"))
    try:
        make_certificate(folder)
        listed = "".join(f'"{name}" "{secret}"\n' for name, secret in secrets.items())
        (folder / "userlist.txt").write_text(listed)
        places = {
            "listen_addr": "127.0.0.1",
            "listen_port": str(port),
            "auth_file": f"{folder}/userlist.txt",
            "client_tls_key_file": f"{folder}/server.key",
            "client_tls_cert_file": f"{folder}/server.crt",
            "unix_socket_dir": "",
            **settings,
        }
        text = documented_settings().replace("/var/run/postgresql", str(server.folder))
        text = text.replace("dbname=pollux", f"dbname={database} port={server.port}")
        for name, value in places.items():
            text = re.sub(rf"^{name} *=.*\n", "", text, flags=re.MULTILINE) + f"{name} = {value}\n"
        (folder / "pgbouncer.ini").write_text(text)
        for path in (folder, *folder.iterdir()):
            if server.user is not None:
                shutil.chown(path, server.user)
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [program, f"{folder}/pgbouncer.ini"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder, user=server.user,
            )  # fmt: skip
        try:

            def answers() -> bool:
                if process.poll() is not None:
                    raise PgBouncerMissingError(f"pgbouncer failed: {(folder / 'log').read_text()[-800:]}")
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=60):
                    return True
                return False

            wait_until(answers, timeout_s=120, what="PgBouncer")
            yield Pooler(port=port, process=process)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=120)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def make_certificate(folder: Path) -> None:
    """Make a self-signed certificate for 127.0.0.1."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-days", "2", "-subj", "/CN=127.0.0.1", "-keyout", "server.key", "-out", "server.crt"],
        cwd=folder, capture_output=True, check=True, timeout=120,
    )  # fmt: skip
