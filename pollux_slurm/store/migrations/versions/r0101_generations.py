"""The memberships of trainings that go on while replicas join and leave."""

import sqlalchemy as sa
from alembic import op

revision = "0101"
down_revision = "0100"

BIG_INT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
STATES = ("planned", "committed", "regrouped", "refused", "withdrawn", "failed")
OPEN = "state IN ('planned', 'committed')"


def upgrade() -> None:
    """Make the two tables."""
    op.create_table(
        "generations",
        sa.Column("job_id", BIG_INT, sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column(
            "state",
            sa.Enum(*STATES, name="state", native_enum=False, create_constraint=True, length=32),
            nullable=False,
        ),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("restart_count", sa.Integer, nullable=False),
        sa.Column("meeting", sa.Text),
        sa.Column("standstill_s", sa.Double),
        sa.Column("reason", sa.Text),
        sa.CheckConstraint("restart_count BETWEEN 0 AND 1000000", name="restart_count"),
        sa.CheckConstraint("standstill_s BETWEEN 0.0 AND 10000000.0", name="standstill_s"),
        sa.CheckConstraint("number BETWEEN 1 AND 1000000", name="number"),
        sa.CheckConstraint("length(meeting) BETWEEN 1 AND 300", name="meeting"),
        sa.CheckConstraint("length(reason) <= 1024", name="reason"),
        sa.CheckConstraint(
            "(state IN ('committed', 'regrouped', 'failed')) = (meeting IS NOT NULL)", name="committed"
        ),
        sa.CheckConstraint("(state = 'regrouped') = (standstill_s IS NOT NULL)", name="regrouped"),
    )
    op.create_index(
        "uq_generations_open",
        "generations",
        ["job_id"],
        unique=True,
        sqlite_where=sa.text(OPEN),
        postgresql_where=sa.text(OPEN),
    )
    op.create_table(
        "generation_members",
        sa.Column("job_id", BIG_INT, primary_key=True, autoincrement=False),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("rank", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("member_id", sa.Text, nullable=False),
        sa.Column("node_name", sa.Text, nullable=False),
        sa.Column("ready", sa.Boolean(create_constraint=True, name="ready"), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id", "number"], ["generations.job_id", "generations.number"], ondelete="CASCADE"
        ),
        sa.UniqueConstraint("job_id", "number", "member_id"),
        sa.CheckConstraint("rank BETWEEN 0 AND 9999", name="rank"),
        sa.CheckConstraint("length(member_id) BETWEEN 1 AND 64", name="member_id"),
    )


def downgrade() -> None:
    """Drop them with all that is in them."""
    op.drop_table("generation_members")
    op.drop_table("generations")
