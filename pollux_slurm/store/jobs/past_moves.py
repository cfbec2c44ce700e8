"""What a job's past moves cost, whether it answered their requests, and its last move: the journal by job."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

from sqlalchemy import Connection, Executable, Select, and_, exists, func, or_, select
from sqlalchemy.orm import aliased

from pollux_slurm.model import ReallocationStep, ReallocationWay
from pollux_slurm.store.access.statements import cached_statement
from pollux_slurm.store.contract.interface import Reallocation, Refusal, UnansweredRequest
from pollux_slurm.store.jobs.submissions import ids_of_submission, last_of_each, newest_of_job
from pollux_slurm.store.journal.move_costs import first_step_time, restart_delay_s, warm_up_s
from pollux_slurm.store.journal.reallocations import (
    first_step_of_next_run,
    is_its_generation,
    read_reallocations,
)
from pollux_slurm.store.schema import (
    CheckpointRow,
    GenerationRow,
    JobRow,
    ReallocationNodeRow,
    ReallocationRow,
    ReallocationStepRow,
)
from pollux_slurm.store.schema.daemon import Side

MOVES_IN_MEAN = 10
"""The mean costs of a job's moves are over this many of its last moves of each way."""
_MOVES_CHECKED = 16


def read_last_reallocations(connection: Connection, scope: Select[Any]) -> dict[int, Reallocation]:
    """Return each job's newest reallocation; only the newest can be open."""
    wanted, jobs = _select_last_reallocations(scope)
    job_of = {row.id: row.job_id for row in connection.execute(jobs)}
    return {job_of[entry.id]: entry for entry in read_reallocations(connection, wanted)}


@cached_statement
def _select_last_reallocations(scope: Select[Any]) -> tuple[Select[Any], Executable]:
    """Return selects of the wanted ids, and of their jobs."""
    latest = newest_of_job(ReallocationRow.id, ReallocationRow.job_id)
    wanted = select(latest).select_from(JobRow).where(JobRow.id.in_(scope))
    return wanted, select(ReallocationRow.id, ReallocationRow.job_id).where(ReallocationRow.id.in_(wanted))


def read_restart_delays(
    connection: Connection, scope: Select[Any]
) -> dict[int, tuple[int, list[float | None]]]:
    """Return, per job, how many confirmed moves requeued it while it ran, and the delays of the last ones.

    Only the last ones are read, so that a round does not take longer for old jobs.
    """
    rows = connection.execute(_select_restarts(scope))
    delays: dict[int, tuple[int, list[float | None]]] = {}
    for row in rows:
        # A pause does not start the job again, so it has no restart delay.
        first_step_at = (
            first_step_time(first_step_at=row.first_step_at, confirmed_at=row.confirmed_at)
            if row.running_at is not None
            else None
        )
        cost = restart_delay_s(
            checkpointed_at=row.checkpointed_at,
            blocked_s=row.blocked_s,
            requeued_at=row.requeued_at,
            first_step_at=first_step_at,
        )
        delays.setdefault(row.job_id, (row.num_restarts, []))[1].append(cost)
    return delays


@cached_statement
def _select_restarts(scope: Select[Any]) -> Executable:
    def moved(row: Any) -> Any:
        return and_(
            row.step == ReallocationStep.CONFIRMED, row.moves_running, row.way == ReallocationWay.REQUEUE
        )

    last = last_of_each(scope, ReallocationRow, MOVES_IN_MEAN, moved)
    other = aliased(ReallocationRow)
    count = (
        select(func.count())
        .select_from(other)
        .where(other.job_id.in_(ids_of_submission()), moved(other))
        .correlate(JobRow)
        .scalar_subquery()
    )
    return (
        select(
            last.c.job_id,
            count.label("num_restarts"),
            CheckpointRow.blocked_s,
            _entered(ReallocationStep.CHECKPOINTED).label("checkpointed_at"),
            _entered(ReallocationStep.REQUEUED).label("requeued_at"),
            _entered(ReallocationStep.RUNNING).label("running_at"),
            _entered(ReallocationStep.CONFIRMED).label("confirmed_at"),
            first_step_of_next_run().label("first_step_at"),
        )
        .select_from(last)
        .join(JobRow, JobRow.id == last.c.job_id)
        .join(ReallocationRow, ReallocationRow.id == last.c.id)
        .outerjoin(CheckpointRow, CheckpointRow.reallocation_id == ReallocationRow.id)
    )


class RegroupCosts(NamedTuple):
    """What one move in place cost, None where not known; `warm_up_s` also where it gained no GPU."""

    standstill_s: float | None
    warm_up_s: float | None


