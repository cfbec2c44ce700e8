"""Record what one look at Slurm showed of registered jobs, in a bounded number of statements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, bindparam, func, insert, select, update

from pollux_slurm.model import Allocation, JobState
from pollux_slurm.store.clean import clean_text, utc
from pollux_slurm.store.contract import JobObservation
from pollux_slurm.store.schema import AllocationNodeRow, AllocationRow, JobRow, RunRow
from pollux_slurm.store.statements import is_one_of

_STARTED = frozenset({JobState.RUNNING, JobState.COMPLETING, JobState.SUSPENDED})


def observe_jobs(connection: Connection, observations: Sequence[JobObservation], *, at: datetime) -> None:
    """Record state and allocation of registered jobs: see `Store.observe_jobs`."""
    at = utc(at)
    if not observations:
        return
    known = _known_jobs(connection, [entry.slurm_job_id for entry in observations])
    held = _open_nodes(connection, [entry.slurm_job_id for entry in observations])
    changes = _Changes(at)
    typed: dict[tuple[int, int], str] = {}
    for entry in observations:
        row = known.pop(entry.slurm_job_id, None)  # a second word about the same job is not heard
        if row is not None:
            changes.add(row, Allocation.of(held.get(row.id, {})), entry)
            if entry.gpu_type is not None and entry.restart_count is not None:
                typed[row.id, entry.restart_count] = entry.gpu_type
    changes.write(connection)
    _write_types(connection, typed)


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
        self._closed: list[dict[str, Any]] = []
        self._opened: list[dict[str, Any]] = []
        self._nodes: list[dict[str, Any]] = []

    def add(self, row: Any, held: Allocation, seen: JobObservation) -> None:
        started_at = row.started_at or _first_start(seen, self._at)
        finished_at = None
        if seen.state.is_over:
            # Known to be over, it keeps the end that was first seen.
            finished_at = row.finished_at or min(utc(seen.ended_at or self._at), self._at)
        if (row.state, row.started_at, row.finished_at) != (seen.state, started_at, finished_at):
            self._jobs.append(
                {"b_id": row.id, "state": seen.state, "started_at": started_at, "finished_at": finished_at}
            )
        holds = Allocation() if seen.state.is_over else seen.allocation
        if holds != held:
            self._change_allocation(row, held, holds, seen)

    def _change_allocation(self, row: Any, held: Allocation, holds: Allocation, seen: JobObservation) -> None:
        floor = row.stretch_started_at if held else row.stretch_ended_at
        began = ended = self._at if floor is None else max(self._at, floor)
        # Between two looks Slurm's own times are nearer to the truth than the time of this look; but not
        # its start time when it lies before this stretch: GPUs were then taken from a running job.
        started_at = None if seen.started_at is None else utc(seen.started_at)
        if started_at is not None and started_at < began and (floor is None or started_at > floor):
            began = started_at
        if held:
            if holds:
                ended = began
            elif seen.ended_at is not None:
                ended = max(min(utc(seen.ended_at), ended), row.stretch_started_at)
            self._closed.append({"b_job_id": row.id, "b_number": row.number, "ended_at": ended})
        if holds:
            number = 0 if row.number is None else row.number + 1
            self._opened.append({"job_id": row.id, "number": number, "started_at": began})
            self._nodes.extend(
                {"job_id": row.id, "number": number, "node_name": clean_text(node), "num_gpus": gpus}
                for node, gpus in holds.gpus_by_node
            )

    def write(self, connection: Connection) -> None:
        if self._jobs:
            connection.execute(
                update(JobRow)
                .where(JobRow.id == bindparam("b_id"))
                .values(
                    state=bindparam("state"),
                    started_at=bindparam("started_at"),
                    finished_at=bindparam("finished_at"),
                ),
                self._jobs,
            )
        if self._closed:
            connection.execute(
                update(AllocationRow)
                .where(
                    AllocationRow.job_id == bindparam("b_job_id"),
                    AllocationRow.number == bindparam("b_number"),
                )
                .values(ended_at=bindparam("ended_at")),
                self._closed,
            )
        if self._opened:
            connection.execute(insert(AllocationRow), self._opened)
            connection.execute(insert(AllocationNodeRow), self._nodes)


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
    if seen.state in _STARTED:
        return min(utc(seen.started_at or at), at)
    ran = seen.started_at is not None and seen.ended_at is not None and seen.started_at < seen.ended_at
    return utc(seen.started_at) if seen.state.is_over and ran and seen.started_at else None


def _known_jobs(connection: Connection, slurm_job_ids: Sequence[str]) -> dict[str, Any]:
    """Return the newest job of each number with its last stretch of allocation."""
    newest = (
        select(func.max(JobRow.id))
        .where(is_one_of(connection, JobRow.slurm_job_id, slurm_job_ids))
        .group_by(JobRow.slurm_job_id)
    )
    last = (
        select(func.max(AllocationRow.number))
        .where(AllocationRow.job_id == JobRow.id)
        .correlate(JobRow)
        .scalar_subquery()
    )
    rows = connection.execute(
        select(
            JobRow.id,
            JobRow.slurm_job_id,
            JobRow.state,
            JobRow.started_at,
            JobRow.finished_at,
            AllocationRow.number,
            AllocationRow.started_at.label("stretch_started_at"),
            AllocationRow.ended_at.label("stretch_ended_at"),
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
