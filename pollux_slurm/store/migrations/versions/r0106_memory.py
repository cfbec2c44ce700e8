"""What a job trains, what ran out of memory, and what fits by jobs of its kind."""

from alembic import op

revision = "0106"
down_revision = "0105"

# Table, column, type on both databases, check. SQLite adds a check with its column only.
COLUMNS = (
    ("model_versions", "failed_atomic", "BIGINT", "failed_atomic BETWEEN 2 AND 1000000000"),
    ("model_versions", "num_parameters", "BIGINT", "num_parameters BETWEEN 1 AND 1000000000000000"),
    ("model_versions", "precision", "TEXT", "length(precision) BETWEEN 1 AND 32"),
    ("jobs", "fitting_atomic", "BIGINT", None),
)


def upgrade() -> None:
    """Add the columns."""
    integer = "INTEGER" if op.get_bind().dialect.name == "sqlite" else "BIGINT"
    for table, column, type_name, check in COLUMNS:
        added = f"ALTER TABLE {table} ADD COLUMN {column} {type_name.replace('BIGINT', integer)}"
        if check is not None:
            added += f" CONSTRAINT ck_{table}_{column} CHECK ({check})"
        op.execute(added)


def downgrade() -> None:
    """Drop the columns."""
    for table, column, _, _ in reversed(COLUMNS):
        op.drop_column(table, column)
