"""An untrusted client with the login of jobs, at a real PostgreSQL: only its own job can be touched."""

from __future__ import annotations

import json
import math
import threading
import time
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import errors

from pollux_slurm.errors import ReportRateError, StoreError, UnknownJobError
from pollux_slurm.model import JobState, JobWarning
from pollux_slurm.store import open_agent_store
from pollux_slurm.store.access import long_connections
from pollux_slurm.store.agent_api.token_hashes import hash_token
from pollux_slurm.store.contract.bounds import BURST_REPORTS, MAX_REPORT_BYTES
from pollux_slurm.store.contract.interface import Store
from tests.store.builders import (
    Step,
    advance,
    at,
    confirmation,
    decision_of,
    numbers_in,
    observation,
    plan,
    problem_of,
    registration,
    report,
    token_of,
)
from tests.store.conftest import set_clock
from tests.store.jobs.test_allocation_intervals import run_missed_in_the_midst
from tests.store.postgres import PostgresServer
from tests.store.untrusted_client import BAD_REPORT, Connection, await_other_ends, connect, raw_report, send
from tests.waiting import wait_until

CHECKPOINT = {"request_id": 1, "blocked_s": 0.5, "size_bytes": 1}


def everything(store: Store) -> tuple[Any, ...]:
    return (
        store.jobs.all(),
        store.journal.reallocations(),
        store.history.samples("1"),
        store.history.samples("2"),
    )


class TestTokens:
    @pytest.mark.parametrize(
        "token",
        [
            "",
            hash_token(token_of(2, 1002)),
            "1001-" + hash_token(token_of(2, 1002)),
            token_of(2, 1001),
            token_of(2, 1002).removeprefix("1002-"),
            token_of(2, 1002).removeprefix("100"),
            "0" + token_of(2, 1002),
            "99999999999999999999-",
            "2",
            "' OR '1'='1",
            "\\",
            "%",
            token_of(2, 1002)[:-1] + "_",
            token_of(2, 1002).upper(),
            token_of(2, 1002)[:-1],
            token_of(2, 1002) + " ",
            "x" * 2**20,
        ],
        ids=lambda token: token[:20],
    )
    def test_that_another_jobs_token_must_be_known(
        self, client: Connection, victims: Store, token: str
    ) -> None:
        before = everything(victims)
        with pytest.raises(psycopg.Error) as refused:
            send(client, raw_report(), token=token)
        assert refused.value.sqlstate == "PX001"
        with pytest.raises(psycopg.Error) as refused:
            client.execute("SELECT pollux_poll(%s, 0)", (token,))
        assert refused.value.sqlstate == "PX001"
        assert everything(victims) == before

    def test_that_null_is_nobodys_token(self, client: Connection) -> None:
        for call in ("pollux_report(NULL, '{}')", "pollux_poll(NULL, 0)"):
            with pytest.raises(psycopg.Error) as refused:
                client.execute(f"SELECT {call}")  # type: ignore[call-overload]
            assert refused.value.sqlstate == "PX001"

    def test_that_a_token_ends_with_its_job(self, client: Connection, victims: Store) -> None:
        send(client, raw_report(1))
        victims.jobs.observe([observation(1, JobState.COMPLETED, ended_at=at(50))], at=at(60))
        with pytest.raises(psycopg.Error, match="job 1 is over"):
            send(client, raw_report(2))
        with pytest.raises(psycopg.Error, match="job 1 is over"):
            client.execute("SELECT pollux_poll(%s, 0)", (token_of(1),))

    @pytest.mark.parametrize(
        "forged",
        [
            {"slurm_job_id": "2"},
            {"job_id": 2},
            {"token": token_of(2, 1002)},
            {"run_id": 1},
            {"at": "2100-01-01"},
        ],
    )
    def test_that_a_forged_job_id_changes_nobodys_job(
        self, client: Connection, victims: Store, forged: dict[str, Any]
    ) -> None:
        send(client, raw_report(1, **forged))
        assert victims.jobs.get("2").run is None
        sample = victims.jobs.get("1").sample
        assert sample is not None
        assert sample.at.year < 2100, "the time is the server's"

    @pytest.mark.parametrize("first", ["copy", "owner"])
    def test_that_a_copy_of_a_jobs_hash_gains_nothing_by_it(
        self, postgres: PostgresServer, postgres_store: Store, postgres_url: str, first: str
    ) -> None:
        """Ada's job bears the hash of Grace's, by Slurm's word on who they are: nobody reports for it."""
        owner = registration(2, user_id=1002, user_name="grace")
        copy = registration(3, terms={"token_sha256": owner.terms.token_sha256})
        verbatim = registration(4, terms={"token_sha256": owner.terms.token_sha256, "user_id": 1002})
        turns = [verbatim, copy, owner] if first == "copy" else [owner, copy, verbatim]
        for turn in turns:
            left_out = postgres_store.jobs.register([turn], at=at(0))
            assert left_out == (("4",) if turn is verbatim else ())
        postgres_store.jobs.observe([observation(n, gpus={"n0": 2}) for n in (2, 3)], at=at(1))
        moved = plan(postgres_store, 3)
        advance(postgres_store, moved, (Step.CHECKPOINT_REQUESTED, 22))
        checkpoint = {"request_id": moved.id, "blocked_s": 0.1, "size_bytes": 1}
        with connect(postgres) as grace:
            asked = grace.execute("SELECT pollux_poll(%s, 0)", (token_of(2, 1002),)).fetchone()
            move = grace.execute(
                "SELECT * FROM pollux_move(%s, %s)", (token_of(2, 1002), moved.id)
            ).fetchone()
            send(grace, raw_report(1, **checkpoint), token=token_of(2, 1002))
        assert (asked, move) == ((None,), None)
        assert [one.step for one in postgres_store.journal.open_reallocations()] == [
            Step.CHECKPOINT_REQUESTED
        ]
        assert (len(postgres_store.history.runs("2")), postgres_store.history.runs("3")) == (1, ())

    def test_that_nobody_confirms_for_another(self, client: Connection, victims: Store) -> None:
        planned = plan(victims, 2)
        advance(victims, planned, (Step.CHECKPOINT_REQUESTED, 22))
        checkpoint = {"request_id": planned.id, "blocked_s": 0.1, "size_bytes": 1}
        send(client, raw_report(1, **checkpoint))
        assert [r.step for r in victims.journal.open_reallocations()] == [Step.CHECKPOINT_REQUESTED]


