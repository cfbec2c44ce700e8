"""Tables about jobs: users, jobs, runs, model versions, goodput samples, checkpoints."""

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

from pollux_slurm.model import JobState, PromiseState
from pollux_slurm.store.contract.interface import RunPhase
from pollux_slurm.store.schema.base import (
    BIG_INT,
    Base,
    bounded,
    checked_enum,
    nullable_time_column,
    time_column,
)

_OVER = "('completed', 'failed', 'cancelled', 'timeout')"


class UserRow(Base):
    __tablename__ = "users"
    __table_args__ = (
        CheckConstraint("user_id >= 0", name="user_id"),
        {"comment": "Owners of jobs, as Slurm authenticated them."},
    )

    user_id: Mapped[int] = mapped_column(
        BIG_INT, primary_key=True, autoincrement=False, comment="Unix user id."
    )
    user_name: Mapped[str] = mapped_column(Text, comment="Login name last seen with this id.")


class AccountRow(Base):
    __tablename__ = "accounts"
    __table_args__ = ({"comment": "Slurm accounts that jobs are charged to."},)

    account: Mapped[str] = mapped_column(Text, primary_key=True, comment="Slurm's name of it; may be empty.")
    first_seen_at: Mapped[datetime] = time_column("When the daemon first read a job of it.")


