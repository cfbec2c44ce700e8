"""Tables of the memberships of trainings that go on while replicas join and leave."""

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
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from pollux_slurm.store.contract.membership import MAX_MEETING, MAX_MEMBER_ID, GenerationState
from pollux_slurm.store.schema.base import BIG_INT, Base, bounded, checked_enum, time_column

_OPEN = "state IN ('planned', 'committed')"


class GenerationRow(Base):
    __tablename__ = "generations"
    __table_args__ = (
        Index(
            "uq_generations_open",
            "job_id",
            unique=True,
            sqlite_where=text(_OPEN),
            postgresql_where=text(_OPEN),
        ),
        *bounded("restart_count", "standstill_s", number="generation"),
        CheckConstraint(f"length(meeting) BETWEEN 1 AND {MAX_MEETING}", name="meeting"),
        CheckConstraint("length(reason) <= 1024", name="reason"),
        CheckConstraint(
            "(state IN ('committed', 'regrouped', 'failed')) = (meeting IS NOT NULL)", name="committed"
        ),
        CheckConstraint("(state = 'regrouped') = (standstill_s IS NOT NULL)", name="regrouped"),
        {"comment": "Generations: memberships of a job whose replicas join and leave while it trains."},
    )

    job_id: Mapped[int] = mapped_column(
        ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True, comment="The job."
    )
    number: Mapped[int] = mapped_column(
        Integer,
        primary_key=True,
        autoincrement=False,
        comment="Number within the job, over all its starts: 1, 2, ...",
    )
    state: Mapped[GenerationState] = mapped_column(
        checked_enum(GenerationState, "state"), comment="Its current state."
    )
    at: Mapped[datetime] = time_column("When it came into this state.")
    restart_count: Mapped[int] = mapped_column(
        Integer, comment="Slurm's restart count of the start of the job that it was planned for."
    )
    meeting: Mapped[str | None] = mapped_column(
        Text, comment="Address at which its members meet; null before it is committed."
    )
    standstill_s: Mapped[float | None] = mapped_column(
        Double, comment="How long training stood still for it, seconds; null before its first step."
    )
    reason: Mapped[str | None] = mapped_column(
        Text, comment="Why it was refused, withdrawn or failed, for people; null otherwise."
    )


class GenerationMemberRow(Base):
    __tablename__ = "generation_members"
    __table_args__ = (
        ForeignKeyConstraint(
            ["job_id", "number"], ["generations.job_id", "generations.number"], ondelete="CASCADE"
        ),
        UniqueConstraint("job_id", "number", "member_id"),
        *bounded(rank="member_rank"),
        CheckConstraint(f"length(member_id) BETWEEN 1 AND {MAX_MEMBER_ID}", name="member_id"),
        {"comment": "The processes of a generation, by rank."},
    )

    job_id: Mapped[int] = mapped_column(BIG_INT, primary_key=True, autoincrement=False, comment="The job.")
    number: Mapped[int] = mapped_column(
        Integer, primary_key=True, autoincrement=False, comment="Number of the generation within the job."
    )
    rank: Mapped[int] = mapped_column(
        Integer, primary_key=True, autoincrement=False, comment="Rank of the process in it: 0, 1, ..."
    )
    member_id: Mapped[str] = mapped_column(
        Text, comment="Id of the process, the same in all generations that it belongs to."
    )
    node_name: Mapped[str] = mapped_column(Text, comment="The node that it runs on.")
    ready: Mapped[bool] = mapped_column(
        Boolean(create_constraint=True, name="ready"),
        comment="Does it train already, or wait to join?",
    )
