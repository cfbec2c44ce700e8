"""The journal of reallocations: plan, advance by compare-and-set, read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Executable,
    ScalarSelect,
    Select,
    and_,
    delete,
    insert,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from pollux_slurm.errors import StoreError, UnknownJobError
from pollux_slurm.model import Allocation, ReallocationCause, ReallocationStep, ReallocationWay
from pollux_slurm.store.access.long_connections import end_long_connections
from pollux_slurm.store.access.sanitizing import clean_text, utc
from pollux_slurm.store.access.statements import cached_statement, inserted_id, newest_job
from pollux_slurm.store.contract.interface import GenerationMember, GenerationRecord, Reallocation, Refusal
from pollux_slurm.store.journal.generations import plan_generation
from pollux_slurm.store.schema import (
    CheckpointRow,
    GenerationRow,
    JobRow,
    ReallocationNodeRow,
    ReallocationRow,
    ReallocationStepRow,
    RunRow,
)
from pollux_slurm.store.schema.daemon import Side

ENDS = tuple(step for step in ReallocationStep if step.is_end)
_OPEN = select(ReallocationRow.id).where(ReallocationRow.step.not_in(ENDS))
_PRIORITISED = select(ReallocationRow.id).where(
    ReallocationRow.priority.is_not(None), ReallocationRow.priority_ended_at.is_(None)
)
_ORDER = {step: place for place, step in enumerate(ReallocationStep)}
_AFTER_REGROUP_REQUESTED = (ReallocationStep.REGROUPED, ReallocationStep.ROLLED_BACK, ReallocationStep.FAILED)


def plan_reallocation(
    connection: Connection,
    slurm_job_id: str,
    *,
    source: Allocation,
    target: Allocation,
    moves_running: bool,
    from_restart_count: int,
    round_id: int | None,
    at: datetime,
    cause: ReallocationCause = ReallocationCause.DECISION,
    reason: str | None = None,
    way: ReallocationWay = ReallocationWay.REQUEUE,
) -> Reallocation:
    """Journal a new reallocation in PLANNED: see `Journal.plan`."""
    at = utc(at)
    job_id = connection.execute(newest_job(slurm_job_id)).scalar_one()
    if job_id is None:
        raise UnknownJobError(f"job {slurm_job_id} is not registered; see: pollux status --all")
    try:
        result = connection.execute(
            insert(ReallocationRow).values(
                job_id=job_id,
                round_id=round_id,
                step=ReallocationStep.PLANNED,
                moves_running=moves_running,
                from_restart_count=from_restart_count,
                cause=cause,
                reason=clean_text(reason) if reason is not None else None,
                way=way,
            )
        )
    except IntegrityError as error:
        raise StoreError(
            f"job {slurm_job_id}: a reallocation cannot be planned while another is open, or for a round "
            f"that is not recorded (round {round_id})"
        ) from error
    reallocation_id = inserted_id(result)
    _write_nodes(connection, reallocation_id, {Side.SOURCE: source, Side.TARGET: target})
    _write_step(connection, reallocation_id, ReallocationStep.PLANNED, at)
    return Reallocation(
        id=reallocation_id,
        slurm_job_id=slurm_job_id,
        step=ReallocationStep.PLANNED,
        source=source,
        target=target,
        moves_running=moves_running,
        from_restart_count=from_restart_count,
        times=((ReallocationStep.PLANNED, at),),
        cause=cause,
        reason=reason,
        way=way,
    )


def advance_reallocation(
    connection: Connection,
    reallocation_id: int,
    step: ReallocationStep,
    *,
    expected: ReallocationStep,
    at: datetime,
    reason: str | None = None,
    time_left_s: float | None = None,
    checkpoint_waived: bool = False,
    continued_training: bool = False,
    job_failed: bool = False,
    taken_over: bool = False,
) -> bool:
    """Move from `expected` to `step`: see `Journal.advance`."""
    at = utc(at)
    if not _may_follow(expected, step):
        raise StoreError(
            f"reallocation {reallocation_id} cannot go from {expected.value} to {step.value}: "
            "steps only go forward, and to regroup_requested with a generation"
        )
    values: dict[str, Any] = {"step": step}
    if reason is not None:
        values["reason"] = clean_text(reason)
    if time_left_s is not None:
        values["time_left_s"] = float(time_left_s)
    flags = {
        "checkpoint_waived": checkpoint_waived,
        "continued_training": continued_training,
        "job_failed": job_failed,
        "taken_over": taken_over,
    }
    values |= {name: True for name, is_set in flags.items() if is_set}
    moved = _change_if_at(connection, reallocation_id, expected, values)
    if moved is None:
        end_long_connections(connection)  # somebody's open transaction holds its row
        return False
    if moved:
        _write_step(connection, reallocation_id, step, at)
        return True
    current = connection.execute(
        select(ReallocationRow.step).where(ReallocationRow.id == reallocation_id)
    ).scalar()
    return current is step


def _may_follow(before: ReallocationStep, step: ReallocationStep) -> bool:
    if before.is_end or _ORDER[step] <= _ORDER[before]:
        return False
    if before is ReallocationStep.REGROUP_REQUESTED:
        return step in _AFTER_REGROUP_REQUESTED
    # Wings without a process end without a regroup.
    return step is not ReallocationStep.REGROUP_REQUESTED


def request_regroup(
    connection: Connection,
    reallocation_id: int,
    members: Sequence[GenerationMember],
    *,
    expected: ReallocationStep,
    at: datetime,
) -> GenerationRecord | None:
    """Plan the job's next generation for a reallocation: see `Journal.request_regroup`."""
    at = utc(at)
    if expected not in (ReallocationStep.PLANNED, ReallocationStep.REGROUP_REQUESTED):
        raise StoreError(f"reallocation {reallocation_id} cannot ask for a regroup after {expected.value}")
    # The lock makes the check and what follows one step; nobody waits for it.
    found = connection.execute(
        select(
            JobRow.slurm_job_id,
            ReallocationRow.step,
            ReallocationRow.way,
            ReallocationRow.from_restart_count,
        )
        .join(JobRow, JobRow.id == ReallocationRow.job_id)
        .where(ReallocationRow.id == reallocation_id)
        .with_for_update(key_share=True, skip_locked=True, of=ReallocationRow)
    ).first()
    if found is None or found.step is not expected:
        return None
    if found.way is not ReallocationWay.IN_PLACE:
        raise StoreError(f"reallocation {reallocation_id} is by {found.way.value}: it asks for no regroup")
    planned = plan_generation(
        connection, found.slurm_job_id, members, restart_count=found.from_restart_count, at=at
    )
    connection.execute(
        update(ReallocationRow)
        .where(ReallocationRow.id == reallocation_id)
        .values(step=ReallocationStep.REGROUP_REQUESTED, generation=planned.number)
    )
    if expected is ReallocationStep.PLANNED:
        _write_step(connection, reallocation_id, ReallocationStep.REGROUP_REQUESTED, at)
    return planned