class TestRights:
    def test_that_the_login_may_execute_seven_functions_only(self, client: Connection) -> None:
        rows = client.execute(
            "SELECT p.proname FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace "
            "WHERE n.nspname NOT IN ('pg_catalog', 'information_schema') "
            "AND has_function_privilege(p.oid, 'EXECUTE') ORDER BY 1"
        ).fetchall()
        assert [name for (name,) in rows] == [
            "pollux_advance", "pollux_generation", "pollux_move", "pollux_poll", "pollux_promise",
            "pollux_ready", "pollux_report",
        ]  # fmt: skip

    def test_that_it_has_no_right_on_any_relation(self, client: Connection) -> None:
        rights = client.execute(
            "SELECT c.relname FROM pg_class AS c WHERE c.relnamespace = 'public'::regnamespace "
            "AND (c.relkind IN ('r', 'v', 'm') "
            "     AND has_table_privilege(c.oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE, TRIGGER')"
            "     OR c.relkind IN ('r', 'v') AND has_any_column_privilege(c.oid, 'SELECT, INSERT, UPDATE')"
            "     OR c.relkind = 'S' AND has_sequence_privilege(c.oid, 'USAGE, SELECT, UPDATE'))"
        ).fetchall()
        assert rights == []

    @pytest.mark.parametrize(
        "statement",
        [
            "SELECT * FROM jobs",
            "SELECT token_sha256 FROM jobs",
            "SELECT * FROM job_goodput",
            "SELECT * FROM pollux_allowances",
            "UPDATE jobs SET state = 'cancelled'",
            "DELETE FROM pollux_allowances",
            "BEGIN; LOCK TABLE jobs IN ACCESS SHARE MODE",
            "COPY jobs TO STDOUT",
            "COPY (SELECT 1) TO PROGRAM 'id'",
            "SELECT pg_read_file('/etc/passwd')",
            "SELECT nextval('jobs_id_seq')",
            "SET ROLE pollux_daemon",
            "SET ROLE pollux_owner",
            "SET SESSION AUTHORIZATION the_daemon",
            "GRANT pollux_daemon TO jobs",
            "ALTER ROLE jobs CONNECTION LIMIT -1",
            "ALTER ROLE jobs SUPERUSER",
            "CREATE ROLE mine",
            "CREATE TABLE mine (a int)",
            "CREATE TEMP TABLE mine (a int)",
            "CREATE SCHEMA mine",
            "CREATE FUNCTION public.sha256(text) RETURNS bytea LANGUAGE sql AS 'SELECT NULL::bytea'",
            "CREATE FUNCTION pg_temp.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
            "DO $$ BEGIN END $$",
            "SELECT lo_create(0)",
            "SELECT lo_from_bytea(0, '\\x00')",
            "SELECT pollux_record('token of job 2', '{}', now(), false)",
            "SELECT pollux_answer('token of job 2', 0, now())",
            "SELECT pollux_take_turn(1, 0, now(), false)",
            "SELECT pollux_end_long_connections(0, 0, 0, 0)",
            "SELECT pollux_job_of_token('x')",
        ],
    )
    def test_that_what_is_not_a_jobs_business_is_denied(self, client: Connection, statement: str) -> None:
        with pytest.raises(errors.InsufficientPrivilege):
            client.execute(statement)  # type: ignore[call-overload]

    @pytest.mark.parametrize(
        "statement",
        [
            "SELECT * FROM pg_stat_activity",
            "SELECT * FROM pg_stat_get_activity(NULL)",
            "SELECT pg_stat_get_backend_activity(1)",
            "SELECT pg_stat_get_backend_client_addr(1)",
            "SELECT * FROM pg_stat_ssl",
            "SELECT * FROM pg_locks",
            "SELECT pg_terminate_backend({pid})",
            "SELECT pg_cancel_backend({pid})",
            "SELECT pg_blocking_pids({pid})",
            "SELECT pg_advisory_lock(1)",
            "SELECT pg_try_advisory_xact_lock(1)",
            "SELECT pg_notify('x', 'y')",
            "SELECT pg_sleep(0)",
            "SELECT pg_logical_emit_message(false, 'x', 'y')",
            "SELECT pg_log_backend_memory_contexts({pid})",
        ],
    )
    def test_that_a_siblings_connection_is_neither_seen_nor_ended(
        self, postgres: PostgresServer, client: Connection, statement: str
    ) -> None:
        with connect(postgres) as sibling:
            with pytest.raises(errors.InsufficientPrivilege):
                client.execute(statement.format(pid=sibling.info.backend_pid))  # type: ignore[call-overload]
            assert sibling.execute("SELECT 1").fetchone() == (1,)

    @pytest.mark.parametrize("database", ["postgres", "template1"])
    def test_that_it_cannot_go_where_siblings_can_be_ended(
        self, postgres: PostgresServer, victims: Store, database: str
    ) -> None:
        with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
            connect(postgres, database=database)

    def test_that_its_connections_are_limited_and_the_daemons_are_not_taken(
        self, postgres: PostgresServer, victims: Store
    ) -> None:
        held: list[Connection] = []
        try:
            held += [connect(postgres) for _ in range(20)]
            with pytest.raises(psycopg.OperationalError, match="too many connections"):
                connect(postgres)
            assert len(victims.jobs.active()) == 2
        finally:
            for connection in held:
                connection.close()

    def test_that_names_of_the_callers_own_mean_nothing_to_the_functions(
        self, client: Connection, victims: Store
    ) -> None:
        client.execute("SET search_path = pg_temp, public, pg_catalog")
        client.execute("SET TIME ZONE 'Pacific/Chatham'")
        client.execute("SET extra_float_digits = -15")
        client.execute("SET DateStyle = 'German'")
        send(client, raw_report(1, throughput=123.456789012345))
        (sample,) = victims.history.samples("1")
        assert sample.throughput == 123.456789012345


