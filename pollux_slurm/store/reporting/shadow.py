"""What a daemon decided in shadow mode, beside what jobs held and measured meanwhile. Read-only.

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

MOST_DECISIONS = 400_000
"""Of more decisions than that, only those of every second, third, ... round are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowRound:
    """One round in shadow mode. `replayable`: its problem is still kept."""

    round_id: int
    at: datetime
    num_jobs: int
    replayable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowJob:
    """A job that shadow rounds decided about. `job_id` is the store's own number of it."""

    job_id: int
    slurm_job_id: str
    name: str
    user_name: str
    account: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowDecision:
    """What one round would have given to one job, None where it was left as it is."""

    round_id: int
    job_id: int
    decided: Allocation | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A stretch of time during which a job held an allocation; `ended_at` is None while it does."""

    job_id: int
    started_at: datetime
    ended_at: datetime | None
    allocation: Allocation


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowHistory:
    """The shadow rounds of a stretch of time, oldest first, and what there is to compare them with.

    `decisions` are by job, then by round, of the rounds `looked_at`: those whose numbers are `every` apart.
    """

    rounds: tuple[ShadowRound, ...]
    looked_at: tuple[int, ...]
    every: int
    jobs: tuple[ShadowJob, ...]
    decisions: tuple[ShadowDecision, ...]
    stretches: tuple[Stretch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredGoodput:
    """What a job measured on average over a window of time: examples/s, and the useful ones of them."""

    slurm_job_id: str
    num_samples: int
    throughput: float
    goodput: float


class ShadowReader:
    """Questions about shadow rounds to one store; each is one read-only transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def history(
        self, since: datetime, until: datetime, *, most_decisions: int = MOST_DECISIONS
    ) -> ShadowHistory:
        """Return what was decided in shadow mode from `since` up to before `until`."""
        within = and_(RoundRow.shadow, RoundRow.at >= utc(since), RoundRow.at < utc(until))
        with self._database.read() as connection:
            rounds = _rounds(connection, within)
            total = sum(one.num_jobs for one in rounds)
            every = max(-(-total // max(most_decisions, 1)), 1)
            rest = rounds[-1].round_id % every if rounds else 0
            jobs = _jobs(connection, within)
            decisions = _decisions(connection, and_(within, RoundRow.id % every == rest))
            stretches = _stretches(connection, within, since, until)
        return ShadowHistory(
            rounds=rounds,
            looked_at=tuple(one.round_id for one in rounds if one.round_id % every == rest),
            every=every,
            jobs=jobs,
            decisions=decisions,
            stretches=stretches,
        )

    def round(self, round_id: int) -> tuple[Problem, Decision]:
        """Return a round's problem and decision; raises `StoreError` when they are not kept any more."""
        with self._database.read() as connection:
            return read_round(connection, round_id)

    def measured(
        self, windows: Sequence[tuple[datetime, datetime]]
    ) -> tuple[dict[str, MeasuredGoodput], ...]:
        """Return, for each window (after its begin, up to its end), what jobs measured in it, by number."""
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
        select(DecisionRow.round_id, DecisionRow.job_id, DecisionRow.excluded)
        .join(RoundRow, RoundRow.id == DecisionRow.round_id)
        .where(within)
        .order_by(DecisionRow.job_id, DecisionRow.round_id)
    )
    return tuple(
        ShadowDecision(
            round_id=row.round_id,
            job_id=row.job_id,
            decided=None
            if row.excluded is not None
            else Allocation.of(nodes.get((row.job_id, row.round_id), {})),
        )
        for row in rows
    )


def _stretches(
    connection: Connection, within: ColumnElement[bool], since: datetime, until: datetime
) -> tuple[Stretch, ...]:
    """Return what the jobs held at any time of the range, by job and time."""
    decided = select(DecisionRow.job_id).join(RoundRow, RoundRow.id == DecisionRow.round_id).where(within)
    overlapping = and_(
        AllocationRow.started_at < utc(until),
        or_(AllocationRow.ended_at.is_(None), AllocationRow.ended_at > utc(since)),
        AllocationRow.job_id.in_(decided),
    )
    held: defaultdict[tuple[int, int], dict[str, int]] = defaultdict(dict)
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
        held[row.job_id, row.number][row.node_name] = row.num_gpus
    rows = connection.execute(
        select(AllocationRow.job_id, AllocationRow.number, AllocationRow.started_at, AllocationRow.ended_at)
        .where(overlapping)
        .order_by(AllocationRow.job_id, AllocationRow.started_at, AllocationRow.number)
    )
    return tuple(
        Stretch(
            job_id=row.job_id,
            started_at=row.started_at,
            ended_at=row.ended_at,
            allocation=Allocation.of(held.get((row.job_id, row.number), {})),
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
