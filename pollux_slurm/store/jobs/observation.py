"""Record what one look at Slurm showed of registered jobs, in a bounded number of statements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, bindparam, func, insert, select, update
from sqlalchemy.orm import aliased

from pollux_slurm.model import Allocation, JobState
from pollux_slurm.store.access.sanitizing import clean_text, utc
from pollux_slurm.store.access.statements import is_one_of, is_one_of_ids
from pollux_slurm.store.contract.interface import JobObservation
from pollux_slurm.store.jobs.allocation_intervals import Change, Hints, Stretch, change_of, counted_s
from pollux_slurm.store.jobs.submissions import read_stretches
from pollux_slurm.store.schema import AllocationNodeRow, AllocationRow, JobRow, RoundRow, RunRow

_HOLDING = frozenset({JobState.RUNNING, JobState.SUSPENDED})


def observe_jobs(connection: Connection, observations: Sequence[JobObservation], *, at: datetime) -> None:
    """Record state and allocation of registered jobs: see `Store.observe_jobs`."""
    at = utc(at)
    if not observations:
        return
    ids = [entry.slurm_job_id for entry in observations]
    known = _known_jobs(connection, ids)
    held = _open_nodes(connection, ids)
    pairs = []
    for entry in observations:
        row = known.pop(entry.slurm_job_id, None)  # a second word about the same job is not heard
        if row is not None:
            pairs.append((row, entry))
    ended = _ended_stretches(connection, pairs)
    hints = _hints(connection, pairs)
    changes = _Changes(at)
    for row, entry in pairs:
        before = ended.get(row.id, ())
        last = _last_stretch(row, before, Allocation.of(held.get(row.id, {})))
        times = [(one.started_at, one.ended_at) for one in before]
        others_s = 0.0 if entry.started_at is None else counted_s(times, utc(entry.started_at))
        change = change_of(last, entry, at=at, others_s=others_s, hints=hints.get(row.id))
        changes.add(row, entry, change)
    _write_types(connection, _types_of(pairs))
    changes.write(connection)


def _last_stretch(row: Any, before: Sequence[Any], held: Allocation) -> Stretch | None:
    """Return the newest stretch of a job: its own, or else of the row whose token this one's replaced."""
    if row.number is None:
        last = before[-1] if before else None
        return last and Stretch(
            number=last.number,
            started_at=last.started_at,
            ended_at=last.ended_at,
            restart_count=last.restart_count,
        )
    return Stretch(
        number=row.number,
        started_at=row.stretch_started_at,
        ended_at=row.stretch_ended_at,
        restart_count=row.restart_count,
        allocation=held,
    )


def note_left_out(connection: Connection, reasons: Mapping[str, str]) -> None:
    """Record why a round left jobs out: see `Store.note_left_out`."""
    lives = JobRow.finished_at.is_(None)
    connection.execute(
        update(JobRow).where(lives, JobRow.left_out_because.is_not(None)).values(left_out_because=None)
    )
    if reasons:
        connection.execute(
            update(JobRow)
            .where(lives, JobRow.slurm_job_id == bindparam("number"))
            .values(left_out_because=bindparam("because")),
            [{"number": number, "because": clean_text(because)} for number, because in reasons.items()],
        )