def retarget_reallocation(
    connection: Connection,
    reallocation_id: int,
    target: Allocation,
    *,
    expected: ReallocationStep,
    reason: str,
) -> bool:
    """Set another target: see `Journal.retarget`."""
    if expected.is_end:
        raise StoreError(f"reallocation {reallocation_id} has ended: it gets no other target")
    change = {"reason": clean_text(reason), "retargeted": True}
    if not _change_if_at(connection, reallocation_id, expected, change):
        return False
    _replace_nodes(connection, reallocation_id, Side.TARGET, target)
    return True


def record_refusal(connection: Connection, reallocation_id: int, refusal: Refusal) -> None:
    """Record what Slurm refused: see `Journal.record_refusal`."""
    connection.execute(
        update(ReallocationRow)
        .where(ReallocationRow.id == reallocation_id)
        .values(
            refused=refusal.answer,
            refused_at=utc(refusal.at),
            refused_reason=clean_text(refusal.reason),
            refused_request=clean_text(refusal.request),
        )
    )
    _replace_nodes(connection, reallocation_id, Side.REFUSED, refusal.allocation)


def record_priority(connection: Connection, reallocation_id: int, priority: int) -> None:
    """Record the priority that a job is about to get: see `Journal.record_priority`."""
    connection.execute(
        update(ReallocationRow)
        .where(ReallocationRow.id == reallocation_id)
        .values(priority=priority, priority_ended_at=None)
    )


