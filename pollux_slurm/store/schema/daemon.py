"""Tables that the daemon writes: rounds, decisions, allocations, the journal of reallocations, the lease."""

from __future__ import annotations

import enum
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
    false,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from pollux_slurm.model import ReallocationCause, ReallocationStep, ReallocationWay, SlurmAnswer
from pollux_slurm.store.schema.base import (
    BIG_INT,
    Base,
    bounded,
    checked_enum,
    nullable_time_column,
    time_column,
)


class Side(enum.Enum):
    """Whether a node is in the source or the target of a reallocation, or in what Slurm refused of it."""

    SOURCE = "source"
    TARGET = "target"
    REFUSED = "refused"


class RoundRow(Base):
    __tablename__ = "rounds"
    __table_args__ = (
        Index(None, "at"),
        {"comment": "One row per round that decided, with its problem and decision."},
    )

    id: Mapped[int] = mapped_column(BIG_INT, primary_key=True, comment="The round's number; increases.")
    at: Mapped[datetime] = time_column("When it was decided.")
    shadow: Mapped[bool] = mapped_column(
        Boolean(create_constraint=True, name="shadow"),
        comment="Was it in shadow mode: recorded, not enacted?",
    )
    objective: Mapped[str] = mapped_column(Text, comment="Name of the objective.")
    solver: Mapped[str] = mapped_column(Text, comment="Name of the solver.")
    fitness: Mapped[float] = mapped_column(Double, comment="The objective's value at the decision.")
    problem: Mapped[str] = mapped_column(Text, comment="The problem as versioned JSON, for replays.")
    decision: Mapped[str] = mapped_column(Text, comment="The decision as versioned JSON, for replays.")
    upper_bound: Mapped[float | None] = mapped_column(
        Double,
        comment="Upper bound of the fitness with as many served jobs; null if none was proved.",
    )
    gap: Mapped[float | None] = mapped_column(
        Double, comment="(upper_bound - fitness) / upper_bound; null without a bound."
    )
    timed_out: Mapped[bool] = mapped_column(Boolean, comment="Did the search end at its time limit?")
    num_jobs: Mapped[int] = mapped_column(Integer, comment="Jobs that it decided about.")
    num_served: Mapped[int] = mapped_column(Integer, comment="Jobs that got GPUs.")
    num_gpus: Mapped[int] = mapped_column(Integer, comment="GPUs that it allocated.")
    total_gpus: Mapped[int] = mapped_column(Integer, comment="GPUs that it could allocate.")
    fair_share_gpus: Mapped[int] = mapped_column(
        Integer, comment="Fair share of a job in GPUs, at which speedup is 1."
    )
    mean_speedup: Mapped[float | None] = mapped_column(
        Double, comment="Mean over its jobs of speedup; null without jobs."
    )
    min_speedup: Mapped[float | None] = mapped_column(
        Double, comment="Smallest speedup of its jobs; null without jobs."
    )
    solve_s: Mapped[float | None] = mapped_column(
        Double, comment="Time of the decision, seconds; null where not measured."
    )


class GpuPriceRow(Base):
    __tablename__ = "gpu_prices"
    __table_args__ = ({"comment": "Prices of a round: what one more GPU of a type would have added."},)

    round_id: Mapped[int] = mapped_column(
        ForeignKey("rounds.id", ondelete="CASCADE"), primary_key=True, comment="The round."
    )
    gpu_type: Mapped[str] = mapped_column(Text, primary_key=True, comment="Slurm's name of it; may be empty.")
    price: Mapped[float] = mapped_column(Double, comment="Lagrange multiplier, in units of the objective.")


