"""What runs warn of."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"

BIG_INT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "run_warnings",
        sa.Column("run_id", BIG_INT, nullable=False, comment="The run."),
        sa.Column("warning", sa.Text(), nullable=False, comment="Name of what it warned of."),
        sa.Column(
            "first_seen_at",
            sa.DateTime(timezone=True),
            nullable=False,
            comment="When a report of the run first told of it.",
        ),
        sa.CheckConstraint("length(warning) BETWEEN 1 AND 64", name=op.f("ck_run_warnings_warning")),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=op.f("fk_run_warnings_run_id_runs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "warning", name=op.f("pk_run_warnings")),
        comment="What runs warned of, by name; `pollux explain` says what each means.",
    )


def downgrade() -> None:
    """Drop it."""
    op.drop_table("run_warnings")