def record_priority_ended(connection: Connection, reallocation_ids: Sequence[int], *, at: datetime) -> None:
    """Record that priorities were taken off: see `Journal.record_priority_ended`."""
    connection.execute(
        update(ReallocationRow)
        .where(ReallocationRow.id.in_(reallocation_ids))
        .values(priority_ended_at=utc(at))
    )


def _change_if_at(
    connection: Connection, reallocation_id: int, expected: ReallocationStep, values: dict[str, Any]
) -> bool | None:
    """Update a reallocation that is at `expected`; return whether it was. None when its row is locked."""
    # On PostgreSQL the transaction in which a job confirms locks the row, and an untrusted client decides for
    # how long: so nobody waits for it, and the caller tries again. SQLite has one writer at a time.
    free = (
        select(ReallocationRow.id)
        .where(ReallocationRow.id == reallocation_id)
        .with_for_update(key_share=True, skip_locked=True)
    )
    if connection.execute(free).first() is None:
        return None
    moved = connection.execute(
        update(ReallocationRow)
        .where(ReallocationRow.id == reallocation_id, ReallocationRow.step == expected)
        .values(values)
    )
    return bool(moved.rowcount == 1)


def _replace_nodes(connection: Connection, reallocation_id: int, side: Side, allocation: Allocation) -> None:
    connection.execute(
        delete(ReallocationNodeRow).where(
            ReallocationNodeRow.reallocation_id == reallocation_id, ReallocationNodeRow.side == side
        )
    )
    _write_nodes(connection, reallocation_id, {side: allocation})


def _write_nodes(connection: Connection, reallocation_id: int, sides: Mapping[Side, Allocation]) -> None:
    nodes = [
        {"reallocation_id": reallocation_id, "side": side, "node_name": clean_text(node), "num_gpus": gpus}
        for side, allocation in sides.items()
        for node, gpus in allocation.gpus_by_node
    ]
    if nodes:
        connection.execute(insert(ReallocationNodeRow), nodes)


def _write_step(connection: Connection, reallocation_id: int, step: ReallocationStep, at: datetime) -> None:
    connection.execute(insert(ReallocationStepRow).values(reallocation_id=reallocation_id, step=step, at=at))


def is_its_generation() -> ColumnElement[bool]:
    """Return the condition that a generation is the one that a reallocation last asked for."""
    return and_(
        GenerationRow.job_id == ReallocationRow.job_id, GenerationRow.number == ReallocationRow.generation
    )


def first_step_of_next_run() -> ScalarSelect[datetime | None]:
    """Select, for a row of reallocations by requeue, when the next run first reported a step."""
    return (
        select(RunRow.first_step_at)
        .where(
            ReallocationRow.way == ReallocationWay.REQUEUE,
            RunRow.job_id == ReallocationRow.job_id,
            RunRow.restart_count > ReallocationRow.from_restart_count,
            RunRow.first_step_at.is_not(None),
        )
        .order_by(RunRow.run_number)
        .limit(1)
        .correlate(ReallocationRow)
        .scalar_subquery()
    )


def read_open(connection: Connection) -> tuple[Reallocation, ...]:
    """Return the reallocations that have not ended: see `Journal.open_reallocations`."""
    return read_reallocations(connection, _OPEN)


def read_prioritised(connection: Connection) -> tuple[Reallocation, ...]:
    """Return the reallocations whose jobs may have their priority: see `Journal.prioritised`."""
    return read_reallocations(connection, _PRIORITISED)


def read_all(connection: Connection, slurm_job_id: str | None = None) -> tuple[Reallocation, ...]:
    """Return all reallocations (of one job): see `Journal.reallocations`."""
    wanted = select(ReallocationRow.id)
    if slurm_job_id is not None:
        wanted = wanted.where(ReallocationRow.job_id.in_(newest_job(slurm_job_id)))
    return read_reallocations(connection, wanted)