class JobRow(Base):
    __tablename__ = "jobs"
    __table_args__ = (
        CheckConstraint("length(token_sha256) = 64", name="token_sha256"),
        # Unique per user: hashes are public, and a copied one must not block its owner's job.
        UniqueConstraint("token_sha256", "user_id"),
        CheckConstraint("min_gpus >= 1", name="min_gpus"),
        CheckConstraint("max_gpus IS NULL OR max_gpus >= min_gpus", name="max_gpus"),
        CheckConstraint("cpus_per_gpu >= 0", name="cpus_per_gpu"),
        CheckConstraint("memory_per_gpu_mb >= 0", name="memory_per_gpu_mb"),
        CheckConstraint(f"(finished_at IS NOT NULL) = (state IN {_OVER})", name="finished_at"),
        # slurmctld may start its job ids anew: only one unfinished job may have an id.
        Index(
            "uq_jobs_unfinished_slurm_job_id",
            "slurm_job_id",
            unique=True,
            sqlite_where=text("finished_at IS NULL"),
            postgresql_where=text("finished_at IS NULL"),
        ),
        Index(None, "slurm_job_id", "id"),
        Index(None, "user_id", "submitted_at"),
        Index(None, "kind", "id"),
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

    id: Mapped[int] = mapped_column(BIG_INT, primary_key=True, comment="This database's id of the job.")
    slurm_job_id: Mapped[str] = mapped_column(String(64), comment="Slurm's job id as text.")
    first_job_id: Mapped[int | None] = mapped_column(
        BIG_INT,
        index=True,
        comment="First row of the same submission, whose token its owner replaced; null for the first.",
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
    min_gpus: Mapped[int] = mapped_column(Integer, comment="Fewest GPUs that it can be given.")
    max_gpus: Mapped[int | None] = mapped_column(Integer, comment="Most GPUs; null for no bound.")
    allow_unconfirmed: Mapped[bool] = mapped_column(
        Boolean(create_constraint=True, name="allow_unconfirmed"),
        comment="May it be requeued when its checkpoint was not confirmed in time?",
    )
    in_place: Mapped[bool] = mapped_column(
        Boolean(create_constraint=True, name="in_place"),
        server_default=false(),
        comment="Does it move in place, its GPUs in jobs of their own?",
    )
    cpus_per_gpu: Mapped[int] = mapped_column(Integer, comment="CPUs that come with each GPU.")
    memory_per_gpu_mb: Mapped[int] = mapped_column(
        BIG_INT, comment="Memory that comes with each GPU, in MiB."
    )
    state: Mapped[JobState] = mapped_column(
        checked_enum(JobState, "state"), comment="State in the last snapshot of Slurm."
    )
    submitted_at: Mapped[datetime] = time_column("When it was first submitted.")
    registered_at: Mapped[datetime] = time_column("When the daemon registered it.")
    started_at: Mapped[datetime | None] = nullable_time_column("When it first started; null before.")
    finished_at: Mapped[datetime | None] = nullable_time_column(
        "When the job ended; null while it is not over."
    )
    time_limit_s: Mapped[float | None] = mapped_column(
        Double, comment="Time limit of one run when it was registered, seconds; null for none, or unknown."
    )
    required_nodes: Mapped[str | None] = mapped_column(
        Text, comment="Nodes that its owner named, separated by commas; null for none."
    )
    submitted_gpus: Mapped[int | None] = mapped_column(
        Integer, comment="GPUs that its owner submitted it with; null where unknown."
    )
    kind: Mapped[str | None] = mapped_column(
        String(32), comment="What it trains: its owner's name for it, or a digest; null for none."
    )
    finish_by: Mapped[datetime | None] = nullable_time_column(
        "When its owner wants it finished; null for no wish."
    )
    promise: Mapped[PromiseState | None] = mapped_column(
        checked_enum(PromiseState, "promise"), comment="The last round's answer to that; null before one."
    )
    promise_gpus: Mapped[int | None] = mapped_column(
        Integer, comment="Fewest GPUs that keep an accepted promise now; null for any other answer."
    )
    promise_finish_at: Mapped[datetime | None] = nullable_time_column(
        "When it is finished with these, in nine of ten cases; of a refused one the earliest; or null."
    )
    promise_reason: Mapped[str | None] = mapped_column(
        Text, comment="What the answer lacks, or why the promise ended; null for neither."
    )
    fitting_atomic: Mapped[int | None] = mapped_column(
        BIG_INT,
        comment="Largest micro-batch that fits into memory by jobs of its kind, examples; null: unknown.",
    )
    not_moved_reason: Mapped[str | None] = mapped_column(
        Text, comment="Why the last round could not move it; null when it could."
    )
    estimated: Mapped[bool] = mapped_column(
        Boolean,
        server_default=false(),
        comment="Is an interval of it, or its end, an estimate, because Slurm's records lack it?",
    )


class RunRow(Base):
    __tablename__ = "runs"
    __table_args__ = (
        UniqueConstraint("job_id", "run_number"),
        *bounded("run_number", "restart_count", "num_steps", "first_step_s", "restore_s"),
        *bounded(last_sequence="sequence"),
        CheckConstraint("last_report_at >= first_report_at", name="last_report_at"),
        CheckConstraint("(first_step_s IS NULL) = (first_step_at IS NULL)", name="first_step_at"),
        Index(None, "first_report_at"),
        {"comment": "Runs: one row per start of a job that reported."},
    )

    id: Mapped[int] = mapped_column(BIG_INT, primary_key=True, comment="This database's id of the run.")
    job_id: Mapped[int] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), comment="The job.")
    run_number: Mapped[int] = mapped_column(
        Integer, comment="The run's number in its checkpoint directory: 0, 1, ..."
    )
    restart_count: Mapped[int] = mapped_column(Integer, comment="Slurm's restart count during the run.")
    phase: Mapped[RunPhase] = mapped_column(
        checked_enum(RunPhase, "phase"), comment="Phase of the run at its last report."
    )
    first_report_at: Mapped[datetime] = time_column("When its first report came.")
    last_report_at: Mapped[datetime] = time_column("When its last report came.")
    last_sequence: Mapped[int] = mapped_column(BIG_INT, comment="Sequence number of its last report.")
    num_steps: Mapped[int] = mapped_column(BIG_INT, comment="Optimizer steps as last reported.")
    first_step_s: Mapped[float | None] = mapped_column(
        Double, comment="Process start to the end of the first optimizer step, seconds; null before."
    )
    first_step_at: Mapped[datetime | None] = nullable_time_column("When that step was first reported.")
    restore_s: Mapped[float | None] = mapped_column(
        Double, comment="Part of it spent reading the checkpoint, seconds."
    )
    gpu_type: Mapped[str | None] = mapped_column(
        Text, comment="Slurm's type of the GPUs it ran on; null if unknown, nameless or of several types."
    )