class _Changes:
    """The rows to write, gathered over all jobs, so that each kind takes one statement."""

    def __init__(self, at: datetime) -> None:
        self._at = at
        self._jobs: list[dict[str, Any]] = []
        self._moved: list[dict[str, Any]] = []
        self._closed: list[dict[str, Any]] = []
        self._opened: list[dict[str, Any]] = []
        self._nodes: list[dict[str, Any]] = []

    def add(self, row: Any, seen: JobObservation, change: Change) -> None:
        started_at = row.started_at or _first_start(seen, self._at)
        finished_at = None
        if seen.state.is_over:
            # Known to be over, it keeps the end that was first seen.
            finished_at = row.finished_at or utc(seen.ended_at or self._at)
        estimated = row.estimated or change.is_estimated or seen.estimated
        known = (row.state, row.started_at, row.finished_at, row.estimated)
        if known != (seen.state, started_at, finished_at, estimated):
            self._jobs.append(
                {
                    "b_id": row.id,
                    "state": seen.state,
                    "started_at": started_at,
                    "finished_at": finished_at,
                    "estimated": estimated,
                }
            )
        last = {"b_job_id": row.id, "b_number": row.number}
        if change.moved_start is not None:
            self._moved.append({**last, "started_at": change.moved_start})
        if change.closed_at is not None:
            self._closed.append({**last, "ended_at": change.closed_at, "estimated": change.closed_by_guess})
        first = 0 if row.most is None else row.most + 1
        for number, new in enumerate(change.opened, start=first):
            self._opened.append(
                {
                    "job_id": row.id,
                    "number": number,
                    "started_at": new.started_at,
                    "ended_at": new.ended_at,
                    "restart_count": seen.restart_count,
                    "estimated": new.estimated,
                }
            )
            self._nodes.extend(node_rows(row.id, number, new.allocation))

    def write(self, connection: Connection) -> None:
        if self._jobs:
            connection.execute(
                update(JobRow)
                .where(JobRow.id == bindparam("b_id"))
                .values(
                    state=bindparam("state"),
                    started_at=bindparam("started_at"),
                    finished_at=bindparam("finished_at"),
                    estimated=bindparam("estimated"),
                ),
                self._jobs,
            )
        for changed in (self._moved, self._closed):
            if changed:
                columns = [name for name in changed[0] if not name.startswith("b_")]
                connection.execute(
                    update(AllocationRow)
                    .where(
                        AllocationRow.job_id == bindparam("b_job_id"),
                        AllocationRow.number == bindparam("b_number"),
                    )
                    .values({name: bindparam(name) for name in columns}),
                    changed,
                )
        if self._opened:
            connection.execute(insert(AllocationRow), self._opened)
            connection.execute(insert(AllocationNodeRow), self._nodes)


def node_rows(job_id: int, number: int, allocation: Allocation) -> list[dict[str, Any]]:
    """Return the rows of the nodes of a stretch."""
    return [
        {"job_id": job_id, "number": number, "node_name": clean_text(node), "num_gpus": gpus}
        for node, gpus in allocation.gpus_by_node
    ]


def _types_of(pairs: Sequence[tuple[Any, JobObservation]]) -> dict[tuple[int, int], str]:
    """Return the type of GPU of each start, by job id and restart count."""
    return {
        (row.id, seen.restart_count): seen.gpu_type
        for row, seen in pairs
        if seen.gpu_type is not None and seen.restart_count is not None
    }


def _write_types(connection: Connection, typed: dict[tuple[int, int], str]) -> None:
    """Note the type of GPU with the runs of the starts (job id, restart count) that it was seen for."""
    if not typed:
        return
    untyped = connection.execute(
        select(RunRow.id, RunRow.job_id, RunRow.restart_count)
        .join(JobRow, JobRow.id == RunRow.job_id)
        .where(RunRow.gpu_type.is_(None), JobRow.finished_at.is_(None))
        # A stranger's transaction may hold the row, for as long as it likes: another round will do.
        .with_for_update(of=RunRow, key_share=True, skip_locked=True)
    )
    found = [
        {"b_id": run.id, "gpu_type": clean_text(typed[run.job_id, run.restart_count])}
        for run in untyped
        if (run.job_id, run.restart_count) in typed
    ]
    if found:
        connection.execute(
            update(RunRow).where(RunRow.id == bindparam("b_id")).values(gpu_type=bindparam("gpu_type")), found
        )


def _first_start(seen: JobObservation, at: datetime) -> datetime | None:
    """Return when the job started, None if it has not: Slurm foretells a start to jobs that wait."""
    if seen.state in _HOLDING:
        return utc(seen.started_at or at)
    ran = seen.started_at is not None and seen.ended_at is not None and seen.started_at < seen.ended_at
    return utc(seen.started_at) if ran and seen.started_at else None