class DecisionRow(Base):
    __tablename__ = "decisions"
    __table_args__ = (
        Index(None, "job_id", "round_id"),
        CheckConstraint("num_gpus >= 0", name="num_gpus"),
        CheckConstraint("num_nodes >= 0 AND num_nodes <= num_gpus", name="num_nodes"),
        CheckConstraint("(runner_up_gpus IS NULL) = (runner_up_nodes IS NULL)", name="runner_up"),
        {"comment": "The allocation that a round decided for each job, and why."},
    )

    round_id: Mapped[int] = mapped_column(
        ForeignKey("rounds.id", ondelete="CASCADE"), primary_key=True, comment="The round."
    )
    job_id: Mapped[int] = mapped_column(
        ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True, comment="The job."
    )
    num_gpus: Mapped[int] = mapped_column(Integer, comment="GPUs allocated in all.")
    num_nodes: Mapped[int] = mapped_column(Integer, comment="Nodes of these GPUs.")
    speedup: Mapped[float] = mapped_column(
        Double, comment="Predicted goodput over that at the job's fair share."
    )
    goodput: Mapped[float | None] = mapped_column(
        Double, comment="Predicted goodput, examples per second; null without a model."
    )
    one_gpu_goodput: Mapped[float | None] = mapped_column(
        Double, comment="Predicted best goodput on one GPU; null without a model of throughput."
    )
    penalty: Mapped[float] = mapped_column(Double, comment="Restart penalty applied, 0 to 1; 1 is none.")
    bound_by: Mapped[str] = mapped_column(String(32), comment="The limit that kept the job from more GPUs.")
    runner_up_gpus: Mapped[int | None] = mapped_column(
        Integer, comment="GPUs of the second-best configuration."
    )
    runner_up_nodes: Mapped[int | None] = mapped_column(
        Integer, comment="Nodes of the second-best configuration."
    )
    runner_up_speedup: Mapped[float | None] = mapped_column(Double, comment="Speedup in that configuration.")
    runner_up_gpu_type: Mapped[str | None] = mapped_column(Text, comment="GPU type of that configuration.")
    runner_up_cost: Mapped[float | None] = mapped_column(
        Double, comment="What it would have cost other jobs beyond `cost`, in units of the objective."
    )
    cost: Mapped[float | None] = mapped_column(
        Double, comment="Cost of these GPUs to other jobs at the round's prices, in units of the objective."
    )
    gpu_type: Mapped[str | None] = mapped_column(
        Text, comment="Type of these GPUs; null for none, several types or nameless ones."
    )
    global_batch_size: Mapped[int | None] = mapped_column(
        BIG_INT, comment="Predicted best M, examples per step; null without a model."
    )
    atomic_batch_size: Mapped[int | None] = mapped_column(
        BIG_INT, comment="Its m, examples of a micro-batch."
    )
    accumulation_steps: Mapped[int | None] = mapped_column(
        BIG_INT, comment="Its s, accumulation steps per step."
    )
    declared_gain: Mapped[float | None] = mapped_column(
        Double,
        comment="Factor by which the declared epochs changed the weight; null where they did not count.",
    )
    declaration_doubt: Mapped[str | None] = mapped_column(
        Text, comment="Why the declared epochs did not count; null where they did."
    )
    pinned_reason: Mapped[str | None] = mapped_column(
        Text, comment="Why the job had to keep its allocation; null where it could change."
    )
    excluded_reason: Mapped[str | None] = mapped_column(
        Text, comment="Why the job was excluded; null when it took part."
    )
    explanation: Mapped[str] = mapped_column(Text, comment="The decision and its reasons in one line.")


class DecisionNodeRow(Base):
    __tablename__ = "decision_nodes"
    __table_args__ = (
        ForeignKeyConstraint(
            ["round_id", "job_id"], ["decisions.round_id", "decisions.job_id"], ondelete="CASCADE"
        ),
        CheckConstraint("num_gpus >= 1", name="num_gpus"),
        {"comment": "GPUs of a decision on each node."},
    )

    round_id: Mapped[int] = mapped_column(
        BIG_INT, primary_key=True, autoincrement=False, comment="The round."
    )
    job_id: Mapped[int] = mapped_column(BIG_INT, primary_key=True, autoincrement=False, comment="The job.")
    node_name: Mapped[str] = mapped_column(Text, primary_key=True, comment="The node.")
    num_gpus: Mapped[int] = mapped_column(Integer, comment="GPUs there.")


