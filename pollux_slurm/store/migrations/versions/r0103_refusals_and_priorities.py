"""Reallocations: what Slurm refused, and the priority that kept the place. Jobs: GPUs as submitted."""

import sqlalchemy as sa
from alembic import op

revision = "0103"
down_revision = "0102"

COLUMNS = (
    ("refused", "VARCHAR(32) CONSTRAINT ck_reallocations_refused CHECK (refused IN ('never', 'not_now'))"),
    ("refused_at", "{time}"),
    ("refused_reason", "TEXT"),
    ("refused_request", "TEXT"),
    ("priority", "{number}"),
    ("priority_ended_at", "{time}"),
)
BEFORE, AFTER = "'source', 'target'", "'source', 'target', 'refused'"


def upgrade() -> None:
    """Add the columns: nothing was refused so far, and no job has a priority from here."""
    is_postgresql = op.get_bind().dialect.name == "postgresql"
    time = "TIMESTAMP WITH TIME ZONE" if is_postgresql else "DATETIME"
    op.execute("ALTER TABLE jobs ADD COLUMN submitted_gpus INTEGER")
    for name, kind in COLUMNS:
        column = kind.format(time=time, number="BIGINT" if is_postgresql else "INTEGER")
        op.execute(f"ALTER TABLE reallocations ADD COLUMN {name} {column}")
    _allow(BEFORE, AFTER)


def downgrade() -> None:
    """Drop the columns, and the nodes of what was refused."""
    op.execute("DELETE FROM reallocation_nodes WHERE side = 'refused'")
    _allow(AFTER, BEFORE)
    op.drop_column("jobs", "submitted_gpus")
    for name, _ in reversed(COLUMNS):
        op.drop_column("reallocations", name)


def _allow(old: str, new: str) -> None:
    """Replace the sides `old` of a reallocation's nodes by `new`; on SQLite as revision 0102 does."""
    connection = op.get_bind()
    if connection.dialect.name == "postgresql":
        op.execute("ALTER TABLE reallocation_nodes DROP CONSTRAINT ck_reallocation_nodes_side")
        op.execute(
            "ALTER TABLE reallocation_nodes ADD CONSTRAINT ck_reallocation_nodes_side "
            f"CHECK (side IN ({new}))"
        )
        return
    table = "reallocation_nodes"
    text = connection.execute(
        sa.text("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = :name"), {"name": table}
    ).scalar_one()
    assert f"({old})" in text, text
    version = connection.exec_driver_sql("PRAGMA schema_version").scalar_one()
    connection.exec_driver_sql("PRAGMA writable_schema = ON")
    connection.execute(
        sa.text("UPDATE sqlite_master SET sql = :sql WHERE type = 'table' AND name = :name"),
        {"sql": text.replace(f"({old})", f"({new})"), "name": table},
    )
    connection.exec_driver_sql(f"PRAGMA schema_version = {version + 1}")
    connection.exec_driver_sql("PRAGMA writable_schema = OFF")
