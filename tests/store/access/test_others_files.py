"""Root reads an SQLite file of another user for a limited time, and does not call it good."""

from __future__ import annotations

import contextlib
import os
import sqlite3

import pytest

from pollux_slurm.errors import StoreError, StoreUnavailable
from pollux_slurm.store import open_store
from pollux_slurm.store.access import engine
from pollux_slurm.store.maintenance.administration import check_store
from pollux_slurm.store.reporting.queries import open_view_reader
from pollux_slurm.store.reporting.view_rows import AccountUsage

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root reads the files of all")


@pytest.fixture
def others_url(store_url: str) -> str:
    """Return the URL of a store that belongs to another user."""
    os.chown(store_url.removeprefix("sqlite:///"), 65431, 65431)
    return store_url


def make_long(url: str, steps: str) -> None:
    """Give a store a view that takes `steps`, a condition on i, until its one row is found."""
    with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as theirs:
        columns = [column for column, *_ in theirs.execute("SELECT * FROM account_usage").description]
        row = ", ".join(f"MAX(i) AS {column}" for column in columns)
        count = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE {steps})"
        theirs.execute("DROP VIEW account_usage")
        theirs.execute(f"CREATE VIEW account_usage AS {count} SELECT {row} FROM n WHERE i < 0")


def read(url: str) -> None:
    with open_view_reader(url) as reports:
        reports.rows(AccountUsage, account="vision")


def test_that_a_view_that_takes_too_long_is_ended(others_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make_long(others_url, "i < 300000")
    monkeypatch.setattr(engine, "OTHERS_FILE_S", 0.0)
    with pytest.raises(StoreError, match="root reads a file of another user for a limited time") as seen:
        read(others_url)
    assert "\n" not in str(seen.value)


def test_that_a_lock_that_its_owner_keeps_is_one_error(
    others_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "BUSY_TIMEOUT_S", 0.05)
    with contextlib.closing(sqlite3.connect(others_url.removeprefix("sqlite:///"))) as theirs:
        theirs.execute("PRAGMA locking_mode = EXCLUSIVE")
        theirs.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreUnavailable, match="stays locked by another process"):
            open_store(others_url)


def test_that_it_is_not_called_good(others_url: str) -> None:
    with pytest.raises(StoreError, match=r"belongs to user 65431, .* check it as that user: pollux db check"):
        check_store(others_url)


def test_that_an_ordinary_store_of_another_user_is_read_and_an_own_one_takes_what_time_it_needs(
    others_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read(others_url)
    os.chown(others_url.removeprefix("sqlite:///"), 0, 0)
    assert not check_store(others_url).problems
    make_long(others_url, "i < 300000")
    monkeypatch.setattr(engine, "OTHERS_FILE_S", 0.0)
    read(others_url)
