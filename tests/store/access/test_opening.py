"""Every store that cannot be opened raises an error of one line, with the command that helps."""

from __future__ import annotations

import shlex
import sqlite3
import stat
import sys
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import text

from pollux_slurm.errors import ConfigError, PolluxError, SchemaVersionError, StoreError, StoreUnavailable
from pollux_slurm.store import open_agent_store, open_store
from pollux_slurm.store.access.opening import unchecked_database
from pollux_slurm.store.access.secrets_in_url import redacted
from pollux_slurm.store.access.url import parse_store_url
from pollux_slurm.store.contract.interface import Store
from pollux_slurm.store.maintenance.administration import check_store, init_store, upgrade_store
from pollux_slurm.store.schema import REVISIONS, VERSION_TABLE
from tests.store.builders import at, observation, registration, report, token_of
from tests.store.postgres import PostgresServer
from tests.waiting import wait_until


def refusal(url: str, *, create: bool = False) -> PolluxError:
    """Return the error that opening raises, and check that it is one line without secrets."""
    with pytest.raises(PolluxError) as refused:
        open_store(url, create=create)
    words = str(refused.value)
    assert "\n" not in words
    assert "s3cret" not in words
    return refused.value


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "not a store URL"),
        ("/var/lib/pollux.db", "not a store URL"),
        ("pollux.db", "not a store URL"),
        ("sqlite://", "in memory"),
        ("sqlite:///:memory:", "in memory"),
        ("sqlite://host/path.db", "more than a path"),
        ("sqlite:////tmp/x.db?mode=ro", "more than a path"),
        ("sqlite+aiosqlite:////tmp/x.db", "more than a path"),
        ("sqlite:////tmp/a\0b.db", "control characters"),
        ("sqlite:////tmp/a\nb.db", "control characters"),
        ("sqlite:////tmp/a%00b.db", "control characters"),
        ("mysql://u:s3cret@h/d", "no store can be kept in 'mysql'"),
        ("postgres://u:s3cret@h/d", "no store can be kept in 'postgres'"),
        ("postgresql://u:s3cret@h", "names no database"),
        ("postgresql+psycopg2://u:s3cret@h/d", "write postgresql://"),
        ("postgresql//u:s3cret@h/d", "not a store URL"),
        ("postgresql://u:s3cret@h:port/d", "not a store URL"),
        ("postgresql://u:p@s3cret@h/d", "not a store URL"),
        ("postgresql://u:p/s3cret@h", "names no database"),
        ("postgresql://h?password=s3cret", "names no database"),
        ("postgresql://h:port/d?sslpassword=s3cret", "not a store URL"),
        ("mysql://h/d?password=s3cret", "no store can be kept in 'mysql'"),
        ("sqlite:///x.db?password=s3cret", "more than a path"),
    ],
)
def test_that_an_invalid_url_names_what_to_write(url: str, words: str) -> None:
    error = refusal(url)
    assert isinstance(error, ConfigError)
    assert words in str(error)
    assert "sqlite:////" in str(error) or "postgresql://" in str(error)


@pytest.mark.parametrize(
    "query",
    ["password=s3cret", "sslpassword=s3cret", "connect_timeout=1&user=u&%70assword=s3cret", "PASSWORD=s3cret",
     "oauth_client_secret=s3cret", "scram_client_key=s3cret", "password=s3&password=s3cret"],
)  # fmt: skip
@pytest.mark.parametrize("place", ["postgresql://u:s3cret@127.0.0.1:1/d", "postgresql://127.0.0.1:1/d"])
def test_that_no_password_of_a_url_is_shown_and_the_rest_is(place: str, query: str) -> None:
    """Neither where it is shown, nor by the driver, which cannot reach the server or knows no such option."""
    url = f"{place}?{query}&application_name=me"
    shown = str(parse_store_url(url))
    assert "s3cret" not in shown
    assert "127.0.0.1:1/d" in shown
    assert "application_name=me" in shown
    assert str(parse_store_url(shown)) == shown
    refusal(url)
    jobs = open_agent_store(url)
    with pytest.raises(PolluxError) as refused:
        jobs.poll(token_of(1), 0, at=at(0))
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("://u:s3cret@h//v:s3cret@h/d?x=1", "://u:***@h/d?x=1"),
        ("?a?password=s3cret", "?a?password=***"),
        # With a cost that grows with the square of the length, these take hours.
        ("sqlite:///x" + "?" * 1_000_000, "sqlite:///x" + "?" * 1_000_000),
        ("://x:" * 300_000, "://x:" * 300_000),
    ],
    ids=["users", "options", "many ?", "many :"],
)
def test_that_passwords_are_hidden_in_a_text_of_any_length(url: str, shown: str) -> None:
    assert redacted(url) == shown


