"""Roles, logins and guarded views of a store in PostgreSQL, and what `pollux db check` finds open."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timezone

import pytest
from psycopg import errors

from pollux_slurm.document.charts.time_axes import Range
from pollux_slurm.errors import StoreError, UnknownJobError, UsageError
from pollux_slurm.model import PromiseState
from pollux_slurm.report.reading import read_group, read_job
from pollux_slurm.store import open_agent_store, open_store
from pollux_slurm.store.contract.interface import PromiseRecord, Store
from pollux_slurm.store.maintenance.administration import add_login, check_store, init_store, upgrade_store
from pollux_slurm.store.reporting.queries import open_view_reader
from pollux_slurm.store.schema.views import VIEWS
from pollux_slurm.store.security.reader_views import AGGREGATES, OWN_SCHEMA
from tests.store.builders import (
    MODEL,
    at,
    observation,
    registration,
    report,
    token_of,
)
from tests.store.postgres import PostgresServer
from tests.store.untrusted_client import connect


@pytest.fixture
def private_url(postgres: PostgresServer) -> Iterator[str]:
    """Return the URL of a database that belongs to somebody who may neither make roles nor anything else."""
    postgres.sql("CREATE ROLE lone LOGIN")
    postgres.sql("CREATE DATABASE lone OWNER lone")
    yield postgres.url("lone", login="lone")
    postgres.drop_database("lone")
    postgres.sql("DROP ROLE lone")


class TestViews:
    def test_that_a_reader_has_every_view_by_its_name_and_reads_no_other_relation(
        self, two_people: Store
    ) -> None:
        assert set(AGGREGATES) <= set(VIEWS)
        with two_people.database.read() as connection:  # type: ignore[attr-defined]
            rows = connection.exec_driver_sql(
                "SELECT n.nspname, c.relname, obj_description(c.oid) FROM pg_class AS c "
                "JOIN pg_namespace AS n ON n.oid = c.relnamespace "
                "WHERE n.nspname IN ('public', 'pollux_own') AND c.relkind IN ('r', 'v', 'm') "
                "AND has_table_privilege('pollux_reader', c.oid, 'SELECT')"
            ).all()
        assert {(schema, name) for schema, name, _ in rows} == {
            ("public", "pollux_schema_version"), *((OWN_SCHEMA, view) for view in VIEWS)
        }  # fmt: skip
        comments = {name: comment for schema, name, comment in rows if schema == OWN_SCHEMA}
        assert comments == {view: AGGREGATES.get(view) for view in VIEWS}

    def test_that_a_reader_sees_their_own_rows_and_the_whole_of_sums(
        self, postgres: PostgresServer, two_people: Store
    ) -> None:
        seen: dict[str, dict[str, set[object]]] = {}
        for login in ("ada", "the_analyst", "the_daemon"):
            seen[login] = {}
            with connect(postgres, login) as connection:
                for view in VIEWS:
                    what = "count(*)" if view in AGGREGATES else "user_name"
                    rows = connection.execute(f"SELECT {what} FROM {view}").fetchall()  # type: ignore[call-overload]
                    seen[login][view] = {value for (value,) in rows}
        for view in VIEWS:
            assert seen["the_analyst"][view] == seen["the_daemon"][view] != set(), view
            if view in AGGREGATES:
                assert seen["ada"][view] == seen["the_analyst"][view]
            else:
                assert seen["ada"][view] == {"ada"}, view
        assert seen["the_analyst"]["job_goodput"] == {"ada", "grace"}

    def test_that_a_reader_reads_views_only_and_cannot_become_another(
        self, postgres: PostgresServer, two_people: Store
    ) -> None:
        with connect(postgres, "ada") as ada:
            for statement in (
                "SELECT * FROM jobs", "SELECT * FROM goodput_samples", "COPY jobs TO STDOUT",
                "SET SESSION AUTHORIZATION grace", "SET ROLE pollux_analyst",
                "SELECT pollux_report('x', '{}')", "CREATE VIEW mine AS SELECT 1",
            ):  # fmt: skip
                with pytest.raises(errors.InsufficientPrivilege):
                    ada.execute(statement)  # type: ignore[call-overload]

    def test_that_a_reader_learns_of_their_own_kinds_only(
        self, postgres: PostgresServer, two_people: Store
    ) -> None:
        """Both people's jobs are of one kind; grace's measured more GPUs."""
        seen = dataclasses.replace(MODEL, max_gpus_seen=8)
        two_people.agent.report(token_of(2, 1002), report(2, model=seen), at=at(20))
        found = {}
        for login in ("ada", "grace", "the_analyst", "the_daemon"):
            with closing(open_store(postgres.url("store", login=login))) as store:
                found[login] = {(one.user_name, one.max_gpus_seen) for one in store.kinds.all("gpt2")}
        ada, grace = ("ada", 2), ("grace", 8)
        assert found == {
            "ada": {ada}, "grace": {grace}, "the_analyst": {ada, grace}, "the_daemon": {ada, grace}
        }  # fmt: skip

    def test_that_a_reader_who_asks_for_tables_is_told_of_views(
        self, postgres: PostgresServer, two_people: Store
    ) -> None:
        store = open_store(postgres.url("store", login="ada"))
        with pytest.raises(StoreError, match="pollux report job JOB"):
            store.jobs.all()
        store.close()

    def test_that_a_view_with_neither_user_nor_mention_is_not_made(
        self, postgres: PostgresServer, two_people: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delitem(AGGREGATES, "round_history")
        with pytest.raises(errors.UndefinedColumn, match="user_name"):
            upgrade_store(postgres.url("store"))


class TestLogins:
    def test_that_a_persons_login_reports_and_reads(
        self, postgres: PostgresServer, two_people: Store
    ) -> None:
        add_login(
            postgres.url("store"),
            "grace",
            shared=False,
            connections=3,
            roles=("pollux_agent", "pollux_reader"),
        )
        jobs = open_agent_store(postgres.url("store", login="grace"))
        jobs.report(token_of(2, 1002), report(2), at=at(0))
        refused = PromiseRecord(state=PromiseState.REFUSED, reason="its time limit ends it")
        two_people.jobs.record_promises({"2": refused})
        assert jobs.promise(token_of(2, 1002)) == refused
        jobs.close()
        with connect(postgres, "grace") as grace:
            assert grace.execute("SELECT count(*) FROM job_goodput").fetchone() == (1,)
            assert grace.execute("SELECT pollux_poll(%s, 0)", (token_of(2, 1002),)).fetchone() == (None,)

    def test_that_a_shared_login_has_limits_that_end_its_idle_connections(
        self, postgres: PostgresServer, postgres_url: str
    ) -> None:
        with connect(postgres) as jobs:
            jobs.execute("RESET ALL")  # to what the login begins with
            limits = {
                name: jobs.execute(f"SHOW {name}").fetchone()  # type: ignore[call-overload]
                for name in ("statement_timeout", "idle_session_timeout", "temp_file_limit",
                             "idle_in_transaction_session_timeout", "log_parameter_max_length")
            }  # fmt: skip
            assert limits == {
                "statement_timeout": ("10s",),
                "idle_session_timeout": ("30s",),
                "temp_file_limit": ("16MB",),
                "idle_in_transaction_session_timeout": ("10s",),
                "log_parameter_max_length": ("0",),
            }
            with pytest.raises(errors.InsufficientPrivilege):
                jobs.execute("SET temp_file_limit = -1")

    def test_that_a_login_made_again_is_changed(self, postgres: PostgresServer, postgres_url: str) -> None:
        for connections in (3, 7):
            add_login(
                postgres_url, 'odd "name"', shared=False, connections=connections, roles=("pollux_reader",)
            )
        add_login(
            postgres_url, 'odd "name"', shared=False, connections=7, roles=("pollux_agent", "pollux_analyst")
        )
        with connect(postgres, "the_daemon") as connection:
            limit = connection.execute(
                "SELECT rolconnlimit FROM pg_roles WHERE rolname = %s", ('odd "name"',)
            ).fetchone()
            roles = connection.execute(
                "SELECT m.roleid::regrole::text FROM pg_auth_members AS m "
                "JOIN pg_roles AS r ON r.oid = m.member WHERE r.rolname = %s ORDER BY 1",
                ('odd "name"',),
            ).fetchall()
        assert limit == (7,)
        assert roles == [("pollux_agent",), ("pollux_analyst",)], "what it may do no longer is taken from it"

    @pytest.mark.parametrize("name", ["", "pg_read_all_data", "pollux_owner", "a\nb", "x" * 64])
    def test_that_a_name_that_cannot_be_a_logins_is_refused(self, postgres_url: str, name: str) -> None:
        with pytest.raises(UsageError, match="cannot be a login's name"):
            add_login(postgres_url, name, shared=False, connections=1, roles=("pollux_reader",))

    def test_that_what_contradicts_itself_is_refused(self, postgres_url: str, store_url: str) -> None:
        with pytest.raises(UsageError, match="and no other"):
            add_login(postgres_url, "x", shared=True, connections=1, roles=("pollux_agent", "pollux_reader"))
        with pytest.raises(UsageError, match="not postgres"):
            add_login(postgres_url, "x", shared=False, connections=1, roles=("postgres",))
        with pytest.raises(StoreError, match="SQLite knows no logins"):
            add_login(store_url, "x", shared=False, connections=1, roles=("pollux_reader",))

    def test_that_only_a_superuser_makes_logins(self, postgres: PostgresServer, postgres_url: str) -> None:
        url = postgres.url("store", login="the_daemon")
        with pytest.raises(StoreError, match="only a superuser"):
            add_login(url, "x", shared=False, connections=1, roles=("pollux_reader",))

    def test_that_the_daemon_may_not_change_the_schema(
        self, postgres: PostgresServer, postgres_url: str
    ) -> None:
        with pytest.raises(StoreError, match=r"as the database's admin: .*\(permission denied for function"):
            upgrade_store(postgres.url("store", login="the_daemon"))


class TestOwners:
    def test_that_no_function_runs_as_a_superuser(self, postgres: PostgresServer, postgres_url: str) -> None:
        with connect(postgres, "the_daemon") as connection:
            rows = connection.execute(
                "SELECT p.proname, r.rolname, p.prosecdef, p.proconfig FROM pg_proc AS p "
                "JOIN pg_roles AS r ON r.oid = p.proowner "
                "WHERE p.proname LIKE 'pollux%' AND p.proname <> 'pollux_clock'"
            ).fetchall()
        assert {owner for _, owner, _, _ in rows} == {"pollux_owner"}
        definers = {name: path for name, _, definer, path in rows if definer}
        assert set(definers) == {
            "pollux_report", "pollux_poll", "pollux_move", "pollux_record", "pollux_answer",
            "pollux_end_long_connections", "pollux_promise", "pollux_generation",
            "pollux_ready", "pollux_advance",
        }  # fmt: skip
        for name, path in definers.items():
            assert path is not None
            assert path[0].startswith("search_path=pg_catalog"), name
            assert path[0].endswith("pg_temp"), name

    def test_that_somebodys_own_database_serves_its_owner_alone(
        self, postgres: PostgresServer, private_url: str
    ) -> None:
        outcome = init_store(private_url)
        assert outcome.notes == () or "a superuser" in outcome.notes[0]
        store, jobs = open_store(private_url), open_agent_store(private_url)
        store.jobs.register([registration(1)], at=at(0))
        store.jobs.observe([observation(1, gpus={"n0": 2})], at=at(0))
        jobs.report(token_of(1), report(1), at=at(0))
        store.maintain()
        assert jobs.poll(token_of(1), 0, at=at(0)).checkpoint_request is None
        sample = store.jobs.get("1").sample
        assert sample is not None
        assert abs((sample.at - datetime.now(timezone.utc)).total_seconds()) < 600
        assert check_store(private_url).problems == ()
        store.close()
        jobs.close()


class TestCheck:
    MISTAKES = (
        ("GRANT SELECT ON leases TO PUBLIC", "everybody has rights on leases"),
        ("GRANT EXECUTE ON FUNCTION pollux_report(text, text) TO PUBLIC", "everybody may call pollux_report"),
        ("GRANT CREATE ON SCHEMA public TO PUBLIC", "everybody may make things in the schema public"),
        ("ALTER FUNCTION pollux_poll(text, integer) OWNER TO pollux_test", "runs with a superuser's rights"),
        ("GRANT UPDATE ON runs TO pollux_agent", "pollux_agent has rights on runs"),
        ("GRANT SELECT ON job_goodput TO pollux_reader", "pollux_reader has rights on job_goodput"),
    )

    def test_that_what_is_open_is_found_and_closed(
        self, postgres: PostgresServer, empty_postgres_url: str
    ) -> None:
        init_store(empty_postgres_url)
        assert check_store(empty_postgres_url).problems == ()
        name = empty_postgres_url.split("?")[0].rpartition("/")[2]
        for mistake, _ in self.MISTAKES:
            postgres.sql(mistake, database=name)
        problems = check_store(empty_postgres_url).problems
        for _, found in self.MISTAKES:
            assert any(found in problem for problem in problems), found
        upgrade_store(empty_postgres_url)
        (left,) = check_store(empty_postgres_url).problems
        postgres.sql(left.split("revoke them: ")[1], database=name)
        assert check_store(empty_postgres_url).problems == ()

    def test_that_a_shared_login_with_another_door_is_told_of(
        self, postgres: PostgresServer, postgres_url: str
    ) -> None:
        postgres.sql("CREATE DATABASE elsewhere")
        try:
            closed, note = add_login(
                postgres_url, "jobs", shared=True, connections=20, roles=("pollux_agent",)
            )
            assert "postgres and template1 are closed to all logins but superusers" in closed
            assert "'elsewhere'" in note
            assert "pg_hba.conf" in note
        finally:
            postgres.drop_database("elsewhere")


def test_that_a_login_without_rights_is_told_what_to_ask_for(
    postgres: PostgresServer, two_people: Store
) -> None:
    add_login(postgres.url("store"), "job", shared=False, connections=5, roles=("pollux_agent",))
    with (
        pytest.raises(StoreError, match=r"lacks a right; its admin grants roles with: pollux db login"),
        open_view_reader(postgres.url("store", login="job")),
    ):
        pass


def test_that_a_reader_who_asks_for_the_status_is_told_what_to_ask_for(
    postgres: PostgresServer, two_people: Store
) -> None:
    store = open_store(postgres.url("store", login="ada"))
    with pytest.raises(
        StoreError, match=r"pollux status and explain do; a reader's .* pollux report job JOB"
    ):
        store.jobs.active()
    store.close()


def test_that_a_check_by_a_reader_asks_for_no_change_of_rights(
    postgres: PostgresServer, two_people: Store
) -> None:
    problems = check_store(postgres.url("store", login="ada")).problems
    assert not [problem for problem in problems if "REVOKE" in problem or "differs from" in problem]


def test_that_a_reader_gets_the_reports_of_their_own_jobs(
    postgres: PostgresServer, two_people: Store
) -> None:
    """Views are all that a report reads: a person needs no right on a table, and sees nobody else's job."""
    with open_view_reader(postgres.url("store", login="ada")) as reports:
        own = read_job(reports, "1")
        assert [sample.goodput for sample in own.samples] != []
        assert (own.job.user_name, len(own.moves)) == ("ada", 1)
        with pytest.raises(UnknownJobError, match="job 2 is not known"):
            read_job(reports, "2")
        around = Range(since=at(-60), until=at(3600))
        group = read_group(reports, around)
        assert {job.user_name for job in group.jobs} == {"ada"}
        assert group.gpu_use is None, "others' jobs use the other GPUs"