class TestValues:
    HOSTILE = (
        "NaN", "Infinity", "-Infinity", "1e400", "-1", "1e999999", "true", "[]", "{}", '"NaN"',
        '"Infinity"', '"; DROP TABLE jobs; --"', '"\\u0000"', '""', "1" * 5000,
    )  # fmt: skip

    @pytest.mark.parametrize(
        "place",
        ["throughput", "progress", "sequence", "run_number", "efficiency", "first_step_s", "gpus_per_node.0",
         "atomic_batch_size", "gamma", "initial_batch_size", "noise_low", "size_bytes"],
    )  # fmt: skip
    def test_that_no_field_takes_what_is_no_sane_number(
        self, client: Connection, victims: Store, place: str
    ) -> None:
        good = raw_report(1, **CHECKPOINT)
        for value in self.HOSTILE:
            with pytest.raises(psycopg.Error) as refused:
                send(client, _with(good, place, value))
            assert refused.value.sqlstate in BAD_REPORT, value
        assert victims.history.runs("1") == ()

    @pytest.mark.parametrize(
        "name", ["throughput", "predicted_throughput", "step_time_s", "first_step_s", "efficiency"]
    )
    def test_that_what_physics_rules_out_is_refused(
        self, client: Connection, victims: Store, name: str
    ) -> None:
        """A product of two such numbers is an error to PostgreSQL, in a view for everybody."""
        for value in (1e-200, 5e-324, 0.0):
            with pytest.raises(psycopg.Error, match=name) as refused:
                send(client, raw_report(1, **{name: value}))
            assert refused.value.sqlstate == "23514"
        assert victims.history.runs("1") == ()

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "null",
            "[]",
            "1",
            '"text"',
            "{",
            "'; DROP TABLE jobs; --",
            "{}",
            '{"run_number": 0}',
            "[" * 60_000,
        ],
        ids=lambda text: text[:20],
    )
    def test_that_what_is_no_report_is_refused(self, client: Connection, victims: Store, text: str) -> None:
        with pytest.raises(psycopg.Error) as refused:
            send(client, text)
        assert refused.value.sqlstate in BAD_REPORT
        assert victims.history.runs("1") == ()

    def test_that_warnings_are_names_of_ours_and_nothing_else(
        self, client: Connection, victims: Store
    ) -> None:
        names = ["no_name_of_ours", "<script>", "", "never_stepped", "x" * 5000, None, 1, ["a"], {"b": 1}]
        send(client, raw_report(1, warnings=names))
        assert [one.warning for one in victims.jobs.get("1").warnings] == [JobWarning.NEVER_STEPPED]

    @pytest.mark.parametrize("bad", ["replicas_differ", {"replicas_differ": 1}, 1])
    def test_that_what_is_no_list_of_warnings_is_refused(
        self, client: Connection, victims: Store, bad: Any
    ) -> None:
        with pytest.raises(psycopg.Error) as refused:
            send(client, raw_report(1, warnings=bad))
        assert refused.value.sqlstate in BAD_REPORT
        assert victims.history.runs("1") == ()

    def test_that_a_report_of_a_library_without_warnings_is_taken(
        self, client: Connection, victims: Store
    ) -> None:
        values = json.loads(raw_report(1))
        del values["warnings"]
        send(client, json.dumps(values))
        assert victims.jobs.get("1").warnings == ()

    @pytest.mark.parametrize("extra", [MAX_REPORT_BYTES, 50 * 2**20])
    def test_that_an_oversized_report_is_refused(
        self, client: Connection, victims: Store, extra: int
    ) -> None:
        with pytest.raises(psycopg.Error, match="bytes") as refused:
            send(client, raw_report(1, more="x" * extra))
        assert refused.value.sqlstate == "PX003"
        assert victims.history.runs("1") == ()

    @pytest.mark.parametrize(
        "text",
        [
            "'; DROP TABLE jobs; --",
            "$$; SELECT 1; $$",
            "%s %(x)s :name ?",
            "\\'; --",
            "{{ 7 * 7 }}",
            "日本語",
        ],
    )
    def test_that_sql_in_any_text_is_only_text(
        self, client: Connection, postgres_store: Store, text: str
    ) -> None:
        named = registration(3, name=text, account=text, partition=text, user_name=text, user_id=1003)
        assert postgres_store.jobs.register([named], at=at(2)) == ()
        gpus = {text: 2}
        postgres_store.jobs.observe([observation(3, gpus=gpus, gpu_type=text)], at=at(3))
        planned = plan(postgres_store, 3)
        assert postgres_store.journal.advance(
            planned.id, Step.FAILED, expected=Step.PLANNED, at=at(30), reason=text
        )
        with pytest.raises(psycopg.Error):
            send(client, raw_report(1, phase=text), token=token_of(3, 1003))
        send(client, raw_report(1, **{text: text}), token=token_of(3, 1003))
        job = postgres_store.jobs.get("3")
        assert {job.name, job.account, job.partition, job.user_name, *job.allocation.nodes} == {text}
        assert postgres_store.journal.reallocations("3")[0].reason == text
        assert len(postgres_store.history.samples("3")) == 1

    values = st.one_of(
        st.none(), st.booleans(), st.text(max_size=4), st.just([]), st.just({}),
        st.integers(-2, 2**70), st.floats(allow_nan=True), st.integers(0, 9), st.floats(0.001, 10.0),
    )  # fmt: skip
    places = st.sampled_from([*json.loads(raw_report(1)), "gpus_per_node.0"])

    @given(changes=st.lists(st.tuples(places, values), min_size=1, max_size=3))
    @settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_that_whatever_the_database_takes_is_finite(
        self, client: Connection, postgres_store: Store, changes: list[tuple[str, Any]]
    ) -> None:
        number = len(postgres_store.jobs.all()) + 1
        postgres_store.jobs.register([registration(number)], at=at(0))
        postgres_store.jobs.observe([observation(number, gpus={"n0": 1})], at=at(0))
        text = raw_report(1, **CHECKPOINT)
        for place, value in changes:
            text = _with(text, place, json.dumps(value))
        try:
            send(client, text, token=token_of(number))
        except psycopg.Error as error:
            assert error.sqlstate in BAD_REPORT, error  # noqa: PT017
            assert postgres_store.history.runs(str(number)) == ()
            return
        job = postgres_store.jobs.get(str(number))
        numbers = numbers_in((job.model, job.sample, job.run))
        assert all(math.isfinite(number) for number in numbers)


