"""The made-up year of notebooks and tutorials: its tables agree with each other."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest

from examples.notebooks.sample_store import make_store

_HELD = """
    SELECT a.job_id, a.number, a.started_at, a.ended_at, n.node_name, n.num_gpus
    FROM allocations AS a JOIN allocation_nodes AS n ON n.job_id = a.job_id AND n.number = a.number
"""


@pytest.fixture(scope="module")
def year(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    file = tmp_path_factory.mktemp("sample") / "sample.db"
    make_store(file, 2000)
    connection = sqlite3.connect(file)
    yield connection
    connection.close()


def rows(year: sqlite3.Connection, query: str) -> list[tuple[Any, ...]]:
    return year.execute(query).fetchall()


def test_that_all_jobs_end_within_the_year(year: sqlite3.Connection) -> None:
    query = "SELECT state, count(*), max(finished_at) < '2026' FROM jobs GROUP BY state"
    assert rows(year, query) == [("completed", 2000, 1)]
    assert rows(year, "SELECT count(*) FROM allocations WHERE ended_at IS NULL") == [(0,)]


def test_that_a_move_is_between_the_allocations_before_and_after_it(year: sqlite3.Connection) -> None:
    moves = rows(
        year, "SELECT reallocation_id, source_gpus, target_gpus FROM reallocation_history ORDER BY 1"
    )
    held = f"SELECT job_id, number, sum(num_gpus) AS gpus FROM ({_HELD}) GROUP BY job_id, number"
    assert len(moves) > 1000
    assert moves == rows(
        year,
        f"WITH held AS ({held}) SELECT r.id, before.gpus, after.gpus FROM reallocations AS r"
        " JOIN held AS before ON before.job_id = r.job_id AND before.number = r.from_restart_count"
        " JOIN held AS after ON after.job_id = r.job_id AND after.number = r.from_restart_count + 1"
        " ORDER BY 1",
    )
    assert all(source != target for _, source, target in moves)


def test_that_no_node_holds_more_than_its_gpus(year: sqlite3.Connection) -> None:
    most = f"""
        WITH held AS ({_HELD}) SELECT max(gpus) FROM (
            SELECT sum(other.num_gpus) AS gpus FROM held AS one JOIN held AS other
            ON other.node_name = one.node_name
            AND other.started_at <= one.started_at AND one.started_at < other.ended_at
            GROUP BY one.job_id, one.number, one.node_name
        )
    """
    assert rows(year, most) == [(4,)]
    unknown = f"SELECT node_name FROM ({_HELD}) WHERE node_name NOT IN (SELECT node_name FROM nodes)"
    assert rows(year, unknown) == []


def test_that_a_round_gives_the_gpus_that_jobs_hold(year: sqlite3.Connection) -> None:
    """Every hundredth round, of which some find no job."""
    query = f"""
        SELECT r.num_jobs, r.num_served, r.num_gpus, r.total_gpus, count(DISTINCT h.job_id),
            coalesce(sum(h.num_gpus), 0)
        FROM rounds AS r LEFT JOIN ({_HELD}) AS h ON h.started_at <= r.at AND r.at < h.ended_at
        WHERE r.id % 100 = 0 GROUP BY r.id
    """
    found = rows(year, query)
    assert {total for _, _, _, total, _, _ in found} == {16}
    assert [(served, gpus) for _, served, gpus, _, _, _ in found] == [row[4:] for row in found]
    assert all(served <= jobs for jobs, served, *_ in found)
    assert len({gpus for _, _, gpus, *_ in found}) > 4


def test_that_a_round_decides_what_the_job_holds(year: sqlite3.Connection) -> None:
    query = f"""
        SELECT d.num_gpus, sum(h.num_gpus) FROM decisions AS d JOIN rounds AS r ON r.id = d.round_id
        LEFT JOIN ({_HELD}) AS h ON h.job_id = d.job_id AND h.started_at <= r.at AND r.at < h.ended_at
        GROUP BY d.round_id, d.job_id
    """
    found = rows(year, query)
    assert len(found) > 10_000
    assert all(decided == held for decided, held in found)
