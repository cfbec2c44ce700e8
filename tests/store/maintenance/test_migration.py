"""Upgrades and downgrades with data; the migrations agree with the typed tables and the texts in sql/."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Connection, func, inspect, select

from pollux_slurm.errors import SchemaVersionError, StoreError
from pollux_slurm.model import Allocation, JobWarning, PromiseState, ReallocationCause, SlurmAnswer
from pollux_slurm.resources import resource_dir
from pollux_slurm.store import open_store
from pollux_slurm.store.access import opening
from pollux_slurm.store.access.database import Database
from pollux_slurm.store.access.opening import read_version, unchecked_database
from pollux_slurm.store.access.url import parse_store_url
from pollux_slurm.store.contract.interface import GenerationRecord, PromiseRecord, Refusal, Store
from pollux_slurm.store.maintenance import administration, migration
from pollux_slurm.store.maintenance.administration import (
    check_store,
    downgrade_store,
    init_store,
    upgrade_store,
)
from pollux_slurm.store.maintenance.migration import differences, migrate
from pollux_slurm.store.schema import REVISIONS, Base, ReallocationRow, SampleRow
from pollux_slurm.store.schema.sql_text import schema_text
from pollux_slurm.store.schema.views import VIEWS
from tests.store.builders import (
    at,
    decision_of,
    move_in_place,
    move_running_job,
    observation,
    plan,
    plan_generation,
    problem_of,
    registration,
    report,
    token_of,
)

HERE = Path(__file__).resolve()


def fill(url: str) -> None:
    """Insert at least one row into every table."""
    store = open_store(url)
    store.jobs.register([registration(1)], at=at(0))
    store.jobs.observe([observation(1, gpus={"n0": 2})], at=at(1))
    store.agent.report(token_of(1), report(1, warnings=(JobWarning.NEVER_STEPPED,)), at=at(2))
    store.rounds.record(problem_of([1]), decision_of([1]), shadow=False, at=at(3))
    move_running_job(store, start=20)
    store.jobs.observe([observation(1, gpus={"n1": 3, "n2": 1})], at=at(30))
    plan_generation(store, at_s=40)
    store.lease.acquire("daemon", ttl_s=10, at=at(0))
    store.close()


def fill_more(url: str) -> None:
    """Use what the rows of `fill` leave empty: a kind, a promise, a refusal, a priority, a move in place."""
    store = open_store(url)
    terms = {"in_place": True, "kind": "resnet50", "finish_by": at(90_000), "min_gpus": 2, "max_gpus": 8}
    store.jobs.register([registration(2, terms=terms, submitted_gpus=2, name="größer")], at=at(100))
    store.jobs.observe([observation(2, gpus={"n0": 2}, gpu_type="a100")], at=at(101))
    store.agent.report(token_of(2), report(1), at=at(110))
    store.jobs.record_promises({"2": PromiseRecord(state=PromiseState.ACCEPTED, least_gpus=2)})
    move_in_place(store, 2, start=120)
    moved = plan(store, 2, seconds=200, cause=ReallocationCause.PAUSE, reason="by root")
    store.journal.record_priority(moved.id, 4_000_000_000)
    refused = Refusal(
        allocation=Allocation.of({"n9": 4}), answer=SlurmAnswer.NOT_NOW, at=at(210), reason="AssocGrpGRES"
    )
    store.journal.record_refusal(moved.id, refused)
    store.jobs.record_not_moved({"1": "its owner holds it"})
    store.close()


def told(store: Store) -> list[object]:
    """Return all that a store tells of its jobs, moves and last round.

    When a generation came into its state is the server's time on PostgreSQL.
    """

    def timeless(generations: Sequence[GenerationRecord]) -> tuple[GenerationRecord, ...]:
        return tuple(replace(one, at=at(0)) for one in generations)

    records = store.jobs.all()
    jobs = [job.slurm_job_id for job in records]
    history = store.history
    return [
        [replace(record, generations=timeless(record.generations)) for record in records],
        store.journal.reallocations(),
        store.journal.prioritised(),
        store.kinds.all(),
        store.rounds.problem(),
        store.rounds.nodes(),
        store.lease.daemon_status(),
        store.jobs.used_gpus(since=at(0), at=at(300)),
        [timeless(store.generations.of_job(job)) for job in jobs],
        [read(job) for job in jobs for read in (history.allocations, history.runs, history.samples)],
    ]


def database_at(url: str) -> Database:
    return unchecked_database(parse_store_url(url), create=True)


def row_counts(connection: Connection) -> dict[str, int]:
    tables = Base.metadata.tables
    return {
        name: connection.execute(select(func.count()).select_from(table)).scalar_one()
        for name, table in tables.items()
    }


def test_that_these_tests_fill_every_table(any_store_url: str) -> None:
    fill(any_store_url)
    database = database_at(any_store_url)
    with database.read() as connection:
        assert [name for name, rows in row_counts(connection).items() if rows == 0] == []
    database.close()


def test_that_the_migrations_end_at_this_releases_version() -> None:
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(HERE.parents[3] / "pollux_slurm/store/migrations"))
    config.set_main_option("path_separator", "os")
    found = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()]
    assert tuple(reversed(found)) == REVISIONS


def test_that_migrations_make_the_typed_tables(any_empty_url: str) -> None:
    assert init_store(any_empty_url).changed
    database = database_at(any_empty_url)
    with database.read() as connection:
        assert differences(connection) == []
        assert set(VIEWS) == set(inspect(connection).get_view_names())
    database.close()


def test_that_migrations_make_the_same_constraints_as_the_typed_tables(any_empty_url: str) -> None:
    """Alembic does not compare checks: an upgraded store would refuse new values of an enumeration."""
    database = database_at(any_empty_url)
    with database.write() as connection:
        migrate(connection, REVISIONS[-1])
        migrated = constraints_of(connection)
        migrate(connection, "base")
        Base.metadata.create_all(connection)
        assert migrated == constraints_of(connection)
    database.close()
    assert len(migrated) > 60


def constraints_of(connection: Connection) -> set[tuple[str, ...]]:
    inspector = inspect(connection)
    return {
        (table, str(found["name"]), str(found.get("sqltext", found.get("options", ""))))
        for table in Base.metadata.tables
        for found in (
            *inspector.get_check_constraints(table),
            *inspector.get_foreign_keys(table),
            *inspector.get_unique_constraints(table),
        )
    }


def test_that_a_downgrade_and_upgrade_with_data_leave_a_working_store(any_empty_url: str) -> None:
    init_store(any_empty_url)
    fill(any_empty_url)
    database = database_at(any_empty_url)
    with database.write() as connection:
        migrate(connection, "base")
        assert inspect(connection).get_view_names() == []
        assert not set(inspect(connection).get_table_names()) & set(Base.metadata.tables)
    with database.write() as connection:
        assert read_version(connection) is None
        migrate(connection, REVISIONS[-1])
        assert differences(connection) == []
    database.close()
    fill(any_empty_url)
    assert check_store(any_empty_url).problems == ()


_NEXT = """
import sqlalchemy as sa
from alembic import op

