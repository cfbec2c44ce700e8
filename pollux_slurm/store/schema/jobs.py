"""Tables that jobs fill: users, jobs, runs, model versions, goodput samples, checkpoints."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import (
    Boolean,
    CheckConstraint,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    String,
    Text,
    UniqueConstraint,
    false,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from pollux_slurm.model import JobState
from pollux_slurm.store.contract.interface import RunPhase
from pollux_slurm.store.schema.base import BIG_INT, Base, checked_enum, maybe_when, when

_OVER = "('completed', 'failed', 'cancelled', 'timeout')"


class UserRow(Base):
    __tablename__ = "users"
    __table_args__ = (
        CheckConstraint("user_id >= 0", name="user_id"),
        {"comment": "People who own jobs, as Slurm authenticated them."},
    )

    user_id: Mapped[int] = mapped_column(
        BIG_INT, primary_key=True, autoincrement=False, comment="Unix user id."
    )
    user_name: Mapped[str] = mapped_column(Text, comment="Login name last seen with this id.")


class AccountRow(Base):
    __tablename__ = "accounts"
    __table_args__ = ({"comment": "Slurm accounts that jobs are charged to."},)

    account: Mapped[str] = mapped_column(Text, primary_key=True, comment="Slurm's name of it; may be empty.")
    first_seen_at: Mapped[datetime] = when("When the daemon first saw a job of it.")


class JobRow(Base):
    __tablename__ = "jobs"
    __table_args__ = (
        CheckConstraint("length(token_sha256) = 64", name="token_sha256"),
        # Of each user: a hash is public, and whoever copies it must not keep its owner's job out.
        UniqueConstraint("token_sha256", "user_id"),
        CheckConstraint("min_gpus >= 1", name="min_gpus"),
        CheckConstraint("max_gpus IS NULL OR max_gpus >= min_gpus", name="max_gpus"),
        CheckConstraint("cpus_per_gpu >= 0", name="cpus_per_gpu"),
        CheckConstraint("memory_per_gpu_mb >= 0", name="memory_per_gpu_mb"),
        CheckConstraint(f"(finished_at IS NOT NULL) = (state IN {_OVER})", name="finished_at"),
        # slurmctld starts its numbers anew one day: only one unfinished job may bear a number.
        Index(
            "uq_jobs_unfinished_slurm_job_id",
            "slurm_job_id",
            unique=True,
            sqlite_where=text("finished_at IS NULL"),
            postgresql_where=text("finished_at IS NULL"),
        ),
        Index(None, "slurm_job_id", "id"),
        Index(None, "user_id", "submitted_at"),
        Index(None, "account", "submitted_at"),
        Index(None, "submitted_at"),
        Index(None, "started_at"),
        Index(None, "finished_at"),
        Index(
            "ix_jobs_estimated",
            "estimated",
            sqlite_where=text("estimated"),
            postgresql_where=text("estimated"),
        ),
        {"comment": "Adaptive jobs, one row each, with the terms from their Slurm Comment."},
    )

    id: Mapped[int] = mapped_column(BIG_INT, primary_key=True, comment="This database's number of the job.")
    slurm_job_id: Mapped[str] = mapped_column(String(64), comment="Slurm's job number as text.")
    first_id: Mapped[int | None] = mapped_column(
        BIG_INT,
        index=True,
        comment="The first row of the same submission, whose token its owner replaced; null for none before.",
    )
    token_sha256: Mapped[str] = mapped_column(
        String(64), comment="SHA-256 (hex) of the token that the job reports with."
    )
    user_id: Mapped[int] = mapped_column(ForeignKey("users.user_id"), comment="The owner.")
    name: Mapped[str] = mapped_column(Text, comment="Job name.")
    account: Mapped[str] = mapped_column(
        ForeignKey("accounts.account"), comment="Slurm account it is charged to; may be empty."
    )
    partition: Mapped[str] = mapped_column(Text, comment="Slurm partition.")
    min_gpus: Mapped[int] = mapped_column(Integer, comment="Fewest GPUs it may be given.")
    max_gpus: Mapped[int | None] = mapped_column(Integer, comment="Most GPUs; null for no bound.")
    allow_unconfirmed: Mapped[bool] = mapped_column(
        Boolean(create_constraint=True, name="allow_unconfirmed"),
        comment="May it be requeued when its checkpoint was not confirmed in time?",
    )
    cpus_per_gpu: Mapped[int] = mapped_column(Integer, comment="CPUs that come with each GPU.")
    memory_per_gpu_mb: Mapped[int] = mapped_column(
        BIG_INT, comment="Memory that comes with each GPU, in MiB."
    )
    state: Mapped[JobState] = mapped_column(
        checked_enum(JobState, "state"), comment="State at the last look at Slurm."
    )
    submitted_at: Mapped[datetime] = when("When it was first submitted.")
    registered_at: Mapped[datetime] = when("When the daemon first saw it.")
    started_at: Mapped[datetime | None] = maybe_when("When it first started; null before.")
    finished_at: Mapped[datetime | None] = maybe_when("When it ended for good; null while it lives.")
    time_limit_s: Mapped[float | None] = mapped_column(
        Double, comment="Time limit of one run when it was registered, seconds; null for none, or not known."
    )
    required_nodes: Mapped[str | None] = mapped_column(
        Text, comment="Nodes that its owner asked for by name, with commas; null for none."
    )
    left_out_because: Mapped[str | None] = mapped_column(
        Text, comment="Why the last round left it out, or as it is; null when it decided about it."
    )
    estimated: Mapped[bool] = mapped_column(
        Boolean,
        server_default=false(),
        comment="Is a part of what it held, or how it ended, a guess? Slurm's records do not tell.",
    )


class RunRow(Base):
    __tablename__ = "runs"
    __table_args__ = (
        UniqueConstraint("job_id", "run_number"),
        CheckConstraint("run_number >= 0", name="run_number"),
        CheckConstraint("restart_count >= 0", name="restart_count"),
        CheckConstraint("last_report_at >= first_report_at", name="last_report_at"),
        CheckConstraint("last_sequence >= 0", name="last_sequence"),
        CheckConstraint("num_steps >= 0", name="num_steps"),
        CheckConstraint("first_step_s > 0", name="first_step_s"),
        CheckConstraint("(first_step_s IS NULL) = (first_step_at IS NULL)", name="first_step_at"),
        CheckConstraint("restore_s >= 0", name="restore_s"),
        CheckConstraint("first_step_s <= 1e7 AND restore_s <= 1e7", name="bounds"),
        Index(None, "first_report_at"),
        {"comment": "One row per start of a job that reported."},
    )

    id: Mapped[int] = mapped_column(BIG_INT, primary_key=True, comment="This database's number of the run.")
    job_id: Mapped[int] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), comment="The job.")
    run_number: Mapped[int] = mapped_column(
        Integer, comment="The run's claim on its checkpoint directory: 0, 1, ..."
    )
    restart_count: Mapped[int] = mapped_column(Integer, comment="Slurm's restart count during the run.")
    phase: Mapped[RunPhase] = mapped_column(
        checked_enum(RunPhase, "phase"), comment="Where the run stood at its last report."
    )
    first_report_at: Mapped[datetime] = when("When its first report came.")
    last_report_at: Mapped[datetime] = when("When its last report came.")
    last_sequence: Mapped[int] = mapped_column(BIG_INT, comment="Number of its last report.")
    num_steps: Mapped[int] = mapped_column(BIG_INT, comment="Optimizer steps as last reported.")
    first_step_s: Mapped[float | None] = mapped_column(
        Double, comment="Process start to the end of the first optimizer step, seconds; null before."
    )
    first_step_at: Mapped[datetime | None] = maybe_when("When a report first told of that step.")
    restore_s: Mapped[float | None] = mapped_column(
        Double, comment="Part of it spent reading the checkpoint, seconds."
    )
    gpu_type: Mapped[str | None] = mapped_column(
        Text, comment="Slurm's name of the GPUs it ran on; null if unknown, nameless or of several types."
    )


class DeclarationRow(Base):
    __tablename__ = "declarations"
    __table_args__ = (
        UniqueConstraint("job_id", "total_epochs"),
        CheckConstraint("number >= 0", name="number"),
        CheckConstraint("total_epochs >= 0", name="total_epochs"),
        CheckConstraint("epoch >= 0", name="epoch"),
        CheckConstraint("progress >= 0", name="progress"),
        CheckConstraint("progress <= 1e18 AND least_total_progress <= 1e27", name="bounds"),
        CheckConstraint("least_total_progress >= 0", name="least_total_progress"),
        {"comment": "Every number of epochs that a job has declared, in the order in which it first did."},
    )

    job_id: Mapped[int] = mapped_column(
        ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True, comment="The job."
    )
    number: Mapped[int] = mapped_column(
        Integer, primary_key=True, autoincrement=False, comment="Which declaration of the job: 0, 1, ..."
    )
    total_epochs: Mapped[int] = mapped_column(BIG_INT, comment="Epochs declared.")
    at: Mapped[datetime] = when("When it was first declared.")
    epoch: Mapped[int] = mapped_column(BIG_INT, comment="The epoch under way then.")
    progress: Mapped[float] = mapped_column(Double, comment="Scale-invariant iterations done then.")
    least_total_progress: Mapped[float | None] = mapped_column(
        Double, comment="Least iterations in all that it ever amounted to; null before the first epoch ended."
    )


class RunNodeRow(Base):
    __tablename__ = "run_nodes"
    __table_args__ = (
        CheckConstraint("node_rank >= 0", name="node_rank"),
        CheckConstraint("num_gpus >= 1", name="num_gpus"),
        {"comment": "GPUs that a run really used on each of its nodes, by node rank."},
    )

    run_id: Mapped[int] = mapped_column(
        ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True, comment="The run."
    )
    node_rank: Mapped[int] = mapped_column(
        Integer, primary_key=True, autoincrement=False, comment="Place of the node in rank order: 0, 1, ..."
    )
    num_gpus: Mapped[int] = mapped_column(Integer, comment="GPUs used there.")


class RunWarningRow(Base):
    __tablename__ = "run_warnings"
    __table_args__ = (
        CheckConstraint("length(warning) BETWEEN 1 AND 64", name="warning"),
        {"comment": "What runs warned of, by name; `pollux explain` says what each means."},
    )

    run_id: Mapped[int] = mapped_column(
        ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True, comment="The run."
    )
    # Any text to the database, so that a new name needs no migration; only known ones are written.
    warning: Mapped[str] = mapped_column(Text, primary_key=True, comment="Name of what it warned of.")
    first_seen_at: Mapped[datetime] = when("When a report of the run first told of it.")


_THETA = ("alpha_g", "beta_g", "alpha_n", "beta_n", "alpha_l", "beta_l", "gamma")


class ModelVersionRow(Base):
    __tablename__ = "model_versions"
    __table_args__ = (
        Index(None, "job_id", "id"),
        Index(None, "job_id", "run_number", "id"),
        CheckConstraint("initial_batch_size >= 1", name="initial_batch_size"),
        CheckConstraint("max_batch_size >= initial_batch_size", name="max_batch_size"),
        CheckConstraint("min_atomic >= 1", name="min_atomic"),
        CheckConstraint("max_atomic >= min_atomic", name="max_atomic"),
        CheckConstraint("(grad_sqr IS NULL) = (grad_var IS NULL)", name="statistics"),
        CheckConstraint("grad_sqr >= 0 AND grad_var >= 0", name="statistics_sign"),
        CheckConstraint(
            " AND ".join(f"({name} IS NULL) = (alpha_g IS NULL)" for name in _THETA[1:]), name="throughput"
        ),
        CheckConstraint(" AND ".join(f"{name} >= 0" for name in _THETA), name="throughput_sign"),
        CheckConstraint("max_gpus_seen >= 0 AND max_nodes_seen >= 0", name="seen"),
        CheckConstraint(
            " AND ".join(f"{name} <= 1e30" for name in ("grad_sqr", "grad_var", "noise_low", "noise_high"))
            + "".join(f" AND {name} <= 1e6" for name in _THETA[:-1])
            + " AND gamma <= 10",
            name="bounds",
        ),
        {"comment": "Goodput models of a job; a row is added only when something in it changed."},
    )

    id: Mapped[int] = mapped_column(BIG_INT, primary_key=True, comment="Number of the version; grows.")
    job_id: Mapped[int] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), comment="The job.")
    at: Mapped[datetime] = when("When it was reported.")
    initial_batch_size: Mapped[int] = mapped_column(BIG_INT, comment="M0, examples.")
    max_batch_size: Mapped[int | None] = mapped_column(
        BIG_INT, comment="Largest global batch allowed, examples; null for always M0."
    )
    min_atomic: Mapped[int] = mapped_column(BIG_INT, comment="Smallest batch per GPU and pass, examples.")
    max_atomic: Mapped[int | None] = mapped_column(
        BIG_INT, comment="Largest batch per GPU and pass, examples; null for no bound."
    )
    accumulation: Mapped[bool] = mapped_column(
        Boolean(create_constraint=True, name="accumulation"), comment="May gradients be accumulated?"
    )
    grad_sqr: Mapped[float | None] = mapped_column(
        Double, comment="Squared norm of the true gradient; null before it is known."
    )
    grad_var: Mapped[float | None] = mapped_column(
        Double, comment="Trace of the gradient's covariance at batch M0; null before it is known."
    )
    alpha_g: Mapped[float | None] = mapped_column(Double, comment="Fixed time of a pass, seconds.")
    beta_g: Mapped[float | None] = mapped_column(Double, comment="Time of a pass per example, seconds.")
    alpha_n: Mapped[float | None] = mapped_column(Double, comment="Synchronisation across nodes, seconds.")
    beta_n: Mapped[float | None] = mapped_column(Double, comment="The same per replica above two, seconds.")
    alpha_l: Mapped[float | None] = mapped_column(Double, comment="Synchronisation on one node, seconds.")
    beta_l: Mapped[float | None] = mapped_column(Double, comment="The same per replica above two, seconds.")
    gamma: Mapped[float | None] = mapped_column(
        Double, comment="Overlap of computation and synchronisation, 1 (none) to 10."
    )
    max_gpus_seen: Mapped[int] = mapped_column(Integer, comment="Most GPUs the job says it has run on.")
    max_nodes_seen: Mapped[int] = mapped_column(Integer, comment="Most nodes the job says it has run on.")
    noise_low: Mapped[float | None] = mapped_column(
        Double, comment="Low end of the noise scale's interval, examples; null where none was told."
    )
    noise_high: Mapped[float | None] = mapped_column(
        Double, comment="Its high end, examples; null where nothing is excluded upwards."
    )
    run_number: Mapped[int | None] = mapped_column(
        Integer, comment="The run that measured it; null where it came with the checkpoint of another."
    )


class SampleRow(Base):
    __tablename__ = "goodput_samples"
    __table_args__ = (
        Index(None, "at"),
        CheckConstraint("sequence >= 0", name="sequence"),
        CheckConstraint(
            "(global_batch_size IS NULL) = (atomic_batch_size IS NULL)"
            " AND (global_batch_size IS NULL) = (accumulation_steps IS NULL)",
            name="batch",
        ),
        CheckConstraint("global_batch_size >= 1", name="global_batch_size"),
        CheckConstraint("atomic_batch_size >= 1", name="atomic_batch_size"),
        CheckConstraint("accumulation_steps >= 0", name="accumulation_steps"),
        CheckConstraint("throughput > 0", name="throughput"),
        CheckConstraint("predicted_throughput > 0", name="predicted_throughput"),
        CheckConstraint("step_time_s > 0", name="step_time_s"),
        # PostgreSQL holds NaN to be above every number: an upper bound keeps out NaN and infinity.
        CheckConstraint(
            "throughput <= 1e12 AND predicted_throughput <= 1e12 AND step_time_s <= 1e7 AND progress <= 1e18",
            name="bounds",
        ),
        CheckConstraint("efficiency > 0 AND efficiency <= 1", name="efficiency"),
        CheckConstraint("progress >= 0", name="progress"),
        CheckConstraint("epoch >= 0", name="epoch"),
        CheckConstraint("total_epochs >= 0", name="total_epochs"),
        {"comment": "What runs measured, a row per report after the start."},
    )

    run_id: Mapped[int] = mapped_column(
        ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True, comment="The run."
    )
    sequence: Mapped[int] = mapped_column(
        BIG_INT, primary_key=True, autoincrement=False, comment="Number of the report within the run."
    )
    at: Mapped[datetime] = when("When it was reported.")
    global_batch_size: Mapped[int | None] = mapped_column(BIG_INT, comment="M, examples per step.")
    atomic_batch_size: Mapped[int | None] = mapped_column(BIG_INT, comment="m, examples per GPU and pass.")
    accumulation_steps: Mapped[int | None] = mapped_column(BIG_INT, comment="s, extra passes per step.")
    throughput: Mapped[float | None] = mapped_column(Double, comment="Measured, examples per second.")
    predicted_throughput: Mapped[float | None] = mapped_column(
        Double, comment="What the model in force predicted for it, examples per second."
    )
    step_time_s: Mapped[float | None] = mapped_column(Double, comment="Mean time of a step, seconds.")
    efficiency: Mapped[float | None] = mapped_column(
        Double, comment="Statistical efficiency, 0 to 1; goodput is throughput times efficiency."
    )
    progress: Mapped[float] = mapped_column(Double, comment="Scale-invariant iterations done.")
    epoch: Mapped[int] = mapped_column(BIG_INT, comment="The epoch under way, from 0.")
    total_epochs: Mapped[int | None] = mapped_column(BIG_INT, comment="Epochs declared; null if none were.")
    num_examples: Mapped[int | None] = mapped_column(
        BIG_INT,
        comment="Examples that the run has processed so far, by its own count; null where it told none.",
    )


class CheckpointRow(Base):
    __tablename__ = "checkpoints"
    __table_args__ = (
        ForeignKeyConstraint(["reallocation_id"], ["reallocations.id"], ondelete="SET NULL"),
        Index("uq_checkpoints_reallocation_id", "reallocation_id", unique=True),
        Index(None, "at"),
        CheckConstraint("sequence >= 0", name="sequence"),
        CheckConstraint("blocked_s >= 0", name="blocked_s"),
        CheckConstraint("blocked_s <= 1e7", name="bounds"),
        CheckConstraint("size_bytes >= 0", name="size_bytes"),
        {"comment": "Checkpoints that runs confirmed."},
    )

    run_id: Mapped[int] = mapped_column(
        ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True, comment="The run."
    )
    sequence: Mapped[int] = mapped_column(
        BIG_INT, primary_key=True, autoincrement=False, comment="Number of the report that confirmed it."
    )
    at: Mapped[datetime] = when("When it was confirmed.")
    reallocation_id: Mapped[int | None] = mapped_column(
        BIG_INT, comment="The reallocation that it let go on; null if it answered none."
    )
    blocked_s: Mapped[float] = mapped_column(Double, comment="How long training stood still, seconds.")
    size_bytes: Mapped[int] = mapped_column(BIG_INT, comment="Size on disk, bytes.")
