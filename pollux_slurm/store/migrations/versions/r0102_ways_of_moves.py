"""Moves in place: which jobs make them; of reallocations the way, the generation and two more steps."""

import sqlalchemy as sa
from alembic import op

revision = "0102"
down_revision = "0101"

BEFORE = (
    "'planned', 'checkpoint_requested', 'checkpointed', 'requeued', 'reshaped', 'released', 'running', "
    "'confirmed', 'rolled_back', 'failed'"
)
AFTER = BEFORE.replace("'confirmed'", "'regroup_requested', 'regrouped', 'confirmed'")
# Table, column, and the values that it may have before and after.
VALUES = (
    ("reallocations", "step", BEFORE, AFTER),
    ("reallocation_steps", "step", BEFORE, AFTER),
    (
        "reallocations",
        "cause",
        "'held_by_slurm', 'late_command'",
        "'held_by_slurm', 'stray_wings', 'late_command'",
    ),
)
CAUSES = "'decision', 'pause', 'drain', 'resume', 'time_limit', 'after_failure', 'failed_start', "
"""Those before the ones that change."""
COLUMNS = (
    ("jobs", "in_place", "BOOLEAN DEFAULT false NOT NULL", "in_place IN (0, 1)"),
    ("reallocations", "way", "VARCHAR(32) DEFAULT 'requeue' NOT NULL", "way IN ('requeue', 'in_place')"),
    ("reallocations", "generation", "INTEGER", "generation BETWEEN 1 AND 1000000"),
)


def upgrade() -> None:
    """Add the columns and allow the steps: no job moves in place so far."""
    is_postgresql = op.get_bind().dialect.name == "postgresql"
    for table, name, kind, rule in COLUMNS:
        check = "" if is_postgresql and "BOOLEAN" in kind else f" CONSTRAINT ck_{table}_{name} CHECK ({rule})"
        op.execute(f"ALTER TABLE {table} ADD COLUMN {name} {kind}{check}")
    for table, column, before, after in VALUES:
        _allow(table, column, before, after)


def downgrade() -> None:
    """Drop the columns, and the reallocations in place, which have no other steps."""
    op.execute("DELETE FROM reallocations WHERE way = 'in_place'")
    for table, column, before, after in VALUES:
        _allow(table, column, after, before)
    for table, name, *_ in COLUMNS:
        op.drop_column(table, name)


def _allow(table: str, column: str, old: str, new: str) -> None:
    """Replace the list of values `old` by `new` in the constraint of a column."""
    connection = op.get_bind()
    if connection.dialect.name == "postgresql":
        constraint = f"ck_{table}_{column}"
        others = CAUSES if column == "cause" else ""
        op.execute(f"ALTER TABLE {table} DROP CONSTRAINT {constraint}")
        op.execute(f"ALTER TABLE {table} ADD CONSTRAINT {constraint} CHECK ({column} IN ({others}{new}))")
        return
    # SQLite changes no constraint. To copy the table would drop the old one and with it, by cascade, the rows
    # that refer to it. So its text is changed, in the way that SQLite's documentation of ALTER TABLE gives
    # for changes that leave the stored rows as they are.
    text = connection.execute(
        sa.text("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = :name"), {"name": table}
    ).scalar_one()
    assert old in text, text
    version = connection.exec_driver_sql("PRAGMA schema_version").scalar_one()
    connection.exec_driver_sql("PRAGMA writable_schema = ON")
    connection.execute(
        sa.text("UPDATE sqlite_master SET sql = :sql WHERE type = 'table' AND name = :name"),
        {"sql": text.replace(old, new), "name": table},
    )
    connection.exec_driver_sql(f"PRAGMA schema_version = {version + 1}")
    connection.exec_driver_sql("PRAGMA writable_schema = OFF")
