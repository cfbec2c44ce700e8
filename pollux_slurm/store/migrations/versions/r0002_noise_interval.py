"""How sure a job is of its noise scale."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

COMMENTS = {
    "noise_low": "Low end of the noise scale's interval, examples; null where none was told.",
    "noise_high": "Its high end, examples; null where nothing is excluded upwards.",
}


def upgrade() -> None:
    """Add the two ends; models of before have none."""
    for name, comment in COMMENTS.items():
        op.add_column("model_versions", sa.Column(name, sa.Double(), nullable=True, comment=comment))


def downgrade() -> None:
    """Drop them."""
    for name in COMMENTS:
        op.drop_column("model_versions", name)
