"""Which rows of jobs are of the same submission, whose owner put another token into its Comment."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"

_COMMENT = "The first row of the same submission, whose token its owner replaced; null for none before."


def upgrade() -> None:
    """Add the column; of rows from before, each stands for itself."""
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.add_column("jobs", sa.Column("first_id", number, nullable=True, comment=_COMMENT))
    op.create_index("ix_jobs_first_id", "jobs", ["first_id"])


def downgrade() -> None:
    """Drop it."""
    op.drop_index("ix_jobs_first_id", "jobs")
    op.drop_column("jobs", "first_id")
