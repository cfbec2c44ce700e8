"""Jobs: their kind."""

from alembic import op

revision = "0104"
down_revision = "0103"


def upgrade() -> None:
    """Add the column: earlier jobs are of no kind."""
    op.execute("ALTER TABLE jobs ADD COLUMN kind VARCHAR(32)")
    op.create_index("ix_jobs_kind_id", "jobs", ["kind", "id"])


def downgrade() -> None:
    """Drop the column and its index."""
    op.drop_index("ix_jobs_kind_id", "jobs")
    op.drop_column("jobs", "kind")
