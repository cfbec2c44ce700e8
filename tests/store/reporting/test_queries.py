"""Queries return typed and bounded rows of the views."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from datetime import date, datetime, timedelta, timezone
from typing import Any

import pytest

from pollux_slurm.errors import UnknownJobError, UsageError
from pollux_slurm.model import JobState
from pollux_slurm.store.contract.interface import Store
from pollux_slurm.store.reporting.queries import ViewReader, open_view_reader
from pollux_slurm.store.reporting.view_rows import (
    ROW_TYPES,
    AccountUsage,
    Fairness,
    GpuHolders,
    JobEvent,
    JobGoodput,
    NodeUsage,
    ReallocationEntry,
    RoundEntry,
)
from pollux_slurm.store.schema.views import VIEWS
from tests.store.builders import (
    BATCH,
    at,
    decision_of,
    move_running_job,
    observation,
    problem_of,
    registration,
    report,
    token_of,
)


@pytest.fixture
def reports(any_store: Store, any_store_url: str) -> Iterator[ViewReader]:
    """Open the reports of a store in which job 1 was moved once, and job 2 of another account waits."""
    any_store.jobs.register(
        [registration(1), registration(2, account="physics", user_name="grace", user_id=1002)], at=at(0)
    )
    any_store.jobs.observe([observation(1, gpus={"n0": 2}, started_at=at(4))], at=at(5))
    any_store.rounds.record(problem_of([1, 2]), decision_of([1, 2]), shadow=True, at=at(6))
    for sequence in range(1, 8):
        any_store.agent.report(token_of(1), report(sequence), at=at(10 + sequence))
    move_running_job(any_store, start=20)
    any_store.jobs.observe([observation(1, gpus={"n1": 3, "n2": 1}, started_at=at(29))], at=at(30))
    any_store.jobs.observe([observation(1, JobState.COMPLETED, ended_at=at(89))], at=at(90))
    with open_view_reader(any_store_url) as opened:
        yield opened


def test_that_there_is_a_row_type_for_every_view() -> None:
    assert {kind.VIEW for kind in ROW_TYPES} == set(VIEWS) - {"job_samples", "job_kinds", "calendar"}, (
        "samples and kinds have questions of their own, and the calendar is for questions in SQL"
    )


@pytest.mark.parametrize("kind", ROW_TYPES, ids=lambda kind: kind.VIEW)
def test_that_its_fields_are_the_columns_of_the_view(any_store: Store, kind: Any) -> None:
    with any_store.database.read() as connection:  # type: ignore[attr-defined]
        columns = connection.exec_driver_sql(f"SELECT * FROM {kind.VIEW}").keys()
    assert sorted(field.name for field in dataclasses.fields(kind)) == sorted(columns)


@pytest.mark.parametrize("kind", ROW_TYPES, ids=lambda kind: kind.VIEW)
def test_that_values_have_the_types_of_the_fields(reports: ViewReader, kind: Any) -> None:
    found = reports.rows(kind).rows
    assert found
    for row in found:
        for field in dataclasses.fields(row):
            value = getattr(row, field.name)
            if value is None:
                assert "None" in str(field.type), field.name
                continue
            wanted = str(field.type).split(" | ")[0]
            assert type(value).__name__ == wanted, f"{kind.VIEW}.{field.name}: {value!r}"
            if isinstance(value, datetime):
                assert value.tzinfo is timezone.utc


def test_that_conditions_select_rows(reports: ViewReader) -> None:
    assert [row.slurm_job_id for row in reports.rows(JobGoodput).rows] == ["1", "2"]
    assert [row.user_name for row in reports.rows(Fairness, account="physics").rows] == ["grace"]
    assert [row.slurm_job_id for row in reports.rows(JobGoodput, user_name="ada").rows] == ["1"]
    assert reports.rows(JobGoodput, account="'; DROP TABLE jobs; --").rows == ()
    assert reports.rows(RoundEntry, since=at(7)).rows == ()
    assert [row.at for row in reports.rows(RoundEntry, since=at(6), until=at(7)).rows] == [at(6)]
    assert len(reports.rows(ReallocationEntry, slurm_job_id="1").rows) == 1
    assert reports.rows(ReallocationEntry, slurm_job_id="2").rows == ()


def test_that_a_range_includes_whole_days(reports: ViewReader) -> None:
    """T0 is noon: the day that `since` and `until` fall into is in; a midnight begins the next day."""
    noon, midnight = at(0), at(12 * 3600)
    assert [row.day for row in reports.rows(AccountUsage, since=noon, until=noon).rows] == [date(2026, 3, 1)]
    assert reports.rows(NodeUsage, since=midnight).rows == ()
    assert reports.rows(NodeUsage, until=at(-12 * 3600)).rows == ()


def test_that_who_held_gpus_in_a_range_is_known_with_the_intervals_that_reach_into_it(
    any_store: Store, reports: ViewReader
) -> None:
    def held(since: float, until: float, account: str | None = None) -> tuple[list[str], list[datetime]]:
        found = reports.gpu_holders(at(since), at(until), account=account, most_jobs=1)
        return [job.slurm_job_id for job in found.jobs], [one.at for one in found.intervals]

    any_store.jobs.observe([observation(2, gpus={"n0": 1}, started_at=at(100))], at=at(101))
    assert held(-60, 4) == held(89, 95) == ([], [])
    assert held(10, 20) == (["1"], [at(4)])
    assert held(20, 40) == (["1"], [at(4), at(29)])
    assert held(200, 300) == (["2"], [at(100)]), "it holds them still"
    assert held(10, 20, "physics") == ([], [])
    assert held(10, 300, "physics") == (["2"], [at(100)])
    assert reports.gpu_holders(at(10), at(300), most_jobs=1) == GpuHolders(truncated=True)


def test_that_the_newest_rows_are_kept_when_there_are_too_many(reports: ViewReader) -> None:
    whole = reports.rows(JobEvent, slurm_job_id="1")
    assert not whole.truncated
    assert [row.at for row in whole.rows] == sorted(row.at for row in whole.rows)
    part = reports.rows(JobEvent, slurm_job_id="1", limit=3)
    assert part.truncated
    assert part.rows == whole.rows[-3:]


def test_that_a_condition_without_a_column_is_refused(reports: ViewReader) -> None:
    with pytest.raises(UsageError, match="round_history has no column account"):
        reports.rows(RoundEntry, account="vision")
    with pytest.raises(UnknownJobError, match="job 99"):
        reports.rows(JobEvent, slurm_job_id="99")


def test_that_nodes_are_added_up_over_days(any_store: Store, reports: ViewReader) -> None:
    next_day = at(86400)
    any_store.rounds.record(problem_of([2]), decision_of([2]), shadow=False, at=next_day)
    any_store.rounds.record(
        problem_of([2]), decision_of([2]), shadow=False, at=next_day + timedelta(minutes=30)
    )
    since, until = at(0), next_day + timedelta(hours=1)
    hours: dict[tuple[str, str], list[float]] = {}
    days = reports.rows(NodeUsage, since=since, until=until).rows
    for row in days:
        sums = hours.setdefault((row.node_name, row.gpu_type), [0.0, 0.0])
        sums[0] += row.gpu_hours
        sums[1] += row.available_gpu_hours
    assert len(days) > len(hours), "a node is there on both days"
    found = reports.node_sums(since, until)
    assert [(node.node_name, node.gpu_type) for node in found] == sorted(hours)
    for node in found:
        assert [node.gpu_hours, node.available_gpu_hours] == pytest.approx(
            hours[node.node_name, node.gpu_type]
        )
    assert sum(node.available_gpu_hours for node in found) > 0.0
    first_day = reports.node_sums(since, at(86400).replace(hour=0, minute=0, second=0, microsecond=0))
    assert sum(node.available_gpu_hours for node in first_day) < sum(
        node.available_gpu_hours for node in found
    )


def test_that_samples_are_averaged_to_a_number_of_points(reports: ViewReader) -> None:
    points = reports.samples("1")
    assert [point.num_samples for point in points] == [1] * 9
    assert (points[0].goodput, points[0].batch, points[0].at) == (pytest.approx(160.0), BATCH, at(11))
    few = reports.samples("1", max_points=2)
    assert [(point.run_number, point.num_samples) for point in few] == [(0, 5), (0, 3), (1, 1)]
    assert few[0].at == at(15)
    assert reports.samples("2") == ()
