"""What a job had left of its time limit when it was requeued."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add the column; of reallocations of before it is not known."""
    op.add_column(
        "reallocations",
        sa.Column(
            "time_left_s",
            sa.Double(),
            nullable=True,
            comment="What the job had left of its time limit at the requeue, seconds; null for no limit.",
        ),
    )


def downgrade() -> None:
    """Drop it."""
    op.drop_column("reallocations", "time_left_s")
