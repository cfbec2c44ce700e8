"""How often the daemon that has the lease holds rounds and looks at Slurm."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"

_COLUMNS = {
    "interval_s": "Its rounds come so often at least, seconds; null where it has not said.",
    "watch_s": "It looks at Slurm so often, seconds; null where it has not said.",
}


def upgrade() -> None:
    """Add both columns; a daemon fills them when it takes or prolongs its lease."""
    for name, comment in _COLUMNS.items():
        op.add_column("leases", sa.Column(name, sa.Double(), nullable=True, comment=comment))


def downgrade() -> None:
    """Drop both columns."""
    for name in _COLUMNS:
        op.drop_column("leases", name)
