"""`pollux db prune` deletes details of old, ended jobs; running jobs and the views' results stay."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import event, func, select

from pollux_slurm.errors import StoreError, UsageError
from pollux_slurm.model import JobState
from pollux_slurm.store.contract.interface import CheckpointConfirmation, Store
from pollux_slurm.store.maintenance.prune import PruneOutcome, prune_store
from pollux_slurm.store.reporting.queries import open_view_reader
from pollux_slurm.store.reporting.view_rows import ROW_TYPES, JobEvent
from pollux_slurm.store.schema import Base, SampleRow
from tests.store.builders import (
    MODEL,
    at,
    decision_of,
    move_running_job,
    observation,
    problem_of,
    registration,
    report,
    token_of,
)

DAY = 86400.0
NOW = at(100 * DAY)


@pytest.fixture
def filled(any_store: Store, any_store_url: str) -> str:
    """Job 1 ended 90 days ago, job 2 began before that and runs, job 3 ended a day ago."""
    store = any_store
    store.jobs.register([registration(n) for n in (1, 2)], at=at(0))
    store.jobs.observe([observation(n, gpus={f"n{n}": 2}, started_at=at(1)) for n in (1, 2)], at=at(1))
    for second in (2, 62):
        store.rounds.record(problem_of([1, 2]), decision_of([1, 2]), shadow=False, at=at(second))
    for n in (1, 2):
        for sequence in range(1, 6):
            _report(store, n, sequence, at(3 + 60 * sequence))
    move_running_job(store, start=1000)
    store.jobs.observe([observation(1, JobState.COMPLETED, ended_at=at(10 * DAY))], at=at(10 * DAY))
    store.jobs.register([registration(3)], at=at(98 * DAY))
    store.jobs.observe([observation(3, gpus={"n3": 2}, started_at=at(98 * DAY))], at=at(98 * DAY))
    for sequence in range(1, 4):
        _report(store, 3, sequence, at(98 * DAY + 60 * sequence))
    store.rounds.record(problem_of([2, 3]), decision_of([2, 3]), shadow=False, at=at(98 * DAY))
    store.jobs.observe([observation(3, JobState.COMPLETED, ended_at=at(99 * DAY))], at=at(99 * DAY))
    return any_store_url


def _report(store: Store, number: int, sequence: int, moment: datetime) -> None:
    from dataclasses import replace

    saved = CheckpointConfirmation(request_id=None, blocked_s=0.1, size_bytes=10) if sequence == 2 else None
    model = replace(MODEL, max_gpus_seen=sequence)
    store.agent.report(token_of(number), report(sequence, checkpoint=saved, model=model), at=moment)


def prune(url: str, **changes: Any) -> PruneOutcome:
    values: dict[str, Any] = {"older_than": timedelta(days=30), "at": NOW, "wait": lambda _: None}
    return prune_store(url, **{**values, **changes})


def row_counts(store: Store) -> dict[str, int]:
    with store.database.read() as connection:  # type: ignore[attr-defined]
        return {
            name: connection.execute(select(func.count()).select_from(table)).scalar_one()
            for name, table in Base.metadata.tables.items()
        }


def views_of(url: str) -> dict[str, list[Any]]:
    """Return every view without what depends on the clock: a running job's times grow from call to call.

    Days from `NOW` on are left out: on the true today the job that runs holds GPUs for seconds after
    midnight, when seconds between two calls are much of them.
    """
    found: dict[str, list[Any]] = {}
    with open_view_reader(url) as reports:
        for kind in ROW_TYPES:
            found[kind.VIEW] = [
                tuple(
                    pytest.approx(value, rel=1e-4) if isinstance(value, float) else value
                    for value in (getattr(row, name) for name in kind.__slots__)
                )
                for row in reports.rows(kind).rows
                if not (kind is JobEvent and row.event == "checkpoint" and row.reallocation_id is None)
                and not (kind.TIME == "day" and row.day >= NOW.date())
            ]
    return found


def test_that_details_of_old_jobs_that_are_over_are_deleted(filled: str, any_store: Store) -> None:
    before = row_counts(any_store)
    foretold = prune(filled, dry_run=True)
    assert row_counts(any_store) == before
    outcome = prune(filled)
    assert outcome.rows == foretold.rows
    # Job 1: seven samples (one of the checkpoint, one after the move), two decisions, seven models less one.
    assert dict(outcome.rows) == {
        "goodput_samples": 7,
        "decisions": 2,
        "model_versions": 6,
        "checkpoints": 1,
        "gpu_prices": 0,
        "rounds": 2,
    }
    after = row_counts(any_store)
    gone = {name: before[name] - after[name] for name in before if before[name] != after[name]}
    assert gone == {
        "goodput_samples": 7,
        "decisions": 2,
        "decision_nodes": 4,
        "model_versions": 6,
        "checkpoints": 1,
    }
    assert dict(prune(filled).rows) == dict.fromkeys(dict(outcome.rows), 0)


def test_that_an_interrupted_call_keeps_what_it_deleted_and_the_next_one_continues(filled: str) -> None:
    expected = sum(rows for _, rows in prune(filled, dry_run=True).rows)
    deleted: list[int] = []

    def interrupt(rows: int) -> None:
        deleted.append(rows)
        if sum(deleted) >= 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prune(filled, batch_rows=1, on_deleted=interrupt)
    assert sum(deleted) == 3
    assert sum(rows for _, rows in prune(filled).rows) == expected - 3


def test_that_views_return_the_same_after_pruning(filled: str) -> None:
    before = views_of(filled)
    prune(filled)
    assert views_of(filled) == before
    assert len(before["job_goodput"]) == 3


def test_that_a_job_that_is_not_over_keeps_everything(filled: str, any_store: Store) -> None:
    def all_of(number: str) -> tuple[Any, ...]:
        return (
            any_store.jobs.get(number),
            any_store.history.samples(number),
            any_store.history.runs(number),
            any_store.rounds.decision(number, 1),
            any_store.rounds.decision(number, 2),
        )

    before = all_of("2")
    prune(filled, older_than=timedelta(minutes=1))
    assert all_of("2") == before


def test_that_the_last_round_can_be_replayed_and_a_pruned_one_raises(filled: str, any_store: Store) -> None:
    prune(filled, older_than=timedelta(minutes=1))
    assert any_store.rounds.problem()[0].jobs[0].job_id == "2"
    with pytest.raises(StoreError, match="round 1 is older than what is kept"):
        any_store.rounds.problem(1)


def test_that_prices_are_deleted_with_the_last_decision_of_their_round(filled: str, any_store: Store) -> None:
    any_store.jobs.observe([observation(2, JobState.CANCELLED, ended_at=NOW)], at=NOW)
    pruned = dict(prune(filled).rows)
    assert (pruned["decisions"], pruned["gpu_prices"]) == (4, 4)


@contextmanager
def deletes_of(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Count the rows of each deleting statement; no transaction has two of them."""
    from pollux_slurm.store.maintenance import prune as module

    sizes: list[int] = []

    def opened(*arguments: Any, **named: Any) -> Any:
        from pollux_slurm.store.access.opening import open_database

        database = open_database(*arguments, **named)

        def gather(_connection, _cursor, statement, parameters, _context, many) -> None:  # type: ignore[no-untyped-def]
            if statement.startswith(("DELETE", "UPDATE")):
                sizes.append(len(parameters) if many else 1)

        event.listen(database.engine, "before_cursor_execute", gather)
        return database

    monkeypatch.setattr(module, "open_database", opened)
    yield sizes


def test_that_no_transaction_deletes_more_rows_than_a_batch(
    filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = prune(filled, dry_run=True)
    waits: list[float] = []
    with deletes_of(filled, monkeypatch) as sizes:
        pruned = prune(filled, batch_rows=2, wait=waits.append)
    assert pruned.rows == whole.rows
    assert max(sizes) == 2
    assert sum(sizes) == sum(rows for _, rows in pruned.rows)
    assert len(waits) >= len(sizes) - len(pruned.rows)


def test_that_rows_that_stay_are_scanned_once(filled: str, any_store: Store) -> None:
    """With batches of one row, the running job's old samples are between those of the other job."""
    prune(filled, batch_rows=1)
    with any_store.database.read() as connection:  # type: ignore[attr-defined]
        assert connection.execute(select(func.count()).select_from(SampleRow)).scalar_one() == 8


@pytest.mark.parametrize("span", [timedelta(0), timedelta(days=-1)])
def test_that_an_age_of_zero_is_refused(filled: str, span: timedelta) -> None:
    with pytest.raises(UsageError, match="above 0"):
        prune(filled, older_than=span)


def test_that_an_empty_store_has_nothing_to_prune(store_url: str) -> None:
    assert {rows for _, rows in prune(store_url).rows} == {0}