class DeclarationRow(Base):
    __tablename__ = "declarations"
    __table_args__ = (
        UniqueConstraint("job_id", "total_epochs"),
        CheckConstraint("number >= 0", name="number"),
        *bounded("total_epochs", "epoch", "progress"),
        CheckConstraint("least_total_progress BETWEEN 0 AND 1e27", name="least_total_progress"),
        {"comment": "Every total number of epochs that a job has declared, in order."},
    )

    job_id: Mapped[int] = mapped_column(
        ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True, comment="The job."
    )
    number: Mapped[int] = mapped_column(
        Integer,
        primary_key=True,
        autoincrement=False,
        comment="Number of the declaration within the job: 0, 1, ...",
    )
    total_epochs: Mapped[int] = mapped_column(BIG_INT, comment="Epochs declared.")
    at: Mapped[datetime] = time_column("When it was first declared.")
    epoch: Mapped[int] = mapped_column(BIG_INT, comment="The current epoch then.")
    progress: Mapped[float] = mapped_column(Double, comment="Progress until then, in units of M0.")
    least_total_progress: Mapped[float | None] = mapped_column(
        Double,
        comment="Smallest progress * total / epoch of any report since; null before the first epoch ended.",
    )


class RunNodeRow(Base):
    __tablename__ = "run_nodes"
    __table_args__ = (
        *bounded("node_rank", "num_gpus"),
        {"comment": "GPUs that a run uses on each of its nodes, by node rank."},
    )

    run_id: Mapped[int] = mapped_column(
        ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True, comment="The run."
    )
    node_rank: Mapped[int] = mapped_column(
        Integer, primary_key=True, autoincrement=False, comment="Rank of the node: 0, 1, ..."
    )
    num_gpus: Mapped[int] = mapped_column(Integer, comment="GPUs used there.")


class RunWarningRow(Base):
    __tablename__ = "run_warnings"
    __table_args__ = (
        CheckConstraint("length(warning) BETWEEN 1 AND 64", name="warning"),
        {"comment": "Warnings of runs, by name; `pollux explain` explains each."},
    )

    run_id: Mapped[int] = mapped_column(
        ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True, comment="The run."
    )
    # Text, so that a new name needs no migration; only known names are written.
    warning: Mapped[str] = mapped_column(Text, primary_key=True, comment="Name of the warning.")
    first_seen_at: Mapped[datetime] = time_column("When a report of the run first had it.")


_THETA = ("alpha_g", "beta_g", "alpha_n", "beta_n", "alpha_l", "beta_l", "gamma")


