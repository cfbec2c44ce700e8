"""How people prove to a real PostgreSQL who they are, with the lines of pg_hba.conf in docs/postgresql.md."""

from __future__ import annotations

import dataclasses
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from pollux_slurm.errors import StoreError, StoreUnavailable, UnknownJobError
from pollux_slurm.store import open_agent_store, open_store
from pollux_slurm.store.maintenance.administration import add_login, init_store
from tests.pages.blocks import blocks_of
from tests.store.builders import at, observation, registration, report, token_of
from tests.store.pgbouncer import PgBouncerMissingError, Pooler, running_pgbouncer
from tests.store.postgres import PostgresServer, postgres_of_test

DOCS = Path(__file__).resolve().parents[3] / "docs" / "postgresql.md"
NETWORK = "10.1.0.0/16"

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("openssl") is None, reason="acts as other users, and makes certificates"
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Guarded:
    """A server that asks everybody for proof, on a port of this machine too."""

    server: PostgresServer
    port: int
    folder: Path

    def url(self, login: str, database: str = "pollux", **query: object) -> str:
        more = "".join(f"&{key}={value}" for key, value in query.items())
        return f"postgresql://{login}@127.0.0.1:{self.port}/{database}?sslmode=require{more}"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, long_store_timeouts: None) -> Iterator[Guarded]:
    with postgres_of_test() as plain:
        yield prepare(plain, tmp_path_factory.mktemp("keys"))


def prepare(plain: PostgresServer, keys: Path) -> Guarded:
    """Make a store with logins, and start the server again with the documented pg_hba.conf and TLS."""
    admin = plain.create_database("pollux")
    init_store(admin)
    add_login(admin, "pollux", shared=False, connections=10, roles=("pollux_daemon",))
    add_login(admin, "jobs", shared=True, connections=10, roles=("pollux_agent",))
    for name in ("alice", "nobody"):
        add_login(admin, name, shared=False, connections=5, roles=("pollux_agent", "pollux_reader"))
    plain.sql("ALTER ROLE jobs PASSWORD 's3cret'; ALTER ROLE pollux PASSWORD 'daemons'")
    store = open_store(admin)
    store.jobs.register([registration(1)], at=at(0))
    store.jobs.observe([observation(1, gpus={"n0": 2})], at=at(0))
    store.close()
    make_certificates(keys)
    plain.folder.chmod(0o711)  # others reach the socket
    data = plain.folder / "data"
    for name in ("server.crt", "server.key", "ca.crt"):
        shutil.copyfile(keys / name, data / name)
        shutil.chown(data / name, plain.user)
        (data / name).chmod(0o600)
    lines = documented_text("# TYPE      DATABASE")
    text = "local all pollux_test trust\n" + lines.replace(NETWORK, "127.0.0.1/32")
    # This machine has no Kerberos: those lines would keep the server from starting.
    text = "\n".join(line for line in text.splitlines() if not line.startswith("hostgssenc"))
    (data / "pg_hba.conf").write_text(text + "\n")
    speakers = documented_text("# MAPNAME").replace("postgres", plain.user or "postgres")
    (data / "pg_ident.conf").write_text(speakers + f"pollux {plain.user} alice\n")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    plain.stop()
    settings = (
        ("listen_addresses", "127.0.0.1"),
        ("port", str(port)),
        ("ssl", "on"),
        ("ssl_ca_file", "ca.crt"),
    )
    server = dataclasses.replace(plain, settings=(*plain.settings, *settings))
    server.start()
    return Guarded(server=server, port=port, folder=keys)


def documented_text(beginning: str) -> str:
    (text,) = [block.text for block in blocks_of(DOCS) if block.text.startswith(beginning)]
    return text


def make_certificates(keys: Path) -> None:
    """Make an authority, and certificates of it for the server and for alice."""

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=keys, capture_output=True, check=True, timeout=120)

    new = ("req", "-newkey", "rsa:2048", "-nodes")
    openssl(*new, "-x509", "-days", "2", "-subj", "/CN=test ca", "-keyout", "ca.key", "-out", "ca.crt")
    for name, subject in (("server", "/CN=127.0.0.1"), ("alice", "/CN=alice")):
        openssl(*new, "-subj", subject, "-keyout", f"{name}.key", "-out", f"{name}.csr")
        openssl(
            "x509", "-req", "-days", "2", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key",
            "-CAcreateserial", "-out", f"{name}.crt",
        )  # fmt: skip
        (keys / f"{name}.key").chmod(0o600)


