"""Tables that the daemon fills: rounds and decisions, allocations, the journal of reallocations, leases."""

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

from pollux_slurm.model import ReallocationCause, ReallocationStep
from pollux_slurm.store.schema.base import BIG_INT, Base, checked_enum, maybe_when, when


class Side(enum.Enum):
    """Which end of a reallocation a node stands at."""

    SOURCE = "source"
    TARGET = "target"


class RoundRow(Base):
    __tablename__ = "rounds"
    __table_args__ = (
        Index(None, "at"),
        {"comment": "One row per round that decided, with all that it was made from."},
    )

    id: Mapped[int] = mapped_column(BIG_INT, primary_key=True, comment="The round's number; grows.")
    at: Mapped[datetime] = when("When it was decided.")
    shadow: Mapped[bool] = mapped_column(
        Boolean(create_constraint=True, name="shadow"), comment="Was it only recorded, not enacted?"
    )
    objective: Mapped[str] = mapped_column(Text, comment="Name of the objective.")
    solver: Mapped[str] = mapped_column(Text, comment="Which solver answered.")
    fitness: Mapped[float] = mapped_column(Double, comment="The objective's value at the decision.")
    problem: Mapped[str] = mapped_column(Text, comment="The problem as versioned JSON, for replays.")
    decision: Mapped[str] = mapped_column(Text, comment="The decision as versioned JSON, for replays.")
    upper_bound: Mapped[float | None] = mapped_column(
        Double, comment="No decision that serves as many jobs has a larger value; null if none was proved."
    )
    gap: Mapped[float | None] = mapped_column(
        Double, comment="(upper_bound - fitness) / upper_bound; null without a bound."
    )
    timed_out: Mapped[bool] = mapped_column(Boolean, comment="Did the time limit cut the search short?")
    num_jobs: Mapped[int] = mapped_column(Integer, comment="Jobs that it decided about.")
    num_served: Mapped[int] = mapped_column(Integer, comment="Those of them that got GPUs.")
    num_gpus: Mapped[int] = mapped_column(Integer, comment="GPUs that it gave.")
    total_gpus: Mapped[int] = mapped_column(Integer, comment="GPUs that it had to give.")
    fair_share_gpus: Mapped[int] = mapped_column(Integer, comment="GPUs that stand for a speedup of 1.")
    mean_speedup: Mapped[float | None] = mapped_column(
        Double, comment="Mean over its jobs of speedup; null without jobs."
    )
    min_speedup: Mapped[float | None] = mapped_column(
        Double, comment="Least speedup of its jobs; null without jobs."
    )
    solve_s: Mapped[float | None] = mapped_column(
        Double, comment="How long deciding took, seconds; null where that was not measured."
    )


class GpuPriceRow(Base):
    __tablename__ = "gpu_prices"
    __table_args__ = ({"comment": "What one more GPU of a type would have added to a round's objective."},)

    round_id: Mapped[int] = mapped_column(
        ForeignKey("rounds.id", ondelete="CASCADE"), primary_key=True, comment="The round."
    )
    gpu_type: Mapped[str] = mapped_column(Text, primary_key=True, comment="Slurm's name of it; may be empty.")
    price: Mapped[float] = mapped_column(Double, comment="Shadow price, in the objective's sum.")


