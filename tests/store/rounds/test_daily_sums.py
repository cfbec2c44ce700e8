"""Triggers and rounds maintain the sums by day, equal to a sum over all rows, also for unusual input."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from pollux_slurm.model import Allocation, Decision, JobState, NodeCapacity, Problem
from pollux_slurm.store.contract.interface import RunPhase, Store
from pollux_slurm.store.reporting.queries import open_view_reader
from pollux_slurm.store.reporting.view_rows import ROW_TYPES
from pollux_slurm.store.rounds.daily_sums import sum_decisions
from pollux_slurm.store.schema.triggers import fill_day_sums
from tests.store import centre
from tests.store.builders import (
    at,
    decision_of,
    move_running_job,
    observation,
    problem_of,
    registration,
    report,
    token_of,
)
from tests.store.reporting.test_examples import plain
from tests.store.schema.test_views import rows_of

DAY = 86400.0
MIDNIGHT = 43200.0  # T0 is noon


def table(store: Store, name: str, order: str) -> list[tuple[Any, ...]]:
    rows = rows_of(store, f"SELECT * FROM {name} ORDER BY {order}")
    return [tuple(plain(value) for value in row.values()) for row in rows]


def start(store: Store, number: int = 1, *, second: float = 0.0) -> None:
    """Register a job, and report the start of its first run at `second`."""
    store.jobs.register([registration(number)], at=at(0))
    starting = report(0, phase=RunPhase.STARTING, throughput=None, num_steps=0)
    store.agent.report(token_of(number), starting, at=at(second))


def test_that_triggers_keep_the_same_sums_as_a_sum_over_all_rows(any_store: Store) -> None:
    centre.fill(any_store)
    order = {"run_days": "run_id, day", "allocation_days": "job_id, number, day", "job_days": "job_id, day"}
    kept = {name: table(any_store, name, by) for name, by in order.items()}
    assert all(kept.values())
    with any_store.database.write() as connection:  # type: ignore[attr-defined]
        for name in order:
            connection.exec_driver_sql(f"DELETE FROM {name}")
        fill_day_sums(connection)
        sum_decisions(connection)
    assert {name: table(any_store, name, by) for name, by in order.items()} == kept


def test_that_a_sample_over_midnight_counts_for_both_days(any_store: Store) -> None:
    start(any_store, second=MIDNIGHT - 100)
    any_store.agent.report(token_of(1), report(1, throughput=10.0, efficiency=0.5), at=at(MIDNIGHT + 20))
    rows = rows_of(any_store, "SELECT * FROM run_days ORDER BY day")
    assert [str(row["day"]) for row in rows] == ["2026-03-01", "2026-03-02"]
    assert [row["trained_s"] for row in rows] == pytest.approx([100.0, 20.0], abs=0.001)
    assert [row["useful_examples"] for row in rows] == pytest.approx([500.0, 100.0], abs=0.01)
    assert [row["num_samples"] for row in rows] == [0, 1]


def test_that_the_time_before_the_first_step_is_not_training(any_store: Store) -> None:
    start(any_store)
    any_store.agent.report(token_of(1), report(1, first_step_s=40.0), at=at(100))
    any_store.agent.report(token_of(1), report(2, first_step_s=40.0), at=at(130))
    (row,) = rows_of(any_store, "SELECT trained_s, trained_gpu_s FROM run_days")
    assert row["trained_s"] == pytest.approx(90.0, abs=0.001)
    assert row["trained_gpu_s"] == pytest.approx(180.0, abs=0.002)


def test_that_a_short_jobs_examples_are_those_that_it_counted(any_store: Store) -> None:
    start(any_store)
    any_store.agent.report(token_of(1), report(1, throughput=200.0, num_examples=12_800), at=at(30))
    last = {"phase": RunPhase.FINISHED, "throughput": None, "step_time_s": None, "efficiency": None}
    any_store.agent.report(token_of(1), report(2, **last, num_examples=60_000), at=at(34))
    for view in ("job_goodput", "account_usage", "user_usage"):
        (row,) = rows_of(any_store, f"SELECT examples, throughput FROM {view}")
        assert row["examples"] == pytest.approx(60_000), view
        assert row["throughput"] == pytest.approx(200.0), view


def test_that_examples_of_an_agent_that_does_not_count_come_from_throughput(any_store: Store) -> None:
    start(any_store)
    any_store.agent.report(token_of(1), report(1, throughput=200.0), at=at(30))
    (row,) = rows_of(any_store, "SELECT examples FROM job_goodput")
    assert row["examples"] == pytest.approx(6000.0)


def test_that_durations_are_the_same_to_a_thousandth_on_each_database(any_store: Store) -> None:
    any_store.jobs.register([registration(1, submitted_at=at(0.123456))], at=at(0.2))
    ended = observation(1, JobState.COMPLETED, started_at=at(1.123456), ended_at=at(86400.5))
    any_store.jobs.observe([ended], at=at(86401))
    (row,) = rows_of(any_store, "SELECT waited_s, submit_to_finish_s FROM job_goodput")
    assert (row["waited_s"], row["submit_to_finish_s"]) == (1.0, 86400.377)


def test_that_a_run_that_reported_after_the_last_snapshot_has_a_gpu_type(any_store: Store) -> None:
    any_store.jobs.register([registration(1)], at=at(0))
    any_store.jobs.observe([observation(1, gpus={"n0": 2}, started_at=at(0), gpu_type="t4")], at=at(1))
    capacity = NodeCapacity(name="n0", num_gpus=4, num_cpus=64, memory_mb=10**6, gpu_type="t4")
    decision = Decision(jobs=(), fitness=1.0, solver="test")
    any_store.rounds.record(Problem(nodes=(capacity,), jobs=()), decision, shadow=False, at=at(2))
    any_store.agent.report(token_of(1), report(1), at=at(3))
    (row,) = rows_of(any_store, "SELECT gpu_type FROM model_accuracy")
    assert row["gpu_type"] == "t4"


def test_that_a_gap_between_reports_counts_for_an_hour_at_most(any_store: Store) -> None:
    start(any_store)
    any_store.agent.report(token_of(1), report(1), at=at(3 * 3600))
    (row,) = rows_of(any_store, "SELECT trained_s FROM run_days")
    assert row["trained_s"] == pytest.approx(3600.0, abs=0.001)


def test_that_a_run_cannot_report_more_gpus_than_it_has(any_store: Store) -> None:
    any_store.jobs.register([registration(1)], at=at(0))
    any_store.jobs.observe([observation(1, gpus={"n0": 2, "n1": 1}, started_at=at(0))], at=at(0))
    gpus = {"gpus_per_node": (1024, 1024)}
    any_store.agent.report(token_of(1), report(0, **gpus, phase=RunPhase.STARTING, throughput=None), at=at(0))
    any_store.agent.report(token_of(1), report(1, **gpus), at=at(100))
    (row,) = rows_of(any_store, "SELECT trained_gpu_s, useful_gpu_s FROM run_days")
    assert row["trained_gpu_s"] == pytest.approx(300.0, abs=0.01)
    assert row["useful_gpu_s"] == pytest.approx(240.0, abs=0.01)


def test_that_extreme_allowed_numbers_do_no_harm(any_store: Store) -> None:
    start(any_store)
    extremes = ((1e-7, 1e-9, 1e12), (1e12, 1.0, 1e-7), (1e-7, 1.0, 1e-7), (1e12, 1.0, 1e12))
    for sequence, (throughput, efficiency, predicted) in enumerate(extremes, start=1):
        any_store.agent.report(
            token_of(1),
            report(
                sequence,
                throughput=throughput,
                efficiency=efficiency,
                predicted_throughput=predicted,
                step_time_s=1e-6 if sequence % 2 else 1e7,
            ),
            at=at(30 * sequence),
        )
    (row,) = rows_of(any_store, "SELECT * FROM model_accuracy")
    assert row["num_samples"] == 4
    assert row["mean_error"] == pytest.approx((1e6 - 1 + 0 + 0) / 4)
    (job,) = rows_of(any_store, "SELECT goodput, efficiency FROM job_goodput")
    assert 0 < job["goodput"] <= 1e12


def test_that_an_interval_over_the_end_of_a_month_is_split_there(any_store: Store) -> None:
    """31 days after T0's midnight, April begins: two hours on 2 GPUs before it, an hour on 4 after."""
    april = MIDNIGHT + 30 * DAY
    any_store.jobs.register([registration(1)], at=at(april - 8000))
    for second, gpus in ((april - 7200, {"n0": 2}), (april - 1800, {"n1": 4})):
        any_store.jobs.observe([observation(1, gpus=gpus, started_at=at(second))], at=at(second))
    end = observation(1, JobState.COMPLETED, ended_at=at(april + 3600))
    any_store.jobs.observe([end], at=at(april + 3600))
    rows = rows_of(any_store, "SELECT day, gpu_hours FROM account_usage ORDER BY day")
    assert [str(row["day"]) for row in rows] == ["2026-03-31", "2026-04-01"]
    assert [row["gpu_hours"] for row in rows] == pytest.approx([1.5 * 2 + 0.5 * 4, 4.0], abs=1e-5)
    (whole,) = rows_of(any_store, "SELECT gpu_hours, progress_share FROM job_goodput")
    assert (whole["gpu_hours"], whole["progress_share"]) == (pytest.approx(9.0, abs=1e-5), 0.0)


