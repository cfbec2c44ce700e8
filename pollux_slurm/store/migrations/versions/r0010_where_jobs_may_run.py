"""The nodes that an owner asked for by name, and why a round left a job out."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"

_COLUMNS = {
    "required_nodes": "Nodes that its owner asked for by name, with commas; null for none.",
    "left_out_because": "Why the last round left it out, or as it is; null when it decided about it.",
}


def upgrade() -> None:
    """Add both columns; of jobs registered before, the nodes are not known."""
    for name, comment in _COLUMNS.items():
        op.add_column("jobs", sa.Column(name, sa.Text(), nullable=True, comment=comment))


def downgrade() -> None:
    """Drop both columns."""
    for name in _COLUMNS:
        op.drop_column("jobs", name)
