"""The reporting views agree with the Python code, and have the same columns on every database."""

from __future__ import annotations

import sqlite3
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from pollux_slurm.model import JobState, ReallocationCause
from pollux_slurm.resources import resource_dir
from pollux_slurm.store.contract.interface import Store
from pollux_slurm.store.journal.move_costs import reallocation_costs
from pollux_slurm.store.schema.views import VIEWS, view_sql
from tests.store.builders import (
    Step,
    advance,
    at,
    decision_of,
    move_in_place,
    move_running_job,
    observation,
    plan,
    problem_of,
    registration,
    report,
    token_of,
)


def rows_of(store: Store, query: str) -> list[dict[str, Any]]:
    with store.database.read() as connection:  # type: ignore[attr-defined]
        return [dict(row._mapping) for row in connection.exec_driver_sql(query)]


@pytest.fixture
def story(any_store: Store) -> Store:
    """Job 1 ran 20 s on two GPUs, moved, and ran 60 s on four; job 2 never started."""
    any_store.jobs.register([registration(1), registration(2, user_name="grace", user_id=1002)], at=at(0))
    any_store.jobs.observe([observation(1, gpus={"n0": 2}, started_at=at(4))], at=at(5))
    any_store.agent.report(token_of(1), report(1, throughput=100.0, efficiency=0.5), at=at(10))
    move_running_job(any_store, start=20)
    any_store.jobs.observe([observation(1, JobState.PENDING)], at=at(24))
    any_store.jobs.observe([observation(1, gpus={"n1": 3, "n2": 1}, started_at=at(29))], at=at(30))
    any_store.jobs.observe([observation(1, JobState.COMPLETED, ended_at=at(89))], at=at(90))
    for second, numbers in ((90, [1, 2]), (91, [1])):
        any_store.rounds.record(problem_of(numbers), decision_of(numbers), shadow=False, at=at(second))
    return any_store


def test_that_a_job_has_one_row_with_its_sums(story: Store) -> None:
    one, two = rows_of(story, "SELECT * FROM job_goodput ORDER BY job_id")
    assert (one["slurm_job_id"], one["user_name"], one["account"], one["state"]) == (
        "1",
        "ada",
        "vision",
        "completed",
    )
    assert one["gpu_hours"] == pytest.approx((20 * 2 + 60 * 4) / 3600, abs=1e-6)
    assert one["submit_to_finish_s"] == pytest.approx(89.0, abs=0.01)
    # A sample counts for the time that it covers: 1.28 s (its step), 13 s, and a step again.
    assert one["num_samples"] == 3
    assert one["goodput"] == pytest.approx((1.28 * 50 + 13 * 160 + 1.28 * 160) / 15.56)
    assert (one["restarts"], one["lost_s"]) == (1, pytest.approx(12.5, abs=0.01))
    assert (two["user_name"], two["gpu_hours"], two["restarts"], two["goodput"]) == ("grace", 0.0, 0, None)
    assert (two["submit_to_finish_s"], two["num_samples"], two["lost_s"]) == (None, 0, 0.0)


def test_that_an_open_interval_counts_up_to_now(any_store: Store) -> None:
    any_store.jobs.register([registration(1)], at=at(0))
    an_hour_ago = datetime.now(timezone.utc) - timedelta(hours=1)
    any_store.jobs.observe([observation(1, gpus={"n0": 2}, started_at=an_hour_ago)], at=an_hour_ago)
    (row,) = rows_of(any_store, "SELECT gpu_hours FROM job_goodput")
    most = 2 * (datetime.now(timezone.utc) - an_hour_ago) / timedelta(hours=1)
    assert 2.0 - 0.01 <= row["gpu_hours"] <= most + 0.01


def test_that_costs_equal_those_of_move_costs(story: Store) -> None:
    story.jobs.observe([observation(1, gpus={"n0": 1})], at=at(95))
    unfinished = plan(story, seconds=100, from_restart_count=1)
    advance(story, unfinished, (Step.REQUEUED, 110))
    rows = rows_of(story, "SELECT * FROM reallocation_history ORDER BY reallocation_id")
    assert len(rows) == 2
    for row, reallocation in zip(rows, story.journal.reallocations(), strict=True):
        costs = reallocation_costs(reallocation)
        for name in ("checkpoint_s", "hold_s", "slurm_s", "launch_s", "total_s"):
            expected = getattr(costs, name)
            assert row[name] == (None if expected is None else pytest.approx(expected, abs=0.01)), name
        assert row["step"] == reallocation.step.value
        assert (row["source_gpus"], row["source_nodes"]) == (2, 1)
        assert (row["target_gpus"], row["target_nodes"]) == (4, 2)
    assert rows[0]["total_s"] == pytest.approx(12.5, abs=0.01)