def _with(text: str, place: str, value: str) -> str:
    """Return a report's JSON with the JSON text `value` as a field, or as the first element of a list."""
    document = json.loads(text)
    name, _, first = place.partition(".")
    document[name] = ["HERE"] if first else "HERE"
    return json.dumps(document).replace('"HERE"', value)


class TestFloods:
    def test_that_a_replayed_report_changes_nothing(self, client: Connection, victims: Store) -> None:
        for sequence in (1, 2):
            send(client, raw_report(sequence))
        before = everything(victims)
        for sequence in (1, 2, 0, 1):
            send(client, raw_report(sequence, throughput=9e9, phase="finished"))
        assert everything(victims) == before
        send(client, raw_report(1, run_number=1))
        with pytest.raises(psycopg.Error) as refused:
            send(client, raw_report(3))
        assert refused.value.sqlstate == "PX002"

    def test_that_a_flood_is_limited_and_others_are_not(
        self, postgres: PostgresServer, victims: Store
    ) -> None:
        """Three connections send reports of job 1 without pause while job 2 reports as ever."""
        stop, outcomes = threading.Event(), [0, 0]
        numbers = iter(range(1, 10**9))
        lock = threading.Lock()

        def flood() -> None:
            with connect(postgres) as connection:
                while not stop.is_set():
                    with lock:
                        sequence = next(numbers)
                    try:
                        send(connection, raw_report(sequence))
                    except psycopg.Error as error:
                        assert error.sqlstate in ("PX004", "55P03")  # noqa: PT017
                        outcomes[1] += 1
                    else:
                        outcomes[0] += 1

        began = time.monotonic()
        flooders = [threading.Thread(target=flood) for _ in range(3)]
        for thread in flooders:
            thread.start()
        others = open_agent_store(postgres.url("store", login="jobs"))
        try:
            wait_until(lambda: outcomes[1] > 20, timeout_s=120, what="the flood to be limited")
            for sequence in range(1, 31):
                others.report(token_of(2, 1002), report(sequence), at=at(0))
                others.poll(token_of(2, 1002), 0, at=at(0))
            assert len(victims.jobs.active()) == 2
        finally:
            stop.set()
            for thread in flooders:
                thread.join(timeout=120)
            others.close()
        most = BURST_REPORTS + (time.monotonic() - began) + 1
        assert len(victims.history.samples("1")) <= most
        assert len(victims.history.samples("2")) == 30

    def test_that_polls_without_pause_hold_up_nobody(self, postgres: PostgresServer, victims: Store) -> None:
        """They read a few rows by index and lock none; a sibling and the daemon go on beside thousands."""
        stop, counts = threading.Event(), [0, 0, 0]

        def flood(number: int) -> None:
            with connect(postgres) as connection:
                while not stop.is_set():
                    connection.execute("SELECT pollux_poll(%s, 0)", (token_of(1),))
                    counts[number] += 1

        flooders = [threading.Thread(target=flood, args=(number,)) for number in range(len(counts))]
        for thread in flooders:
            thread.start()
        others = open_agent_store(postgres.url("store", login="jobs"), keep_connection=True)
        try:
            for sequence in range(1, 31):
                others.report(token_of(2, 1002), report(sequence), at=at(0))
                others.poll(token_of(2, 1002), 0, at=at(0))
            observed = [observation(n, gpus={"n1": 1}) for n in (1, 2)]
            victims.jobs.observe(observed, at=at(5))
            planned = plan(victims, 1)
            advance(victims, planned, (Step.CHECKPOINT_REQUESTED, 22))
            wait_until(
                lambda: sum(counts) > 2000 and min(counts) > 0, timeout_s=120, what="thousands of polls"
            )
        finally:
            stop.set()
            for thread in flooders:
                thread.join(timeout=120)
            others.close()
        assert len(victims.history.samples("2")) == 30

    def test_that_the_limit_is_told_as_worth_another_try(
        self, postgres: PostgresServer, victims: Store
    ) -> None:
        jobs = open_agent_store(postgres.url("store", login="jobs"))
        with pytest.raises(ReportRateError, match="120 reports at once, then 1 a second"):  # noqa: PT012
            for sequence in range(1, 1000):
                jobs.report(token_of(1), report(sequence), at=at(0))
        jobs.report(token_of(2, 1002), report(1), at=at(0))
        jobs.close()

    def test_that_large_reports_cost_more(
        self, postgres_store: Store, client: Connection, victims: Store
    ) -> None:
        """At one moment, so that nothing comes back."""
        set_clock(postgres_store.clock, at(9))  # type: ignore[attr-defined]
        taken = 0
        with pytest.raises(psycopg.Error) as refused:  # noqa: PT012
            for sequence in range(1, 100):
                send(client, raw_report(sequence, more="x" * 20_000))
                taken += 1
        assert refused.value.sqlstate == "PX004"
        assert taken < 15

    def test_that_jobs_that_never_ran_report_nothing(self, client: Connection, victims: Store) -> None:
        """Each has a token, and whoever may submit has any number of them."""
        numbers = range(100, 400)
        victims.jobs.register([registration(number) for number in numbers], at=at(2))
        victims.jobs.observe([observation(number, JobState.PENDING) for number in numbers], at=at(2))
        for number in numbers:
            with pytest.raises(psycopg.Error, match=f"job {number} was not seen to run yet") as refused:
                send(client, raw_report(1), token=token_of(number))
            assert refused.value.sqlstate == "PX001"
        assert all(job.run is None for job in victims.jobs.active())

    def test_that_a_job_reports_as_soon_as_it_runs_or_is_placed(
        self, client: Connection, victims: Store
    ) -> None:
        victims.jobs.register([registration(number) for number in (3, 4)], at=at(2))
        plan(victims, 3, moves_running=False)
        send(client, raw_report(1, gpus_per_node=[3, 1]), token=token_of(3))
        victims.jobs.observe([observation(4, gpus={"n0": 2})], at=at(3))
        send(client, raw_report(1), token=token_of(4))
        victims.jobs.observe([observation(4, JobState.PENDING, restart_count=1)], at=at(4))
        send(client, raw_report(1, run_number=1, restart_count=1), token=token_of(4))

    def test_that_a_job_has_no_more_nodes_than_slurm_gave_it(
        self, client: Connection, victims: Store
    ) -> None:
        for nodes in ([1] * 10_000, [1, 1, 1]):
            with pytest.raises(
                psycopg.Error, match=f"reports {len(nodes)} nodes and was seen on 1"
            ) as refused:
                send(client, raw_report(1, gpus_per_node=nodes))
            assert refused.value.sqlstate == "PX001"
        plan(victims, 1)
        send(client, raw_report(1, gpus_per_node=[3, 1]))

    def test_that_a_job_without_gpus_has_one_node(self, client: Connection, victims: Store) -> None:
        victims.jobs.register([registration(3)], at=at(2))
        victims.jobs.observe([observation(3)], at=at(3))
        with pytest.raises(psycopg.Error, match="reports 10000 nodes and was seen on 1") as refused:
            send(client, raw_report(1, gpus_per_node=[1] * 10_000), token=token_of(3))
        assert refused.value.sqlstate == "PX001"
        send(client, raw_report(1), token=token_of(3))

    def test_that_a_run_that_accounting_tells_of_late_takes_no_node_from_the_present_one(
        self, postgres: PostgresServer, postgres_url: str, postgres_store: Store
    ) -> None:
        run_missed_in_the_midst(postgres_store)
        with connect(postgres) as jobs:
            send(jobs, raw_report(1, restart_count=2, gpus_per_node=[1, 1]))
        assert postgres_store.jobs.get("1").run is not None

    def test_that_a_users_jobs_share_what_they_may_report(
        self, postgres_store: Store, client: Connection, victims: Store
    ) -> None:
        """At one moment, so that nothing comes back: of 60 jobs that run each has its share of 1,200."""
        set_clock(postgres_store.clock, at(9))  # type: ignore[attr-defined]
        numbers = range(100, 160)
        victims.jobs.register([registration(n, user_id=1003, user_name="mallory") for n in numbers], at=at(2))
        victims.jobs.observe([observation(n, gpus={"n0": 1}) for n in numbers], at=at(3))
        for number, user_id, most in ((100, 1003, 20), (101, 1003, 20), (2, 1002, 120)):
            taken = 0
            with pytest.raises(psycopg.Error) as refused:  # noqa: PT012
                for sequence in range(1, 1000):
                    send(client, raw_report(sequence), token=token_of(number, user_id))
                    taken += 1
            assert (refused.value.sqlstate, taken) == ("PX004", most), number

    def test_that_reports_rolled_back_leave_nothing(self, client: Connection, victims: Store) -> None:
        for sequence in range(1, 200):
            with client.transaction(force_rollback=True):
                send(client, raw_report(sequence))
        assert victims.history.samples("1") == ()