def test_that_a_home_directory_that_is_not_there_is_refused_as_a_relative_path() -> None:
    with pytest.raises(ConfigError, match="is relative"):
        parse_store_url("sqlite:///~nobody-of-this-name/pollux.db")


def test_that_a_relative_path_is_refused_with_the_absolute_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    error = refusal("sqlite:///my store.db", create=True)
    assert isinstance(error, ConfigError)
    advice = str(error).split("write ")[1]
    open_store(shlex.split(advice)[0], create=True).close()
    assert (tmp_path / "my store.db").is_file()


@pytest.mark.parametrize("name", ["a b.db", "50%.db", "what?.db", "hash#tag.db", "ünï.db", "'quoted'.db"])
def test_that_odd_file_names_work(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    url = f"sqlite:///{path}".replace("%", "%25").replace("?", "%3F")
    store = open_store(url, create=True)
    store.jobs.register([registration(1)], at=at(0))
    store.close()
    assert [entry.name for entry in tmp_path.iterdir()] == [name]
    assert parse_store_url(str(parse_store_url(url))).path == path


def test_that_a_missing_store_names_the_command_that_makes_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/it is not.db"
    error = refusal(url)
    assert isinstance(error, SchemaVersionError)
    assert str(error).endswith(f"pollux db init --store {shlex.quote(url)}")
    assert list(tmp_path.iterdir()) == [], "looking for a store does not make one"
    with pytest.raises(SchemaVersionError):
        open_agent_store(url)


def test_that_an_empty_database_names_the_command_that_makes_the_tables(any_empty_url: str) -> None:
    if any_empty_url.startswith("sqlite"):
        Path(any_empty_url.removeprefix("sqlite:///")).touch(mode=0o600)
    error = refusal(any_empty_url)
    assert isinstance(error, SchemaVersionError)
    assert "no tables yet" in str(error)
    assert "pollux db init --store " in str(error)
    assert shlex.split(str(error).split("--store ")[1])[0].split("?")[0].split("@")[-1].split("/")[-1]


@pytest.mark.parametrize(
    ("version", "ending"),
    [
        (
            "0012",
            "a new store: put this one aside (rename the file or database), then pollux db init --store ",
        ),
        ("0099", ": pollux db upgrade --store "),
        ("9999", f"while it is installed, go back: pollux db downgrade {REVISIONS[-1]} --store "),
    ],
)
def test_that_another_schema_names_the_command_to_type(
    any_store_url: str, version: str, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pollux_slurm.store.access import opening

    if version == "0099":  # the first revision has no predecessor: let it have one
        monkeypatch.setattr(opening, "REVISIONS", ("0099", *opening.REVISIONS))
    set_version(any_store_url, version)
    try:
        error = refusal(any_store_url)
        assert isinstance(error, SchemaVersionError)
        assert str(error).endswith(
            ending + (shlex.quote(shown(any_store_url)) if ending.endswith(" ") else "")
        )
        assert f"schema {version}" in str(error) or f"schema is {version}" in str(error)
        # In PostgreSQL a job calls functions that come with the schema, whatever release made them.
        if any_store_url.startswith("sqlite"):
            with pytest.raises(SchemaVersionError):
                open_agent_store(any_store_url)
    finally:
        set_version(any_store_url, REVISIONS[-1])


def shown(url: str) -> str:
    return str(parse_store_url(url))


def set_version(url: str, version: str) -> None:
    database = unchecked_database(parse_store_url(url), create=False)
    with database.write() as connection:
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = :v"), {"v": version})
    database.close()


def test_that_a_lost_version_names_its_repair(any_empty_url: str) -> None:
    """The command at the message's end repairs it; neither init nor upgrade does harm before."""
    open_store(any_empty_url, create=True).close()
    database = unchecked_database(parse_store_url(any_empty_url), create=False)
    with database.write() as connection:
        connection.execute(text(f"DELETE FROM {VERSION_TABLE}"))
    words = {str(refusal(any_empty_url)), str(refusal(any_empty_url, create=True))}
    for command in (init_store, upgrade_store, check_store):
        with pytest.raises(SchemaVersionError) as refused:
            command(any_empty_url)
        words.add(str(refused.value))
    (message,) = words
    with database.write() as connection:
        connection.execute(text(message.split("made them: ")[1].split(", then")[0]))
    database.close()
    assert check_store(any_empty_url).problems == ()


def test_that_a_file_that_is_no_database_is_refused_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("these are my notes, not a database, and there are enough of them to tell\n" * 20)
    before = path.read_bytes()
    for create in (False, True):
        error = refusal(f"sqlite:///{path}", create=create)
        assert isinstance(error, StoreError)
        assert "not an SQLite database" in str(error)
    assert path.read_bytes() == before


def test_that_a_folder_is_not_taken_for_a_file(tmp_path: Path) -> None:
    assert "is a folder" in str(refusal(f"sqlite:///{tmp_path}", create=True))


def test_that_a_missing_folder_names_the_command_that_makes_it(tmp_path: Path) -> None:
    error = refusal(f"sqlite:///{tmp_path}/a/b/pollux.db", create=True)
    assert str(error).endswith(f"mkdir -p {tmp_path}/a/b")


def test_that_a_file_in_place_of_the_folder_is_refused_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "folder" in str(refusal(f"sqlite:///{tmp_path}/file/pollux.db", create=True))


def test_that_only_its_owner_can_read_a_new_store(tmp_path: Path) -> None:
    path = tmp_path / "pollux.db"
    store = open_store(f"sqlite:///{path}", create=True)
    store.jobs.register([registration(1)], at=at(0))
    modes = {entry.name: stat.S_IMODE(entry.stat().st_mode) for entry in tmp_path.iterdir()}
    store.close()
    assert modes == {"pollux.db": 0o600, "pollux.db-wal": 0o600, "pollux.db-shm": 0o600}


def test_that_tables_of_other_programs_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE jobs (something TEXT)")
    connection.close()
    path.chmod(0o600)
    error = refusal(f"sqlite:///{path}", create=True)
    assert "holds a table 'jobs' that pollux did not make" in str(error)


def test_that_a_store_that_exists_is_opened_by_create_with_its_data(any_empty_url: str) -> None:
    for _ in range(2):
        store = open_store(any_empty_url, create=True)
        store.jobs.register([registration(1)], at=at(0))
        assert len(store.jobs.all()) == 1
        store.close()


def test_that_closing_twice_is_no_error(any_store_url: str) -> None:
    store = open_store(any_store_url)
    store.close()
    store.close()


def test_that_the_agent_store_reports_and_polls(any_store_url: str) -> None:
    store, agent = open_store(any_store_url), open_agent_store(any_store_url)
    store.jobs.register([registration(1)], at=at(0))
    store.jobs.observe([observation(1, gpus={"n0": 2})], at=at(0))
    agent.report(token_of(1), report(1), at=at(1))
    assert agent.poll(token_of(1), 0, at=at(2)).checkpoint_request is None
    assert not hasattr(agent, "jobs")
    agent.close()
    store.close()


def end_connections(server: PostgresServer) -> int:
    """End the connections of the login `jobs`; return how many there were."""
    asked = "SELECT pg_terminate_backend(pid, 120000) FROM pg_stat_activity WHERE usename = 'jobs'"
    with psycopg.connect(server.url("store"), autocommit=True) as admin:
        return len(admin.execute(asked).fetchall())


@pytest.mark.parametrize("keep", [False, True])
def test_that_a_job_keeps_its_connection_only_with_that_option(
    postgres: PostgresServer, postgres_store: Store, postgres_url: str, keep: bool
) -> None:
    postgres_store.jobs.register([registration(1)], at=at(0))
    postgres_store.jobs.observe([observation(1, gpus={"n0": 2})], at=at(0))
    jobs = open_agent_store(postgres.url("store", login="jobs"), keep_connection=keep)
    # One of an earlier test may be about to end.
    wait_until(lambda: end_connections(postgres) == 0, timeout_s=120, what="no connection to be there")
    ended = 0
    for sequence in (1, 2):
        jobs.report(token_of(1), report(sequence), at=at(sequence))
        if not keep:
            wait_until(lambda: end_connections(postgres) == 0, timeout_s=120, what="the connection to end")
        ended += end_connections(postgres)
        if keep:
            with pytest.raises(StoreUnavailable):
                jobs.poll(token_of(1), 0, at=at(3))
        assert jobs.poll(token_of(1), 0, at=at(3)).checkpoint_request is None
    assert ended == (2 if keep else 0)
    jobs.close()


def test_that_a_missing_driver_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    error = refusal("postgresql://user:s3cret@localhost/pollux")
    assert "pip install 'psycopg[binary]'" in str(error)


def test_that_a_server_that_does_not_answer_raises_store_unavailable(tmp_path: Path) -> None:
    pytest.importorskip("psycopg")
    error = refusal(f"postgresql://user:s3cret@/pollux?host={tmp_path}")
    assert isinstance(error, StoreUnavailable)
    assert "cannot be reached" in str(error)