class AllocationRow(Base):
    __tablename__ = "allocations"
    __table_args__ = (
        CheckConstraint("number >= 0", name="number"),
        CheckConstraint("ended_at >= started_at", name="ended_at"),
        Index(
            "uq_allocations_open",
            "job_id",
            unique=True,
            sqlite_where=text("ended_at IS NULL"),
            postgresql_where=text("ended_at IS NULL"),
        ),
        Index(None, "started_at"),
        {"comment": "Allocation intervals: times in which a job has one allocation."},
    )

    job_id: Mapped[int] = mapped_column(
        ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True, comment="The job."
    )
    number: Mapped[int] = mapped_column(
        Integer,
        primary_key=True,
        autoincrement=False,
        comment="Number of the interval within the job: 0, 1, ...",
    )
    started_at: Mapped[datetime] = time_column("When the interval began.")
    ended_at: Mapped[datetime | None] = nullable_time_column("When it ended; null while it lasts.")
    restart_count: Mapped[int | None] = mapped_column(
        Integer, comment="Slurm's restart count of its run; null where unknown."
    )
    estimated: Mapped[bool] = mapped_column(
        Boolean,
        server_default=false(),
        comment="Is its begin or end an estimate, because Slurm does not show it?",
    )


class AllocationNodeRow(Base):
    __tablename__ = "allocation_nodes"
    __table_args__ = (
        ForeignKeyConstraint(
            ["job_id", "number"], ["allocations.job_id", "allocations.number"], ondelete="CASCADE"
        ),
        Index(None, "node_name"),
        CheckConstraint("num_gpus >= 1", name="num_gpus"),
        {"comment": "GPUs on each node in an allocation interval."},
    )

    job_id: Mapped[int] = mapped_column(BIG_INT, primary_key=True, autoincrement=False, comment="The job.")
    number: Mapped[int] = mapped_column(
        Integer, primary_key=True, autoincrement=False, comment="Number of the interval within the job."
    )
    node_name: Mapped[str] = mapped_column(Text, primary_key=True, comment="The node.")
    num_gpus: Mapped[int] = mapped_column(Integer, comment="GPUs there.")


_ENDS = "('confirmed', 'rolled_back', 'failed')"


def _flag(name: str, comment: str) -> Mapped[bool]:
    return mapped_column(Boolean(create_constraint=True, name=name), server_default=false(), comment=comment)


