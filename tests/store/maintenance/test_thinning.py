"""Of details older than a day, `pollux db prune` keeps the last of each minute; sums and the newest stay."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import func, select

from pollux_slurm.store.contract.interface import CheckpointConfirmation, Store
from pollux_slurm.store.schema import CheckpointRow, ModelVersionRow, RunDayRow, SampleRow
from tests.store.builders import MODEL, at, observation, registration, report, token_of
from tests.store.maintenance.test_prune import prune, views_of

# T0 is noon, and all is reported within ten minutes; seconds of the reports of a job that reports a lot.
OLD = range(0, 180, 5)
NOW_S = 86_400.0 + 150.0
"""What was reported in the first 150 seconds is older than a day."""


@pytest.fixture
def busy(any_store: Store, any_store_url: str) -> Iterator[str]:
    """Job 1 reports every five seconds, with another model and a checkpoint each; job 2 once a minute."""
    store = any_store
    store.jobs.register([registration(n) for n in (1, 2)], at=at(0))
    store.jobs.observe([observation(n, gpus={"n0": 2}, started_at=at(0)) for n in (1, 2)], at=at(0))
    for sequence, second in enumerate(OLD, start=1):
        _report(store, 1, sequence, second)
    for sequence, second in enumerate((10, 70, 130), start=1):
        store.agent.report(token_of(2), report(sequence), at=at(second))
    return any_store_url


def _report(store: Store, number: int, sequence: int, second: float, **changes: Any) -> None:
    values: dict[str, Any] = {
        "model": replace(MODEL, max_gpus_seen=sequence),
        "checkpoint": CheckpointConfirmation(request_id=None, blocked_s=0.1, size_bytes=sequence),
        "throughput": 100.0 + sequence,
        "num_examples": 1000 * sequence,
        **changes,
    }
    store.agent.report(token_of(number), report(sequence, **values), at=at(second))


def seconds_of(store: Store, row: Any, *conditions: Any) -> list[float]:
    """Return the times of the rows of a table, in seconds."""
    with store.database.read() as connection:  # type: ignore[attr-defined]
        found = connection.execute(select(row.at).where(*conditions).order_by(row.at)).scalars()
        return [(moment - at(0)).total_seconds() for moment in found]


def examples_of(store: Store) -> float:
    with store.database.read() as connection:  # type: ignore[attr-defined]
        return connection.execute(select(func.sum(RunDayRow.counted_examples))).scalar_one()


def test_that_the_last_report_of_each_old_minute_is_kept_and_newer_ones_all(
    busy: str, any_store: Store
) -> None:
    foretold = prune(busy, at=at(NOW_S), dry_run=True)
    outcome = prune(busy, at=at(NOW_S))
    # Of twelve a minute eleven go, and those up to 150 s of the third minute, which the later ones follow.
    assert dict(outcome.rows) == dict.fromkeys(dict(outcome.rows), 0) | dict.fromkeys(
        ("goodput_samples", "model_versions", "checkpoints"), 11 + 11 + 6
    )
    assert outcome.rows == foretold.rows
    left = [55.0, 115.0, *(float(second) for second in range(150, 180, 5))]
    assert seconds_of(any_store, SampleRow) == sorted([*left, 10.0, 70.0, 130.0])
    assert seconds_of(any_store, CheckpointRow) == left
    assert seconds_of(any_store, ModelVersionRow, ModelVersionRow.max_gpus_seen > 2) == left
    assert not any(rows for _, rows in prune(busy, at=at(NOW_S)).rows)


def test_that_sums_and_what_is_newest_stay_and_the_next_report_counts_on(busy: str, any_store: Store) -> None:
    def seen() -> tuple[Any, ...]:
        (job,) = (one for one in any_store.jobs.active() if one.slurm_job_id == "1")
        return views_of(busy)["job_goodput"], views_of(busy)["model_accuracy"], job.sample, job.model

    before, counted, newest = seen(), examples_of(any_store), any_store.history.samples("1")[-1]
    prune(busy, at=at(10 * NOW_S))
    assert (seen(), examples_of(any_store)) == (before, counted)
    assert any_store.history.samples("1")[-1] == newest
    # The newest is one of the old ones now, and the next report counts from it.
    _report(any_store, 1, 100, 240, num_examples=1000 * len(OLD) + 700)
    assert examples_of(any_store) == pytest.approx(counted + 700)


def test_that_a_measured_throughput_is_not_lost_to_a_report_without_one(
    any_store: Store, any_store_url: str
) -> None:
    any_store.jobs.register([registration(1)], at=at(0))
    for sequence, throughput in enumerate((200.0, 210.0, None, 220.0, None, None), start=1):
        any_store.agent.report(token_of(1), report(sequence, throughput=throughput), at=at(sequence))
    prune(any_store_url, at=at(2 * NOW_S))
    assert [sample.throughput for sample in any_store.history.samples("1")] == [220.0, None]


def test_that_each_run_keeps_its_last_model_with_a_fit(any_store: Store, any_store_url: str) -> None:
    any_store.jobs.register([registration(1)], at=at(0))
    bare = replace(MODEL, throughput=None)
    for run in (0, 1):
        for sequence, model in enumerate((MODEL, replace(MODEL, max_gpus_seen=3), bare), start=1):
            changes = {"run_number": run, "restart_count": run, "model": model}
            any_store.agent.report(token_of(1), report(sequence, **changes), at=at(3 * run + sequence))
    prune(any_store_url, at=at(2 * NOW_S))
    with any_store.database.read() as connection:  # type: ignore[attr-defined]
        row = ModelVersionRow
        models = select(row.run_number, row.max_gpus_seen, row.alpha_g.is_(None)).order_by(row.id)
        rows = connection.execute(models).all()
        assert [tuple(one) for one in rows] == [(0, 3, False), (0, 2, True), (1, 3, False), (1, 2, True)]


def test_that_each_run_keeps_its_last_checkpoint(any_store: Store, any_store_url: str) -> None:
    any_store.jobs.register([registration(n) for n in (1, 2)], at=at(0))
    for sequence, number in enumerate((1, 1, 2), start=1):
        _report(any_store, number, sequence, sequence)
    prune(any_store_url, at=at(2 * NOW_S))
    assert seconds_of(any_store, CheckpointRow) == [2.0, 3.0]
