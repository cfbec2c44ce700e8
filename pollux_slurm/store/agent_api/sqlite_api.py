"""The job's door in SQLite: report and poll, each one transaction of a few statements.

PostgreSQL has the same in `sql/security/functions.sql`, called by `postgresql_api.py`. One contract suite
holds both to the same promises.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Connection, and_, delete, exists, func, insert, select, update

from pollux_slurm.errors import ReportRefusedError, StaleRunError, UnknownJobError
from pollux_slurm.model import Allocation, ReallocationStep
from pollux_slurm.store.access.database import Database
from pollux_slurm.store.access.sanitizing import utc
from pollux_slurm.store.access.statements import inserted_id, upsert
from pollux_slurm.store.agent_api.report_checks import checked_report, checked_request_id, checked_run_number
from pollux_slurm.store.agent_api.token_hashes import hash_token, user_of_token
from pollux_slurm.store.contract.interface import Move, Poll, Report, RunPhase
from pollux_slurm.store.jobs.declarations import write_declaration
from pollux_slurm.store.jobs.goodput_models import model_columns, model_of_row, select_models
from pollux_slurm.store.journal.reallocations import ENDS
from pollux_slurm.store.schema import (
    AllocationNodeRow,
    AllocationRow,
    CheckpointRow,
    JobRow,
    LeaseRow,
    ModelVersionRow,
    ReallocationNodeRow,
    ReallocationRow,
    ReallocationStepRow,
    RunNodeRow,
    RunRow,
    RunWarningRow,
    SampleRow,
)
from pollux_slurm.store.schema.daemon import Side

# How long after the end of its lease a daemon still counts as alive: clocks of two hosts may differ so much.
DAEMON_GRACE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    id: int
    slurm_job_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    id: int
    run_number: int
    restart_count: int
    last_sequence: int
    first_report_at: datetime
    last_report_at: datetime
    first_step_s: float | None


class SqlAgentStore:
    """`AgentStore` over an SQLite database. `limited`: a report tells of no more nodes than Slurm gave."""

    def __init__(self, database: Database, *, limited: bool = True) -> None:
        self._database = database
        self._limited = limited

    def report(self, token: str, report: Report, *, at: datetime) -> None:
        """Record a report: see `AgentStore.report`."""
        report, at = checked_report(report), utc(at)
        with self._database.write() as connection:
            job = _job_of_token(connection, token)
            if self._limited:
                _check_nodes(connection, job.id, len(report.gpus_per_node))
            known = _current_run(connection, job.id)
            if _is_repeated(job, known, report):
                return
            if known is None or report.run_number > known.run_number:
                run = _open_run(connection, job.id, report, at)
            else:
                run = _continue_run(connection, known, report, at)
            # A clock that was set back must not put a report before the one that it follows.
            at = max(at, run.last_report_at)
            _write_model(connection, job.id, report, at)
            _write_sample(connection, run.id, report, at)
            _write_warnings(connection, run.id, report, at)
            if not _is_bare_start(report):
                write_declaration(connection, job.id, report, at)
            _write_checkpoint(connection, job.id, run, report, at)

    def poll(self, token: str, run_number: int, *, at: datetime) -> Poll:
        """Return what the job should do: see `AgentStore.poll`."""
        run_number, at = checked_run_number(run_number), utc(at)
        with self._database.read() as connection:
            job = _job_of_token(connection, token)
            run = _current_run(connection, job.id)
            if run is not None and run_number < run.run_number:
                raise _stale(job, run, run_number)
            open_steps = [ReallocationStep.CHECKPOINT_REQUESTED, ReallocationStep.CHECKPOINTED]
            asked: ColumnElement[bool] = ReallocationRow.step.in_(open_steps)
            if run is not None and run_number == run.run_number:
                # A request is for the start of the job that it was planned for: neither for a process left
                # from before it, where the newer has not reported yet, nor for the run after, begun by
                # another hand. Once the requeue is under way, the run that confirmed still waits for its end.
                asked = and_(
                    ReallocationRow.step.in_([*open_steps, ReallocationStep.REQUEUED]),
                    ReallocationRow.from_restart_count == run.restart_count,
                )
            wanted = select(ReallocationRow.id).where(ReallocationRow.job_id == job.id, asked)
            # Nobody waits for a daemon that has died: its lease tells. The next finds that the job went on.
            died = exists().where(LeaseRow.expires_at <= at - timedelta(seconds=DAEMON_GRACE_S))
            wanted = wanted.where(~died)
            return Poll(checkpoint_request=connection.execute(wanted).scalar())

    def move(self, token: str, request_id: int) -> Move | None:
        """Return what a reallocation of the job moves: see `AgentStore.move`."""
        request_id = checked_request_id(request_id)
        with self._database.read() as connection:
            job = _job_of_token(connection, token)
            wanted = select(ReallocationRow.reason).where(
                ReallocationRow.id == request_id, ReallocationRow.job_id == job.id
            )
            found = connection.execute(wanted).one_or_none()
            if found is None:
                return None
            sides: dict[Side, dict[str, int]] = {side: {} for side in Side}
            for row in connection.execute(
                select(
                    ReallocationNodeRow.side, ReallocationNodeRow.node_name, ReallocationNodeRow.num_gpus
                ).where(ReallocationNodeRow.reallocation_id == request_id)
            ):
                sides[row.side][row.node_name] = row.num_gpus
        source, target = (Allocation.of(sides[side]) for side in (Side.SOURCE, Side.TARGET))
        return Move(source=source, target=target, reason=found.reason)

    def close(self) -> None:
        """Give back the connections."""
        self._database.close()


def _job_of_token(connection: Connection, token: str) -> _Job:
    if not isinstance(token, str):
        raise UnknownJobError("a job's token is a text; this one is none")
    # Of its own user's jobs only: a hash is public, and others can put it into their jobs' Comments.
    wanted = select(JobRow.id, JobRow.slurm_job_id, JobRow.finished_at).where(
        JobRow.token_sha256 == hash_token(token), JobRow.user_id == user_of_token(token)
    )
    row = connection.execute(wanted).one_or_none()
    if row is None:
        raise UnknownJobError(
            "no job is registered with this token yet; the daemon registers it from its Slurm Comment in one "
            "of its next rounds"
        )
    if row.finished_at is not None:
        raise UnknownJobError(f"job {row.slurm_job_id} is over, and its token works no longer")
    return _Job(id=row.id, slurm_job_id=row.slurm_job_id)


def _check_nodes(connection: Connection, job_id: int, told: int) -> None:
    """Refuse a report of more nodes than Slurm was seen to give the job, or is about to."""
    most = _most_nodes(connection, job_id) if told > 1 else 1
    if told > most:
        raise UnknownJobError(
            f"the job tells of {told} nodes and was seen on {most}; the daemon looks again in one of its "
            "next rounds"
        )


def _most_nodes(connection: Connection, job_id: int) -> int:
    """Return the number of nodes of the job's last stretch or of a move under way; 1 without GPUs."""
    last = (
        select(AllocationRow.number)
        .where(AllocationRow.job_id == job_id)
        # One that was entered later may lie before it.
        .order_by(AllocationRow.started_at.desc(), AllocationRow.number.desc())
        .limit(1)
        .scalar_subquery()
    )
    held = (
        select(func.count())
        .select_from(AllocationNodeRow)
        .where(AllocationNodeRow.job_id == job_id, AllocationNodeRow.number == last)
    )
    coming = (
        select(func.count())
        .select_from(ReallocationNodeRow)
        .join(ReallocationRow, ReallocationRow.id == ReallocationNodeRow.reallocation_id)
        .where(
            ReallocationRow.job_id == job_id,
            ReallocationRow.step.not_in(ENDS),
            ReallocationNodeRow.side == Side.TARGET,
        )
    )
    return max(connection.execute(held).scalar_one(), connection.execute(coming).scalar_one(), 1)


