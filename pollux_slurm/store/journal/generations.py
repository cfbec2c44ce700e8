"""Generations of a job's membership: plan, give up, read. `contract.membership` has their states."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timezone
from itertools import groupby
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, func, insert, or_, select, update
from sqlalchemy.orm import aliased

from pollux_slurm.errors import StoreError, UnknownJobError
from pollux_slurm.store.access.sanitizing import clean_text, utc
from pollux_slurm.store.access.statements import cached_statement, newest_job
from pollux_slurm.store.contract.membership import GenerationMember, GenerationRecord, GenerationState
from pollux_slurm.store.schema import GenerationMemberRow, GenerationRow, JobRow

_OPEN_STATES = [state for state in GenerationState if state.is_open]
_OPEN = GenerationRow.state.in_(_OPEN_STATES) & JobRow.finished_at.is_(None)
_ENDS = {
    GenerationState.WITHDRAWN: GenerationState.PLANNED,
    GenerationState.FAILED: GenerationState.COMMITTED,
}


def plan_generation(
    connection: Connection,
    slurm_job_id: str,
    members: Sequence[GenerationMember],
    *,
    restart_count: int,
    at: datetime,
) -> GenerationRecord:
    """Plan the next generation: see `PlannedGenerations.plan`."""
    at = utc(at)
    job_id = connection.execute(newest_job(slurm_job_id)).scalar_one()
    if job_id is None:
        raise UnknownJobError(f"job {slurm_job_id} is not registered; see: pollux status --all")
    ids = [member.id for member in members]
    ready = [member.is_ready for member in members]
    if len(set(ids)) != len(ids) or not any(ready) or ready != sorted(ready, reverse=True):
        raise StoreError(
            f"job {slurm_job_id}: a generation has each member once, and first one or more that train already"
        )
    # Read, not left to the unique index: an insert would wait for a job that is just committing.
    newest = connection.execute(
        select(GenerationRow.number, GenerationRow.state)
        .where(GenerationRow.job_id == job_id)
        .order_by(GenerationRow.number.desc())
        .limit(1)
    ).first()
    if newest is not None and newest.state.is_open:
        raise StoreError(
            f"job {slurm_job_id}: generation {newest.number} is {newest.state.value}; end it before another "
            "is planned"
        )
    number = 1 if newest is None else newest.number + 1
    connection.execute(
        insert(GenerationRow).values(
            job_id=job_id,
            number=number,
            state=GenerationState.PLANNED,
            at=at,
            restart_count=restart_count,
        )
    )
    connection.execute(
        insert(GenerationMemberRow),
        [
            {
                "job_id": job_id,
                "number": number,
                "rank": rank,
                "member_id": clean_text(member.id),
                "node_name": clean_text(member.node_name),
                "ready": member.is_ready,
            }
            for rank, member in enumerate(members)
        ],
    )
    return GenerationRecord(
        slurm_job_id=slurm_job_id,
        number=number,
        state=GenerationState.PLANNED,
        at=at,
        restart_count=restart_count,
        members=tuple(members),
    )


def end_generation(
    connection: Connection,
    slurm_job_id: str,
    number: int,
    state: GenerationState,
    *,
    at: datetime,
    reason: str,
) -> bool:
    """Give up a generation: see `PlannedGenerations.end`."""
    at = utc(at)
    if state not in _ENDS:
        raise StoreError(f"a generation ends as withdrawn or failed, not as {state.value}")
    this = (GenerationRow.job_id.in_(newest_job(slurm_job_id)), GenerationRow.number == number)
    # On PostgreSQL the transaction in which a job commits locks the row, and an untrusted client decides for
    # how long: so nobody waits for it.
    found = connection.execute(
        select(GenerationRow.state).where(*this).with_for_update(key_share=True, skip_locked=True)
    ).scalar()
    if found is _ENDS[state]:
        connection.execute(
            update(GenerationRow).where(*this).values(state=state, at=at, reason=clean_text(reason))
        )
        return True
    return found is state


def read_open(connection: Connection) -> tuple[GenerationRecord, ...]:
    """Return those that are still to come: see `PlannedGenerations.open_generations`."""
    return _generations(connection.execute(_select_generations(_OPEN)).all())


def read_of_job(connection: Connection, slurm_job_id: str) -> tuple[GenerationRecord, ...]:
    """Return all generations of a job, oldest first."""
    wanted = GenerationRow.job_id.in_(newest_job(slurm_job_id))
    return _generations(connection.execute(_select_generations(wanted)).all())


def _select_generations(wanted: ColumnElement[bool]) -> Any:
    return (
        select(
            JobRow.slurm_job_id,
            GenerationRow.number,
            GenerationRow.state,
            GenerationRow.at,
            GenerationRow.restart_count,
            GenerationRow.meeting,
            GenerationRow.standstill_s,
            GenerationRow.reason,
            GenerationMemberRow.member_id,
            GenerationMemberRow.node_name,
            GenerationMemberRow.ready,
        )
        .join(JobRow, JobRow.id == GenerationRow.job_id)
        .join(
            GenerationMemberRow,
            (GenerationMemberRow.job_id == GenerationRow.job_id)
            & (GenerationMemberRow.number == GenerationRow.number),
        )
        .where(wanted)
        .order_by(GenerationRow.job_id, GenerationRow.number, GenerationMemberRow.rank)
    )


def read_latest_generations(
    connection: Connection, scope: Select[Any]
) -> defaultdict[int, list[GenerationRecord]]:
    """Return each job's newest generation that has regrouped, and its newest of all, by number."""
    rows = connection.execute(_select_latest(scope)).all()
    found: defaultdict[int, list[GenerationRecord]] = defaultdict(list)
    for job_id, members in groupby(rows, key=lambda row: row[-1]):
        found[job_id] = list(_generations(list(members)))
    return found


@cached_statement
def _select_latest(scope: Select[Any]) -> Any:
    other = aliased(GenerationRow)
    newest = select(func.max(other.number)).where(other.job_id == GenerationRow.job_id)
    regrouped = newest.where(other.state == GenerationState.REGROUPED)
    is_latest = or_(
        GenerationRow.number == newest.correlate(GenerationRow).scalar_subquery(),
        GenerationRow.number == regrouped.correlate(GenerationRow).scalar_subquery(),
    )
    wanted = GenerationRow.job_id.in_(scope) & is_latest
    return _select_generations(wanted).add_columns(GenerationRow.job_id)


def newest_generation(rows: Sequence[Any]) -> GenerationRecord | None:
    """Return the generation whose members a job has read, a row each; None for no row."""
    return next(iter(_generations(rows)), None)


def _generations(rows: Sequence[Any]) -> tuple[GenerationRecord, ...]:
    # The first eight values are the generation's; then a member's.
    found = []
    for head, members in groupby(rows, key=lambda row: tuple(row[:8])):
        job, number, state, at, restart_count, meeting, standstill_s, reason = head
        found.append(
            GenerationRecord(
                slurm_job_id=job,
                number=number,
                state=GenerationState(state),
                at=time_of(at),
                restart_count=restart_count,
                meeting=meeting,
                standstill_s=standstill_s,
                reason=reason,
                members=tuple(
                    GenerationMember(id=row[8], node_name=row[9], is_ready=bool(row[10])) for row in members
                ),
            )
        )
    return tuple(found)


def time_of(at: datetime | str) -> datetime:
    """Return a time with its zone; SQLite's, where no column's type has read it, is a text in UTC."""
    return datetime.fromisoformat(at).replace(tzinfo=timezone.utc) if isinstance(at, str) else at