class TestTampering:
    """PostgreSQL lets every role change its own defaults, for all who come after with the same login."""

    CHANGES = (
        "ALTER ROLE jobs SET default_transaction_read_only = on",
        "ALTER ROLE jobs IN DATABASE store SET statement_timeout = 1",
        "ALTER ROLE jobs SET search_path = pg_catalog",
        "ALTER ROLE jobs RESET ALL",
    )

    @pytest.mark.parametrize("change", CHANGES)
    def test_that_a_shared_login_is_put_right_within_a_round(
        self, postgres: PostgresServer, client: Connection, victims: Store, change: str
    ) -> None:
        assert victims.maintain() == ()
        client.execute(change)  # type: ignore[call-overload]
        (note,) = victims.maintain()
        assert "the login jobs" in note
        assert victims.maintain() == ()
        with connect(postgres) as sibling:
            send(sibling, raw_report(1), token=token_of(2, 1002))
            shown = [
                sibling.execute(f"SHOW {name}").fetchone()
                for name in ("statement_timeout", "temp_file_limit")
            ]
        assert shown == [("10s",), ("16MB",)]

    def test_that_tampering_without_end_stops_no_round(
        self, postgres: PostgresServer, client: Connection, victims: Store
    ) -> None:
        """The client holds the very row that would have to be put right."""
        client.execute("ALTER ROLE jobs SET statement_timeout = '1s'")
        client.execute("BEGIN")
        client.execute("ALTER ROLE jobs SET statement_timeout = '2s'")
        (note,) = victims.maintain()
        assert "could not be put right" in note
        client.execute("ROLLBACK")
        assert len(victims.maintain()) == 1
        assert victims.maintain() == ()