def _current_run(connection: Connection, job_id: int) -> _Run | None:
    row = connection.execute(
        select(
            RunRow.id,
            RunRow.run_number,
            RunRow.restart_count,
            RunRow.last_sequence,
            RunRow.first_report_at,
            RunRow.last_report_at,
            RunRow.first_step_s,
        )
        .where(RunRow.job_id == job_id)
        .order_by(RunRow.run_number.desc())
        .limit(1)
    ).one_or_none()
    return None if row is None else _Run(**row._mapping)


def _stale(job: _Job, run: _Run, run_number: int) -> StaleRunError:
    return StaleRunError(
        f"job {job.slurm_job_id}: run {run_number} is not its current run, which is {run.run_number}; this "
        "process is a leftover and must stop writing"
    )


def _is_repeated(job: _Job, run: _Run | None, report: Report) -> bool:
    """Whether the report was recorded before. Raises when the run may not report at all."""
    if run is None:
        return False
    if report.run_number < run.run_number:
        raise _stale(job, run, report.run_number)
    if report.restart_count < run.restart_count:
        raise ReportRefusedError(
            f"report refused: job {job.slurm_job_id}: restart_count went back from {run.restart_count} to "
            f"{report.restart_count}"
        )
    if report.run_number > run.run_number:
        return False
    if report.restart_count > run.restart_count:
        raise ReportRefusedError(
            f"report refused: job {job.slurm_job_id}: run {run.run_number} began at restart_count "
            f"{run.restart_count}; a start with {report.restart_count} must claim a run number of its own"
        )
    return report.sequence <= run.last_sequence