def round_of(store: Store, second: float, *nodes: tuple[str, int]) -> None:
    """Record a round without jobs that could use these nodes."""
    capacities = tuple(
        NodeCapacity(name=name, num_gpus=gpus, num_cpus=8, memory_mb=16000, gpu_type="t4")
        for name, gpus in nodes
    )
    decision = Decision(jobs=(), fitness=0.0, solver="test")
    store.rounds.record(Problem(nodes=capacities, jobs=()), decision, shadow=False, at=at(second))


def test_that_a_removed_node_keeps_its_days(any_store: Store) -> None:
    round_of(any_store, 0, ("gone", 4), ("stays", 4))
    round_of(any_store, 600, ("gone", 2), ("stays", 4))
    round_of(any_store, 1200, ("stays", 4))
    rows = rows_of(any_store, "SELECT * FROM node_usage ORDER BY node_name")
    assert [(row["node_name"], row["gpu_type"], row["num_jobs"]) for row in rows] == [
        ("gone", "t4", 0),
        ("stays", "t4", 0),
    ]
    assert [row["num_gpus"] for row in rows] == [3.0, 4.0]
    assert [row["available_gpu_hours"] for row in rows] == pytest.approx([2 / 6, 4 / 3])
    assert [row["utilization"] for row in rows] == [0.0, 0.0]