AS_NOBODY = """
import os, pwd, sys
from pollux_slurm.store import open_agent_store
from pollux_slurm.store.access import opening
from pollux_slurm.store.agent_api import postgresql_api
from tests.store.builders import at, report, token_of
from pollux_slurm.goodput import checks
nobody = pwd.getpwnam("nobody")
try:  # as root, who is none of them: imports what nobody may not be able to read
    open_agent_store(sys.argv[1].replace("LOGIN", "nobody")).poll("x", 0, at=at(0))
except Exception as error:
    print(type(error).__name__)
os.setgroups([]), os.setgid(nobody.pw_gid), os.setuid(nobody.pw_uid)
for login in ("nobody", "alice"):
    jobs = open_agent_store(sys.argv[1].replace("LOGIN", login))
    try:
        jobs.report(token_of(1), report(int(sys.argv[2])), at=at(0))
        print("reported")
    except Exception as error:
        print(type(error).__name__)
"""


def test_that_a_user_of_the_host_is_known_by_the_kernel(guarded: Guarded) -> None:
    url = guarded.server.url("pollux", login="LOGIN")
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, url, "1"], capture_output=True, text=True, timeout=300
    )
    assert done.stdout.split() == ["StoreUnavailable", "reported", "StoreUnavailable"], done.stderr


def test_that_a_certificate_is_its_owners(guarded: Guarded) -> None:
    proof = {
        "sslcert": guarded.folder / "alice.crt",
        "sslkey": guarded.folder / "alice.key",
        "sslrootcert": guarded.folder / "ca.crt",
    }
    jobs = open_agent_store(guarded.url("alice", **proof))
    jobs.report(token_of(1), report(2), at=at(0))
    jobs.close()
    for url in (guarded.url("nobody", **proof), guarded.url("alice")):
        other = open_agent_store(url)
        with pytest.raises(StoreUnavailable):
            other.report(token_of(1), report(3), at=at(0))


