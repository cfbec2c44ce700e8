"""Tables of sums by day (UTC), which the reporting views read, and the nodes that they name.

Triggers of the database (`sql/triggers/`) maintain `run_days` and `allocation_days`, whoever writes a sample
or ends an interval. `record_round` adds to `job_days`, `nodes` and `node_days` in its own transaction.
`pollux db prune` deletes the details, and these sums stay.
"""

from __future__ import annotations

from datetime import date, datetime

from sqlalchemy import (
    CheckConstraint,
    Date,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    Text,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from pollux_slurm.store.schema.base import BIG_INT, Base, time_column


def _sum(comment: str) -> Mapped[float]:
    return mapped_column(Double, comment=comment)


def _count(comment: str) -> Mapped[int]:
    return mapped_column(BIG_INT, comment=comment)


class RunDayRow(Base):
    __tablename__ = "run_days"
    __table_args__ = (
        Index(None, "day"),
        CheckConstraint("num_samples >= 0 AND num_compared >= 0", name="counts"),
        CheckConstraint("trained_s >= 0 AND measured_s >= 0 AND compared_s >= 0", name="times"),
        {"comment": "Sums over the goodput samples of a run on a day, by the time they cover."},
    )

    run_id: Mapped[int] = mapped_column(
        ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True, comment="The run."
    )
    day: Mapped[date] = mapped_column(Date, primary_key=True, comment="The day, in UTC.")
    num_samples: Mapped[int] = _count("Samples reported on this day.")
    progress: Mapped[float] = _sum("Largest progress reported, in units of M0.")
    trained_s: Mapped[float] = _sum("Time covered by samples with a throughput, seconds.")
    trained_gpu_s: Mapped[float] = _sum("The same times the run's GPUs.")
    examples: Mapped[float] = _sum("Throughput times time: examples processed.")
    measured_s: Mapped[float] = _sum("Time covered by samples with throughput and efficiency, seconds.")
    useful_examples: Mapped[float] = _sum("Goodput times time: useful examples.")
    efficiency_s: Mapped[float] = _sum("Efficiency times time, over measured_s.")
    useful_gpu_s: Mapped[float] = _sum("Efficiency times time times GPUs, over measured_s.")
    num_compared: Mapped[int] = _count("Samples with a measured and a predicted throughput.")
    compared_s: Mapped[float] = _sum("Time that they cover, seconds.")
    compared_examples: Mapped[float] = _sum("Their measured throughput times time.")
    predicted_examples: Mapped[float] = _sum("Their predicted throughput times time.")
    error_sum: Mapped[float] = _sum("Sum over them of predicted/measured - 1, each at most a million.")
    abs_error_sum: Mapped[float] = _sum("The same without signs.")
    counted_examples: Mapped[float] = mapped_column(
        Double,
        server_default=text("0"),
        comment="Examples that the run counted; throughput times time where it reports no count.",
    )


class AllocationDayRow(Base):
    __tablename__ = "allocation_days"
    __table_args__ = (
        ForeignKeyConstraint(
            ["job_id", "number"], ["allocations.job_id", "allocations.number"], ondelete="CASCADE"
        ),
        Index(None, "day"),
        CheckConstraint("allocated_s >= 0", name="allocated_s"),
        {"comment": "Duration of an ended allocation interval on each day."},
    )

    job_id: Mapped[int] = mapped_column(BIG_INT, primary_key=True, autoincrement=False, comment="The job.")
    number: Mapped[int] = mapped_column(
        Integer, primary_key=True, autoincrement=False, comment="Number of the interval within the job."
    )
    day: Mapped[date] = mapped_column(Date, primary_key=True, comment="The day, in UTC.")
    allocated_s: Mapped[float] = _sum("Seconds of the interval on this day.")


class JobDayRow(Base):
    __tablename__ = "job_days"
    __table_args__ = (
        Index(None, "day"),
        CheckConstraint("num_rounds >= num_compared AND num_compared >= 0", name="num_compared"),
        CheckConstraint("num_rounds >= num_one_gpu AND num_one_gpu >= 0", name="num_one_gpu"),
        {"comment": "Sums over one day's decisions about a job."},
    )

    job_id: Mapped[int] = mapped_column(
        ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True, comment="The job."
    )
    day: Mapped[date] = mapped_column(Date, primary_key=True, comment="The day, in UTC.")
    num_rounds: Mapped[int] = _count("Rounds that decided about the job.")
    gpus_sum: Mapped[float] = _sum("Sum of the GPUs allocated.")
    fair_share_gpus_sum: Mapped[float] = _sum("Sum of its fair shares, in GPUs.")
    speedup_sum: Mapped[float] = _sum("Sum of the speedups over its fair share.")
    num_compared: Mapped[int] = _count("Rounds with a predicted goodput at the fair share.")
    fair_share_goodput_sum: Mapped[float] = _sum("Sum of these goodputs, examples per second.")
    num_one_gpu: Mapped[int] = _count("Rounds with a predicted goodput on one GPU.")
    one_gpu_goodput_sum: Mapped[float] = _sum("Sum of these goodputs, examples per second.")


class NodeRow(Base):
    __tablename__ = "nodes"
    __table_args__ = ({"comment": "Nodes that rounds could use, including removed ones."},)

    node_name: Mapped[str] = mapped_column(Text, primary_key=True, comment="Slurm's name of it.")
    gpu_type: Mapped[str] = mapped_column(Text, comment="Slurm's name of its GPUs; empty for nameless ones.")
    num_gpus: Mapped[int] = mapped_column(Integer, comment="GPUs that the last round could allocate there.")
    first_seen_at: Mapped[datetime] = time_column("When a round could first use it.")
    last_seen_at: Mapped[datetime] = time_column("When a round could last use it.")


class NodeDayRow(Base):
    __tablename__ = "node_days"
    __table_args__ = (
        Index(None, "day"),
        CheckConstraint("num_rounds >= 1", name="num_rounds"),
        CheckConstraint("gpus_sum >= 0 AND available_gpu_s >= 0", name="sums"),
        {"comment": "Sums over one day's rounds of what they could allocate on a node."},
    )

    node_name: Mapped[str] = mapped_column(
        ForeignKey("nodes.node_name", ondelete="CASCADE"), primary_key=True, comment="The node."
    )
    day: Mapped[date] = mapped_column(Date, primary_key=True, comment="The day, in UTC.")
    num_rounds: Mapped[int] = _count("Rounds that could use the node.")
    gpus_sum: Mapped[float] = _sum("Sum of the GPUs that they could allocate there.")
    available_gpu_s: Mapped[float] = _sum(
        "These GPUs times the time since the previous round, at most an hour."
    )