def _open_run(connection: Connection, job_id: int, report: Report, at: datetime) -> _Run:
    result = connection.execute(
        insert(RunRow).values(
            job_id=job_id,
            run_number=report.run_number,
            restart_count=report.restart_count,
            phase=report.phase,
            first_report_at=at,
            last_report_at=at,
            last_sequence=report.sequence,
            num_steps=report.num_steps,
            first_step_s=report.first_step_s,
            first_step_at=None if report.first_step_s is None else at,
            restore_s=report.restore_s,
        )
    )
    run_id = inserted_id(result)
    _write_nodes(connection, run_id, report.gpus_per_node)
    return _Run(
        id=run_id,
        run_number=report.run_number,
        restart_count=report.restart_count,
        last_sequence=report.sequence,
        first_report_at=at,
        last_report_at=at,
        first_step_s=report.first_step_s,
    )


def _continue_run(connection: Connection, run: _Run, report: Report, at: datetime) -> _Run:
    values: dict[str, object] = {
        "phase": report.phase,
        "last_report_at": max(at, run.last_report_at),
        "last_sequence": report.sequence,
        "num_steps": report.num_steps,
    }
    if run.first_step_s is None and report.first_step_s is not None:
        values |= {"first_step_s": report.first_step_s, "first_step_at": max(at, run.last_report_at)}
    if report.restore_s is not None:
        values["restore_s"] = report.restore_s
    connection.execute(update(RunRow).where(RunRow.id == run.id).values(values))
    known = connection.execute(
        select(RunNodeRow.num_gpus).where(RunNodeRow.run_id == run.id).order_by(RunNodeRow.node_rank)
    ).scalars()
    if tuple(known) != report.gpus_per_node:
        connection.execute(delete(RunNodeRow).where(RunNodeRow.run_id == run.id))
        _write_nodes(connection, run.id, report.gpus_per_node)
    return run


def _write_nodes(connection: Connection, run_id: int, gpus_per_node: tuple[int, ...]) -> None:
    connection.execute(
        insert(RunNodeRow),
        [{"run_id": run_id, "node_rank": rank, "num_gpus": gpus} for rank, gpus in enumerate(gpus_per_node)],
    )


