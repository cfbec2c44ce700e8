"""The time limit that Slurm had granted a job when it was registered."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add the column; of jobs registered before it is not known."""
    op.add_column(
        "jobs",
        sa.Column(
            "time_limit_s",
            sa.Double(),
            nullable=True,
            comment="Time limit of one run when it was registered, seconds; null for none, or not known.",
        ),
    )


def downgrade() -> None:
    """Drop it."""
    op.drop_column("jobs", "time_limit_s")