def read_regroup_costs(connection: Connection, scope: Select[Any]) -> defaultdict[int, list[RegroupCosts]]:
    """Return, per job, the costs of its last confirmed moves in place."""
    rows = connection.execute(_select_regroups(scope))
    costs: defaultdict[int, list[RegroupCosts]] = defaultdict(list)
    for row in rows:
        idle_s = warm_up_s(
            requested_at=row.requested_at, regrouped_at=row.regrouped_at, standstill_s=row.standstill_s
        )
        costs[row.job_id].append(RegroupCosts(row.standstill_s, idle_s if row.gained else None))
    return costs


@cached_statement
def _select_regroups(scope: Select[Any]) -> Executable:
    def moved(row: Any) -> Any:
        return and_(row.step == ReallocationStep.CONFIRMED, row.way == ReallocationWay.IN_PLACE)

    last = last_of_each(scope, ReallocationRow, MOVES_IN_MEAN, moved)
    before, after = aliased(ReallocationNodeRow), aliased(ReallocationNodeRow)
    had_as_many = exists().where(
        before.reallocation_id == after.reallocation_id,
        before.side == Side.SOURCE,
        before.node_name == after.node_name,
        before.num_gpus >= after.num_gpus,
    )
    gained = (
        exists()
        .where(after.reallocation_id == ReallocationRow.id, after.side == Side.TARGET, ~had_as_many)
        .correlate(ReallocationRow)
    )
    return (
        select(
            last.c.job_id,
            _entered(ReallocationStep.REGROUP_REQUESTED).label("requested_at"),
            _entered(ReallocationStep.REGROUPED).label("regrouped_at"),
            GenerationRow.standstill_s,
            gained.label("gained"),
        )
        .select_from(last)
        .join(ReallocationRow, ReallocationRow.id == last.c.id)
        .outerjoin(GenerationRow, is_its_generation())
    )


def _entered(step: ReallocationStep) -> Any:
    """Select, for a row of reallocations, when it entered a step."""
    return (
        select(ReallocationStepRow.at)
        .where(ReallocationStepRow.reallocation_id == ReallocationRow.id, ReallocationStepRow.step == step)
        .correlate(ReallocationRow)
        .scalar_subquery()
    )


def read_refusals(connection: Connection, scope: Select[Any]) -> defaultdict[int, list[Refusal]]:
    """Return, per job, what Slurm refused in its last moves, oldest first."""
    wanted, jobs = _select_refused(scope)
    job_of = {row.id: row.job_id for row in connection.execute(jobs)}
    found: defaultdict[int, list[Refusal]] = defaultdict(list)
    if job_of:  # few jobs have any
        for move in read_reallocations(connection, wanted):
            if move.refusal is not None:
                found[job_of[move.id]].append(move.refusal)
    return found


@cached_statement
def _select_refused(scope: Select[Any]) -> tuple[Select[Any], Executable]:
    """Return selects of the wanted ids, and of their jobs."""
    last = last_of_each(scope, ReallocationRow, _MOVES_CHECKED, lambda row: row.refused.is_not(None))
    return select(last.c.id), select(last.c.id, last.c.job_id)


def read_unanswered(connection: Connection, scope: Select[Any]) -> defaultdict[int, list[UnansweredRequest]]:
    """Return, per job, the checkpoint requests of its last moves that it did not answer.

    The job confirmed no checkpoint, or it confirmed one and went on training. A job that waited has answered,
    even if its target was taken, or the daemon stopped.
    """
    rows = connection.execute(_select_requests(scope))
    found: defaultdict[int, list[UnansweredRequest]] = defaultdict(list)
    for row in rows:
        found[row.job_id].append(UnansweredRequest(row.requested_at, row.ended_at, row.was_confirmed))
    return found


@cached_statement
def _select_requests(scope: Select[Any]) -> Executable:
    last = last_of_each(scope, ReallocationRow, _MOVES_CHECKED, lambda row: row.moves_running)
    requested_at = _entered(ReallocationStep.CHECKPOINT_REQUESTED)
    # A move that proceeds without a confirmation, as its owner allows, ends the request.
    ended_at = func.coalesce(_entered(ReallocationStep.CHECKPOINTED), _entered(ReallocationStep.ROLLED_BACK))
    return (
        select(
            last.c.job_id,
            requested_at.label("requested_at"),
            ended_at.label("ended_at"),
            CheckpointRow.reallocation_id.is_not(None).label("was_confirmed"),
        )
        .select_from(last)
        .join(ReallocationRow, ReallocationRow.id == last.c.id)
        .outerjoin(CheckpointRow, CheckpointRow.reallocation_id == ReallocationRow.id)
        .where(
            requested_at.is_not(None),
            or_(
                and_(CheckpointRow.reallocation_id.is_(None), ended_at.is_not(None)),
                ReallocationRow.continued_training,
            ),
        )
        .order_by(ReallocationRow.id)
    )
