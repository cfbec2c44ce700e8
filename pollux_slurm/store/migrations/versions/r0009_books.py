"""Which run a stretch of allocation belongs to, what is estimated, and how many examples runs counted."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

BIG_INT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

NEW: tuple[tuple[str, str, Any, str], ...] = (
    (
        "allocations",
        "restart_count",
        sa.Integer(),
        "Slurm's restart count of the run that held it; null where not known.",
    ),
    (
        "goodput_samples",
        "num_examples",
        BIG_INT,
        "Examples that the run has processed so far, by its own count; null where it told none.",
    ),
)
FLAGS = (
    ("allocations", "Did Slurm not tell when it began or ended, so that this is a guess?"),
    ("jobs", "Is a part of what it held, or how it ended, a guess? Slurm's records do not tell."),
)


def upgrade() -> None:
    """Add the columns; what was recorded before them counts as known."""
    for table, name, kind, comment in NEW:
        op.add_column(table, sa.Column(name, kind, nullable=True, comment=comment))
    for table, comment in FLAGS:
        op.add_column(
            table,
            sa.Column("estimated", sa.Boolean(), nullable=False, server_default=sa.false(), comment=comment),
        )
    op.add_column(
        "run_days",
        sa.Column(
            "counted_examples",
            sa.Double(),
            nullable=False,
            server_default=sa.text("0"),
            comment="Examples that the run counted; throughput times time where it told of no count.",
        ),
    )
    op.execute("UPDATE run_days SET counted_examples = examples")
    op.create_index(
        "ix_jobs_estimated",
        "jobs",
        ["estimated"],
        sqlite_where=sa.text("estimated"),
        postgresql_where=sa.text("estimated"),
    )


def downgrade() -> None:
    """Drop them."""
    op.drop_index("ix_jobs_estimated", table_name="jobs")
    op.drop_column("run_days", "counted_examples")
    for table, _ in FLAGS:
        op.drop_column(table, "estimated")
    for table, name, _, _ in NEW:
        op.drop_column(table, name)