def read_reallocations(connection: Connection, wanted: Select[Any]) -> tuple[Reallocation, ...]:
    """Return the reallocations whose ids `wanted` selects, oldest first, in three statements at most."""
    statements = _select_reallocations(wanted)
    rows = connection.execute(statements.rows).all()
    if not rows:  # as in most ticks of the daemon
        return ()
    times: defaultdict[int, list[tuple[ReallocationStep, datetime]]] = defaultdict(list)
    for step in connection.execute(statements.steps):
        times[step.reallocation_id].append((step.step, step.at))
    nodes: defaultdict[tuple[int, Side], dict[str, int]] = defaultdict(dict)
    for node in connection.execute(statements.nodes):
        nodes[node.reallocation_id, node.side][node.node_name] = node.num_gpus
    return tuple(_reallocation(row, nodes, times[row.id]) for row in rows)


class _Parts(NamedTuple):
    rows: Executable
    steps: Executable
    nodes: Executable


@cached_statement
def _select_reallocations(wanted: Select[Any]) -> _Parts:
    return _Parts(
        rows=select(
            ReallocationRow.id,
            JobRow.slurm_job_id,
            ReallocationRow.step,
            ReallocationRow.moves_running,
            ReallocationRow.from_restart_count,
            ReallocationRow.cause,
            ReallocationRow.checkpoint_waived,
            ReallocationRow.retargeted,
            ReallocationRow.continued_training,
            ReallocationRow.job_failed,
            ReallocationRow.taken_over,
            ReallocationRow.reason,
            ReallocationRow.time_left_s,
            ReallocationRow.way,
            ReallocationRow.generation,
            ReallocationRow.refused,
            ReallocationRow.refused_at,
            ReallocationRow.refused_reason,
            ReallocationRow.refused_request,
            ReallocationRow.priority,
            ReallocationRow.priority_ended_at,
            GenerationRow.standstill_s,
            CheckpointRow.blocked_s,
            first_step_of_next_run().label("first_step_at"),
        )
        .join(JobRow, JobRow.id == ReallocationRow.job_id)
        .outerjoin(CheckpointRow, CheckpointRow.reallocation_id == ReallocationRow.id)
        .outerjoin(GenerationRow, is_its_generation())
        .where(ReallocationRow.id.in_(wanted))
        .order_by(ReallocationRow.id),
        steps=select(
            ReallocationStepRow.reallocation_id, ReallocationStepRow.step, ReallocationStepRow.at
        ).where(ReallocationStepRow.reallocation_id.in_(wanted)),
        nodes=select(
            ReallocationNodeRow.reallocation_id,
            ReallocationNodeRow.side,
            ReallocationNodeRow.node_name,
            ReallocationNodeRow.num_gpus,
        ).where(ReallocationNodeRow.reallocation_id.in_(wanted)),
    )


def _reallocation(
    row: Any,
    nodes: defaultdict[tuple[int, Side], dict[str, int]],
    times: Sequence[tuple[ReallocationStep, datetime]],
) -> Reallocation:
    return Reallocation(
        id=row.id,
        slurm_job_id=row.slurm_job_id,
        step=row.step,
        source=Allocation.of(nodes[row.id, Side.SOURCE]),
        target=Allocation.of(nodes[row.id, Side.TARGET]),
        moves_running=row.moves_running,
        from_restart_count=row.from_restart_count,
        times=tuple(sorted(times, key=lambda entry: _ORDER[entry[0]])),
        cause=row.cause,
        checkpoint_waived=row.checkpoint_waived,
        retargeted=row.retargeted,
        continued_training=row.continued_training,
        job_failed=row.job_failed,
        taken_over=row.taken_over,
        reason=row.reason,
        checkpoint_blocked_s=row.blocked_s,
        first_step_at=row.first_step_at,
        time_left_s=row.time_left_s,
        way=row.way,
        generation=row.generation,
        standstill_s=row.standstill_s,
        refusal=None
        if row.refused is None
        else Refusal(
            allocation=Allocation.of(nodes[row.id, Side.REFUSED]),
            answer=row.refused,
            at=row.refused_at,
            reason=row.refused_reason or "",
            request=row.refused_request or "",
        ),
        priority=row.priority,
        priority_ended_at=row.priority_ended_at,
    )