def _write_model(connection: Connection, job_id: int, report: Report, at: datetime) -> None:
    """Add a version when something in the model has changed: other numbers, or told by another run.

    What a run tells before it has measured anything comes from its checkpoint: another run's model, perhaps
    of another type of GPU.
    """
    model = report.model
    if model is None:
        return
    latest = connection.execute(
        select_models()
        .add_columns(ModelVersionRow.run_number)
        .where(ModelVersionRow.job_id == job_id)
        .order_by(ModelVersionRow.id.desc())
        .limit(1)
    ).one_or_none()
    run_number = report.run_number if report.throughput is not None else None
    if latest is not None and model_of_row(latest) == model and run_number in (None, latest.run_number):
        return
    connection.execute(
        insert(ModelVersionRow).values(job_id=job_id, at=at, run_number=run_number, **model_columns(model))
    )


def _is_bare_start(report: Report) -> bool:
    """At the start nothing is measured, and progress and epoch are not yet restored from the checkpoint."""
    return report.phase is RunPhase.STARTING and report.throughput is None


def _write_sample(connection: Connection, run_id: int, report: Report, at: datetime) -> None:
    if _is_bare_start(report):
        return
    batch = report.batch
    connection.execute(
        insert(SampleRow).values(
            run_id=run_id,
            sequence=report.sequence,
            at=at,
            global_batch_size=batch.global_batch_size if batch else None,
            atomic_batch_size=batch.atomic_batch_size if batch else None,
            accumulation_steps=batch.accumulation_steps if batch else None,
            throughput=report.throughput,
            predicted_throughput=report.predicted_throughput,
            step_time_s=report.step_time_s,
            efficiency=report.efficiency,
            progress=report.progress,
            epoch=report.epoch,
            total_epochs=report.total_epochs,
            num_examples=report.num_examples,
        )
    )


def _write_warnings(connection: Connection, run_id: int, report: Report, at: datetime) -> None:
    if report.warnings:
        connection.execute(
            upsert(connection, RunWarningRow).on_conflict_do_nothing(),
            [{"run_id": run_id, "warning": name.value, "first_seen_at": at} for name in report.warnings],
        )


def _write_checkpoint(connection: Connection, job_id: int, run: _Run, report: Report, at: datetime) -> None:
    """Record a confirmed checkpoint; let the reallocation that asked for it, if it still does, go on."""
    confirmed = report.checkpoint
    if confirmed is None:
        return
    answers = False
    if confirmed.request_id is not None:
        # The job's own, still waiting, and planned for this start of the job.
        moved = connection.execute(
            update(ReallocationRow)
            .where(
                ReallocationRow.id == confirmed.request_id,
                ReallocationRow.job_id == job_id,
                ReallocationRow.step == ReallocationStep.CHECKPOINT_REQUESTED,
                ReallocationRow.from_restart_count == run.restart_count,
            )
            .values(step=ReallocationStep.CHECKPOINTED)
        )
        answers = moved.rowcount == 1
    if answers:
        connection.execute(
            insert(ReallocationStepRow).values(
                reallocation_id=confirmed.request_id, step=ReallocationStep.CHECKPOINTED, at=at
            )
        )
    # Training did not stand still for it before it was asked for, or before the run.
    begun = run.first_report_at
    if answers:
        begun = connection.execute(
            select(ReallocationStepRow.at).where(
                ReallocationStepRow.reallocation_id == confirmed.request_id,
                ReallocationStepRow.step == ReallocationStep.CHECKPOINT_REQUESTED,
            )
        ).scalar_one()
    connection.execute(
        insert(CheckpointRow).values(
            run_id=run.id,
            sequence=report.sequence,
            at=at,
            reallocation_id=confirmed.request_id if answers else None,
            blocked_s=min(confirmed.blocked_s, max((at - begun).total_seconds(), 0.0)),
            size_bytes=confirmed.size_bytes,
        )
    )
