"""Who had GPUs, trained on them, was being moved or waited, and what rounds decided meanwhile. Read-only.

It reads tables, not the reporting views: that takes the daemon's or the owner's login, or an SQLite file.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, and_, func, or_, select

from pollux_slurm.store.access.database import Database
from pollux_slurm.store.access.sanitizing import utc
from pollux_slurm.store.contract.types import Reallocation
from pollux_slurm.store.journal.reallocations import read_reallocations
from pollux_slurm.store.schema import (
    AllocationNodeRow,
    AllocationRow,
    DecisionRow,
    JobRow,
    ReallocationRow,
    RoundRow,
    RunNodeRow,
    RunRow,
)

MAX_DECISIONS = 100_000
"""With more decisions than that, only those of stride second, third, ... round are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldGpus:
    """GPUs that a job had from `since` to `until`, None while it has them."""

    since: datetime
    until: datetime | None
    num_gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstStep:
    """When a run, which may have begun by a regroup, made its first step, and on how many GPUs."""

    at: datetime
    num_gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidedSize:
    """What a round decided about a job; see `JobDecision`.

    `because` is why the job was excluded or pinned, None where it was neither.
    """

    at: datetime
    num_gpus: int
    bound_by: str
    because: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobUse:
    """One job and its GPUs, each sequence oldest first. `max_gpus` is None where nothing bounds it."""

    slurm_job_id: str
    name: str
    max_gpus: int | None
    submitted_at: datetime
    finished_at: datetime | None
    held: tuple[HeldGpus, ...]
    first_steps: tuple[FirstStep, ...]
    moves: tuple[Reallocation, ...]
    decided: tuple[DecidedSize, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """The GPUs that rounds could allocate, as (time, GPUs), and the jobs of a range of time."""

    rounds: tuple[tuple[datetime, int], ...]
    jobs: tuple[JobUse, ...]


def read_gpu_use(
    database: Database, since: datetime, until: datetime, *, max_decisions: int = MAX_DECISIONS
) -> GpuUse:
    """Return all of a range. Raises `StoreError` where this login may not read the tables.

    Of jobs that lasted into it, what came earlier is there, too, but for decisions.
    """
    lasted = and_(
        JobRow.submitted_at < utc(until), or_(JobRow.finished_at.is_(None), JobRow.finished_at > utc(since))
    )
    within = and_(RoundRow.at >= utc(since), RoundRow.at < utc(until))
    with database.read() as connection:
        rounds = connection.execute(
            select(RoundRow.at, RoundRow.total_gpus)
            .where(within, RoundRow.total_gpus.is_not(None))
            .order_by(RoundRow.id)
        ).all()
        jobs = connection.execute(
            select(
                JobRow.id,
                JobRow.slurm_job_id,
                JobRow.name,
                JobRow.max_gpus,
                JobRow.submitted_at,
                JobRow.finished_at,
            )
            .where(lasted)
            .order_by(JobRow.submitted_at, JobRow.id)
        ).all()
        held, first_steps = _held(connection, lasted), _first_steps(connection, lasted)
        moves: defaultdict[str, list[Reallocation]] = defaultdict(list)
        for move in read_reallocations(
            connection,
            select(ReallocationRow.id).join(JobRow, JobRow.id == ReallocationRow.job_id).where(lasted),
        ):
            moves[move.slurm_job_id].append(move)
        decided = _decided(connection, within, max_decisions)
    return GpuUse(
        rounds=tuple((row.at, row.total_gpus) for row in rounds),
        jobs=tuple(
            JobUse(
                slurm_job_id=row.slurm_job_id,
                name=row.name,
                max_gpus=row.max_gpus,
                submitted_at=row.submitted_at,
                finished_at=row.finished_at,
                held=tuple(held[row.id]),
                first_steps=tuple(first_steps[row.id]),
                moves=tuple(
                    move
                    for move in moves[row.slurm_job_id]
                    # slurmctld may start its job ids anew.
                    if row.submitted_at <= move.times[0][1] <= (row.finished_at or move.times[0][1])
                ),
                decided=tuple(decided[row.id]),
            )
            for row in jobs
        ),
    )


def _held(connection: Connection, lasted: ColumnElement[bool]) -> defaultdict[int, list[HeldGpus]]:
    found: defaultdict[int, list[HeldGpus]] = defaultdict(list)
    key = (AllocationRow.job_id, AllocationRow.number, AllocationRow.started_at, AllocationRow.ended_at)
    for row in connection.execute(
        select(*key, func.sum(AllocationNodeRow.num_gpus).label("num_gpus"))
        .join(
            AllocationNodeRow,
            and_(
                AllocationNodeRow.job_id == AllocationRow.job_id,
                AllocationNodeRow.number == AllocationRow.number,
            ),
        )
        .join(JobRow, JobRow.id == AllocationRow.job_id)
        .where(lasted)
        .group_by(*key)
        .order_by(AllocationRow.job_id, AllocationRow.number)
    ):
        found[row.job_id].append(
            HeldGpus(since=row.started_at, until=row.ended_at, num_gpus=int(row.num_gpus))
        )
    return found


def _first_steps(connection: Connection, lasted: ColumnElement[bool]) -> defaultdict[int, list[FirstStep]]:
    found: defaultdict[int, list[FirstStep]] = defaultdict(list)
    key = (RunRow.job_id, RunRow.run_number, RunRow.first_step_at)
    for row in connection.execute(
        select(*key, func.sum(RunNodeRow.num_gpus).label("num_gpus"))
        .join(RunNodeRow, RunNodeRow.run_id == RunRow.id)
        .join(JobRow, JobRow.id == RunRow.job_id)
        .where(lasted, RunRow.first_step_at.is_not(None))
        .group_by(*key)
        .order_by(RunRow.job_id, RunRow.run_number)
    ):
        found[row.job_id].append(FirstStep(at=row.first_step_at, num_gpus=int(row.num_gpus)))
    return found


def _decided(
    connection: Connection, within: ColumnElement[bool], max_decisions: int
) -> defaultdict[int, list[DecidedSize]]:
    """Return what rounds that are enacted decided, by job."""
    enacted = and_(within, ~RoundRow.shadow)
    total = connection.execute(select(func.sum(RoundRow.num_jobs)).where(enacted)).scalar() or 0
    stride = max(-(-int(total) // max(max_decisions, 1)), 1)
    found: defaultdict[int, list[DecidedSize]] = defaultdict(list)
    for row in connection.execute(
        select(
            RoundRow.at,
            DecisionRow.job_id,
            DecisionRow.num_gpus,
            DecisionRow.bound_by,
            func.coalesce(DecisionRow.excluded_reason, DecisionRow.pinned_reason).label("because"),
        )
        .join(RoundRow, RoundRow.id == DecisionRow.round_id)
        .where(enacted, RoundRow.id % stride == 0)
        .order_by(RoundRow.id)
    ):
        found[row.job_id].append(
            DecidedSize(at=row.at, num_gpus=row.num_gpus, bound_by=row.bound_by, because=row.because)
        )
    return found
