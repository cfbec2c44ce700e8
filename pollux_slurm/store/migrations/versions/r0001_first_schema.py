"""The first schema: jobs and what they report, rounds, allocations, the journal of reallocations, leases."""
# ruff: noqa: E501

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

TIME = sa.DateTime(timezone=True)
# SQLite numbers rows by itself only in a column of exactly INTEGER type.
BIG_INT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "leases",
        sa.Column("name", sa.String(length=32), nullable=False, comment="What the lease is for."),
        sa.Column("owner", sa.Text(), nullable=False, comment="Who holds it."),
        sa.Column("acquired_at", TIME, nullable=False, comment="When this owner took it."),
        sa.Column("expires_at", TIME, nullable=False, comment="When it runs out unless prolonged."),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_leases")),
        comment="Who may act: one daemon at a time.",
    )
    op.create_table(
        "rounds",
        sa.Column("id", BIG_INT, nullable=False, comment="The round's number; grows."),
        sa.Column("at", TIME, nullable=False, comment="When it was decided."),
        sa.Column(
            "shadow",
            sa.Boolean(create_constraint=True, name="shadow"),
            nullable=False,
            comment="Was it only recorded, not enacted?",
        ),
        sa.Column("objective", sa.Text(), nullable=False, comment="Name of the objective."),
        sa.Column("solver", sa.Text(), nullable=False, comment="Which solver answered."),
        sa.Column("fitness", sa.Double(), nullable=False, comment="The objective's value at the decision."),
        sa.Column(
            "problem", sa.Text(), nullable=False, comment="The problem as versioned JSON, for replays."
        ),
        sa.Column(
            "decision", sa.Text(), nullable=False, comment="The decision as versioned JSON, for replays."
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rounds")),
        comment="One row per round that decided, with all that it was made from.",
    )
    op.create_index(op.f("ix_rounds_at"), "rounds", ["at"], unique=False)
    op.create_table(
        "users",
        sa.Column("user_id", BIG_INT, autoincrement=False, nullable=False, comment="Unix user id."),
        sa.Column("user_name", sa.Text(), nullable=False, comment="Login name last seen with this id."),
        sa.CheckConstraint("user_id >= 0", name=op.f("ck_users_user_id")),
        sa.PrimaryKeyConstraint("user_id", name=op.f("pk_users")),
        comment="People who own jobs, as Slurm authenticated them.",
    )
    op.create_table(
        "jobs",
        sa.Column("id", BIG_INT, nullable=False, comment="This database's number of the job."),
        sa.Column(
            "slurm_job_id", sa.String(length=64), nullable=False, comment="Slurm's job number as text."
        ),
        sa.Column(
            "token_sha256",
            sa.String(length=64),
            nullable=False,
            comment="SHA-256 (hex) of the token that the job reports with.",
        ),
        sa.Column("user_id", BIG_INT, nullable=False, comment="The owner."),
        sa.Column("name", sa.Text(), nullable=False, comment="Job name."),
        sa.Column(
            "account", sa.Text(), nullable=False, comment="Slurm account it is charged to; may be empty."
        ),
        sa.Column("partition", sa.Text(), nullable=False, comment="Slurm partition."),
        sa.Column("min_gpus", sa.Integer(), nullable=False, comment="Fewest GPUs it may be given."),
        sa.Column("max_gpus", sa.Integer(), nullable=True, comment="Most GPUs; null for no bound."),
        sa.Column(
            "allow_unconfirmed",
            sa.Boolean(create_constraint=True, name="allow_unconfirmed"),
            nullable=False,
            comment="May it be requeued when its checkpoint was not confirmed in time?",
        ),
        sa.Column("cpus_per_gpu", sa.Integer(), nullable=False, comment="CPUs that come with each GPU."),
        sa.Column(
            "memory_per_gpu_mb", BIG_INT, nullable=False, comment="Memory that comes with each GPU, in MiB."
        ),
        sa.Column(
            "state",
            sa.Enum(
                "pending",
                "running",
                "completing",
                "suspended",
                "completed",
                "failed",
                "cancelled",
                "timeout",
                name="state",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=False,
            comment="State at the last look at Slurm.",
        ),
        sa.Column("submitted_at", TIME, nullable=False, comment="When it was first submitted."),
        sa.Column("registered_at", TIME, nullable=False, comment="When the daemon first saw it."),
        sa.Column("started_at", TIME, nullable=True, comment="When it first started; null before."),
        sa.Column("finished_at", TIME, nullable=True, comment="When it ended for good; null while it lives."),
        sa.CheckConstraint(
            "(finished_at IS NOT NULL) = (state IN ('completed', 'failed', 'cancelled', 'timeout'))",
            name=op.f("ck_jobs_finished_at"),
        ),
        sa.CheckConstraint("cpus_per_gpu >= 0", name=op.f("ck_jobs_cpus_per_gpu")),
        sa.CheckConstraint("length(token_sha256) = 64", name=op.f("ck_jobs_token_sha256")),
        sa.CheckConstraint("max_gpus IS NULL OR max_gpus >= min_gpus", name=op.f("ck_jobs_max_gpus")),
        sa.CheckConstraint("memory_per_gpu_mb >= 0", name=op.f("ck_jobs_memory_per_gpu_mb")),
        sa.CheckConstraint("min_gpus >= 1", name=op.f("ck_jobs_min_gpus")),
        sa.ForeignKeyConstraint(["user_id"], ["users.user_id"], name=op.f("fk_jobs_user_id_users")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
        sa.UniqueConstraint("token_sha256", "user_id", name=op.f("uq_jobs_token_sha256_user_id")),
        comment="Adaptive jobs, one row each, with the terms from their Slurm Comment.",
    )
    op.create_index(op.f("ix_jobs_account_submitted_at"), "jobs", ["account", "submitted_at"], unique=False)
    op.create_index(op.f("ix_jobs_slurm_job_id_id"), "jobs", ["slurm_job_id", "id"], unique=False)
    op.create_index(op.f("ix_jobs_user_id_submitted_at"), "jobs", ["user_id", "submitted_at"], unique=False)
    op.create_index(
        "uq_jobs_unfinished_slurm_job_id",
        "jobs",
        ["slurm_job_id"],
        unique=True,
        sqlite_where=sa.text("finished_at IS NULL"),
        postgresql_where=sa.text("finished_at IS NULL"),
    )
    op.create_table(
        "allocations",
        sa.Column("job_id", BIG_INT, nullable=False, comment="The job."),
        sa.Column(
            "number",
            sa.Integer(),
            autoincrement=False,
            nullable=False,
            comment="Which stretch of the job: 0, 1, ...",
        ),
        sa.Column("started_at", TIME, nullable=False, comment="When the stretch began."),
        sa.Column("ended_at", TIME, nullable=True, comment="When it ended; null while it lasts."),
        sa.CheckConstraint("ended_at >= started_at", name=op.f("ck_allocations_ended_at")),
        sa.CheckConstraint("number >= 0", name=op.f("ck_allocations_number")),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_allocations_job_id_jobs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "number", name=op.f("pk_allocations")),
        comment="Stretches of time during which a job held the same GPUs.",
    )
    op.create_index(op.f("ix_allocations_started_at"), "allocations", ["started_at"], unique=False)
    op.create_index(
        "uq_allocations_open",
        "allocations",
        ["job_id"],
        unique=True,
        sqlite_where=sa.text("ended_at IS NULL"),
        postgresql_where=sa.text("ended_at IS NULL"),
    )
    op.create_table(
        "decisions",
        sa.Column("round_id", BIG_INT, nullable=False, comment="The round."),
        sa.Column("job_id", BIG_INT, nullable=False, comment="The job."),
        sa.Column("num_gpus", sa.Integer(), nullable=False, comment="GPUs given in all."),
        sa.Column("num_nodes", sa.Integer(), nullable=False, comment="Nodes they lie on."),
        sa.Column(
            "speedup",
            sa.Double(),
            nullable=False,
            comment="Predicted goodput over that at the job's fair share.",
        ),
        sa.Column(
            "goodput",
            sa.Double(),
            nullable=True,
            comment="Predicted goodput, examples per second; null without a model.",
        ),
        sa.Column(
            "penalty", sa.Double(), nullable=False, comment="Restart penalty applied, 0 to 1; 1 is none."
        ),
        sa.Column("bound_by", sa.String(length=32), nullable=False, comment="What kept the job from more."),
        sa.Column("runner_up_gpus", sa.Integer(), nullable=True, comment="GPUs of the next best size."),
        sa.Column("runner_up_nodes", sa.Integer(), nullable=True, comment="Nodes of the next best size."),
        sa.Column("runner_up_speedup", sa.Double(), nullable=True, comment="Speedup at that size."),
        sa.CheckConstraint(
            "(runner_up_gpus IS NULL) = (runner_up_nodes IS NULL)", name=op.f("ck_decisions_runner_up")
        ),
        sa.CheckConstraint("num_gpus >= 0", name=op.f("ck_decisions_num_gpus")),
        sa.CheckConstraint("num_nodes >= 0 AND num_nodes <= num_gpus", name=op.f("ck_decisions_num_nodes")),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_decisions_job_id_jobs"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["round_id"], ["rounds.id"], name=op.f("fk_decisions_round_id_rounds"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("round_id", "job_id", name=op.f("pk_decisions")),
        comment="What a round gave to each job, and why.",
    )
    op.create_index(op.f("ix_decisions_job_id_round_id"), "decisions", ["job_id", "round_id"], unique=False)
    op.create_table(
        "model_versions",
        sa.Column("id", BIG_INT, nullable=False, comment="Number of the version; grows."),
        sa.Column("job_id", BIG_INT, nullable=False, comment="The job."),
        sa.Column("at", TIME, nullable=False, comment="When it was reported."),
        sa.Column("initial_batch_size", BIG_INT, nullable=False, comment="M0, examples."),
        sa.Column(
            "max_batch_size",
            BIG_INT,
            nullable=True,
            comment="Largest global batch allowed, examples; null for always M0.",
        ),
        sa.Column(
            "min_atomic", BIG_INT, nullable=False, comment="Smallest batch per GPU and pass, examples."
        ),
        sa.Column(
            "max_atomic",
            BIG_INT,
            nullable=True,
            comment="Largest batch per GPU and pass, examples; null for no bound.",
        ),
        sa.Column(
            "accumulation",
            sa.Boolean(create_constraint=True, name="accumulation"),
            nullable=False,
            comment="May gradients be accumulated?",
        ),
        sa.Column(
            "grad_sqr",
            sa.Double(),
            nullable=True,
            comment="Squared norm of the true gradient; null before it is known.",
        ),
        sa.Column(
            "grad_var",
            sa.Double(),
            nullable=True,
            comment="Trace of the gradient's covariance at batch M0; null before it is known.",
        ),
        sa.Column("alpha_g", sa.Double(), nullable=True, comment="Fixed time of a pass, seconds."),
        sa.Column("beta_g", sa.Double(), nullable=True, comment="Time of a pass per example, seconds."),
        sa.Column("alpha_n", sa.Double(), nullable=True, comment="Synchronisation across nodes, seconds."),
        sa.Column("beta_n", sa.Double(), nullable=True, comment="The same per replica above two, seconds."),
        sa.Column("alpha_l", sa.Double(), nullable=True, comment="Synchronisation on one node, seconds."),
        sa.Column("beta_l", sa.Double(), nullable=True, comment="The same per replica above two, seconds."),
        sa.Column(
            "gamma",
            sa.Double(),
            nullable=True,
            comment="Overlap of computation and synchronisation, 1 (none) to 10.",
        ),
        sa.Column(
            "max_gpus_seen", sa.Integer(), nullable=False, comment="Most GPUs the job says it has run on."
        ),
        sa.Column(
            "max_nodes_seen", sa.Integer(), nullable=False, comment="Most nodes the job says it has run on."
        ),
        sa.CheckConstraint(
            "(beta_g IS NULL) = (alpha_g IS NULL) AND (alpha_n IS NULL) = (alpha_g IS NULL) AND (beta_n IS NULL) = (alpha_g IS NULL) AND (alpha_l IS NULL) = (alpha_g IS NULL) AND (beta_l IS NULL) = (alpha_g IS NULL) AND (gamma IS NULL) = (alpha_g IS NULL)",
            name=op.f("ck_model_versions_throughput"),
        ),
        sa.CheckConstraint(
            "(grad_sqr IS NULL) = (grad_var IS NULL)", name=op.f("ck_model_versions_statistics")
        ),
        sa.CheckConstraint(
            "alpha_g >= 0 AND beta_g >= 0 AND alpha_n >= 0 AND beta_n >= 0 AND alpha_l >= 0 AND beta_l >= 0 AND gamma >= 0",
            name=op.f("ck_model_versions_throughput_sign"),
        ),
        sa.CheckConstraint("grad_sqr >= 0 AND grad_var >= 0", name=op.f("ck_model_versions_statistics_sign")),
        sa.CheckConstraint("initial_batch_size >= 1", name=op.f("ck_model_versions_initial_batch_size")),
        sa.CheckConstraint("max_atomic >= min_atomic", name=op.f("ck_model_versions_max_atomic")),
        sa.CheckConstraint(
            "max_batch_size >= initial_batch_size", name=op.f("ck_model_versions_max_batch_size")
        ),
        sa.CheckConstraint("max_gpus_seen >= 0 AND max_nodes_seen >= 0", name=op.f("ck_model_versions_seen")),
        sa.CheckConstraint("min_atomic >= 1", name=op.f("ck_model_versions_min_atomic")),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_model_versions_job_id_jobs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_model_versions")),
        comment="Goodput models of a job; a row is added only when something in it changed.",
    )
    op.create_index(op.f("ix_model_versions_job_id_id"), "model_versions", ["job_id", "id"], unique=False)
    op.create_table(
        "reallocations",
        sa.Column("id", BIG_INT, nullable=False, comment="The reallocation's number; grows."),
        sa.Column("job_id", BIG_INT, nullable=False, comment="The job."),
        sa.Column("round_id", BIG_INT, nullable=True, comment="The round that decided it."),
        sa.Column(
            "step",
            sa.Enum(
                "planned",
                "checkpoint_requested",
                "checkpointed",
                "requeued",
                "reshaped",
                "released",
                "running",
                "confirmed",
                "rolled_back",
                "failed",
                name="step",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=False,
            comment="Where it stands; the last of its steps.",
        ),
        sa.Column(
            "moves_running",
            sa.Boolean(create_constraint=True, name="moves_running"),
            nullable=False,
            comment="Is a running job requeued, rather than a waiting one reshaped?",
        ),
        sa.Column(
            "from_restart_count",
            sa.Integer(),
            nullable=False,
            comment="Slurm's restart count of the job when it was planned.",
        ),
        sa.Column("reason", sa.Text(), nullable=True, comment="Why it ended as it did."),
        sa.CheckConstraint("from_restart_count >= 0", name=op.f("ck_reallocations_from_restart_count")),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_reallocations_job_id_jobs"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["round_id"], ["rounds.id"], name=op.f("fk_reallocations_round_id_rounds"), ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_reallocations")),
        comment="A job changing allocation: the daemon's journal.",
    )
    op.create_index(op.f("ix_reallocations_job_id_id"), "reallocations", ["job_id", "id"], unique=False)
    op.create_index(op.f("ix_reallocations_round_id"), "reallocations", ["round_id"], unique=False)
    op.create_index(
        "uq_reallocations_open",
        "reallocations",
        ["job_id"],
        unique=True,
        sqlite_where=sa.text("step NOT IN ('confirmed', 'rolled_back', 'failed')"),
        postgresql_where=sa.text("step NOT IN ('confirmed', 'rolled_back', 'failed')"),
    )
    op.create_table(
        "runs",
        sa.Column("id", BIG_INT, nullable=False, comment="This database's number of the run."),
        sa.Column("job_id", BIG_INT, nullable=False, comment="The job."),
        sa.Column(
            "run_number",
            sa.Integer(),
            nullable=False,
            comment="The run's claim on its checkpoint directory: 0, 1, ...",
        ),
        sa.Column(
            "restart_count", sa.Integer(), nullable=False, comment="Slurm's restart count during the run."
        ),
        sa.Column(
            "phase",
            sa.Enum(
                "starting",
                "training",
                "waiting",
                "finished",
                name="phase",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=False,
            comment="Where the run stood at its last report.",
        ),
        sa.Column("first_report_at", TIME, nullable=False, comment="When its first report came."),
        sa.Column("last_report_at", TIME, nullable=False, comment="When its last report came."),
        sa.Column("last_sequence", BIG_INT, nullable=False, comment="Number of its last report."),
        sa.Column("num_steps", BIG_INT, nullable=False, comment="Optimizer steps as last reported."),
        sa.Column(
            "first_step_s",
            sa.Double(),
            nullable=True,
            comment="Process start to the end of the first optimizer step, seconds; null before.",
        ),
        sa.Column("first_step_at", TIME, nullable=True, comment="When a report first told of that step."),
        sa.Column(
            "restore_s",
            sa.Double(),
            nullable=True,
            comment="Part of it spent reading the checkpoint, seconds.",
        ),
        sa.CheckConstraint(
            "(first_step_s IS NULL) = (first_step_at IS NULL)", name=op.f("ck_runs_first_step_at")
        ),
        sa.CheckConstraint("first_step_s > 0", name=op.f("ck_runs_first_step_s")),
        sa.CheckConstraint("last_report_at >= first_report_at", name=op.f("ck_runs_last_report_at")),
        sa.CheckConstraint("last_sequence >= 0", name=op.f("ck_runs_last_sequence")),
        sa.CheckConstraint("num_steps >= 0", name=op.f("ck_runs_num_steps")),
        sa.CheckConstraint("restart_count >= 0", name=op.f("ck_runs_restart_count")),
        sa.CheckConstraint("restore_s >= 0", name=op.f("ck_runs_restore_s")),
        sa.CheckConstraint("run_number >= 0", name=op.f("ck_runs_run_number")),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_runs_job_id_jobs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
        sa.UniqueConstraint("job_id", "run_number", name=op.f("uq_runs_job_id_run_number")),
        comment="One row per start of a job that reported.",
    )
    op.create_table(
        "allocation_nodes",
        sa.Column("job_id", BIG_INT, autoincrement=False, nullable=False, comment="The job."),
        sa.Column(
            "number", sa.Integer(), autoincrement=False, nullable=False, comment="Which stretch of the job."
        ),
        sa.Column("node_name", sa.Text(), nullable=False, comment="The node."),
        sa.Column("num_gpus", sa.Integer(), nullable=False, comment="GPUs held there."),
        sa.CheckConstraint("num_gpus >= 1", name=op.f("ck_allocation_nodes_num_gpus")),
        sa.ForeignKeyConstraint(
            ["job_id", "number"],
            ["allocations.job_id", "allocations.number"],
            name=op.f("fk_allocation_nodes_job_id_number_allocations"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("job_id", "number", "node_name", name=op.f("pk_allocation_nodes")),
        comment="GPUs held on each node during a stretch.",
    )
    op.create_index(op.f("ix_allocation_nodes_node_name"), "allocation_nodes", ["node_name"], unique=False)
    op.create_table(
        "checkpoints",
        sa.Column("run_id", BIG_INT, nullable=False, comment="The run."),
        sa.Column(
            "sequence",
            BIG_INT,
            autoincrement=False,
            nullable=False,
            comment="Number of the report that confirmed it.",
        ),
        sa.Column("at", TIME, nullable=False, comment="When it was confirmed."),
        sa.Column(
            "reallocation_id",
            BIG_INT,
            nullable=True,
            comment="The reallocation that it let go on; null if it answered none.",
        ),
        sa.Column(
            "blocked_s", sa.Double(), nullable=False, comment="How long training stood still, seconds."
        ),
        sa.Column("size_bytes", BIG_INT, nullable=False, comment="Size on disk, bytes."),
        sa.CheckConstraint("blocked_s >= 0", name=op.f("ck_checkpoints_blocked_s")),
        sa.CheckConstraint("sequence >= 0", name=op.f("ck_checkpoints_sequence")),
        sa.CheckConstraint("size_bytes >= 0", name=op.f("ck_checkpoints_size_bytes")),
        sa.ForeignKeyConstraint(
            ["reallocation_id"],
            ["reallocations.id"],
            name=op.f("fk_checkpoints_reallocation_id_reallocations"),
            ondelete="SET NULL",
        ),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=op.f("fk_checkpoints_run_id_runs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "sequence", name=op.f("pk_checkpoints")),
        comment="Checkpoints that runs confirmed.",
    )
    op.create_index("uq_checkpoints_reallocation_id", "checkpoints", ["reallocation_id"], unique=True)
    op.create_table(
        "decision_nodes",
        sa.Column("round_id", BIG_INT, autoincrement=False, nullable=False, comment="The round."),
        sa.Column("job_id", BIG_INT, autoincrement=False, nullable=False, comment="The job."),
        sa.Column("node_name", sa.Text(), nullable=False, comment="The node."),
        sa.Column("num_gpus", sa.Integer(), nullable=False, comment="GPUs there."),
        sa.CheckConstraint("num_gpus >= 1", name=op.f("ck_decision_nodes_num_gpus")),
        sa.ForeignKeyConstraint(
            ["round_id", "job_id"],
            ["decisions.round_id", "decisions.job_id"],
            name=op.f("fk_decision_nodes_round_id_job_id_decisions"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("round_id", "job_id", "node_name", name=op.f("pk_decision_nodes")),
        comment="Where the GPUs of a decision lie.",
    )
    op.create_table(
        "goodput_samples",
        sa.Column("run_id", BIG_INT, nullable=False, comment="The run."),
        sa.Column(
            "sequence",
            BIG_INT,
            autoincrement=False,
            nullable=False,
            comment="Number of the report within the run.",
        ),
        sa.Column("at", TIME, nullable=False, comment="When it was reported."),
        sa.Column("global_batch_size", BIG_INT, nullable=True, comment="M, examples per step."),
        sa.Column("atomic_batch_size", BIG_INT, nullable=True, comment="m, examples per GPU and pass."),
        sa.Column("accumulation_steps", BIG_INT, nullable=True, comment="s, extra passes per step."),
        sa.Column("throughput", sa.Double(), nullable=True, comment="Measured, examples per second."),
        sa.Column(
            "predicted_throughput",
            sa.Double(),
            nullable=True,
            comment="What the model in force predicted for it, examples per second.",
        ),
        sa.Column("step_time_s", sa.Double(), nullable=True, comment="Mean time of a step, seconds."),
        sa.Column(
            "efficiency",
            sa.Double(),
            nullable=True,
            comment="Statistical efficiency, 0 to 1; goodput is throughput times efficiency.",
        ),
        sa.Column("progress", sa.Double(), nullable=False, comment="Scale-invariant iterations done."),
        sa.Column("epoch", BIG_INT, nullable=False, comment="The epoch under way, from 0."),
        sa.Column("total_epochs", BIG_INT, nullable=True, comment="Epochs declared; null if none were."),
        sa.CheckConstraint(
            "(global_batch_size IS NULL) = (atomic_batch_size IS NULL) AND (global_batch_size IS NULL) = (accumulation_steps IS NULL)",
            name=op.f("ck_goodput_samples_batch"),
        ),
        sa.CheckConstraint("accumulation_steps >= 0", name=op.f("ck_goodput_samples_accumulation_steps")),
        sa.CheckConstraint("atomic_batch_size >= 1", name=op.f("ck_goodput_samples_atomic_batch_size")),
        sa.CheckConstraint("efficiency > 0 AND efficiency <= 1", name=op.f("ck_goodput_samples_efficiency")),
        sa.CheckConstraint("epoch >= 0", name=op.f("ck_goodput_samples_epoch")),
        sa.CheckConstraint("global_batch_size >= 1", name=op.f("ck_goodput_samples_global_batch_size")),
        sa.CheckConstraint("predicted_throughput > 0", name=op.f("ck_goodput_samples_predicted_throughput")),
        sa.CheckConstraint("progress >= 0", name=op.f("ck_goodput_samples_progress")),
        sa.CheckConstraint("sequence >= 0", name=op.f("ck_goodput_samples_sequence")),
        sa.CheckConstraint("step_time_s > 0", name=op.f("ck_goodput_samples_step_time_s")),
        sa.CheckConstraint("throughput > 0", name=op.f("ck_goodput_samples_throughput")),
        sa.CheckConstraint("total_epochs >= 0", name=op.f("ck_goodput_samples_total_epochs")),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=op.f("fk_goodput_samples_run_id_runs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "sequence", name=op.f("pk_goodput_samples")),
        comment="What runs measured, a row per report after the start.",
    )
    op.create_index(op.f("ix_goodput_samples_at"), "goodput_samples", ["at"], unique=False)
    op.create_table(
        "reallocation_nodes",
        sa.Column("reallocation_id", BIG_INT, nullable=False, comment="The reallocation."),
        sa.Column(
            "side",
            sa.Enum("source", "target", name="side", native_enum=False, create_constraint=True, length=32),
            nullable=False,
            comment="source or target.",
        ),
        sa.Column("node_name", sa.Text(), nullable=False, comment="The node."),
        sa.Column("num_gpus", sa.Integer(), nullable=False, comment="GPUs there."),
        sa.CheckConstraint("num_gpus >= 1", name=op.f("ck_reallocation_nodes_num_gpus")),
        sa.ForeignKeyConstraint(
            ["reallocation_id"],
            ["reallocations.id"],
            name=op.f("fk_reallocation_nodes_reallocation_id_reallocations"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("reallocation_id", "side", "node_name", name=op.f("pk_reallocation_nodes")),
        comment="GPUs per node before (source) and after (target) a reallocation.",
    )
    op.create_table(
        "reallocation_steps",
        sa.Column("reallocation_id", BIG_INT, nullable=False, comment="The reallocation."),
        sa.Column(
            "step",
            sa.Enum(
                "planned",
                "checkpoint_requested",
                "checkpointed",
                "requeued",
                "reshaped",
                "released",
                "running",
                "confirmed",
                "rolled_back",
                "failed",
                name="step",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=False,
            comment="The step.",
        ),
        sa.Column("at", TIME, nullable=False, comment="When it was journaled."),
        sa.ForeignKeyConstraint(
            ["reallocation_id"],
            ["reallocations.id"],
            name=op.f("fk_reallocation_steps_reallocation_id_reallocations"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("reallocation_id", "step", name=op.f("pk_reallocation_steps")),
        comment="When a reallocation entered each of its steps.",
    )
    op.create_table(
        "run_nodes",
        sa.Column("run_id", BIG_INT, nullable=False, comment="The run."),
        sa.Column(
            "node_rank",
            sa.Integer(),
            autoincrement=False,
            nullable=False,
            comment="Place of the node in rank order: 0, 1, ...",
        ),
        sa.Column("num_gpus", sa.Integer(), nullable=False, comment="GPUs used there."),
        sa.CheckConstraint("node_rank >= 0", name=op.f("ck_run_nodes_node_rank")),
        sa.CheckConstraint("num_gpus >= 1", name=op.f("ck_run_nodes_num_gpus")),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=op.f("fk_run_nodes_run_id_runs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "node_rank", name=op.f("pk_run_nodes")),
        comment="GPUs that a run really used on each of its nodes, by node rank.",
    )


def downgrade() -> None:
    """Drop the tables with all that is in them."""
    for table in (
        "run_nodes",
        "reallocation_steps",
        "reallocation_nodes",
        "goodput_samples",
        "decision_nodes",
        "checkpoints",
        "allocation_nodes",
        "runs",
        "reallocations",
        "model_versions",
        "decisions",
        "allocations",
        "jobs",
        "users",
        "rounds",
        "leases",
    ):
        op.drop_table(table)