def test_that_the_shared_login_has_its_password_from_a_file(
    guarded: Guarded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passwords = tmp_path / "pgpass"
    passwords.write_text(f"127.0.0.1:{guarded.port}:pollux:jobs:s3cret\n")
    passwords.chmod(0o600)
    jobs = open_agent_store(guarded.url("jobs"))
    with pytest.raises(StoreUnavailable, match="password") as refused:
        jobs.report(token_of(1), report(4), at=at(0))
    assert "s3cret" not in str(refused.value)
    monkeypatch.setenv("PGPASSFILE", str(passwords))
    jobs.report(token_of(1), report(4), at=at(0))
    assert jobs.poll(token_of(1), 0, at=at(0)).checkpoint_request is None
    jobs.close()


def test_that_logins_of_jobs_enter_the_store_only(guarded: Guarded) -> None:
    for url in (guarded.url("jobs", database="postgres"), guarded.url("alice", database="template1")):
        with pytest.raises((StoreUnavailable, StoreError), match=r"pg_hba\.conf|permission denied"):
            open_store(url)


@pytest.fixture(scope="module")
def pooler(guarded: Guarded) -> Iterator[Pooler]:
    """A PgBouncer with one connection to the server, which all who come share; it lets go of it sooner."""
    secret = guarded.server.secret_of("jobs")
    guarded.server.sql("ALTER ROLE jobs PASSWORD NULL")
    try:
        with running_pgbouncer(
            guarded.server,
            "pollux",
            {"jobs": secret},
            default_pool_size="1",
            idle_transaction_timeout="1",
        ) as running:
            yield running
    except PgBouncerMissingError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    finally:
        guarded.server.sql("ALTER ROLE jobs PASSWORD 's3cret'")


def test_that_jobs_report_through_a_pooler_that_knows_their_password(pooler: Pooler) -> None:
    jobs = open_agent_store(pooler.url("jobs", "s3cret"), keep_connection=True)
    for sequence in (11, 12):
        jobs.report(token_of(1), report(sequence), at=at(0))
        assert jobs.poll(token_of(1), 0, at=at(0)).checkpoint_request is None
    with pytest.raises(UnknownJobError):
        jobs.poll(token_of(1, 1002), 0, at=at(0))
    jobs.close()
    client = open_agent_store(pooler.url("jobs", "guessed"))
    with pytest.raises(StoreUnavailable):
        client.poll(token_of(1), 0, at=at(0))


def test_that_a_copied_hash_gains_nothing_through_a_pooler(guarded: Guarded, pooler: Pooler) -> None:
    owner = registration(2, user_id=1002, user_name="grace")
    copy = registration(3, terms={"token_sha256": owner.terms.token_sha256})
    daemon = open_store(guarded.url("pollux:daemons"))
    for turn in (copy, owner):
        assert daemon.jobs.register([turn], at=at(0)) == ()
    daemon.jobs.observe([observation(number, gpus={"n0": 2}) for number in (2, 3)], at=at(1))
    jobs = open_agent_store(pooler.url("jobs", "s3cret"), keep_connection=True)
    jobs.report(token_of(2, 1002), report(1), at=at(2))
    with pytest.raises(UnknownJobError):
        jobs.report(token_of(2, 1001), report(2), at=at(3))
    assert (len(daemon.history.runs("2")), daemon.history.runs("3")) == (1, ())
    jobs.close()
    daemon.close()


LEFT_BEHIND = (
    "SET statement_timeout = 1",
    "SET search_path = pg_temp",
    "SET default_transaction_read_only = on",
    "SET ROLE pollux_agent",
    "PREPARE mine AS SELECT 1",
    "DECLARE mine CURSOR WITH HOLD FOR SELECT 1",
    "LISTEN mine",
)


def test_that_what_a_stranger_leaves_in_a_pooled_connection_meets_nobody(pooler: Pooler) -> None:
    url = pooler.url("jobs", "s3cret")
    jobs = open_agent_store(url, keep_connection=True)
    with psycopg.connect(url, autocommit=True, prepare_threshold=None) as client:
        for number, statement in enumerate(LEFT_BEHIND):
            client.execute(statement)
            jobs.report(token_of(1), report(20 + number), at=at(0))
        with psycopg.connect(url, autocommit=True, prepare_threshold=None) as sibling:
            left = "SELECT name FROM pg_prepared_statements UNION ALL SELECT name FROM pg_cursors"
            assert sibling.execute(left).fetchall() == []
            assert sibling.execute("SELECT current_user, pg_listening_channels()").fetchall() == []
    jobs.close()


def test_that_a_transaction_left_open_in_a_pooler_is_ended(pooler: Pooler) -> None:
    url = pooler.url("jobs", "s3cret")
    jobs = open_agent_store(url, keep_connection=True)
    with psycopg.connect(url, prepare_threshold=None) as client:
        client.execute("SELECT 1")
        jobs.report(token_of(1), report(40), at=at(0))
        with pytest.raises(psycopg.OperationalError):
            client.execute("SELECT 1")
    jobs.close()


def test_that_a_certificate_is_its_owners_at_a_pooler_too(guarded: Guarded, pooler: Pooler) -> None:
    settings = {
        "auth_type": "cert",
        "client_tls_sslmode": "verify-full",
        "client_tls_ca_file": str(guarded.folder / "ca.crt"),
        "default_pool_size": "2",
    }
    guarded.folder.chmod(0o711)
    for folder in guarded.folder.parents[:3]:
        folder.chmod(folder.stat().st_mode | 0o111)
    proof = f"&sslcert={guarded.folder}/alice.crt&sslkey={guarded.folder}/alice.key"
    with running_pgbouncer(guarded.server, "pollux", {"alice": "", "nobody": ""}, **settings) as own:
        place = f"127.0.0.1:{own.port}/pollux?sslmode=require{proof}"
        jobs = open_agent_store(f"postgresql://alice@{place}", keep_connection=True)
        jobs.report(token_of(1), report(50), at=at(0))
        jobs.close()
        other = open_agent_store(f"postgresql://nobody@{place}")
        with pytest.raises(StoreUnavailable):
            other.report(token_of(1), report(51), at=at(0))
