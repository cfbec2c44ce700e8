"""The decisions of shadow rounds, beside the allocations and measurements of the same time. Read-only.

It reads tables, not the reporting views: that takes the daemon's or the owner's login, or an SQLite file.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, and_, column, func, or_, select, table

from pollux_slurm.model import Allocation, Decision, Problem
from pollux_slurm.store.access.database import Database
from pollux_slurm.store.access.sanitizing import utc
from pollux_slurm.store.rounds.rounds import read_round
from pollux_slurm.store.schema import (
    AllocationNodeRow,
    AllocationRow,
    DecisionNodeRow,
    DecisionRow,
    JobRow,
    RoundRow,
    UserRow,
    UtcDateTime,
)

MAX_DECISIONS = 400_000
"""With more decisions than that, only those of stride second, third, ... round are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowRound:
    """One round in shadow mode. `replayable`: its problem is still kept."""

    round_id: int
    at: datetime
    num_jobs: int
    replayable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowJob:
    """A job that shadow rounds decided about. `job_id` is the store's own id of it."""

    job_id: int
    slurm_job_id: str
    name: str
    user_name: str
    account: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowDecision:
    """The allocation that one round decided for one job, None where the job was excluded."""

    round_id: int
    job_id: int
    decided: Allocation | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationInterval:
    """An interval of time in which a job has one allocation; `ended_at` is None while it lasts."""

    job_id: int
    started_at: datetime
    ended_at: datetime | None
    allocation: Allocation


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowHistory:
    """The shadow rounds of a range of time, oldest first, and what to compare them with.

    `decisions` are by job, then by round. They are those of `sampled_rounds`, whose numbers are
    `round_stride` apart.
    """

    rounds: tuple[ShadowRound, ...]
    sampled_rounds: tuple[int, ...]
    round_stride: int
    jobs: tuple[ShadowJob, ...]
    decisions: tuple[ShadowDecision, ...]
    allocation_intervals: tuple[AllocationInterval, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredGoodput:
    """Means of a job's samples over a window of time: throughput and goodput in examples/s."""

    slurm_job_id: str
    num_samples: int
    throughput: float
    goodput: float


class ShadowReader:
    """Queries of the shadow rounds of one store; each is one read-only transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def history(
        self, since: datetime, until: datetime, *, max_decisions: int = MAX_DECISIONS
    ) -> ShadowHistory:
        """Return the shadow rounds from `since` up to before `until`, and what to compare them with."""
        within = and_(RoundRow.shadow, RoundRow.at >= utc(since), RoundRow.at < utc(until))
        with self._database.read() as connection:
            rounds = _rounds(connection, within)
            total = sum(one.num_jobs for one in rounds)
            stride = max(-(-total // max(max_decisions, 1)), 1)
            rest = rounds[-1].round_id % stride if rounds else 0
            jobs = _jobs(connection, within)
            decisions = _decisions(connection, and_(within, RoundRow.id % stride == rest))
            allocation_intervals = _allocation_intervals(connection, within, since, until)
        return ShadowHistory(
            rounds=rounds,
            sampled_rounds=tuple(one.round_id for one in rounds if one.round_id % stride == rest),
            round_stride=stride,
            jobs=jobs,
            decisions=decisions,
            allocation_intervals=allocation_intervals,
        )

    def round(self, round_id: int) -> tuple[Problem, Decision]:
        """Return a round's problem and decision; raises `StoreError` when they were pruned."""
        with self._database.read() as connection:
            return read_round(connection, round_id)

    def measured(
        self, windows: Sequence[tuple[datetime, datetime]]
    ) -> tuple[dict[str, MeasuredGoodput], ...]:
        """Return, for each window (after its begin, up to its end), the means of jobs by Slurm job id."""
        with self._database.read() as connection:
            return tuple(_measured(connection, begin, end) for begin, end in windows)


def _rounds(connection: Connection, within: ColumnElement[bool]) -> tuple[ShadowRound, ...]:
    rows = connection.execute(
        select(RoundRow.id, RoundRow.at, RoundRow.num_jobs, (RoundRow.problem != "").label("kept"))
        .where(within)
        .order_by(RoundRow.id)
    )
    return tuple(
        ShadowRound(round_id=row.id, at=row.at, num_jobs=row.num_jobs or 0, replayable=bool(row.kept))
        for row in rows
    )


def _jobs(connection: Connection, within: ColumnElement[bool]) -> tuple[ShadowJob, ...]:
    decided = select(DecisionRow.job_id).join(RoundRow, RoundRow.id == DecisionRow.round_id).where(within)
    rows = connection.execute(
        select(JobRow.id, JobRow.slurm_job_id, JobRow.name, JobRow.account, UserRow.user_name)
        .join(UserRow, UserRow.user_id == JobRow.user_id)
        .where(JobRow.id.in_(decided))
        .order_by(JobRow.id)
    )
    return tuple(
        ShadowJob(
            job_id=row.id,
            slurm_job_id=row.slurm_job_id,
            name=row.name,
            user_name=row.user_name,
            account=row.account,
        )
        for row in rows
    )


def _decisions(connection: Connection, within: ColumnElement[bool]) -> tuple[ShadowDecision, ...]:
    nodes: defaultdict[tuple[int, int], dict[str, int]] = defaultdict(dict)
    for row in connection.execute(
        select(
            DecisionNodeRow.round_id,
            DecisionNodeRow.job_id,
            DecisionNodeRow.node_name,
            DecisionNodeRow.num_gpus,
        )
        .join(RoundRow, RoundRow.id == DecisionNodeRow.round_id)
        .where(within)
    ):
        nodes[row.job_id, row.round_id][row.node_name] = row.num_gpus
    rows = connection.execute(
        select(DecisionRow.round_id, DecisionRow.job_id, DecisionRow.excluded_reason)
        .join(RoundRow, RoundRow.id == DecisionRow.round_id)
        .where(within)
        .order_by(DecisionRow.job_id, DecisionRow.round_id)
    )
    return tuple(
        ShadowDecision(
            round_id=row.round_id,
            job_id=row.job_id,
            decided=None
            if row.excluded_reason is not None
            else Allocation.of(nodes.get((row.job_id, row.round_id), {})),
        )
        for row in rows
    )


def _allocation_intervals(
    connection: Connection, within: ColumnElement[bool], since: datetime, until: datetime
) -> tuple[AllocationInterval, ...]:
    """Return the jobs' allocation intervals that overlap the range, by job and time."""
    decided = select(DecisionRow.job_id).join(RoundRow, RoundRow.id == DecisionRow.round_id).where(within)
    overlapping = and_(
        AllocationRow.started_at < utc(until),
        or_(AllocationRow.ended_at.is_(None), AllocationRow.ended_at > utc(since)),
        AllocationRow.job_id.in_(decided),
    )
    nodes: defaultdict[tuple[int, int], dict[str, int]] = defaultdict(dict)
    for row in connection.execute(
        select(
            AllocationNodeRow.job_id,
            AllocationNodeRow.number,
            AllocationNodeRow.node_name,
            AllocationNodeRow.num_gpus,
        )
        .join(
            AllocationRow,
            and_(
                AllocationRow.job_id == AllocationNodeRow.job_id,
                AllocationRow.number == AllocationNodeRow.number,
            ),
        )
        .where(overlapping)
    ):
        nodes[row.job_id, row.number][row.node_name] = row.num_gpus
    rows = connection.execute(
        select(AllocationRow.job_id, AllocationRow.number, AllocationRow.started_at, AllocationRow.ended_at)
        .where(overlapping)
        .order_by(AllocationRow.job_id, AllocationRow.started_at, AllocationRow.number)
    )
    return tuple(
        AllocationInterval(
            job_id=row.job_id,
            started_at=row.started_at,
            ended_at=row.ended_at,
            allocation=Allocation.of(nodes.get((row.job_id, row.number), {})),
        )
        for row in rows
    )


def _measured(connection: Connection, begin: datetime, end: datetime) -> dict[str, MeasuredGoodput]:
    view = table(
        "job_samples",
        *(column(name) for name in ("slurm_job_id", "throughput", "goodput")),
        column("at", UtcDateTime),
    )
    rows = connection.execute(
        select(
            view.c.slurm_job_id,
            func.count().label("num_samples"),
            func.avg(view.c.throughput).label("throughput"),
            func.avg(view.c.goodput).label("goodput"),
        )
        .where(view.c.at > utc(begin), view.c.at <= utc(end), view.c.goodput.is_not(None))
        .group_by(view.c.slurm_job_id)
    )
    return {
        row.slurm_job_id: MeasuredGoodput(
            slurm_job_id=row.slurm_job_id,
            num_samples=row.num_samples,
            throughput=row.throughput,
            goodput=row.goodput,
        )
        for row in rows
    }
