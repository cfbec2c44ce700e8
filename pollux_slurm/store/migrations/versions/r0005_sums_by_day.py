"""Sums by day for the reporting views, the nodes that rounds had to give, and what a round came to."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

TIME = sa.DateTime(timezone=True)
BIG_INT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

NEW: dict[str, tuple[tuple[str, Any, str], ...]] = {
    "rounds": (
        ("num_jobs", sa.Integer(), "Jobs that it decided about."),
        ("num_served", sa.Integer(), "Those of them that got GPUs."),
        ("num_gpus", sa.Integer(), "GPUs that it gave."),
        ("total_gpus", sa.Integer(), "GPUs that it had to give; null before this column was made."),
        (
            "fair_share_gpus",
            sa.Integer(),
            "GPUs that stand for a speedup of 1; null before this column was made.",
        ),
        ("mean_speedup", sa.Double(), "Mean over its jobs of speedup; null without jobs."),
        ("min_speedup", sa.Double(), "Least speedup of its jobs; null without jobs."),
        ("solve_s", sa.Double(), "How long deciding took, seconds; null before this column was made."),
    ),
    "decisions": (
        (
            "single_goodput",
            sa.Double(),
            "Predicted best goodput on one GPU; null without a model of throughput.",
        ),
    ),
}

INDEXES = (
    ("reallocation_steps", ("step", "at")),
    ("reallocation_steps", ("at",)),
    ("jobs", ("submitted_at",)),
    ("jobs", ("started_at",)),
    ("jobs", ("finished_at",)),
    ("runs", ("first_report_at",)),
    ("checkpoints", ("at",)),
)


def _index(table: str, columns: tuple[str, ...]) -> str:
    return f"ix_{table}_{'_'.join(columns)}"


def _sums(*names: tuple[str, Any, str]) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind, nullable=False, comment=comment) for name, kind, comment in names]


def upgrade() -> None:
    """Add columns, indexes and tables, and fill them from what is there."""
    for table, columns in NEW.items():
        for name, kind, comment in columns:
            op.add_column(table, sa.Column(name, kind, nullable=True, comment=comment))
    for table, names in INDEXES:
        op.create_index(_index(table, names), table, list(names))
    _make_run_days()
    _make_allocation_days()
    _make_job_days()
    _make_nodes()
    for table in ("run_days", "allocation_days", "job_days", "node_days"):
        op.create_index(f"ix_{table}_day", table, ["day"])
    _fill()


def _make_run_days() -> None:
    double: Any = sa.Double()
    op.create_table(
        "run_days",
        sa.Column("run_id", BIG_INT, nullable=False, comment="The run."),
        sa.Column("day", sa.Date(), nullable=False, comment="The day, in UTC."),
        *_sums(
            ("num_samples", BIG_INT, "Samples reported on this day."),
            ("progress", double, "Most scale-invariant iterations reported."),
            ("trained_s", double, "Time covered by samples with a throughput, seconds."),
            ("trained_gpu_s", double, "The same times the run's GPUs."),
            ("examples", double, "Throughput times time: examples processed."),
            ("measured_s", double, "Time covered by samples with throughput and efficiency, seconds."),
            ("useful_examples", double, "Goodput times time: examples' worth of progress."),
            ("efficiency_s", double, "Efficiency times time, over measured_s."),
            ("useful_gpu_s", double, "Efficiency times time times GPUs, over measured_s."),
            ("num_compared", BIG_INT, "Samples with a measured and a predicted throughput."),
            ("compared_s", double, "Time that they cover, seconds."),
            ("compared_examples", double, "Their measured throughput times time."),
            ("predicted_examples", double, "Their predicted throughput times time."),
            ("error_sum", double, "Sum over them of predicted/measured - 1, each at most a million."),
            ("abs_error_sum", double, "The same without signs."),
        ),
        sa.CheckConstraint("num_samples >= 0 AND num_compared >= 0", name=op.f("ck_run_days_counts")),
        sa.CheckConstraint(
            "trained_s >= 0 AND measured_s >= 0 AND compared_s >= 0", name=op.f("ck_run_days_times")
        ),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=op.f("fk_run_days_run_id_runs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "day", name=op.f("pk_run_days")),
        comment="Goodput samples of a run on a day, summed up; a sample counts for the time it covers.",
    )


def _make_allocation_days() -> None:
    op.create_table(
        "allocation_days",
        sa.Column("job_id", BIG_INT, autoincrement=False, nullable=False, comment="The job."),
        sa.Column(
            "number", sa.Integer(), autoincrement=False, nullable=False, comment="Which stretch of the job."
        ),
        sa.Column("day", sa.Date(), nullable=False, comment="The day, in UTC."),
        *_sums(("held_s", sa.Double(), "Seconds of the stretch on this day.")),
        sa.CheckConstraint("held_s >= 0", name=op.f("ck_allocation_days_held_s")),
        sa.ForeignKeyConstraint(
            ["job_id", "number"],
            ["allocations.job_id", "allocations.number"],
            name=op.f("fk_allocation_days_job_id_number_allocations"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("job_id", "number", "day", name=op.f("pk_allocation_days")),
        comment="How long an ended stretch of allocation lasted on each day.",
    )


def _make_job_days() -> None:
    double: Any = sa.Double()
    op.create_table(
        "job_days",
        sa.Column("job_id", BIG_INT, nullable=False, comment="The job."),
        sa.Column("day", sa.Date(), nullable=False, comment="The day, in UTC."),
        *_sums(
            ("num_rounds", BIG_INT, "Rounds that decided about the job."),
            ("gpus_sum", double, "Sum of the GPUs given."),
            ("fair_gpus_sum", double, "Sum of its fair shares, in GPUs."),
            ("speedup_sum", double, "Sum of the speedups over its fair share."),
            ("num_compared", BIG_INT, "Rounds with a predicted goodput at the fair share."),
            ("fair_goodput_sum", double, "Sum of these goodputs, examples per second."),
            ("num_single", BIG_INT, "Rounds with a predicted goodput on one GPU."),
            ("single_goodput_sum", double, "Sum of these goodputs, examples per second."),
        ),
        sa.CheckConstraint(
            "num_rounds >= num_compared AND num_compared >= 0", name=op.f("ck_job_days_num_compared")
        ),
        sa.CheckConstraint(
            "num_rounds >= num_single AND num_single >= 0", name=op.f("ck_job_days_num_single")
        ),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_job_days_job_id_jobs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "day", name=op.f("pk_job_days")),
        comment="What one day's rounds decided about a job, summed up.",
    )


def _make_nodes() -> None:
    op.create_table(
        "nodes",
        sa.Column("node_name", sa.Text(), nullable=False, comment="Slurm's name of it."),
        sa.Column(
            "gpu_type",
            sa.Text(),
            nullable=False,
            comment="Slurm's name of its GPUs; empty for nameless ones.",
        ),
        sa.Column(
            "num_gpus", sa.Integer(), nullable=False, comment="GPUs that the last round had to give there."
        ),
        sa.Column("first_seen_at", TIME, nullable=False, comment="When a round first had it."),
        sa.Column("last_seen_at", TIME, nullable=False, comment="When a round last had it."),
        sa.PrimaryKeyConstraint("node_name", name=op.f("pk_nodes")),
        comment="Nodes that rounds had to give, those that are gone included.",
    )
    op.create_table(
        "node_days",
        sa.Column("node_name", sa.Text(), nullable=False, comment="The node."),
        sa.Column("day", sa.Date(), nullable=False, comment="The day, in UTC."),
        *_sums(
            ("num_rounds", BIG_INT, "Rounds that had the node."),
            ("gpus_sum", sa.Double(), "Sum of the GPUs that adaptive jobs could have there."),
            (
                "offered_gpu_s",
                sa.Double(),
                "These GPUs times the time since the round before, at most an hour.",
            ),
        ),
        sa.CheckConstraint("num_rounds >= 1", name=op.f("ck_node_days_num_rounds")),
        sa.CheckConstraint("gpus_sum >= 0 AND offered_gpu_s >= 0", name=op.f("ck_node_days_sums")),
        sa.ForeignKeyConstraint(
            ["node_name"], ["nodes.node_name"], name=op.f("fk_node_days_node_name_nodes"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("node_name", "day", name=op.f("pk_node_days")),
        comment="What one day's rounds had to give on a node, summed up.",
    )


def _fill() -> None:
    """Sum up what is there. What rounds had to give is not known of those that are past."""
    from pollux_slurm.store.sums import sum_decisions
    from pollux_slurm.store.triggers import sum_what_is_there

    connection = op.get_bind()
    # The text that sums is this release's, with columns of schema 0009: they are lent for that long.
    op.add_column("goodput_samples", sa.Column("num_examples", BIG_INT, nullable=True))
    op.add_column("run_days", sa.Column("counted_examples", sa.Double(), nullable=True))
    sum_what_is_there(connection)
    op.drop_column("run_days", "counted_examples")
    op.drop_column("goodput_samples", "num_examples")
    sum_decisions(connection)
    of_round = "FROM decisions AS d WHERE d.round_id = rounds.id"
    connection.exec_driver_sql(
        f"UPDATE rounds SET num_jobs = (SELECT COUNT(*) {of_round}),"
        f" num_served = (SELECT COUNT(*) {of_round} AND d.num_gpus > 0),"
        f" num_gpus = (SELECT COALESCE(SUM(d.num_gpus), 0) {of_round}),"
        f" mean_speedup = (SELECT AVG(d.speedup) {of_round}),"
        f" min_speedup = (SELECT MIN(d.speedup) {of_round})"
    )


def downgrade() -> None:
    """Drop them."""
    for table in ("node_days", "nodes", "job_days", "allocation_days", "run_days"):
        op.drop_table(table)
    for table, names in INDEXES:
        op.drop_index(_index(table, names), table_name=table)
    for table, columns in NEW.items():
        for name, _, _ in columns:
            op.drop_column(table, name)