revision = "9000"
down_revision = "{newest}"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("colour", sa.Text(), nullable=False, server_default="grey"))


def downgrade() -> None:
    op.drop_column("jobs", "colour")
"""


def pretend_next_release(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Pretend a release with one more revision, which adds a column to `jobs`."""
    scripts = folder / "migrations"
    shutil.copytree(HERE.parents[3] / "pollux_slurm/store/migrations", scripts)
    (scripts / "versions/r9000_colour.py").write_text(_NEXT.format(newest=REVISIONS[-1]))
    monkeypatch.setattr(migration, "MIGRATIONS", scripts)
    for module in (migration, opening, administration):
        monkeypatch.setattr(module, "REVISIONS", (*REVISIONS, "9000"))


def test_that_a_later_release_upgrades_a_store_and_keeps_its_data(
    any_empty_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    init_store(any_empty_url)
    fill(any_empty_url)
    pretend_next_release(monkeypatch, tmp_path)
    with pytest.raises(SchemaVersionError, match="pollux db upgrade"):
        open_store(any_empty_url)
    database = database_at(any_empty_url)
    with database.read() as connection:
        before = row_counts(connection)
    outcome = upgrade_store(any_empty_url)
    assert (outcome.before, outcome.version) == (REVISIONS[-1], "9000")
    with database.read() as connection:
        assert row_counts(connection) == before
        assert connection.exec_driver_sql("SELECT DISTINCT colour FROM jobs").scalars().all() == ["grey"]
        assert set(VIEWS) == set(inspect(connection).get_view_names())
    assert upgrade_store(any_empty_url).changed is False
    store = open_store(any_empty_url)
    later = report(9, run_number=1, restart_count=1, gpus_per_node=(3, 1))
    store.agent.report(token_of(1), later, at=at(60))
    store.close()
    with database.write() as connection:
        sums = connection.exec_driver_sql("SELECT SUM(num_samples) FROM run_days").scalar_one()
        assert sums == row_counts(connection)["goodput_samples"]
        migrate(connection, REVISIONS[-1])
        assert read_version(connection) == REVISIONS[-1]
        assert "colour" not in {column["name"] for column in inspect(connection).get_columns("jobs")}
    database.close()


def load(url: str, text: str) -> None:
    """Make a store from its text: tables with their rows, as an earlier release has left them."""
    database = database_at(url)
    if database.engine.dialect.name == "sqlite":
        with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file:
            file.executescript(text)
    else:
        raw = database.engine.raw_connection()
        raw.cursor().execute(text)
        raw.commit()
        raw.detach()
        raw.close()
    with database.write() as connection:
        migration.write_host_id(connection)
    database.close()


def test_that_a_store_of_an_earlier_release_is_upgraded_with_all_that_it_tells(
    any_empty_url: str, store_url: str
) -> None:
    """Its rows were written by `fill` and `fill_more`."""
    backend = any_empty_url.partition(":")[0]
    load(any_empty_url, (HERE.parent / f"stores/0105.{backend}.sql").read_text(encoding="utf-8"))
    with pytest.raises(SchemaVersionError, match="pollux db upgrade"):
        open_store(any_empty_url)
    outcome = upgrade_store(any_empty_url)
    assert (outcome.before, outcome.version) == ("0105", REVISIONS[-1])
    earlier = open_store(any_empty_url)
    fill(store_url)
    fill_more(store_url)
    new = open_store(store_url)
    assert told(earlier) == told(new)
    assert len(earlier.jobs.all()) == 2
    earlier.close()
    new.close()

    database = database_at(any_empty_url)
    with database.read() as connection:
        before = row_counts(connection)
    assert check_store(any_empty_url).problems == ()
    store = open_store(any_empty_url)
    store.agent.report(token_of(2), report(7), at=at(400))
    store.rounds.record(problem_of([1, 2]), decision_of([1, 2]), shadow=False, at=at(410))
    store.close()
    with database.write() as connection:
        after = row_counts(connection)
        assert {name for name in before if after[name] < before[name]} == set()
        assert after["goodput_samples"] == before["goodput_samples"] + 1
        # By name: PostgreSQL writes the text of a check that it has loaded in another way.
        earlier_constraints = {found[:2] for found in constraints_of(connection)}
        migrate(connection, "base")
        migrate(connection, REVISIONS[-1])
        assert earlier_constraints == {found[:2] for found in constraints_of(connection)}
    database.close()


def test_that_a_store_goes_back_to_the_schema_of_an_earlier_release_and_forward_again(
    any_empty_url: str, tmp_path: Path
) -> None:
    init_store(any_empty_url)
    fill(any_empty_url)
    fill_more(any_empty_url)
    store = open_store(any_empty_url)
    before = told(store)
    store.close()
    with pytest.MonkeyPatch.context() as patched:
        pretend_next_release(patched, tmp_path)
        upgrade_store(any_empty_url)
        outcome = downgrade_store(any_empty_url, REVISIONS[-1])
        assert (outcome.before, outcome.version) == ("9000", REVISIONS[-1])
        with pytest.raises(SchemaVersionError, match="pollux db upgrade"):
            downgrade_store(any_empty_url, REVISIONS[-1])
    # The earlier release is installed: it has to make its triggers and views.
    for opens in (open_store, check_store):
        with pytest.raises(SchemaVersionError, match=r"lacks its views and triggers; .* pollux db upgrade"):
            opens(any_empty_url)
    upgrade_store(any_empty_url)
    store = open_store(any_empty_url)
    assert told(store) == before
    store.close()
    assert check_store(any_empty_url).problems == ()

    assert downgrade_store(any_empty_url, REVISIONS[0]).version == REVISIONS[0]
    with pytest.raises(SchemaVersionError, match="pollux db upgrade"):
        open_store(any_empty_url)
    upgrade_store(any_empty_url)
    store = open_store(any_empty_url)
    assert told(store) == before
    store.close()
    assert check_store(any_empty_url).problems == ()


def test_that_there_is_no_way_back_before_the_first_schema(any_empty_url: str) -> None:
    init_store(any_empty_url)
    fill(any_empty_url)
    with pytest.raises(StoreError, match=f"no schema '0104' to go back to; there is: {REVISIONS[0]}"):
        downgrade_store(any_empty_url, "0104")
    assert not downgrade_store(any_empty_url, REVISIONS[-1]).changed
    assert check_store(any_empty_url).problems == ()


def test_that_a_failed_migration_leaves_nothing_behind(any_empty_url: str) -> None:
    database = database_at(any_empty_url)
    with pytest.raises(RuntimeError, match="power cut"), database.write() as connection:  # noqa: PT012
        migrate(connection, REVISIONS[-1])
        assert inspect(connection).get_table_names() != []
        raise RuntimeError("power cut")
    with database.read() as connection:
        assert read_version(connection) is None
        assert inspect(connection).get_table_names() == []
    database.close()


def test_that_a_store_without_tables_is_not_upgraded(any_empty_url: str) -> None:
    database_at(any_empty_url).close()
    with pytest.raises(SchemaVersionError, match="pollux db init"):
        upgrade_store(any_empty_url)


def test_that_check_names_what_differs(store_url: str) -> None:
    fill(store_url)
    assert check_store(store_url).problems == ()
    database = database_at(store_url)
    with database.write() as connection:
        connection.exec_driver_sql("DROP INDEX ix_goodput_samples_at")
        connection.exec_driver_sql("ALTER TABLE jobs ADD COLUMN colour TEXT")
    database.close()
    problems = " ".join(check_store(store_url).problems)
    assert "ix_goodput_samples_at" in problems
    assert "colour" in problems


def test_that_check_finds_a_dangling_reference(store_url: str) -> None:
    fill(store_url)
    database = database_at(store_url)
    connection = database.engine.raw_connection()
    connection.cursor().execute("PRAGMA foreign_keys = OFF")
    connection.cursor().execute("DELETE FROM runs")
    connection.detach()
    connection.close()
    database.close()
    assert "refers to a row of runs that is gone" in " ".join(check_store(store_url).problems)


def test_that_check_finds_a_damaged_page(store_url: str) -> None:
    fill(store_url)
    path = Path(store_url.removeprefix("sqlite:///"))
    content = bytearray(path.read_bytes())
    for page in range(8, len(content) // 4096):
        content[page * 4096 : page * 4096 + 64] = b"\xff" * 64
    path.write_bytes(content)
    try:
        words = "; ".join(check_store(store_url).problems)
    except StoreError as error:  # which of the two depends on the pages that were hit
        words = str(error)
    assert "damaged" in words


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql"])
def test_that_the_schema_text_is_current(dialect: str) -> None:
    path = resource_dir("sql") / "schema" / f"{dialect}.sql"
    advice = f"run: pollux db schema {dialect} > sql/schema/{dialect}.sql"
    assert path.read_text(encoding="utf-8") == schema_text(dialect), advice


def test_that_the_schema_text_makes_the_same_tables(any_empty_url: str) -> None:
    database = database_at(any_empty_url)
    with database.write() as connection:
        text = schema_text(connection.dialect.name)
        for statement in text.split(";\n"):
            if statement.strip():
                connection.exec_driver_sql(statement)
        assert differences(connection) == []
        assert set(VIEWS) == set(inspect(connection).get_view_names())
    database.close()


def test_that_every_table_and_column_has_a_comment() -> None:
    for table in Base.metadata.tables.values():
        assert table.comment, table.name
        for column in table.columns:
            assert column.comment, f"{table.name}.{column.name}"
            assert column.comment.endswith((".", "?", "...")), f"{table.name}.{column.name}"


def test_that_comments_reach_postgresql(postgres_url: str) -> None:
    database = database_at(postgres_url)
    with database.read() as connection:
        found = {c["name"]: c["comment"] for c in inspect(connection).get_columns("goodput_samples")}
        assert found == {column.name: column.comment for column in SampleRow.__table__.columns}
        assert inspect(connection).get_table_comment("jobs")["text"]
    database.close()


INVALID = (
    "UPDATE jobs SET state = 'happy'",
    "UPDATE jobs SET state = 'completed'",
    "UPDATE jobs SET min_gpus = 0",
    "UPDATE jobs SET max_gpus = 0",
    "UPDATE jobs SET token_sha256 = 'short'",
    "UPDATE jobs SET user_id = 4711",
    "UPDATE runs SET phase = 'sleeping'",
    "UPDATE runs SET first_step_s = -1, first_step_at = last_report_at",
    "UPDATE goodput_samples SET efficiency = 1.5",
    "UPDATE goodput_samples SET throughput = 0",
    "UPDATE goodput_samples SET atomic_batch_size = NULL",
    "UPDATE model_versions SET grad_var = NULL",
    "UPDATE model_versions SET alpha_g = NULL",
    "UPDATE allocation_nodes SET num_gpus = 0",
    "UPDATE allocations SET ended_at = '2020-01-01 00:00:00'",
    "UPDATE reallocations SET step = 'lost'",
    "UPDATE reallocations SET cause = 'mood'",
    "UPDATE reallocations SET way = 'by foot'",
    "UPDATE reallocations SET generation = 0",
    "UPDATE reallocation_steps SET step = 'lost'",
    "UPDATE decisions SET num_nodes = 99",
    "UPDATE generations SET state = 'lost'",
    "UPDATE generations SET state = 'committed'",
    "UPDATE generations SET state = 'regrouped', meeting = 'n0:1'",
    "UPDATE generations SET meeting = 'n0:1'",
    "UPDATE generations SET number = 0",
    "UPDATE generation_members SET member_id = ''",
    "UPDATE generation_members SET member_id = 'base.0'",
    "INSERT INTO run_nodes (run_id, node_rank, num_gpus) VALUES (4711, 0, 1)",
)


def test_that_constraints_refuse_invalid_rows(any_store_url: str) -> None:
    fill(any_store_url)
    database = database_at(any_store_url)
    for bad in INVALID:
        with pytest.raises(StoreError, match="refused a statement"), database.write() as connection:
            connection.exec_driver_sql(bad)
    with database.read() as connection:
        assert connection.execute(select(ReallocationRow.step)).scalars().all() != []
    database.close()
