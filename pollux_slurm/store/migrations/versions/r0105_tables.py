"""The first revision: all tables. `pollux_slurm.store.schema` documents them and their columns."""

import sqlalchemy as sa
from alembic import op

revision = "0105"
down_revision = None

TABLES = (
    "accounts",
    "users",
    "jobs",
    "runs",
    "run_nodes",
    "run_warnings",
    "model_versions",
    "goodput_samples",
    "declarations",
    "rounds",
    "gpu_prices",
    "decisions",
    "decision_nodes",
    "allocations",
    "allocation_nodes",
    "reallocations",
    "reallocation_nodes",
    "reallocation_steps",
    "checkpoints",
    "nodes",
    "run_days",
    "allocation_days",
    "job_days",
    "node_days",
    "leases",
    "generations",
    "generation_members",
)
"""In this order: a table refers to those before it."""
TIME = sa.DateTime(timezone=True)
# SQLite numbers rows by itself only in a column of exactly INTEGER type.
BIG_INT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
STEPS = (
    "planned checkpoint_requested checkpointed requeued reshaped released running "
    "regroup_requested regrouped confirmed rolled_back failed"
)
CAUSES = (
    "decision pause drain resume time_limit after_failure failed_start held_by_slurm stray_wings late_command"
)


def upgrade() -> None:
    """Make the tables."""
    _jobs()
    _rounds()
    _allocations()
    _sums()
    _lease()
    _generations()


def downgrade() -> None:
    """Drop the tables with all that is in them."""
    for table in reversed(TABLES):
        op.drop_table(table)


def _one_of(name: str, values: str) -> sa.Enum:
    return sa.Enum(*values.split(), name=name, native_enum=False, create_constraint=True, length=32)


def _flag(name: str) -> sa.Boolean:
    return sa.Boolean(create_constraint=True, name=name)


def _within(columns: str, least: str, most: str) -> list[sa.CheckConstraint]:
    return [
        sa.CheckConstraint(f"{column} BETWEEN {least} AND {most}", name=column) for column in columns.split()
    ]


