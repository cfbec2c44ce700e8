"""Accounts as rows of a table, and upper bounds that keep NaN and infinity out of what jobs report."""

import re

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

TIME = sa.DateTime(timezone=True)
ACCOUNT_KEY = ("jobs", "fk_jobs_account_accounts", "FOREIGN KEY(account) REFERENCES accounts (account)")

# PostgreSQL holds NaN to be above every number, so that one upper bound keeps out NaN and infinity.
BOUNDS = (
    (
        "goodput_samples",
        "ck_goodput_samples_bounds",
        "throughput <= 1e12 AND predicted_throughput <= 1e12 AND step_time_s <= 1e7 AND progress <= 1e18",
    ),
    ("runs", "ck_runs_bounds", "first_step_s <= 1e7 AND restore_s <= 1e7"),
    ("checkpoints", "ck_checkpoints_bounds", "blocked_s <= 1e7"),
    ("declarations", "ck_declarations_bounds", "progress <= 1e18 AND least_total_progress <= 1e27"),
    (
        "model_versions",
        "ck_model_versions_bounds",
        "grad_sqr <= 1e30 AND grad_var <= 1e30 AND noise_low <= 1e30 AND noise_high <= 1e30 AND "
        "alpha_g <= 1e6 AND beta_g <= 1e6 AND alpha_n <= 1e6 AND beta_n <= 1e6 AND alpha_l <= 1e6 AND "
        "beta_l <= 1e6 AND gamma <= 10",
    ),
)


def upgrade() -> None:
    """Add the table, fill it from the jobs, then the constraints."""
    op.create_table(
        "accounts",
        sa.Column("account", sa.Text(), nullable=False, comment="Slurm's name of it; may be empty."),
        sa.Column("first_seen_at", TIME, nullable=False, comment="When the daemon first saw a job of it."),
        sa.PrimaryKeyConstraint("account", name=op.f("pk_accounts")),
        comment="Slurm accounts that jobs are charged to.",
    )
    op.execute(
        "INSERT INTO accounts (account, first_seen_at) "
        "SELECT account, MIN(registered_at) FROM jobs GROUP BY account"
    )
    for table, name, rule in (
        ACCOUNT_KEY,
        *((table, name, f"CHECK ({rule})") for table, name, rule in BOUNDS),
    ):
        _add_constraint(table, name, rule)


def downgrade() -> None:
    """Drop them."""
    for table, name, _ in (*BOUNDS, ACCOUNT_KEY):
        _drop_constraint(table, name)
    op.drop_table("accounts")


def _add_constraint(table: str, name: str, rule: str) -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute(f"ALTER TABLE {table} ADD CONSTRAINT {name} {rule}")
        return
    # SQLite adds no constraint to a table that is there. Copying the table would drop the old one, and with
    # it, by cascade, the rows that refer to it; so its text is changed, in the way that SQLite's
    # documentation of ALTER TABLE gives for changes that leave the stored rows as they are.
    text = _table_text(table)
    end = text.rindex(")")
    _set_table_text(table, f"{text[:end].rstrip()}, \n\tCONSTRAINT {name} {rule}\n{text[end:]}")


def _drop_constraint(table: str, name: str) -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute(f"ALTER TABLE {table} DROP CONSTRAINT {name}")
        return
    _set_table_text(table, re.sub(rf",\s*CONSTRAINT {name} [^\n]*", "", _table_text(table)))


def _table_text(table: str) -> str:
    wanted = sa.text("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = :name")
    return str(op.get_bind().execute(wanted, {"name": table}).scalar_one())


def _set_table_text(table: str, text: str) -> None:
    connection = op.get_bind()
    version = connection.exec_driver_sql("PRAGMA schema_version").scalar_one()
    connection.exec_driver_sql("PRAGMA writable_schema = ON")
    connection.execute(
        sa.text("UPDATE sqlite_master SET sql = :sql WHERE type = 'table' AND name = :name"),
        {"sql": text, "name": table},
    )
    connection.exec_driver_sql(f"PRAGMA schema_version = {version + 1}")
    connection.exec_driver_sql("PRAGMA writable_schema = OFF")