class ReallocationRow(Base):
    __tablename__ = "reallocations"
    __table_args__ = (
        Index(
            "uq_reallocations_open",
            "job_id",
            unique=True,
            sqlite_where=text(f"step NOT IN {_ENDS}"),
            postgresql_where=text(f"step NOT IN {_ENDS}"),
        ),
        Index(None, "job_id", "id"),
        CheckConstraint("from_restart_count >= 0", name="from_restart_count"),
        *bounded("generation"),
        {"comment": "Reallocations: the daemon's journal."},
    )

    id: Mapped[int] = mapped_column(BIG_INT, primary_key=True, comment="The reallocation's id; increases.")
    job_id: Mapped[int] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), comment="The job.")
    round_id: Mapped[int | None] = mapped_column(
        ForeignKey("rounds.id", ondelete="SET NULL"), index=True, comment="The round that decided it."
    )
    step: Mapped[ReallocationStep] = mapped_column(
        checked_enum(ReallocationStep, "step"), comment="Its current step."
    )
    moves_running: Mapped[bool] = mapped_column(
        Boolean(create_constraint=True, name="moves_running"),
        comment="Is a running job moved, rather than a waiting one reshaped?",
    )
    from_restart_count: Mapped[int] = mapped_column(
        Integer, comment="Slurm's restart count of the job when it was planned."
    )
    cause: Mapped[ReallocationCause] = mapped_column(
        checked_enum(ReallocationCause, "cause"), comment="Why it was planned."
    )
    checkpoint_waived: Mapped[bool] = _flag(
        "checkpoint_waived", "Did it proceed without a confirmed checkpoint?"
    )
    retargeted: Mapped[bool] = _flag(
        "retargeted", "Did it get another target, because other jobs took the first?"
    )
    continued_training: Mapped[bool] = _flag(
        "continued_training",
        "Did the job go on training after the checkpoint it confirmed, so that it was not moved?",
    )
    job_failed: Mapped[bool] = _flag("job_failed", "Did the job fail in the target, before its first step?")
    taken_over: Mapped[bool] = _flag(
        "taken_over", "Did a daemon repeat a command of it that the previous daemon may still give?"
    )
    reason: Mapped[str | None] = mapped_column(
        Text,
        comment="Why it was planned and how it ended, for people; null where a round decided.",
    )
    time_left_s: Mapped[float | None] = mapped_column(
        Double, comment="What was left of the time limit at the requeue, seconds; null for no limit."
    )
    way: Mapped[ReallocationWay] = mapped_column(
        checked_enum(ReallocationWay, "way"),
        server_default=ReallocationWay.REQUEUE.value,
        comment="How it moves the job: by requeue or in_place.",
    )
    generation: Mapped[int | None] = mapped_column(
        Integer, comment="Number of the generation that it last asked for; null before the first."
    )
    refused: Mapped[SlurmAnswer | None] = mapped_column(
        checked_enum(SlurmAnswer, "refused"),
        comment="What Slurm answered to its target, where it refused it: never or not_now.",
    )
    refused_at: Mapped[datetime | None] = nullable_time_column(
        "When Slurm refused it; null where it did not."
    )
    refused_reason: Mapped[str | None] = mapped_column(Text, comment="Slurm's own words for that.")
    refused_request: Mapped[str | None] = mapped_column(
        Text, comment="The job's request then, without its size: the refusal ends when it changes."
    )
    priority: Mapped[int | None] = mapped_column(
        BIG_INT, comment="The priority that it gave the job to keep its place; null for none."
    )
    priority_ended_at: Mapped[datetime | None] = nullable_time_column(
        "When that priority was taken off; null while it may last."
    )


class ReallocationNodeRow(Base):
    __tablename__ = "reallocation_nodes"
    __table_args__ = (
        CheckConstraint("num_gpus >= 1", name="num_gpus"),
        {"comment": "GPUs per node before (source) and after (target) a move, and what Slurm refused."},
    )

    reallocation_id: Mapped[int] = mapped_column(
        ForeignKey("reallocations.id", ondelete="CASCADE"), primary_key=True, comment="The reallocation."
    )
    side: Mapped[Side] = mapped_column(
        checked_enum(Side, "side"), primary_key=True, comment="source, target or refused."
    )
    node_name: Mapped[str] = mapped_column(Text, primary_key=True, comment="The node.")
    num_gpus: Mapped[int] = mapped_column(Integer, comment="GPUs there.")


class ReallocationStepRow(Base):
    __tablename__ = "reallocation_steps"
    __table_args__ = (
        Index(None, "step", "at"),
        Index(None, "at"),
        {"comment": "When a reallocation entered each of its steps."},
    )

    reallocation_id: Mapped[int] = mapped_column(
        ForeignKey("reallocations.id", ondelete="CASCADE"), primary_key=True, comment="The reallocation."
    )
    step: Mapped[ReallocationStep] = mapped_column(
        checked_enum(ReallocationStep, "step"), primary_key=True, comment="The step."
    )
    at: Mapped[datetime] = time_column("When it was journaled.")


class LeaseRow(Base):
    __tablename__ = "leases"
    __table_args__ = ({"comment": "The right to act, which one daemon has at a time."},)

    name: Mapped[str] = mapped_column(String(32), primary_key=True, comment="What the lease is for.")
    owner: Mapped[str] = mapped_column(Text, comment="The daemon that has it.")
    renewed_at: Mapped[datetime] = time_column("When this owner acquired or last renewed it.")
    expires_at: Mapped[datetime] = time_column("When it expires unless renewed.")
    interval_s: Mapped[float | None] = mapped_column(
        Double, comment="Longest time between its rounds, seconds; null where not recorded."
    )
    watch_s: Mapped[float | None] = mapped_column(
        Double, comment="Interval at which it polls Slurm, seconds; null where not recorded."
    )