def _jobs() -> None:
    op.create_table(
        "accounts",
        sa.Column("account", sa.Text, primary_key=True),
        sa.Column("first_seen_at", TIME, nullable=False),
    )

    op.create_table(
        "users",
        sa.Column("user_id", BIG_INT, primary_key=True, autoincrement=False),
        sa.Column("user_name", sa.Text, nullable=False),
        sa.CheckConstraint("user_id >= 0", name="user_id"),
    )

    op.create_table(
        "jobs",
        sa.Column("id", BIG_INT, primary_key=True),
        sa.Column("slurm_job_id", sa.String(64), nullable=False),
        sa.Column("first_job_id", BIG_INT),
        sa.Column("token_sha256", sa.String(64), nullable=False),
        sa.Column("user_id", BIG_INT, sa.ForeignKey("users.user_id"), nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("account", sa.Text, sa.ForeignKey("accounts.account"), nullable=False),
        sa.Column("partition", sa.Text, nullable=False),
        sa.Column("min_gpus", sa.Integer, nullable=False),
        sa.Column("max_gpus", sa.Integer),
        sa.Column("allow_unconfirmed", _flag("allow_unconfirmed"), nullable=False),
        sa.Column("in_place", _flag("in_place"), nullable=False, server_default=sa.false()),
        sa.Column("kind", sa.String(32)),
        sa.Column("finish_by", TIME),
        sa.Column("cpus_per_gpu", sa.Integer, nullable=False),
        sa.Column("memory_per_gpu_mb", BIG_INT, nullable=False),
        sa.Column(
            "state",
            _one_of("state", "pending running completing suspended completed failed cancelled timeout"),
            nullable=False,
        ),
        sa.Column("submitted_at", TIME, nullable=False),
        sa.Column("registered_at", TIME, nullable=False),
        sa.Column("started_at", TIME),
        sa.Column("finished_at", TIME),
        sa.Column("time_limit_s", sa.Double),
        sa.Column("required_nodes", sa.Text),
        sa.Column("submitted_gpus", sa.Integer),
        sa.Column("not_moved_reason", sa.Text),
        sa.Column("promise", _one_of("promise", "unknown refused accepted ended")),
        sa.Column("promise_gpus", sa.Integer),
        sa.Column("promise_finish_at", TIME),
        sa.Column("promise_reason", sa.Text),
        sa.Column("estimated", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.CheckConstraint("length(token_sha256) = 64", name="token_sha256"),
        sa.UniqueConstraint("token_sha256", "user_id"),
        sa.CheckConstraint("min_gpus >= 1", name="min_gpus"),
        sa.CheckConstraint("max_gpus IS NULL OR max_gpus >= min_gpus", name="max_gpus"),
        sa.CheckConstraint("cpus_per_gpu >= 0", name="cpus_per_gpu"),
        sa.CheckConstraint("memory_per_gpu_mb >= 0", name="memory_per_gpu_mb"),
        sa.CheckConstraint(
            "(finished_at IS NOT NULL) = (state IN ('completed', 'failed', 'cancelled', 'timeout'))",
            name="finished_at",
        ),
    )
    op.create_index("ix_jobs_account_submitted_at", "jobs", ["account", "submitted_at"])
    op.create_index(
        "ix_jobs_estimated",
        "jobs",
        ["estimated"],
        sqlite_where=sa.text("estimated"),
        postgresql_where=sa.text("estimated"),
    )
    op.create_index("ix_jobs_finished_at", "jobs", ["finished_at"])
    op.create_index("ix_jobs_first_job_id", "jobs", ["first_job_id"])
    op.create_index("ix_jobs_kind_id", "jobs", ["kind", "id"])
    op.create_index("ix_jobs_slurm_job_id_id", "jobs", ["slurm_job_id", "id"])
    op.create_index("ix_jobs_started_at", "jobs", ["started_at"])
    op.create_index("ix_jobs_submitted_at", "jobs", ["submitted_at"])
    op.create_index("ix_jobs_user_id_submitted_at", "jobs", ["user_id", "submitted_at"])
    op.create_index(
        "uq_jobs_unfinished_slurm_job_id",
        "jobs",
        ["slurm_job_id"],
        unique=True,
        sqlite_where=sa.text("finished_at IS NULL"),
        postgresql_where=sa.text("finished_at IS NULL"),
    )

    op.create_table(
        "runs",
        sa.Column("id", BIG_INT, primary_key=True),
        sa.Column("job_id", BIG_INT, sa.ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
        sa.Column("run_number", sa.Integer, nullable=False),
        sa.Column("restart_count", sa.Integer, nullable=False),
        sa.Column("phase", _one_of("phase", "starting training waiting finished"), nullable=False),
        sa.Column("first_report_at", TIME, nullable=False),
        sa.Column("last_report_at", TIME, nullable=False),
        sa.Column("last_sequence", BIG_INT, nullable=False),
        sa.Column("num_steps", BIG_INT, nullable=False),
        sa.Column("first_step_s", sa.Double),
        sa.Column("first_step_at", TIME),
        sa.Column("restore_s", sa.Double),
        sa.Column("gpu_type", sa.Text),
        sa.UniqueConstraint("job_id", "run_number"),
        *_within("run_number restart_count", "0", "1000000"),
        *_within("num_steps", "0", "1000000000000000"),
        *_within("first_step_s", "1e-06", "10000000.0"),
        *_within("restore_s", "0.0", "10000000.0"),
        *_within("last_sequence", "0", "1000000000000"),
        sa.CheckConstraint("last_report_at >= first_report_at", name="last_report_at"),
        sa.CheckConstraint("(first_step_s IS NULL) = (first_step_at IS NULL)", name="first_step_at"),
    )
    op.create_index("ix_runs_first_report_at", "runs", ["first_report_at"])

    op.create_table(
        "run_nodes",
        sa.Column("run_id", BIG_INT, sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("node_rank", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("num_gpus", sa.Integer, nullable=False),
        *_within("node_rank", "0", "9999"),
        *_within("num_gpus", "1", "1024"),
    )

    op.create_table(
        "run_warnings",
        sa.Column("run_id", BIG_INT, sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("warning", sa.Text, primary_key=True),
        sa.Column("first_seen_at", TIME, nullable=False),
        sa.CheckConstraint("length(warning) BETWEEN 1 AND 64", name="warning"),
    )

    op.create_table(
        "model_versions",
        sa.Column("id", BIG_INT, primary_key=True),
        sa.Column("job_id", BIG_INT, sa.ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("initial_batch_size", BIG_INT, nullable=False),
        sa.Column("max_batch_size", BIG_INT),
        sa.Column("min_atomic", BIG_INT, nullable=False),
        sa.Column("max_atomic", BIG_INT),
        sa.Column("accumulation", _flag("accumulation"), nullable=False),
        sa.Column("grad_sqr", sa.Double),
        sa.Column("grad_var", sa.Double),
        sa.Column("alpha_g", sa.Double),
        sa.Column("beta_g", sa.Double),
        sa.Column("alpha_n", sa.Double),
        sa.Column("beta_n", sa.Double),
        sa.Column("alpha_l", sa.Double),
        sa.Column("beta_l", sa.Double),
        sa.Column("gamma", sa.Double),
        sa.Column("max_gpus_seen", sa.Integer, nullable=False),
        sa.Column("max_nodes_seen", sa.Integer, nullable=False),
        sa.Column("noise_low", sa.Double),
        sa.Column("noise_high", sa.Double),
        sa.Column("run_number", sa.Integer),
        *_within("initial_batch_size", "1", "1000000000"),
        *_within("max_batch_size", "initial_batch_size", "1000000000"),
        *_within("min_atomic", "1", "COALESCE(max_batch_size, initial_batch_size)"),
        *_within("max_atomic", "min_atomic", "1000000000"),
        sa.CheckConstraint("(grad_sqr IS NULL) = (grad_var IS NULL)", name="statistics"),
        *_within("grad_sqr grad_var noise_low", "0", "1e30"),
        *_within("noise_high", "COALESCE(noise_low, 1e30)", "1e30"),
        sa.CheckConstraint(
            "(beta_g IS NULL) = (alpha_g IS NULL) AND (alpha_n IS NULL) = (alpha_g IS NULL) "
            "AND (beta_n IS NULL) = (alpha_g IS NULL) AND (alpha_l IS NULL) = (alpha_g IS NULL) "
            "AND (beta_l IS NULL) = (alpha_g IS NULL) AND (gamma IS NULL) = (alpha_g IS NULL)",
            name="throughput",
        ),
        *_within("alpha_g beta_g alpha_n beta_n alpha_l beta_l", "0", "1e6"),
        *_within("gamma", "1", "10"),
        sa.CheckConstraint("alpha_g + beta_g >= 1e-9", name="time_per_example"),
        *_within("max_gpus_seen", "0", "1000000"),
        *_within("max_nodes_seen", "0", "max_gpus_seen"),
    )
    op.create_index("ix_model_versions_job_id_id", "model_versions", ["job_id", "id"])
    op.create_index(
        "ix_model_versions_job_id_run_number_id", "model_versions", ["job_id", "run_number", "id"]
    )

    op.create_table(
        "goodput_samples",
        sa.Column("run_id", BIG_INT, sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("sequence", BIG_INT, primary_key=True, autoincrement=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("global_batch_size", BIG_INT),
        sa.Column("atomic_batch_size", BIG_INT),
        sa.Column("accumulation_steps", BIG_INT),
        sa.Column("throughput", sa.Double),
        sa.Column("predicted_throughput", sa.Double),
        sa.Column("step_time_s", sa.Double),
        sa.Column("efficiency", sa.Double),
        sa.Column("progress", sa.Double, nullable=False),
        sa.Column("epoch", BIG_INT, nullable=False),
        sa.Column("total_epochs", BIG_INT),
        sa.Column("num_examples", BIG_INT),
        *_within("sequence", "0", "1000000000000"),
        *_within("global_batch_size atomic_batch_size", "1", "1000000000"),
        *_within("accumulation_steps", "0", "1000000000"),
        *_within("throughput predicted_throughput", "1e-07", "1000000000000.0"),
        *_within("step_time_s", "1e-06", "10000000.0"),
        *_within("efficiency", "1e-09", "1.0"),
        *_within("progress", "0.0", "1e+18"),
        *_within("epoch total_epochs", "0", "1000000000"),
        *_within("num_examples", "0", "1000000000000000"),
        sa.CheckConstraint(
            "(global_batch_size IS NULL) = (atomic_batch_size IS NULL) "
            "AND (global_batch_size IS NULL) = (accumulation_steps IS NULL)",
            name="batch",
        ),
    )
    op.create_index("ix_goodput_samples_at", "goodput_samples", ["at"])

    op.create_table(
        "declarations",
        sa.Column("job_id", BIG_INT, sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("total_epochs", BIG_INT, nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("epoch", BIG_INT, nullable=False),
        sa.Column("progress", sa.Double, nullable=False),
        sa.Column("least_total_progress", sa.Double),
        sa.UniqueConstraint("job_id", "total_epochs"),
        sa.CheckConstraint("number >= 0", name="number"),
        *_within("total_epochs epoch", "0", "1000000000"),
        *_within("progress", "0.0", "1e+18"),
        *_within("least_total_progress", "0", "1e27"),
    )


def _rounds() -> None:
    op.create_table(
        "rounds",
        sa.Column("id", BIG_INT, primary_key=True),
        sa.Column("at", TIME, nullable=False),
        sa.Column("shadow", _flag("shadow"), nullable=False),
        sa.Column("objective", sa.Text, nullable=False),
        sa.Column("solver", sa.Text, nullable=False),
        sa.Column("fitness", sa.Double, nullable=False),
        sa.Column("problem", sa.Text, nullable=False),
        sa.Column("decision", sa.Text, nullable=False),
        sa.Column("upper_bound", sa.Double),
        sa.Column("gap", sa.Double),
        sa.Column("timed_out", sa.Boolean, nullable=False),
        sa.Column("num_jobs", sa.Integer, nullable=False),
        sa.Column("num_served", sa.Integer, nullable=False),
        sa.Column("num_gpus", sa.Integer, nullable=False),
        sa.Column("total_gpus", sa.Integer, nullable=False),
        sa.Column("fair_share_gpus", sa.Integer, nullable=False),
        sa.Column("mean_speedup", sa.Double),
        sa.Column("min_speedup", sa.Double),
        sa.Column("solve_s", sa.Double),
    )
    op.create_index("ix_rounds_at", "rounds", ["at"])

    op.create_table(
        "gpu_prices",
        sa.Column("round_id", BIG_INT, sa.ForeignKey("rounds.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("gpu_type", sa.Text, primary_key=True),
        sa.Column("price", sa.Double, nullable=False),
    )

    op.create_table(
        "decisions",
        sa.Column("round_id", BIG_INT, sa.ForeignKey("rounds.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("job_id", BIG_INT, sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("num_gpus", sa.Integer, nullable=False),
        sa.Column("num_nodes", sa.Integer, nullable=False),
        sa.Column("speedup", sa.Double, nullable=False),
        sa.Column("goodput", sa.Double),
        sa.Column("one_gpu_goodput", sa.Double),
        sa.Column("penalty", sa.Double, nullable=False),
        sa.Column("bound_by", sa.String(32), nullable=False),
        sa.Column("runner_up_gpus", sa.Integer),
        sa.Column("runner_up_nodes", sa.Integer),
        sa.Column("runner_up_speedup", sa.Double),
        sa.Column("runner_up_gpu_type", sa.Text),
        sa.Column("runner_up_cost", sa.Double),
        sa.Column("cost", sa.Double),
        sa.Column("gpu_type", sa.Text),
        sa.Column("global_batch_size", BIG_INT),
        sa.Column("atomic_batch_size", BIG_INT),
        sa.Column("accumulation_steps", BIG_INT),
        sa.Column("declared_gain", sa.Double),
        sa.Column("declaration_doubt", sa.Text),
        sa.Column("pinned_reason", sa.Text),
        sa.Column("excluded_reason", sa.Text),
        sa.Column("explanation", sa.Text, nullable=False),
        sa.CheckConstraint("num_gpus >= 0", name="num_gpus"),
        sa.CheckConstraint("num_nodes >= 0 AND num_nodes <= num_gpus", name="num_nodes"),
        sa.CheckConstraint("(runner_up_gpus IS NULL) = (runner_up_nodes IS NULL)", name="runner_up"),
    )
    op.create_index("ix_decisions_job_id_round_id", "decisions", ["job_id", "round_id"])

    op.create_table(
        "decision_nodes",
        sa.Column("round_id", BIG_INT, primary_key=True, autoincrement=False),
        sa.Column("job_id", BIG_INT, primary_key=True, autoincrement=False),
        sa.Column("node_name", sa.Text, primary_key=True),
        sa.Column("num_gpus", sa.Integer, nullable=False),
        sa.ForeignKeyConstraint(
            ["round_id", "job_id"], ["decisions.round_id", "decisions.job_id"], ondelete="CASCADE"
        ),
        sa.CheckConstraint("num_gpus >= 1", name="num_gpus"),
    )


def _allocations() -> None:
    op.create_table(
        "allocations",
        sa.Column("job_id", BIG_INT, sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("started_at", TIME, nullable=False),
        sa.Column("ended_at", TIME),
        sa.Column("restart_count", sa.Integer),
        sa.Column("estimated", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.CheckConstraint("number >= 0", name="number"),
        sa.CheckConstraint("ended_at >= started_at", name="ended_at"),
    )
    op.create_index("ix_allocations_started_at", "allocations", ["started_at"])
    op.create_index(
        "uq_allocations_open",
        "allocations",
        ["job_id"],
        unique=True,
        sqlite_where=sa.text("ended_at IS NULL"),
        postgresql_where=sa.text("ended_at IS NULL"),
    )

    op.create_table(
        "allocation_nodes",
        sa.Column("job_id", BIG_INT, primary_key=True, autoincrement=False),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("node_name", sa.Text, primary_key=True),
        sa.Column("num_gpus", sa.Integer, nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id", "number"], ["allocations.job_id", "allocations.number"], ondelete="CASCADE"
        ),
        sa.CheckConstraint("num_gpus >= 1", name="num_gpus"),
    )
    op.create_index("ix_allocation_nodes_node_name", "allocation_nodes", ["node_name"])

    op.create_table(
        "reallocations",
        sa.Column("id", BIG_INT, primary_key=True),
        sa.Column("job_id", BIG_INT, sa.ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
        sa.Column("round_id", BIG_INT, sa.ForeignKey("rounds.id", ondelete="SET NULL")),
        sa.Column("step", _one_of("step", STEPS), nullable=False),
        sa.Column("moves_running", _flag("moves_running"), nullable=False),
        sa.Column("from_restart_count", sa.Integer, nullable=False),
        sa.Column("cause", _one_of("cause", CAUSES), nullable=False),
        sa.Column("checkpoint_waived", _flag("checkpoint_waived"), nullable=False, server_default=sa.false()),
        sa.Column("retargeted", _flag("retargeted"), nullable=False, server_default=sa.false()),
        sa.Column(
            "continued_training", _flag("continued_training"), nullable=False, server_default=sa.false()
        ),
        sa.Column("job_failed", _flag("job_failed"), nullable=False, server_default=sa.false()),
        sa.Column("taken_over", _flag("taken_over"), nullable=False, server_default=sa.false()),
        sa.Column("reason", sa.Text),
        sa.Column("time_left_s", sa.Double),
        sa.Column("way", _one_of("way", "requeue in_place"), nullable=False, server_default="requeue"),
        sa.Column("generation", sa.Integer),
        sa.Column("refused", _one_of("refused", "never not_now")),
        sa.Column("refused_at", TIME),
        sa.Column("refused_reason", sa.Text),
        sa.Column("refused_request", sa.Text),
        sa.Column("priority", BIG_INT),
        sa.Column("priority_ended_at", TIME),
        sa.CheckConstraint("from_restart_count >= 0", name="from_restart_count"),
        *_within("generation", "1", "1000000"),
    )
    op.create_index("ix_reallocations_job_id_id", "reallocations", ["job_id", "id"])
    op.create_index("ix_reallocations_round_id", "reallocations", ["round_id"])
    op.create_index(
        "uq_reallocations_open",
        "reallocations",
        ["job_id"],
        unique=True,
        sqlite_where=sa.text("step NOT IN ('confirmed', 'rolled_back', 'failed')"),
        postgresql_where=sa.text("step NOT IN ('confirmed', 'rolled_back', 'failed')"),
    )

    op.create_table(
        "reallocation_nodes",
        sa.Column(
            "reallocation_id",
            BIG_INT,
            sa.ForeignKey("reallocations.id", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("side", _one_of("side", "source target refused"), primary_key=True),
        sa.Column("node_name", sa.Text, primary_key=True),
        sa.Column("num_gpus", sa.Integer, nullable=False),
        sa.CheckConstraint("num_gpus >= 1", name="num_gpus"),
    )

    op.create_table(
        "reallocation_steps",
        sa.Column(
            "reallocation_id",
            BIG_INT,
            sa.ForeignKey("reallocations.id", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("step", _one_of("step", STEPS), primary_key=True),
        sa.Column("at", TIME, nullable=False),
    )
    op.create_index("ix_reallocation_steps_at", "reallocation_steps", ["at"])
    op.create_index("ix_reallocation_steps_step_at", "reallocation_steps", ["step", "at"])

    op.create_table(
        "checkpoints",
        sa.Column("run_id", BIG_INT, sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("sequence", BIG_INT, primary_key=True, autoincrement=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("reallocation_id", BIG_INT, sa.ForeignKey("reallocations.id", ondelete="SET NULL")),
        sa.Column("blocked_s", sa.Double, nullable=False),
        sa.Column("size_bytes", BIG_INT, nullable=False),
        *_within("sequence", "0", "1000000000000"),
        *_within("blocked_s", "0.0", "10000000.0"),
        *_within("size_bytes", "0", "1152921504606846976"),
    )
    op.create_index("ix_checkpoints_at", "checkpoints", ["at"])
    op.create_index("uq_checkpoints_reallocation_id", "checkpoints", ["reallocation_id"], unique=True)


def _sums() -> None:
    op.create_table(
        "nodes",
        sa.Column("node_name", sa.Text, primary_key=True),
        sa.Column("gpu_type", sa.Text, nullable=False),
        sa.Column("num_gpus", sa.Integer, nullable=False),
        sa.Column("first_seen_at", TIME, nullable=False),
        sa.Column("last_seen_at", TIME, nullable=False),
    )

    op.create_table(
        "run_days",
        sa.Column("run_id", BIG_INT, sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("day", sa.Date, primary_key=True),
        sa.Column("num_samples", BIG_INT, nullable=False),
        sa.Column("progress", sa.Double, nullable=False),
        sa.Column("trained_s", sa.Double, nullable=False),
        sa.Column("trained_gpu_s", sa.Double, nullable=False),
        sa.Column("examples", sa.Double, nullable=False),
        sa.Column("measured_s", sa.Double, nullable=False),
        sa.Column("useful_examples", sa.Double, nullable=False),
        sa.Column("efficiency_s", sa.Double, nullable=False),
        sa.Column("useful_gpu_s", sa.Double, nullable=False),
        sa.Column("num_compared", BIG_INT, nullable=False),
        sa.Column("compared_s", sa.Double, nullable=False),
        sa.Column("compared_examples", sa.Double, nullable=False),
        sa.Column("predicted_examples", sa.Double, nullable=False),
        sa.Column("error_sum", sa.Double, nullable=False),
        sa.Column("abs_error_sum", sa.Double, nullable=False),
        sa.Column("counted_examples", sa.Double, nullable=False, server_default=sa.text("0")),
        sa.CheckConstraint("num_samples >= 0 AND num_compared >= 0", name="counts"),
        sa.CheckConstraint("trained_s >= 0 AND measured_s >= 0 AND compared_s >= 0", name="times"),
    )
    op.create_index("ix_run_days_day", "run_days", ["day"])

    op.create_table(
        "allocation_days",
        sa.Column("job_id", BIG_INT, primary_key=True, autoincrement=False),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("day", sa.Date, primary_key=True),
        sa.Column("allocated_s", sa.Double, nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id", "number"], ["allocations.job_id", "allocations.number"], ondelete="CASCADE"
        ),
        sa.CheckConstraint("allocated_s >= 0", name="allocated_s"),
    )
    op.create_index("ix_allocation_days_day", "allocation_days", ["day"])

    op.create_table(
        "job_days",
        sa.Column("job_id", BIG_INT, sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("day", sa.Date, primary_key=True),
        sa.Column("num_rounds", BIG_INT, nullable=False),
        sa.Column("gpus_sum", sa.Double, nullable=False),
        sa.Column("fair_share_gpus_sum", sa.Double, nullable=False),
        sa.Column("speedup_sum", sa.Double, nullable=False),
        sa.Column("num_compared", BIG_INT, nullable=False),
        sa.Column("fair_share_goodput_sum", sa.Double, nullable=False),
        sa.Column("num_one_gpu", BIG_INT, nullable=False),
        sa.Column("one_gpu_goodput_sum", sa.Double, nullable=False),
        sa.CheckConstraint("num_rounds >= num_compared AND num_compared >= 0", name="num_compared"),
        sa.CheckConstraint("num_rounds >= num_one_gpu AND num_one_gpu >= 0", name="num_one_gpu"),
    )
    op.create_index("ix_job_days_day", "job_days", ["day"])

    op.create_table(
        "node_days",
        sa.Column(
            "node_name", sa.Text, sa.ForeignKey("nodes.node_name", ondelete="CASCADE"), primary_key=True
        ),
        sa.Column("day", sa.Date, primary_key=True),
        sa.Column("num_rounds", BIG_INT, nullable=False),
        sa.Column("gpus_sum", sa.Double, nullable=False),
        sa.Column("available_gpu_s", sa.Double, nullable=False),
        sa.CheckConstraint("num_rounds >= 1", name="num_rounds"),
        sa.CheckConstraint("gpus_sum >= 0 AND available_gpu_s >= 0", name="sums"),
    )
    op.create_index("ix_node_days_day", "node_days", ["day"])


def _lease() -> None:
    op.create_table(
        "leases",
        sa.Column("name", sa.String(32), primary_key=True),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("renewed_at", TIME, nullable=False),
        sa.Column("expires_at", TIME, nullable=False),
        sa.Column("interval_s", sa.Double),
        sa.Column("watch_s", sa.Double),
    )


def _generations() -> None:
    op.create_table(
        "generations",
        sa.Column("job_id", BIG_INT, sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column(
            "state",
            _one_of("state", "planned committed regrouped refused withdrawn failed"),
            nullable=False,
        ),
        sa.Column("at", TIME, nullable=False),
        sa.Column("restart_count", sa.Integer, nullable=False),
        sa.Column("meeting", sa.Text),
        sa.Column("standstill_s", sa.Double),
        sa.Column("reason", sa.Text),
        *_within("restart_count", "0", "1000000"),
        *_within("standstill_s", "0.0", "10000000.0"),
        *_within("number", "1", "1000000"),
        sa.CheckConstraint("length(meeting) BETWEEN 1 AND 300", name="meeting"),
        sa.CheckConstraint("length(reason) <= 1024", name="reason"),
        sa.CheckConstraint(
            "(state IN ('committed', 'regrouped', 'failed')) = (meeting IS NOT NULL)", name="committed"
        ),
        sa.CheckConstraint("(state = 'regrouped') = (standstill_s IS NOT NULL)", name="regrouped"),
    )
    op.create_index(
        "uq_generations_open",
        "generations",
        ["job_id"],
        unique=True,
        sqlite_where=sa.text("state IN ('planned', 'committed')"),
        postgresql_where=sa.text("state IN ('planned', 'committed')"),
    )

    op.create_table(
        "generation_members",
        sa.Column("job_id", BIG_INT, primary_key=True, autoincrement=False),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("rank", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("member_id", sa.Text, nullable=False),
        sa.Column("node_name", sa.Text, nullable=False),
        sa.Column("ready", _flag("ready"), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id", "number"], ["generations.job_id", "generations.number"], ondelete="CASCADE"
        ),
        sa.UniqueConstraint("job_id", "number", "member_id"),
        *_within("rank", "0", "9999"),
        sa.CheckConstraint("length(member_id) BETWEEN 1 AND 64", name="member_id"),
    )