class TestOpenTransactions:
    def test_that_a_transaction_left_open_holds_up_nobody(
        self, postgres: PostgresServer, victims: Store
    ) -> None:
        """The client reports, confirms a checkpoint, never commits; the daemon goes on with its rounds."""
        victims.agent.report(token_of(1), report(1), at=at(9))
        planned = plan(victims, 1)
        advance(victims, planned, (Step.CHECKPOINT_REQUESTED, 22))
        with connect(postgres) as client:
            client.execute("BEGIN")
            checkpoint = {"request_id": planned.id, "blocked_s": 0.1, "size_bytes": 1}
            send(client, raw_report(2, **checkpoint, gpus_per_node=[1, 1]))
            impatient = postgres_impatient(postgres)
            try:
                moved = impatient.journal.advance(
                    planned.id, Step.ROLLED_BACK, expected=Step.CHECKPOINT_REQUESTED, at=at(30)
                )
                assert not moved, "nobody waits: the next look tells"
                seen = [observation(n, gpus={"n1": 1}, gpu_type="t4") for n in (1, 2)]
                impatient.jobs.observe(seen, at=at(31))
                impatient.jobs.register([registration(4)], at=at(31))
                impatient.rounds.record(problem_of([1, 2]), decision_of([1, 2]), shadow=False, at=at(32))
                impatient.agent.report(token_of(2, 1002), report(1), at=at(33))
                assert len(impatient.jobs.active()) == 3
                with pytest.raises(StoreError, match="just being recorded"):
                    impatient.agent.report(token_of(1), report(3), at=at(34))
            finally:
                impatient.close()
            client.execute("ROLLBACK")
        assert victims.journal.advance(
            planned.id, Step.ROLLED_BACK, expected=Step.CHECKPOINT_REQUESTED, at=at(40)
        )

    def test_that_a_transaction_that_keeps_a_moves_row_is_ended(
        self, postgres: PostgresServer, victims: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(long_connections, "MAX_LOCK_S", 0.0)
        victims.agent.report(token_of(1), report(1), at=at(9))
        planned = plan(victims, 1)
        advance(victims, planned, (Step.CHECKPOINT_REQUESTED, 22))
        with connect(postgres) as client:
            client.execute("BEGIN")
            checkpoint = {"request_id": planned.id, "blocked_s": 0.1, "size_bytes": 1}
            send(client, raw_report(2, **checkpoint, gpus_per_node=[1, 1]))

            def is_rolled_back() -> bool:
                return victims.journal.advance(
                    planned.id, Step.ROLLED_BACK, expected=Step.CHECKPOINT_REQUESTED, at=at(30)
                )

            assert not is_rolled_back()
            wait_until(is_rolled_back, timeout_s=120, what="the row to be free")
            with pytest.raises(psycopg.OperationalError):
                client.execute("SELECT 1")

    def test_that_connections_that_last_too_long_are_ended(
        self, postgres: PostgresServer, victims: Store
    ) -> None:
        with connect(postgres, "the_daemon") as daemon, connect(postgres) as client:
            victims.maintain()
            assert client.execute("SELECT 1").fetchone() == (1,), "a minute is not over"
            await_other_ends(postgres, daemon, client)
            assert daemon.execute("SELECT pollux_end_long_connections(0, 600, 3600, 3600)").fetchone() == (1,)
            with pytest.raises(psycopg.OperationalError):
                client.execute("SELECT 1")
            assert daemon.execute("SELECT 1").fetchone() == (1,)


def postgres_impatient(postgres: PostgresServer) -> Any:
    """Open the store as the daemon, waiting for locks for a moment only."""
    from pollux_slurm.store import open_store

    return open_store(postgres.url("store", login="the_daemon") + "&options=-c%20lock_timeout%3D200")


def test_that_an_agent_that_may_not_report_is_told_what_to_grant(
    postgres: PostgresServer, postgres_url: str
) -> None:
    postgres.sql("CREATE ROLE outsider LOGIN")
    postgres.sql("GRANT CONNECT ON DATABASE store TO outsider")
    jobs = open_agent_store(postgres.url("store", login="outsider"))
    with pytest.raises(StoreError, match="GRANT pollux_agent"):
        jobs.report(token_of(1), report(1), at=at(0))
    with pytest.raises(UnknownJobError):
        jobs.report("\0", report(1), at=at(0))
    jobs.close()


def test_that_confirmations_with_huge_numbers_are_survived(client: Connection, victims: Store) -> None:
    send(client, raw_report(1, request_id=2**63 - 1, blocked_s=1e7, size_bytes=2**60))
    assert victims.journal.reallocations() == ()
    jobs_own = confirmation(None, sequence=2)
    victims.agent.report(token_of(1), jobs_own, at=at(50))
