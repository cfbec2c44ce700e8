"""A person with a login of their own, at a real PostgreSQL: nothing reveals others' jobs, nothing lasts."""

from __future__ import annotations

import json
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from psycopg import errors, sql

from pollux_slurm.store.contract.interface import Store
from pollux_slurm.store.maintenance.administration import add_login, upgrade_store
from pollux_slurm.store.schema.views import VIEWS
from pollux_slurm.store.security.reader_views import AGGREGATES
from tests.store.builders import plan
from tests.store.conftest import prepare_clock
from tests.store.postgres import PostgresServer
from tests.store.untrusted_client import Connection, await_other_ends, connect
from tests.waiting import wait_until

# What PostgreSQL counts, measured and estimated.
COUNTS = {
    "Plan Rows", "Actual Rows", "Actual Loops", "Rows Removed by Filter", "Rows Removed by Join Filter",
    "Rows Removed by Index Recheck", "Node Type", "Relation Name", "Function Name", "Index Name",
}  # fmt: skip


@pytest.mark.parametrize("view", [view for view in VIEWS if view not in AGGREGATES])
def test_that_no_plan_and_no_count_tells_whether_others_have_a_value(
    postgres: PostgresServer, two_people: Store, view: str
) -> None:
    """PostgreSQL counts for EXPLAIN what a condition has removed: others' rows, too, where it meets them."""
    plan(two_people, 2)
    postgres.sql("ANALYZE", database="store")
    with connect(postgres, "the_analyst") as analyst, connect(postgres, "ada") as ada:
        ada.execute("SET jit = off")
        relation = sql.Identifier(view)
        query = sql.SQL("SELECT * FROM {} WHERE user_name = 'grace'").format(relation)
        found = analyst.execute(query)
        columns = [column.name for column in found.description or ()]
        rows = found.fetchall()
        assert rows
        for number, column in enumerate(columns):
            secrets = {row[number] for row in rows} - {None}
            for secret in sorted(secrets, key=repr)[:3]:
                for operator in ("=", "<", ">="):
                    asked, free = (
                        counts(ada, relation, column, operator, value) for value in (secret, unused(secret))
                    )
                    assert asked == free, f"{view}.{column} {operator} {secret!r}"


def counts(reader: Connection, relation: sql.Identifier, column: str, operator: str, value: Any) -> Any:
    """Return what EXPLAIN ANALYZE says of a question about others' rows, without the question."""
    question = sql.SQL(
        "EXPLAIN (ANALYZE, TIMING OFF, SUMMARY OFF, FORMAT JSON) "
        "SELECT * FROM {} WHERE {} {} {} AND user_name <> 'ada'"
    ).format(relation, sql.Identifier(column), sql.SQL(operator), sql.Literal(value))
    row = reader.execute(question).fetchone()
    assert row is not None
    return counted(row[0] if not isinstance(row[0], str) else json.loads(row[0]))


def counted(node: Any) -> Any:
    if isinstance(node, list):
        return [counted(one) for one in node]
    if isinstance(node, dict):
        kept = {key: value for key, value in node.items() if key in COUNTS}
        return kept | {key: counted(value) for key, value in node.items() if isinstance(value, dict | list)}
    return None


def unused(value: Any) -> Any:
    """Return a value of the same kind that nobody has, on the other side of everybody's."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, datetime | date):
        return value + timedelta(days=30_000)
    return value + 10**6 if isinstance(value, int | float | Decimal) else f"{value}~"


def test_that_a_cast_that_fails_names_no_value_of_others(postgres: PostgresServer, two_people: Store) -> None:
    """It says on which value: of all jobs, ada's comes first."""
    with connect(postgres, "grace") as grace:
        with pytest.raises(errors.InvalidTextRepresentation) as refused:
            grace.execute("SELECT * FROM job_goodput WHERE name::int = 0")
        assert "train-2" in str(refused.value)
        assert "train-1" not in str(refused.value)


@pytest.mark.parametrize(
    "question",
    [
        "SELECT count(*) FROM public.job_goodput",
        "SELECT count(*) FROM public.account_usage",
        "EXPLAIN SELECT * FROM public.job_goodput WHERE name = 'train-2'",
        "SET search_path = public; SELECT count(*) FROM job_goodput",
        "EXPLAIN SELECT * FROM jobs WHERE name = 'train-2'",
        "DROP VIEW pollux_own.job_goodput",
        "CREATE VIEW pollux_own.mine AS SELECT 1",
    ],
)
def test_that_a_reader_reaches_nothing_below_their_own_views(
    postgres: PostgresServer, two_people: Store, question: str
) -> None:
    with connect(postgres, "ada") as ada, pytest.raises(errors.InsufficientPrivilege):
        ada.execute(question)  # type: ignore[call-overload]


def test_that_another_persons_job_is_not_read_by_its_number(
    postgres: PostgresServer, two_people: Store
) -> None:
    with connect(postgres, "ada") as ada:
        for view in (view for view in VIEWS if view not in AGGREGATES and view != "user_usage"):
            call = sql.SQL("SELECT count(*) FROM pollux_own.{}(%s)").format(sql.Identifier(f"{view}_of"))
            own, others = (ada.execute(call, (number,)).fetchone() for number in (1, 2))
            assert (own != (0,), others) == (True, (0,)), view


BOUNDS = {
    "statement_timeout": "10min",
    "idle_in_transaction_session_timeout": "1min",
    "idle_session_timeout": "1h",
    "client_connection_check_interval": "10s",
    "temp_file_limit": "256MB",
}


def bounds(connection: Connection) -> dict[str, str]:
    asked = "SELECT name, current_setting(name) FROM unnest(%s::text[]) AS name"
    return {name: value for name, value in connection.execute(asked, ([*BOUNDS],))}  # noqa: C416