def _ended_stretches(
    connection: Connection, pairs: Sequence[tuple[Any, JobObservation]]
) -> dict[int, list[Any]]:
    """Return the ended stretches of the jobs that need them, which few are, oldest first.

    Those are jobs whose run was suspended, and those that have another token since they last held GPUs.
    """
    first_ids = {
        row.id: row.first_id or row.id
        for row, seen in pairs
        if seen.suspended_at is not None
        or seen.resumed_at is not None
        or (row.number is None and row.first_id is not None)
    }
    if not first_ids:
        return {}
    found = read_stretches(connection, first_ids.values())
    return {
        job_id: [stretch for stretch in found[first_id] if stretch.ended_at is not None]
        for job_id, first_id in first_ids.items()
    }


def _hints(connection: Connection, pairs: Sequence[tuple[Any, JobObservation]]) -> dict[int, Hints]:
    """Return what bounds the end of runs that Slurm may not show any more; nothing is asked without any."""
    doubtful = [
        row.id
        for row, seen in pairs
        if row.number is not None
        and row.stretch_ended_at is None
        and (seen.ended_at is None if seen.state not in _HOLDING else _has_begun_anew(row, seen))
    ]
    if not doubtful:
        return {}
    looked_at = connection.execute(select(func.max(RoundRow.at))).scalar()
    reports = connection.execute(
        select(RunRow.job_id, RunRow.restart_count, func.max(RunRow.last_report_at).label("at"))
        .where(is_one_of_ids(connection, RunRow.job_id, doubtful))
        .group_by(RunRow.job_id, RunRow.restart_count)
    )
    told = {(report.job_id, report.restart_count): report.at for report in reports}
    rows = {row.id: row for row, _ in pairs}
    return {
        job_id: Hints(looked_at=looked_at, last_report_at=told.get((job_id, rows[job_id].restart_count)))
        for job_id in doubtful
    }


def _has_begun_anew(row: Any, seen: JobObservation) -> bool:
    return seen.started_at is not None and utc(seen.started_at) > row.stretch_started_at


def _known_jobs(connection: Connection, slurm_job_ids: Sequence[str]) -> dict[str, Any]:
    """Return the newest job of each number with its last stretch of allocation."""
    newest = (
        select(func.max(JobRow.id))
        .where(is_one_of(connection, JobRow.slurm_job_id, slurm_job_ids))
        .group_by(JobRow.slurm_job_id)
    )
    other = aliased(AllocationRow)
    last = (
        select(other.number)
        .where(other.job_id == JobRow.id)
        # One that was entered later may lie before it.
        .order_by(other.started_at.desc(), other.number.desc())
        .limit(1)
        .correlate(JobRow)
        .scalar_subquery()
    )
    most = select(func.max(other.number)).where(other.job_id == JobRow.id).correlate(JobRow).scalar_subquery()
    rows = connection.execute(
        select(
            JobRow.id,
            JobRow.slurm_job_id,
            JobRow.first_id,
            JobRow.state,
            JobRow.started_at,
            JobRow.finished_at,
            JobRow.estimated,
            AllocationRow.number,
            AllocationRow.restart_count,
            AllocationRow.started_at.label("stretch_started_at"),
            AllocationRow.ended_at.label("stretch_ended_at"),
            most.label("most"),
        )
        .outerjoin(AllocationRow, (AllocationRow.job_id == JobRow.id) & (AllocationRow.number == last))
        .where(JobRow.id.in_(newest))
    )
    return {row.slurm_job_id: row for row in rows}


def _open_nodes(connection: Connection, slurm_job_ids: Sequence[str]) -> dict[int, dict[str, int]]:
    rows = connection.execute(
        select(AllocationNodeRow.job_id, AllocationNodeRow.node_name, AllocationNodeRow.num_gpus)
        .join(
            AllocationRow,
            (AllocationRow.job_id == AllocationNodeRow.job_id)
            & (AllocationRow.number == AllocationNodeRow.number),
        )
        .join(JobRow, JobRow.id == AllocationRow.job_id)
        .where(AllocationRow.ended_at.is_(None), is_one_of(connection, JobRow.slurm_job_id, slurm_job_ids))
    )
    held: dict[int, dict[str, int]] = {}
    for row in rows:
        held.setdefault(row.job_id, {})[row.node_name] = row.num_gpus
    return held
