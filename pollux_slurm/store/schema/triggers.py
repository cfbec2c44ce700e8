"""Triggers that maintain the sums by day: the texts in `sql/triggers/`, wrapped for each database.

Triggers, because samples have two writers: this package on SQLite, and a function in the database on
PostgreSQL. A sum that one of them forgot would stay wrong.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection

from pollux_slurm.store.schema.dialects import rendered_sql


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trigger:
    """`source` is the template's name for its rows: `new_row` in a trigger, else `all_rows`."""

    table: str
    name: str
    event: str
    source: str
    new_row: str
    all_rows: str


_TRIGGERS = (
    _Trigger(
        table="goodput_samples",
        name="goodput_samples_sum",
        event="INSERT",
        source="samples",
        new_row="(SELECT NEW.run_id AS run_id, NEW.at AS at, NEW.progress AS progress,"
        " NEW.throughput AS throughput, NEW.efficiency AS efficiency,"
        " NEW.predicted_throughput AS predicted_throughput, NEW.step_time_s AS step_time_s,"
        " NEW.num_examples AS num_examples,"
        " (SELECT b.num_examples FROM goodput_samples AS b WHERE b.run_id = NEW.run_id"
        " AND b.sequence < NEW.sequence ORDER BY b.sequence DESC LIMIT 1) AS previous_examples,"
        " (SELECT b.at FROM goodput_samples AS b WHERE b.run_id = NEW.run_id AND b.sequence < NEW.sequence"
        " ORDER BY b.sequence DESC LIMIT 1) AS previous_at)",
        all_rows="(SELECT g.*, lag(g.at) OVER (PARTITION BY g.run_id ORDER BY g.sequence) AS previous_at,"
        " lag(g.num_examples) OVER (PARTITION BY g.run_id ORDER BY g.sequence) AS previous_examples"
        " FROM goodput_samples AS g)",
    ),
    *(
        _Trigger(
            table="allocations",
            name=f"allocations_{word}",
            event=event,
            source="intervals",
            new_row="(SELECT NEW.job_id AS job_id, NEW.number AS number, NEW.started_at AS started_at,"
            " NEW.ended_at AS ended_at)",
            all_rows="allocations",
        )
        for word, event in (("begun", "INSERT"), ("ended", "UPDATE OF ended_at"))
    ),
)


def trigger_sql(dialect: str) -> list[str]:
    """Return the statements that create all triggers, without a final semicolon."""
    statements = []
    for trigger in _TRIGGERS:
        body = _one_line(
            rendered_sql(f"triggers/{trigger.table}.sql", dialect, **{trigger.source: trigger.new_row})
        )
        head = f"CREATE TRIGGER {trigger.name} AFTER {trigger.event} ON {trigger.table} FOR EACH ROW"
        if dialect == "sqlite":
            statements.append(f"{head} BEGIN {body}; END")
        else:
            function = f"pollux_{trigger.name}()"
            statements.append(
                f"CREATE FUNCTION {function} RETURNS trigger LANGUAGE plpgsql AS"
                f" $body$ BEGIN {body}; RETURN NULL; END $body$"
            )
            statements.append(f"{head} EXECUTE FUNCTION {function}")
    return statements


def create_triggers(connection: Connection) -> None:
    """Create all triggers."""
    for statement in trigger_sql(connection.dialect.name):
        connection.exec_driver_sql(statement)


def drop_triggers(connection: Connection) -> None:
    """Drop the existing triggers."""
    for trigger in _TRIGGERS:
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql(f"DROP TRIGGER IF EXISTS {trigger.name}")
        else:
            connection.exec_driver_sql(f"DROP TRIGGER IF EXISTS {trigger.name} ON {trigger.table}")
            connection.exec_driver_sql(f"DROP FUNCTION IF EXISTS pollux_{trigger.name}()")


def fill_day_sums(connection: Connection) -> None:
    """Fill the empty tables of sums from the recorded samples and intervals."""
    for table, source in (("goodput_samples", "samples"), ("allocations", "intervals")):
        all_rows = next(trigger.all_rows for trigger in _TRIGGERS if trigger.table == table)
        connection.exec_driver_sql(
            rendered_sql(f"triggers/{table}.sql", connection.dialect.name, **{source: all_rows})
        )


def _one_line(text: str) -> str:
    return " ".join(line.strip() for line in text.splitlines() if line.strip())
