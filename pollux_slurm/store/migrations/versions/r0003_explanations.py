"""Why a round decided as it did, models by type of GPU, and what jobs have declared of their length."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

TIME = sa.DateTime(timezone=True)
BIG_INT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

NEW: dict[str, tuple[tuple[str, Any, str], ...]] = {
    "rounds": (
        (
            "upper_bound",
            sa.Double(),
            "No decision that serves as many jobs has a larger value; null if none was proved.",
        ),
        ("gap", sa.Double(), "(upper_bound - fitness) / upper_bound; null without a bound."),
        ("timed_out", sa.Boolean(), "Did the time limit cut the search short? Null before schema 0003."),
    ),
    "decisions": (
        ("runner_up_gpu_type", sa.Text(), "Type of the GPUs of that size."),
        (
            "runner_up_cost",
            sa.Double(),
            "What others would have paid for it beyond cost, in the objective's sum.",
        ),
        ("cost", sa.Double(), "What others pay for these GPUs at the round's prices."),
        ("gpu_type", sa.Text(), "Type of the GPUs given; null for none, several or a nameless one."),
        ("global_batch_size", BIG_INT, "Predicted best M, examples per step; null without a model."),
        ("atomic_batch_size", BIG_INT, "Its m, per GPU and pass."),
        ("accumulation_steps", BIG_INT, "Its s, extra passes per step."),
        (
            "declared_gain",
            sa.Double(),
            "Factor by which what the job declares changed its weight; null where it counts not.",
        ),
        ("declaration_doubt", sa.Text(), "Why what the job declares did not count; null where it did."),
        (
            "pinned_because",
            sa.Text(),
            "Why the job had to stay as it was; null where it had not, or nobody said.",
        ),
        ("excluded", sa.Text(), "Why the job was left as it is; null when it took part."),
        ("explanation", sa.Text(), "All of this in one line; null before schema 0003."),
    ),
    "runs": (
        (
            "gpu_type",
            sa.Text(),
            "Slurm's name of the GPUs it ran on; null if unknown, nameless or of several types.",
        ),
    ),
    "model_versions": (("run_number", sa.Integer(), "The run that reported it; null before schema 0003."),),
}


def upgrade() -> None:
    """Add columns and two tables; what was recorded before has nulls there."""
    for table, columns in NEW.items():
        for name, kind, comment in columns:
            op.add_column(table, sa.Column(name, kind, nullable=True, comment=comment))
    op.create_index(
        op.f("ix_model_versions_job_id_run_number_id"), "model_versions", ["job_id", "run_number", "id"]
    )
    op.create_table(
        "gpu_prices",
        sa.Column("round_id", BIG_INT, nullable=False, comment="The round."),
        sa.Column("gpu_type", sa.Text(), nullable=False, comment="Slurm's name of it; may be empty."),
        sa.Column("price", sa.Double(), nullable=False, comment="Shadow price, in the objective's sum."),
        sa.ForeignKeyConstraint(
            ["round_id"], ["rounds.id"], name=op.f("fk_gpu_prices_round_id_rounds"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("round_id", "gpu_type", name=op.f("pk_gpu_prices")),
        comment="What one more GPU of a type would have added to a round's objective.",
    )
    op.create_table(
        "declarations",
        sa.Column("job_id", BIG_INT, nullable=False, comment="The job."),
        sa.Column(
            "number",
            sa.Integer(),
            autoincrement=False,
            nullable=False,
            comment="Which declaration of the job: 0, 1, ...",
        ),
        sa.Column("total_epochs", BIG_INT, nullable=False, comment="Epochs declared."),
        sa.Column("at", TIME, nullable=False, comment="When it was first declared."),
        sa.Column("epoch", BIG_INT, nullable=False, comment="The epoch under way then."),
        sa.Column("progress", sa.Double(), nullable=False, comment="Scale-invariant iterations done then."),
        sa.Column(
            "least_total_progress",
            sa.Double(),
            nullable=True,
            comment="Least iterations in all that it ever amounted to; null before the first epoch ended.",
        ),
        sa.CheckConstraint("number >= 0", name=op.f("ck_declarations_number")),
        sa.CheckConstraint("total_epochs >= 0", name=op.f("ck_declarations_total_epochs")),
        sa.CheckConstraint("epoch >= 0", name=op.f("ck_declarations_epoch")),
        sa.CheckConstraint("progress >= 0", name=op.f("ck_declarations_progress")),
        sa.CheckConstraint("least_total_progress >= 0", name=op.f("ck_declarations_least_total_progress")),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_declarations_job_id_jobs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "number", name=op.f("pk_declarations")),
        sa.UniqueConstraint("job_id", "total_epochs", name=op.f("uq_declarations_job_id_total_epochs")),
        comment="Every number of epochs that a job has declared, in the order in which it first did.",
    )


def downgrade() -> None:
    """Drop them."""
    op.drop_table("declarations")
    op.drop_table("gpu_prices")
    op.drop_index(op.f("ix_model_versions_job_id_run_number_id"), table_name="model_versions")
    for table, columns in NEW.items():
        for name, _, _ in columns:
            op.drop_column(table, name)