def test_that_a_node_that_no_round_could_use_shows_its_allocations(any_store: Store) -> None:
    any_store.jobs.register([registration(1)], at=at(0))
    any_store.jobs.observe([observation(1, gpus={"unseen": 2}, started_at=at(0))], at=at(0))
    any_store.jobs.observe([observation(1, JobState.FAILED, ended_at=at(1800))], at=at(1800))
    (row,) = rows_of(any_store, "SELECT * FROM node_usage")
    assert (row["gpu_type"], row["gpu_hours"], row["num_gpus"], row["utilization"]) == (
        "",
        pytest.approx(1.0, abs=1e-5),
        0.0,
        1.0,
    )


def test_that_a_round_without_jobs_or_nodes_is_a_row(any_store: Store) -> None:
    round_of(any_store, 0)
    (row,) = rows_of(any_store, "SELECT * FROM round_history")
    assert (row["num_jobs"], row["num_gpus"], row["total_gpus"], row["mean_speedup"]) == (0, 0, 0, None)


@pytest.mark.parametrize("kind", ROW_TYPES, ids=lambda kind: kind.VIEW)
def test_that_an_empty_store_has_empty_views(any_store_url: str, kind: Any) -> None:
    with open_view_reader(any_store_url) as reports:
        assert reports.rows(kind).rows == ()


def test_that_odd_jobs_leave_no_surprising_nulls(any_store: Store, any_store_url: str) -> None:
    """One is pending, one runs unmeasured, one was moved, one never started, one has a failed move."""
    any_store.jobs.register([registration(n) for n in range(1, 6)], at=at(0))
    any_store.jobs.observe([observation(n, gpus={f"n{n}": 2}, started_at=at(1)) for n in (1, 3, 5)], at=at(1))
    any_store.jobs.observe([observation(4, JobState.CANCELLED, ended_at=at(5))], at=at(5))
    any_store.rounds.record(problem_of([1, 2, 3]), decision_of([1, 2, 3]), shadow=True, at=at(6))
    any_store.agent.report(token_of(1), report(1, efficiency=None, predicted_throughput=None), at=at(10))
    move_running_job(any_store)
    moved = any_store.journal.plan(
        "5",
        source=Allocation(),
        target=Allocation.of({"n9": 1}),
        moves_running=False,
        from_restart_count=0,
        round_id=None,
        at=at(30),
    )
    assert moved.id
    with open_view_reader(any_store_url) as reports:
        for kind in ROW_TYPES:
            for row in reports.rows(kind).rows:
                for field in dataclasses.fields(row):
                    may_be_none = "None" in str(field.type)
                    assert may_be_none or getattr(row, field.name) is not None, (kind.VIEW, field.name)
        jobs = {row.slurm_job_id: row for row in reports.rows(ROW_TYPES[0]).rows}
        fair = {row.slurm_job_id: row for row in reports.rows(ROW_TYPES[-1]).rows}
    assert (jobs["2"].gpu_hours, jobs["2"].goodput, jobs["2"].finished_at) == (0.0, None, None)
    assert jobs["2"].waited_s > 0
    assert (jobs["3"].gpu_hours > 0, jobs["3"].progress_share, jobs["3"].speedup_one_gpu) == (True, 0.0, None)
    assert (jobs["1"].restarts, jobs["1"].lost_s) == (1, pytest.approx(12.5, abs=0.01))
    assert (fair["4"].rho, fair["4"].num_rounds, fair["4"].mean_gpus) == (None, 0, None)
    assert fair["1"].rho is not None
