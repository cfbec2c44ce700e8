"""What moving has cost each job so far, whether it answered, and its last move: the journal by job."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from sqlalchemy import Connection, Executable, Select, and_, func, or_, select
from sqlalchemy.orm import aliased

from pollux_slurm.model import ReallocationStep
from pollux_slurm.store.access.statements import built_once
from pollux_slurm.store.contract.interface import Reallocation, UnansweredRequest
from pollux_slurm.store.jobs.submissions import ids_of_submission, last_of_each, newest_of_job
from pollux_slurm.store.journal.move_costs import first_step_time, restart_delay_s
from pollux_slurm.store.journal.reallocations import first_step_of_next_run, read_reallocations
from pollux_slurm.store.schema import CheckpointRow, JobRow, ReallocationRow, ReallocationStepRow

RESTARTS_IN_MEAN = 10
"""The mean cost of a job's restarts is over this many, the last ones."""
_MOVES_JUDGED = 16


def read_last_reallocations(connection: Connection, scope: Select[Any]) -> dict[int, Reallocation]:
    """Return each job's newest reallocation: the open one, where one is, for none is planned beside it."""
    wanted, jobs = _select_last_reallocations(scope)
    job_of = {row.id: row.job_id for row in connection.execute(jobs)}
    return {job_of[entry.id]: entry for entry in read_reallocations(connection, wanted)}


@built_once
def _select_last_reallocations(scope: Select[Any]) -> tuple[Select[Any], Executable]:
    """Return selects of the wanted ids, and of their jobs."""
    latest = newest_of_job(ReallocationRow.id, ReallocationRow.job_id)
    wanted = select(latest).select_from(JobRow).where(JobRow.id.in_(scope))
    return wanted, select(ReallocationRow.id, ReallocationRow.job_id).where(ReallocationRow.id.in_(wanted))


def read_restart_delays(
    connection: Connection, scope: Select[Any]
) -> dict[int, tuple[int, list[float | None]]]:
    """Return, per job, how many confirmed reallocations moved it while it ran, and what the last ones cost.

    What a job read from its store once a round must not grow with its age.
    """
    rows = connection.execute(_select_restarts(scope))
    delays: dict[int, tuple[int, list[float | None]]] = {}
    for row in rows:
        # A job that was paused is not started again by the same move: how long that took says nothing here.
        stepped_at = (
            first_step_time(first_step_at=row.first_step_at, confirmed_at=row.confirmed_at)
            if row.running_at is not None
            else None
        )
        cost = restart_delay_s(
            checkpointed_at=row.checkpointed_at,
            blocked_s=row.blocked_s,
            requeued_at=row.requeued_at,
            stepped_at=stepped_at,
        )
        delays.setdefault(row.job_id, (row.num_restarts, []))[1].append(cost)
    return delays


@built_once
def _select_restarts(scope: Select[Any]) -> Executable:
    def entered(step: ReallocationStep) -> Any:
        return (
            select(ReallocationStepRow.at)
            .where(
                ReallocationStepRow.reallocation_id == ReallocationRow.id, ReallocationStepRow.step == step
            )
            .correlate(ReallocationRow)
            .scalar_subquery()
        )

    def moved(row: Any) -> Any:
        return and_(row.step == ReallocationStep.CONFIRMED, row.moves_running)

    last = last_of_each(scope, ReallocationRow, RESTARTS_IN_MEAN, moved)
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
            entered(ReallocationStep.CHECKPOINTED).label("checkpointed_at"),
            entered(ReallocationStep.REQUEUED).label("requeued_at"),
            entered(ReallocationStep.RUNNING).label("running_at"),
            entered(ReallocationStep.CONFIRMED).label("confirmed_at"),
            first_step_of_next_run().label("first_step_at"),
        )
        .select_from(last)
        .join(JobRow, JobRow.id == last.c.job_id)
        .join(ReallocationRow, ReallocationRow.id == last.c.id)
        .outerjoin(CheckpointRow, CheckpointRow.reallocation_id == ReallocationRow.id)
    )


def read_unanswered(connection: Connection, scope: Select[Any]) -> defaultdict[int, list[UnansweredRequest]]:
    """Return, per job, the requests of a checkpoint among its last moves that it did not answer.

    It confirmed none, or it did and trained on. One that waited has answered, also where its place was taken
    meanwhile, or the daemon stopped.
    """
    rows = connection.execute(_select_requests(scope))
    found: defaultdict[int, list[UnansweredRequest]] = defaultdict(list)
    for row in rows:
        found[row.job_id].append(UnansweredRequest(row.asked_at, row.ended_at, row.was_confirmed))
    return found


@built_once
def _select_requests(scope: Select[Any]) -> Executable:
    last = last_of_each(scope, ReallocationRow, _MOVES_JUDGED, lambda row: row.moves_running)
    asked, allowed, ended = (aliased(ReallocationStepRow) for _ in range(3))

    def is_step(row: Any, step: ReallocationStep) -> Any:
        return and_(row.reallocation_id == ReallocationRow.id, row.step == step)

    return (
        select(
            last.c.job_id,
            asked.at.label("asked_at"),
            # An owner may let a move go on without a confirmation.
            func.coalesce(allowed.at, ended.at).label("ended_at"),
            CheckpointRow.reallocation_id.is_not(None).label("was_confirmed"),
        )
        .select_from(last)
        .join(ReallocationRow, ReallocationRow.id == last.c.id)
        .join(asked, is_step(asked, ReallocationStep.CHECKPOINT_REQUESTED))
        .outerjoin(allowed, is_step(allowed, ReallocationStep.CHECKPOINTED))
        .outerjoin(ended, is_step(ended, ReallocationStep.ROLLED_BACK))
        .outerjoin(CheckpointRow, CheckpointRow.reallocation_id == ReallocationRow.id)
        .where(
            or_(
                and_(
                    CheckpointRow.reallocation_id.is_(None),
                    or_(allowed.at.is_not(None), ended.at.is_not(None)),
                ),
                ReallocationRow.trained_on,
            )
        )
        .order_by(ReallocationRow.id)
    )