class ModelVersionRow(Base):
    __tablename__ = "model_versions"
    __table_args__ = (
        Index(None, "job_id", "id"),
        Index(None, "job_id", "run_number", "id"),
        # What `goodput.checks` asks of a model, so that no client can store another.
        CheckConstraint("initial_batch_size BETWEEN 1 AND 1000000000", name="initial_batch_size"),
        CheckConstraint("max_batch_size BETWEEN initial_batch_size AND 1000000000", name="max_batch_size"),
        CheckConstraint(
            "min_atomic BETWEEN 1 AND COALESCE(max_batch_size, initial_batch_size)", name="min_atomic"
        ),
        CheckConstraint("max_atomic BETWEEN min_atomic AND 1000000000", name="max_atomic"),
        CheckConstraint("(grad_sqr IS NULL) = (grad_var IS NULL)", name="statistics"),
        CheckConstraint("grad_sqr BETWEEN 0 AND 1e30", name="grad_sqr"),
        CheckConstraint("grad_var BETWEEN 0 AND 1e30", name="grad_var"),
        CheckConstraint("noise_low BETWEEN 0 AND 1e30", name="noise_low"),
        # Without a low end there is no interval at all, and nothing that a high one would be above.
        CheckConstraint("noise_high BETWEEN COALESCE(noise_low, 1e30) AND 1e30", name="noise_high"),
        CheckConstraint(
            " AND ".join(f"({name} IS NULL) = (alpha_g IS NULL)" for name in _THETA[1:]), name="throughput"
        ),
        *(CheckConstraint(f"{name} BETWEEN 0 AND 1e6", name=name) for name in _THETA[:-1]),
        CheckConstraint("gamma BETWEEN 1 AND 10", name="gamma"),
        CheckConstraint("alpha_g + beta_g >= 1e-9", name="time_per_example"),
        CheckConstraint("max_gpus_seen BETWEEN 0 AND 1000000", name="max_gpus_seen"),
        CheckConstraint("max_nodes_seen BETWEEN 0 AND max_gpus_seen", name="max_nodes_seen"),
        CheckConstraint("failed_atomic BETWEEN 2 AND 1000000000", name="failed_atomic"),
        CheckConstraint("num_parameters BETWEEN 1 AND 1000000000000000", name="num_parameters"),
        CheckConstraint("length(precision) BETWEEN 1 AND 32", name="precision"),
        {"comment": "Goodput models of a job; a row is added only when something in it changed."},
    )

    id: Mapped[int] = mapped_column(BIG_INT, primary_key=True, comment="Id of the version; increases.")
    job_id: Mapped[int] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), comment="The job.")
    at: Mapped[datetime] = time_column("When it was reported.")
    initial_batch_size: Mapped[int] = mapped_column(BIG_INT, comment="M0, examples.")
    max_batch_size: Mapped[int | None] = mapped_column(
        BIG_INT, comment="Largest global batch allowed, examples; null for always M0."
    )
    min_atomic: Mapped[int] = mapped_column(BIG_INT, comment="Smallest micro-batch, examples.")
    max_atomic: Mapped[int | None] = mapped_column(
        BIG_INT, comment="Largest micro-batch, examples; null for no bound."
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
    alpha_g: Mapped[float | None] = mapped_column(Double, comment="Fixed time of a micro-batch, seconds.")
    beta_g: Mapped[float | None] = mapped_column(
        Double, comment="Time of a micro-batch per example, seconds."
    )
    alpha_n: Mapped[float | None] = mapped_column(Double, comment="Synchronisation across nodes, seconds.")
    beta_n: Mapped[float | None] = mapped_column(Double, comment="The same per replica above two, seconds.")
    alpha_l: Mapped[float | None] = mapped_column(Double, comment="Synchronisation on one node, seconds.")
    beta_l: Mapped[float | None] = mapped_column(Double, comment="The same per replica above two, seconds.")
    gamma: Mapped[float | None] = mapped_column(
        Double, comment="Overlap of computation and synchronisation, 1 (none) to 10."
    )
    max_gpus_seen: Mapped[int] = mapped_column(
        Integer, comment="Most GPUs that the job reports to have run on."
    )
    max_nodes_seen: Mapped[int] = mapped_column(
        Integer, comment="Most nodes that the job reports to have run on."
    )
    noise_low: Mapped[float | None] = mapped_column(
        Double, comment="Low end of the noise scale's confidence interval, examples; null where not reported."
    )
    noise_high: Mapped[float | None] = mapped_column(
        Double, comment="Its high end, examples; null where unbounded."
    )
    run_number: Mapped[int | None] = mapped_column(
        Integer, comment="The run that measured it; null where it came from the checkpoint of another run."
    )
    failed_atomic: Mapped[int | None] = mapped_column(
        BIG_INT, comment="Smallest micro-batch that ran out of memory, examples; null for none."
    )
    num_parameters: Mapped[int | None] = mapped_column(
        BIG_INT, comment="Parameters that are trained; null where not reported."
    )
    precision: Mapped[str | None] = mapped_column(
        Text, comment="Type of numbers that it computes with, as PyTorch names it; null where not reported."
    )


class SampleRow(Base):
    __tablename__ = "goodput_samples"
    __table_args__ = (
        Index(None, "at"),
        *bounded("sequence", "global_batch_size", "atomic_batch_size", "accumulation_steps"),
        *bounded("throughput", "predicted_throughput", "step_time_s", "efficiency"),
        *bounded("progress", "epoch", "total_epochs", "num_examples"),
        CheckConstraint(
            "(global_batch_size IS NULL) = (atomic_batch_size IS NULL)"
            " AND (global_batch_size IS NULL) = (accumulation_steps IS NULL)",
            name="batch",
        ),
        {"comment": "Measurements of runs: one row per report after the first step."},
    )

    run_id: Mapped[int] = mapped_column(
        ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True, comment="The run."
    )
    sequence: Mapped[int] = mapped_column(
        BIG_INT,
        primary_key=True,
        autoincrement=False,
        comment="Sequence number of the report within the run.",
    )
    at: Mapped[datetime] = time_column("When it was reported.")
    global_batch_size: Mapped[int | None] = mapped_column(BIG_INT, comment="M, examples per step.")
    atomic_batch_size: Mapped[int | None] = mapped_column(BIG_INT, comment="m, examples of a micro-batch.")
    accumulation_steps: Mapped[int | None] = mapped_column(BIG_INT, comment="s, accumulation steps per step.")
    throughput: Mapped[float | None] = mapped_column(Double, comment="Measured, examples per second.")
    predicted_throughput: Mapped[float | None] = mapped_column(
        Double, comment="Predicted by the current model, examples per second."
    )
    step_time_s: Mapped[float | None] = mapped_column(Double, comment="Mean time of a step, seconds.")
    efficiency: Mapped[float | None] = mapped_column(
        Double, comment="Statistical efficiency, 0 to 1; goodput is throughput times efficiency."
    )
    progress: Mapped[float] = mapped_column(Double, comment="Progress, in units of M0.")
    epoch: Mapped[int] = mapped_column(BIG_INT, comment="The current epoch, from 0.")
    total_epochs: Mapped[int | None] = mapped_column(
        BIG_INT, comment="Declared number of epochs; null if none."
    )
    num_examples: Mapped[int | None] = mapped_column(
        BIG_INT,
        comment="Examples that the run has processed so far, by its own count; null where it reports none.",
    )


class CheckpointRow(Base):
    __tablename__ = "checkpoints"
    __table_args__ = (
        ForeignKeyConstraint(["reallocation_id"], ["reallocations.id"], ondelete="SET NULL"),
        Index("uq_checkpoints_reallocation_id", "reallocation_id", unique=True),
        Index(None, "at"),
        *bounded("sequence", "blocked_s", "size_bytes"),
        {"comment": "Checkpoints that runs confirmed."},
    )

    run_id: Mapped[int] = mapped_column(
        ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True, comment="The run."
    )
    sequence: Mapped[int] = mapped_column(
        BIG_INT,
        primary_key=True,
        autoincrement=False,
        comment="Sequence number of the report that confirmed it.",
    )
    at: Mapped[datetime] = time_column("When it was confirmed.")
    reallocation_id: Mapped[int | None] = mapped_column(
        BIG_INT, comment="The reallocation whose request it answered; null for none."
    )
    blocked_s: Mapped[float] = mapped_column(Double, comment="How long it blocked training, seconds.")
    size_bytes: Mapped[int] = mapped_column(BIG_INT, comment="Size on disk, bytes.")