class DecisionRow(Base):
    __tablename__ = "decisions"
    __table_args__ = (
        Index(None, "job_id", "round_id"),
        CheckConstraint("num_gpus >= 0", name="num_gpus"),
        CheckConstraint("num_nodes >= 0 AND num_nodes <= num_gpus", name="num_nodes"),
        CheckConstraint("(runner_up_gpus IS NULL) = (runner_up_nodes IS NULL)", name="runner_up"),
        {"comment": "What a round gave to each job, and why."},
    )

    round_id: Mapped[int] = mapped_column(
        ForeignKey("rounds.id", ondelete="CASCADE"), primary_key=True, comment="The round."
    )
    job_id: Mapped[int] = mapped_column(
        ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True, comment="The job."
    )
    num_gpus: Mapped[int] = mapped_column(Integer, comment="GPUs given in all.")
    num_nodes: Mapped[int] = mapped_column(Integer, comment="Nodes they lie on.")
    speedup: Mapped[float] = mapped_column(
        Double, comment="Predicted goodput over that at the job's fair share."
    )
    goodput: Mapped[float | None] = mapped_column(
        Double, comment="Predicted goodput, examples per second; null without a model."
    )
    single_goodput: Mapped[float | None] = mapped_column(
        Double, comment="Predicted best goodput on one GPU; null without a model of throughput."
    )
    penalty: Mapped[float] = mapped_column(Double, comment="Restart penalty applied, 0 to 1; 1 is none.")
    bound_by: Mapped[str] = mapped_column(String(32), comment="What kept the job from more.")
    runner_up_gpus: Mapped[int | None] = mapped_column(Integer, comment="GPUs of the next best size.")
    runner_up_nodes: Mapped[int | None] = mapped_column(Integer, comment="Nodes of the next best size.")
    runner_up_speedup: Mapped[float | None] = mapped_column(Double, comment="Speedup at that size.")
    runner_up_gpu_type: Mapped[str | None] = mapped_column(Text, comment="Type of the GPUs of that size.")
    runner_up_cost: Mapped[float | None] = mapped_column(
        Double, comment="What others would have paid for it beyond cost, in the objective's sum."
    )
    cost: Mapped[float | None] = mapped_column(
        Double, comment="What others pay for these GPUs at the round's prices."
    )
    gpu_type: Mapped[str | None] = mapped_column(
        Text, comment="Type of the GPUs given; null for none, several or a nameless one."
    )
    global_batch_size: Mapped[int | None] = mapped_column(
        BIG_INT, comment="Predicted best M, examples per step; null without a model."
    )
    atomic_batch_size: Mapped[int | None] = mapped_column(BIG_INT, comment="Its m, per GPU and pass.")
    accumulation_steps: Mapped[int | None] = mapped_column(BIG_INT, comment="Its s, extra passes per step.")
    declared_gain: Mapped[float | None] = mapped_column(
        Double, comment="Factor by which what the job declares changed its weight; null where it counts not."
    )
    declaration_doubt: Mapped[str | None] = mapped_column(
        Text, comment="Why what the job declares did not count; null where it did."
    )
    pinned_because: Mapped[str | None] = mapped_column(
        Text, comment="Why the job had to stay as it was; null where it had not, or nobody said."
    )
    excluded: Mapped[str | None] = mapped_column(
        Text, comment="Why the job was left as it is; null when it took part."
    )
    explanation: Mapped[str] = mapped_column(Text, comment="All of this in one line.")


class DecisionNodeRow(Base):
    __tablename__ = "decision_nodes"
    __table_args__ = (
        ForeignKeyConstraint(
            ["round_id", "job_id"], ["decisions.round_id", "decisions.job_id"], ondelete="CASCADE"
        ),
        CheckConstraint("num_gpus >= 1", name="num_gpus"),
        {"comment": "Where the GPUs of a decision lie."},
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
        {"comment": "Stretches of time during which a job held the same GPUs."},
    )

    job_id: Mapped[int] = mapped_column(
        ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True, comment="The job."
    )
    number: Mapped[int] = mapped_column(
        Integer, primary_key=True, autoincrement=False, comment="Which stretch of the job: 0, 1, ..."
    )
    started_at: Mapped[datetime] = when("When the stretch began.")
    ended_at: Mapped[datetime | None] = maybe_when("When it ended; null while it lasts.")
    restart_count: Mapped[int | None] = mapped_column(
        Integer, comment="Slurm's restart count of the run that held it; null where not known."
    )
    estimated: Mapped[bool] = mapped_column(
        Boolean,
        server_default=false(),
        comment="Did Slurm not tell when it began or ended, so that this is a guess?",
    )


