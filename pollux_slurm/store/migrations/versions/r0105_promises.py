"""Jobs: the moment that they ask to be finished by, and the answer."""

from alembic import op

revision = "0105"
down_revision = "0104"

STATES = "'unknown', 'refused', 'accepted', 'ended'"
COLUMNS = (
    ("finish_by", "{time}"),
    ("promise", f"VARCHAR(32) CONSTRAINT ck_jobs_promise CHECK (promise IN ({STATES}))"),
    ("promise_gpus", "INTEGER"),
    ("promise_finish_at", "{time}"),
    ("promise_reason", "TEXT"),
)


def upgrade() -> None:
    """Add the columns: earlier jobs ask for nothing."""
    is_postgresql = op.get_bind().dialect.name == "postgresql"
    time = "TIMESTAMP WITH TIME ZONE" if is_postgresql else "DATETIME"
    for name, kind in COLUMNS:
        op.execute(f"ALTER TABLE jobs ADD COLUMN {name} {kind.format(time=time)}")


def downgrade() -> None:
    """Drop the columns."""
    for name, _ in reversed(COLUMNS):
        op.drop_column("jobs", name)