class TestResources:
    @pytest.mark.parametrize("roles", [("agent",), ("agent", "reader"), ("analyst",)])
    def test_that_a_persons_login_is_bounded(
        self, postgres: PostgresServer, postgres_url: str, roles: tuple[str, ...]
    ) -> None:
        wanted = tuple(f"pollux_{role}" for role in roles)
        add_login(postgres_url, "mallory", shared=False, connections=5, roles=wanted)
        with connect(postgres, "mallory") as mallory:
            assert bounds(mallory) == BOUNDS
            for lift in ("SET temp_file_limit = -1", "ALTER ROLE mallory SET temp_file_limit = -1"):
                with pytest.raises(errors.InsufficientPrivilege):
                    mallory.execute(lift)  # type: ignore[call-overload]

    def test_that_a_question_cannot_fill_the_disk(self, postgres: PostgresServer, two_people: Store) -> None:
        with connect(postgres, "ada") as ada:
            ada.execute("SET statement_timeout = 0")
            with pytest.raises(errors.ConfigurationLimitExceeded, match="temp_file_limit"):
                ada.execute("SELECT count(*) FROM generate_series(1, 1000000000) AS n")

    def test_that_a_login_made_by_hand_or_long_ago_is_bounded_by_the_next_upgrade(
        self, postgres: PostgresServer, two_people: Store
    ) -> None:
        """What its admin has set of it stays."""
        postgres.sql("DROP ROLE IF EXISTS veteran")
        postgres.sql("CREATE ROLE veteran LOGIN; GRANT pollux_reader TO veteran")
        postgres.sql("ALTER ROLE veteran SET temp_file_limit = '4GB'")
        postgres.sql("ALTER ROLE jobs RESET client_connection_check_interval")
        upgrade_store(postgres.url("store"))
        prepare_clock(postgres)
        with connect(postgres, "veteran") as veteran:
            assert bounds(veteran) == {**BOUNDS, "temp_file_limit": "4GB"}
            assert veteran.execute("SELECT count(*) FROM job_goodput").fetchone() == (0,)
        assert two_people.maintain() == (), "the shared login is as it was made"
        with connect(postgres, "the_daemon") as daemon:
            assert bounds(daemon)["temp_file_limit"] == "-1"

    def test_that_a_question_ends_with_whoever_asked_it(
        self, postgres: PostgresServer, two_people: Store
    ) -> None:
        ada = connect(postgres, "ada")
        # Tenfold as often as her login's setting, which is tested above: meanwhile a core is busy with it.
        ada.execute("SET client_connection_check_interval = '1s'")
        ada.pgconn.send_query(
            b"SELECT count(*) FROM generate_series(1, 100000) AS a, generate_series(1, 10000000) AS b"
        )
        with connect(postgres, "pollux_test") as admin:
            number = ada.info.backend_pid
            asked = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND state = 'active'"
            wait_until(
                lambda: admin.execute(asked, (number,)).fetchone() == (1,), timeout_s=120, what="a query"
            )
            ada.close()
            wait_until(
                lambda: admin.execute(asked, (number,)).fetchone() == (0,), timeout_s=120, what="its end"
            )

    def test_that_what_is_never_ended_is_ended(self, postgres: PostgresServer, two_people: Store) -> None:
        """Whoever listens in an open transaction keeps every notification of everybody on the disk."""
        with connect(postgres, "the_daemon") as daemon, connect(postgres, "ada") as ada:
            ada.execute("SET idle_in_transaction_session_timeout = 0")
            ada.execute("SET idle_session_timeout = 0")
            ada.execute("LISTEN flood")
            two_people.maintain()
            ada.execute("BEGIN")
            with connect(postgres) as client:
                for number in range(2000):
                    client.execute(f"NOTIFY flood, '{number:07900}'")  # type: ignore[call-overload]
            asked = "SELECT pg_notification_queue_usage()"
            (kept,) = daemon.execute(asked).fetchone() or (0.0,)
            assert kept > 0
            assert daemon.execute("SELECT pollux_end_long_connections(3600, 0, 3600, 3600)").fetchone() == (
                1,
            )
            with pytest.raises(psycopg.OperationalError):
                ada.execute("SELECT 1")

            def is_empty() -> bool:
                daemon.execute("NOTIFY flood")
                return daemon.execute(asked).fetchone() == (0.0,)

            wait_until(is_empty, timeout_s=120, what="the queue to be emptied")

    def test_that_a_long_look_at_the_views_is_not_a_writer(
        self, postgres: PostgresServer, two_people: Store
    ) -> None:
        with connect(postgres, "the_daemon") as daemon, connect(postgres, "the_analyst") as analyst:
            analyst.execute("BEGIN")
            analyst.execute("SELECT * FROM job_goodput")
            asked = "SELECT pollux_end_long_connections(3600, 3600, 3600, 0)"
            assert daemon.execute(asked).fetchone() == (0,)
            assert analyst.execute("SELECT 1").fetchone() == (1,)

    @pytest.mark.parametrize("login", ["ada", "the_analyst"])
    def test_that_idle_connections_are_ended_but_the_daemons(
        self, postgres: PostgresServer, two_people: Store, login: str
    ) -> None:
        with connect(postgres, "the_daemon") as daemon, connect(postgres, login) as idle:
            idle.execute("SET idle_session_timeout = 0")
            await_other_ends(postgres, daemon, idle)
            assert daemon.execute("SELECT pollux_end_long_connections(3600, 3600, 0, 3600)").fetchone() == (
                1,
            )
            with pytest.raises(psycopg.OperationalError):
                idle.execute("SELECT 1")
            assert daemon.execute("SELECT 1").fetchone() == (1,)