class AllocationNodeRow(Base):
    __tablename__ = "allocation_nodes"
    __table_args__ = (
        ForeignKeyConstraint(
            ["job_id", "number"], ["allocations.job_id", "allocations.number"], ondelete="CASCADE"
        ),
        Index(None, "node_name"),
        CheckConstraint("num_gpus >= 1", name="num_gpus"),
        {"comment": "GPUs held on each node during a stretch."},
    )

    job_id: Mapped[int] = mapped_column(BIG_INT, primary_key=True, autoincrement=False, comment="The job.")
    number: Mapped[int] = mapped_column(
        Integer, primary_key=True, autoincrement=False, comment="Which stretch of the job."
    )
    node_name: Mapped[str] = mapped_column(Text, primary_key=True, comment="The node.")
    num_gpus: Mapped[int] = mapped_column(Integer, comment="GPUs held there.")


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
        {"comment": "A job changing allocation: the daemon's journal."},
    )

    id: Mapped[int] = mapped_column(BIG_INT, primary_key=True, comment="The reallocation's number; grows.")
    job_id: Mapped[int] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), comment="The job.")
    round_id: Mapped[int | None] = mapped_column(
        ForeignKey("rounds.id", ondelete="SET NULL"), index=True, comment="The round that decided it."
    )
    step: Mapped[ReallocationStep] = mapped_column(
        checked_enum(ReallocationStep, "step"), comment="Where it stands; the last of its steps."
    )
    moves_running: Mapped[bool] = mapped_column(
        Boolean(create_constraint=True, name="moves_running"),
        comment="Is a running job requeued, rather than a waiting one reshaped?",
    )
    from_restart_count: Mapped[int] = mapped_column(
        Integer, comment="Slurm's restart count of the job when it was planned."
    )
    cause: Mapped[ReallocationCause] = mapped_column(
        checked_enum(ReallocationCause, "cause"), comment="Why it was planned."
    )
    checkpoint_waived: Mapped[bool] = _flag(
        "checkpoint_waived", "Did it go on without a confirmed checkpoint, as the owner allows?"
    )
    retargeted: Mapped[bool] = _flag("retargeted", "Did it get another target, since others took the first?")
    trained_on: Mapped[bool] = _flag(
        "trained_on", "Did the job train on after the checkpoint that it confirmed, so that it stayed?"
    )
    job_failed: Mapped[bool] = _flag("job_failed", "Did the job fail in the target, before its first step?")
    taken_over: Mapped[bool] = _flag(
        "taken_over", "Did a daemon repeat a command in it that the daemon before it may still give?"
    )
    reason: Mapped[str | None] = mapped_column(
        Text, comment="Why it was planned and how it ended, for people; null where a round says it all."
    )
    time_left_s: Mapped[float | None] = mapped_column(
        Double, comment="What the job had left of its time limit at the requeue, seconds; null for no limit."
    )


class ReallocationNodeRow(Base):
    __tablename__ = "reallocation_nodes"
    __table_args__ = (
        CheckConstraint("num_gpus >= 1", name="num_gpus"),
        {"comment": "GPUs per node before (source) and after (target) a reallocation."},
    )

    reallocation_id: Mapped[int] = mapped_column(
        ForeignKey("reallocations.id", ondelete="CASCADE"), primary_key=True, comment="The reallocation."
    )
    side: Mapped[Side] = mapped_column(
        checked_enum(Side, "side"), primary_key=True, comment="source or target."
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
    at: Mapped[datetime] = when("When it was journaled.")


class LeaseRow(Base):
    __tablename__ = "leases"
    __table_args__ = ({"comment": "Who may act: one daemon at a time."},)

    name: Mapped[str] = mapped_column(String(32), primary_key=True, comment="What the lease is for.")
    owner: Mapped[str] = mapped_column(Text, comment="Who holds it.")
    acquired_at: Mapped[datetime] = when("When this owner took it.")
    expires_at: Mapped[datetime] = when("When it runs out unless prolonged.")
    interval_s: Mapped[float | None] = mapped_column(
        Double, comment="Its rounds come so often at least, seconds; null where it has not said."
    )
    watch_s: Mapped[float | None] = mapped_column(
        Double, comment="It looks at Slurm so often, seconds; null where it has not said."
    )
