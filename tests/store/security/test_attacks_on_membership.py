"""An untrusted client with the login of jobs, at a real PostgreSQL: membership is the daemon's to say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from pollux_slurm.errors import StoreError
from pollux_slurm.store.contract.interface import GenerationRecord, GenerationState, Store
from tests.store.builders import at, observation, plan_generation, registration, token_of
from tests.store.postgres import PostgresServer
from tests.store.untrusted_client import BAD_REPORT, Connection, connect

State = GenerationState
ADVANCE = "SELECT pollux_advance(%s, %s, %s, %s, %s, %s, %s)"
MEETING = "10.0.0.7:41213"


@pytest.fixture
def planned(postgres_store: Store, postgres_url: str) -> GenerationRecord:
    """Plan a generation of the client's job 1; job 2 is somebody's."""
    store = postgres_store
    store.jobs.register([registration(1), registration(2, user_id=1002, user_name="grace")], at=at(0))
    store.jobs.observe([observation(n, gpus={"n0": 2}) for n in (1, 2)], at=at(1))
    return plan_generation(store, is_ready=True)


@pytest.fixture
def client(postgres: PostgresServer, planned: GenerationRecord) -> Iterator[Connection]:
    with connect(postgres) as connection:
        yield connection


CALLS = (
    "SELECT * FROM pollux_generation(%s, 0, 0)",
    "SELECT pollux_ready(%s, 0, 1, 'wing7.0')",
    "SELECT pollux_advance(%s, 0, 1, 'refused', NULL, NULL, 'no')",
)


@pytest.mark.parametrize("token", [token_of(1, 1002), "' OR '1'='1", None])
def test_that_a_token_of_nobodys_reaches_nothing(
    client: Connection, postgres_store: Store, planned: GenerationRecord, token: str | None
) -> None:
    for call in CALLS:
        with pytest.raises(psycopg.Error) as refused:
            client.execute(call, (token,))  # type: ignore[call-overload]
        assert refused.value.sqlstate == "PX001"
    assert postgres_store.generations.open_generations() == (planned,)


def test_that_another_jobs_token_reaches_its_own_generations_only(
    client: Connection, postgres_store: Store, planned: GenerationRecord
) -> None:
    other = plan_generation(postgres_store, 2)
    assert other.number == planned.number
    for call in CALLS:
        client.execute(call, (token_of(2, 1002),))  # type: ignore[call-overload]
    assert postgres_store.generations.of_job("1") == (planned,)
    assert postgres_store.generations.of_job("2")[0].state is State.REFUSED


@pytest.mark.parametrize("state", ["withdrawn", "failed", "planned", "", "COMMITTED", "'; --", None])
def test_that_a_job_brings_about_no_other_state(
    client: Connection, postgres_store: Store, planned: GenerationRecord, state: str | None
) -> None:
    client.execute(ADVANCE, (token_of(1), 0, 1, state, MEETING, 0.1, "mine"))
    assert postgres_store.generations.open_generations() == (planned,)


@pytest.mark.parametrize(
    ("state", "meeting", "standstill_s"),
    [
        ("committed", None, None),
        ("committed", "", None),
        ("committed", "x" * 301, None),
        ("committed", MEETING, 0.5),
        ("refused", MEETING, None),
        ("refused", None, float("nan")),
    ],
)
def test_that_what_belongs_to_no_state_is_refused(
    client: Connection,
    postgres_store: Store,
    planned: GenerationRecord,
    state: str,
    meeting: str | None,
    standstill_s: float | None,
) -> None:
    with pytest.raises(psycopg.Error) as refused:
        client.execute(ADVANCE, (token_of(1), 0, 1, state, meeting, standstill_s, None))
    assert refused.value.sqlstate in BAD_REPORT
    assert postgres_store.generations.open_generations() == (planned,)


@pytest.mark.parametrize(
    "standstill_s",
    [None, float("nan"), float("inf"), -1.0, 1e8],
    ids=["null", "nan", "inf", "negative", "long"],
)
def test_that_no_standstill_is_insane(
    client: Connection, postgres_store: Store, planned: GenerationRecord, standstill_s: float | None
) -> None:
    client.execute(ADVANCE, (token_of(1), 0, 1, "committed", MEETING, None, None))
    with pytest.raises(psycopg.Error) as refused:
        client.execute(ADVANCE, (token_of(1), 0, 1, "regrouped", None, standstill_s, None))
    assert refused.value.sqlstate in BAD_REPORT
    with pytest.raises(psycopg.Error) as refused:
        client.execute(ADVANCE, (token_of(1), 0, 1, "regrouped", None, 1.0, "x" * 2**20))
    assert refused.value.sqlstate in BAD_REPORT
    assert [one.state for one in postgres_store.generations.open_generations()] == [State.COMMITTED]


def test_that_a_commit_left_open_holds_up_nobody(
    postgres: PostgresServer, client: Connection, postgres_store: Store
) -> None:
    with client.transaction(force_rollback=True):
        client.execute(ADVANCE, (token_of(1), 0, 1, "committed", MEETING, None, None))
        assert not postgres_store.generations.end("1", 1, State.WITHDRAWN, at=at(30), reason="not now")
        with pytest.raises(StoreError, match="generation 1 is planned"):
            plan_generation(postgres_store)
        assert plan_generation(postgres_store, 2).number == 1
        with connect(postgres) as second:
            with pytest.raises(psycopg.errors.LockNotAvailable):
                second.execute(ADVANCE, (token_of(1), 0, 1, "refused", None, None, "no"))
            rows: Any = second.execute("SELECT * FROM pollux_generation(%s, 0, 0)", (token_of(1),)).fetchall()
            assert len(rows) == 2
    assert postgres_store.generations.end("1", 1, State.WITHDRAWN, at=at(31), reason="now")