def test_that_a_move_in_place_has_its_own_costs(story: Store) -> None:
    token = token_of(1)
    story.jobs.observe([observation(1, gpus={"n1": 3, "n2": 1}, restart_count=1)], at=at(95))
    now = {"run_number": 1, "restart_count": 1, "gpus_per_node": (3, 1)}
    story.agent.report(token, report(3, **now, throughput=300.0, efficiency=0.5), at=at(96))
    grown = move_in_place(story, start=100, restart_count=1)
    now = {"run_number": 2, "restart_count": 1, "gpus_per_node": (2, 1)}
    story.agent.report(token, report(1, **now, throughput=400.0, efficiency=0.5), at=at(109))
    shrunk = move_in_place(story, start=200, restart_count=1, target={"n0": 1}, standstill_s=0.25)
    rows = rows_of(story, "SELECT * FROM reallocation_history ORDER BY reallocation_id")
    assert [row["way"] for row in rows] == ["requeue", "in_place", "in_place"]
    assert (rows[0]["standstill_s"], rows[0]["warm_up_s"], rows[0]["regroup_requested_at"]) == (None,) * 3
    for row, planned in zip(rows[1:], (grown, shrunk), strict=True):
        (moved,) = (one for one in story.journal.reallocations() if one.id == planned.id)
        costs = reallocation_costs(moved)
        assert row["standstill_s"] == costs.standstill_s
        assert row["warm_up_s"] == (None if costs.warm_up_s is None else pytest.approx(costs.warm_up_s))
        assert [row[name] for name in ("checkpoint_s", "hold_s", "slurm_s", "launch_s", "total_s")] == [
            None
        ] * 5
        assert row["first_step_at"] is None
    assert [row["warm_up_s"] for row in rows[1:]] == [pytest.approx(7.5), None]
    # The first sample of a run counts for its step, and run 1 has two more from before.
    of_run_1 = [
        row["goodput"] for row in rows_of(story, "SELECT goodput FROM job_samples WHERE run_number = 1")
    ]
    assert min(of_run_1) < rows[1]["goodput_before"] < max(of_run_1)
    assert rows[1]["goodput_after"] == rows[2]["goodput_before"] == pytest.approx(200.0)
    (job,) = rows_of(story, "SELECT * FROM job_goodput WHERE slurm_job_id = '1'")
    assert (job["restarts"], job["lost_s"]) == (1, pytest.approx(12.5, abs=0.01))
    assert (job["regroups"], job["standstill_s"]) == (2, 0.75)


def test_that_moves_are_grouped_by_cause_and_not_by_reason(any_store: Store) -> None:
    any_store.jobs.register([registration(number) for number in (1, 2, 3)], at=at(0))
    for number, cause in ((1, "decision"), (2, "pause"), (3, None)):
        changes = {} if cause is None else {"cause": ReallocationCause(cause)}
        moved = plan(any_store, number, reason=f"the words of {number}", **changes)
        ask: dict[str, Any] = {"at": at(30), "checkpoint_waived": number == 1, "taken_over": number == 2}
        any_store.journal.advance(moved.id, Step.FAILED, expected=Step.PLANNED, **ask)
    counted = rows_of(
        any_store,
        "SELECT cause, COUNT(*) AS moves, COUNT(CASE WHEN checkpoint_waived THEN 1 END) AS waived,"
        " COUNT(CASE WHEN taken_over THEN 1 END) AS taken_over,"
        " COUNT(CASE WHEN retargeted OR job_failed THEN 1 END) AS others"
        " FROM reallocation_history GROUP BY cause ORDER BY cause",
    )
    assert [tuple(row.values()) for row in counted] == [("decision", 2, 1, 0, 0), ("pause", 1, 0, 1, 0)]


def test_that_an_unconfirmed_checkpoint_costs_from_the_requeue(any_store: Store) -> None:
    any_store.jobs.register([registration(1)], at=at(0))
    moved = plan(any_store)
    advance(any_store, moved, (Step.REQUEUED, 30), (Step.RUNNING, 35), (Step.CONFIRMED, 42))
    (row,) = rows_of(any_store, "SELECT * FROM reallocation_history")
    assert (row["checkpoint_s"], row["hold_s"]) == (None, None)
    assert row["total_s"] == pytest.approx(12.0, abs=0.01)


def test_that_every_view_has_a_file() -> None:
    assert {path.stem for path in (resource_dir("sql") / "views").glob("*.sql")} == set(VIEWS)


@pytest.mark.parametrize("view", VIEWS)
def test_that_views_contain_nothing_that_a_driver_takes_for_a_parameter(view: str) -> None:
    for dialect in ("sqlite", "postgresql"):
        assert not set("%?") & set(view_sql(view, dialect))


def test_that_the_sqlite_shell_can_read_the_views(store_url: str, store: Store) -> None:
    """A view may use only what every SQLite has: no function that this program registers."""
    store.jobs.register([registration(1)], at=at(0))
    with sqlite3.connect(store_url.removeprefix("sqlite:///")) as connection:
        for view in VIEWS:
            connection.execute(f"SELECT * FROM {view}").fetchall()
    connection.close()
