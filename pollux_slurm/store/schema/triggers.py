"""Triggers that keep sums by day, whoever writes: the texts in `sql/triggers/`, wrapped for each database.

A trigger and not the writer: reports come from this package on SQLite, and from a function inside the
database on PostgreSQL; a sum that one of them forgot would be wrong for good.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection

from pollux_slurm.store.schema.dialects import rendered_sql


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trigger:
    table: str
    name: str
    event: str
    source: str
    row: str
    whole: str


_TRIGGERS = (
    _Trigger(
        table="goodput_samples",
        name="goodput_samples_sum",
        event="INSERT",
        source="samples",
        row="(SELECT NEW.run_id AS run_id, NEW.at AS at, NEW.progress AS progress,"
        " NEW.throughput AS throughput, NEW.efficiency AS efficiency,"
        " NEW.predicted_throughput AS predicted_throughput, NEW.step_time_s AS step_time_s,"
        " NEW.num_examples AS num_examples,"
        " (SELECT b.num_examples FROM goodput_samples AS b WHERE b.run_id = NEW.run_id"
        " AND b.sequence < NEW.sequence ORDER BY b.sequence DESC LIMIT 1) AS previous_examples,"
        " (SELECT b.at FROM goodput_samples AS b WHERE b.run_id = NEW.run_id AND b.sequence < NEW.sequence"
        " ORDER BY b.sequence DESC LIMIT 1) AS previous_at)",
        whole="(SELECT g.*, lag(g.at) OVER (PARTITION BY g.run_id ORDER BY g.sequence) AS previous_at,"
        " lag(g.num_examples) OVER (PARTITION BY g.run_id ORDER BY g.sequence) AS previous_examples"
        " FROM goodput_samples AS g)",
    ),
    *(
        _Trigger(
            table="allocations",
            name=f"allocations_{word}",
            event=event,
            source="stretches",
            row="(SELECT NEW.job_id AS job_id, NEW.number AS number, NEW.started_at AS started_at,"
            " NEW.ended_at AS ended_at)",
            whole="allocations",
        )
        for word, event in (("begun", "INSERT"), ("ended", "UPDATE OF ended_at"))
    ),
)


def trigger_sql(dialect: str) -> list[str]:
    """Return the statements that make all triggers, each without a semicolon at its end."""
    statements = []
    for trigger in _TRIGGERS:
        body = _one_line(
            rendered_sql(f"triggers/{trigger.table}.sql", dialect, **{trigger.source: trigger.row})
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
    """Make all triggers."""
    for statement in trigger_sql(connection.dialect.name):
        connection.exec_driver_sql(statement)


def drop_triggers(connection: Connection) -> None:
    """Drop the triggers that are there."""
    for trigger in _TRIGGERS:
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql(f"DROP TRIGGER IF EXISTS {trigger.name}")
        else:
            connection.exec_driver_sql(f"DROP TRIGGER IF EXISTS {trigger.name} ON {trigger.table}")
            connection.exec_driver_sql(f"DROP FUNCTION IF EXISTS pollux_{trigger.name}()")


def sum_what_is_there(connection: Connection) -> None:
    """Fill the empty tables of sums from the samples and stretches that are there."""
    for table, source in (("goodput_samples", "samples"), ("allocations", "stretches")):
        whole = next(trigger.whole for trigger in _TRIGGERS if trigger.table == table)
        connection.exec_driver_sql(
            rendered_sql(f"triggers/{table}.sql", connection.dialect.name, **{source: whole})
        )


def _one_line(text: str) -> str:
    return " ".join(line.strip() for line in text.splitlines() if line.strip())
