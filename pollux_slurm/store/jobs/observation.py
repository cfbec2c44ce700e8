"""Record what Slurm shows of registered jobs, also how they ended, in a bounded number of statements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, bindparam, func, insert, select, update
from sqlalchemy.orm import aliased

from pollux_slurm.model import Allocation, JobState
from pollux_slurm.store.access.sanitizing import clean_text, utc
from pollux_slurm.store.access.statements import is_one_of, is_one_of_ids
from pollux_slurm.store.contract.interface import JobObservation, PromiseRecord
from pollux_slurm.store.jobs.allocation_intervals import (
    EndBounds,
    IntervalChange,
    KnownInterval,
    counted_s,
    interval_change,
)
from pollux_slurm.store.jobs.submissions import read_intervals
from pollux_slurm.store.jobs.wing_intervals import wings_change
from pollux_slurm.store.schema import AllocationNodeRow, AllocationRow, JobRow, RoundRow, RunRow

_HAS_GPUS = frozenset({JobState.RUNNING, JobState.SUSPENDED})


def observe_jobs(
    connection: Connection, observations: Sequence[JobObservation], *, at: datetime
) -> frozenset[str]:
    """Record state and allocation of registered jobs: see `RegisteredJobs.observe`."""
    at = utc(at)
    if not observations:
        return frozenset()
    ids = [entry.slurm_job_id for entry in observations]
    known = _known_jobs(connection, ids)
    open_nodes = _open_nodes(connection, ids)
    pairs = []
    for entry in observations:
        row = known.pop(entry.slurm_job_id, None)  # only the first of several entries for a job counts
        if row is not None:
            pairs.append((row, entry))
    ended = _ended_intervals(connection, pairs)
    end_bounds = _end_bounds(connection, pairs)
    changes = _Changes(at)
    for row, entry in pairs:
        before = ended.get(row.id, ())
        last = _last_interval(row, before, Allocation.of(open_nodes.get(row.id, {})))
        times = [(one.started_at, one.ended_at) for one in before]
        others_s = 0.0 if entry.started_at is None else counted_s(times, utc(entry.started_at))
        bounds = end_bounds.get(row.id)
        if entry.in_place:
            change = wings_change(last, entry, at=at, end_bounds=bounds)
        else:
            change = interval_change(last, entry, at=at, others_s=others_s, end_bounds=bounds)
        changes.add(row, entry, change)
    typed = _write_gpu_types(connection, _gpu_types(pairs))
    changes.write(connection)
    changed = changes.job_ids | typed
    return frozenset(entry.slurm_job_id for row, entry in pairs if row.id in changed)


def _last_interval(row: Any, before: Sequence[Any], allocation: Allocation) -> KnownInterval | None:
    """Return a job's newest interval: that of its own row, or else of an earlier row of its submission."""
    if row.number is None:
        last = before[-1] if before else None
        return last and KnownInterval(
            number=last.number,
            started_at=last.started_at,
            ended_at=last.ended_at,
            restart_count=last.restart_count,
        )
    return KnownInterval(
        number=row.number,
        started_at=row.interval_started_at,
        ended_at=row.interval_ended_at,
        restart_count=row.restart_count,
        allocation=allocation,
    )


def record_not_moved(connection: Connection, reasons: Mapping[str, str]) -> None:
    """Record why a round could not move jobs: see `RegisteredJobs.record_not_moved`."""
    is_not_over = JobRow.finished_at.is_(None)
    connection.execute(
        update(JobRow).where(is_not_over, JobRow.not_moved_reason.is_not(None)).values(not_moved_reason=None)
    )
    if reasons:
        connection.execute(
            update(JobRow)
            .where(is_not_over, JobRow.slurm_job_id == bindparam("number"))
            .values(not_moved_reason=bindparam("reason")),
            [{"number": number, "reason": clean_text(reason)} for number, reason in reasons.items()],
        )


def record_promises(connection: Connection, answers: Mapping[str, PromiseRecord]) -> None:
    """Record the answers to jobs with a moment: see `RegisteredJobs.record_promises`."""
    if not answers:
        return
    connection.execute(
        update(JobRow)
        .where(JobRow.finished_at.is_(None), JobRow.slurm_job_id == bindparam("b_number"))
        .values(
            promise=bindparam("b_state"),
            promise_gpus=bindparam("b_gpus"),
            promise_finish_at=bindparam("b_finish_at"),
            promise_reason=bindparam("b_reason"),
        ),
        [
            {
                "b_number": number,
                "b_state": answer.state,
                "b_gpus": answer.least_gpus,
                "b_finish_at": answer.finish_at,
                "b_reason": None if answer.reason is None else clean_text(answer.reason),
            }
            for number, answer in answers.items()
        ],
    )


def record_fitting(connection: Connection, known: Mapping[str, int | None]) -> None:
    """Record what fits into memory by a job's kind: see `RegisteredJobs.record_fitting`."""
    if known:
        connection.execute(
            update(JobRow)
            .where(JobRow.finished_at.is_(None), JobRow.slurm_job_id == bindparam("b_number"))
            .values(fitting_atomic=bindparam("b_examples")),
            [{"b_number": number, "b_examples": examples} for number, examples in known.items()],
        )


class _Changes:
    """The rows to write for all jobs, so that each kind takes one statement."""

    def __init__(self, at: datetime) -> None:
        self._at = at
        self._jobs: list[dict[str, Any]] = []
        self._restarted: list[dict[str, Any]] = []
        self._closed: list[dict[str, Any]] = []
        self._opened: list[dict[str, Any]] = []
        self._nodes: list[dict[str, Any]] = []

    def add(self, row: Any, seen: JobObservation, change: IntervalChange) -> None:
        started_at = row.started_at or _first_start(seen, self._at)
        finished_at = None
        if seen.state.is_over:
            # The end that was recorded first stays.
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
        if change.new_start is not None:
            self._restarted.append({**last, "started_at": change.new_start})
        if change.closed_at is not None:
            self._closed.append(
                {**last, "ended_at": change.closed_at, "estimated": change.closed_is_estimated}
            )
        first = 0 if row.max_number is None else row.max_number + 1
        for number, new in enumerate(change.opened, start=first):
            self._opened.append(
                {
                    "job_id": row.id,
                    "number": number,
                    "started_at": new.started_at,
                    "ended_at": new.ended_at,
                    "restart_count": seen.restart_count if new.restart_count is None else new.restart_count,
                    "estimated": new.estimated,
                }
            )
            self._nodes.extend(node_rows(row.id, number, new.allocation))

    @property
    def job_ids(self) -> set[int]:
        """The rows of the jobs that change."""
        return {
            *(row["b_id"] for row in self._jobs),
            *(row["b_job_id"] for row in (*self._restarted, *self._closed)),
            *(row["job_id"] for row in self._opened),
        }

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
        for changed in (self._restarted, self._closed):
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
    """Return the rows for the nodes of an interval."""
    return [
        {"job_id": job_id, "number": number, "node_name": clean_text(node), "num_gpus": gpus}
        for node, gpus in allocation.gpus_by_node
    ]


def _gpu_types(pairs: Sequence[tuple[Any, JobObservation]]) -> dict[tuple[int, int], str]:
    """Return the GPU type of each run, by job id and restart count."""
    return {
        (row.id, seen.restart_count): seen.gpu_type
        for row, seen in pairs
        if seen.gpu_type is not None and seen.restart_count is not None
    }


def _write_gpu_types(connection: Connection, typed: dict[tuple[int, int], str]) -> set[int]:
    """Write GPU types, by job id and restart count, to the runs that have none; return the jobs' ids."""
    if not typed:
        return set()
    untyped = connection.execute(
        select(RunRow.id, RunRow.job_id, RunRow.restart_count)
        .join(JobRow, JobRow.id == RunRow.job_id)
        .where(RunRow.gpu_type.is_(None), JobRow.finished_at.is_(None))
        # A report's transaction, from an untrusted client, may have locked the row: a later round will do.
        .with_for_update(of=RunRow, key_share=True, skip_locked=True)
    )
    runs = [run for run in untyped if (run.job_id, run.restart_count) in typed]
    if runs:
        connection.execute(
            update(RunRow).where(RunRow.id == bindparam("b_id")).values(gpu_type=bindparam("gpu_type")),
            [{"b_id": run.id, "gpu_type": clean_text(typed[run.job_id, run.restart_count])} for run in runs],
        )
    return {run.job_id for run in runs}


def _first_start(seen: JobObservation, at: datetime) -> datetime | None:
    """Return when the job started, None if it has not: for pending jobs Slurm shows an expected start."""
    if seen.state in _HAS_GPUS:
        return utc(seen.started_at or at)
    ran = seen.started_at is not None and seen.ended_at is not None and seen.started_at < seen.ended_at
    return utc(seen.started_at) if ran and seen.started_at else None


def _ended_intervals(
    connection: Connection, pairs: Sequence[tuple[Any, JobObservation]]
) -> dict[int, list[Any]]:
    """Return the ended intervals, oldest first, of the few jobs for which they are needed.

    These are jobs whose run was suspended, and jobs that got a new token and no GPUs since.
    """
    first_job_ids = {
        row.id: row.first_job_id or row.id
        for row, seen in pairs
        if seen.suspended_at is not None
        or seen.resumed_at is not None
        or (row.number is None and row.first_job_id is not None)
    }
    if not first_job_ids:
        return {}
    found = read_intervals(connection, first_job_ids.values())
    return {
        job_id: [interval for interval in found[first_job_id] if interval.ended_at is not None]
        for job_id, first_job_id in first_job_ids.items()
    }


def _end_bounds(connection: Connection, pairs: Sequence[tuple[Any, JobObservation]]) -> dict[int, EndBounds]:
    """Return bounds for the end of runs whose end Slurm may not show; no query where there are none."""
    uncertain = [
        row.id
        for row, seen in pairs
        if row.number is not None
        and row.interval_ended_at is None
        and (seen.ended_at is None if seen.state not in _HAS_GPUS else _is_new_run(row, seen))
    ]
    if not uncertain:
        return {}
    last_round_at = connection.execute(select(func.max(RoundRow.at))).scalar()
    reports = connection.execute(
        select(RunRow.job_id, RunRow.restart_count, func.max(RunRow.last_report_at).label("at"))
        .where(is_one_of_ids(connection, RunRow.job_id, uncertain))
        .group_by(RunRow.job_id, RunRow.restart_count)
    )
    reported = {(report.job_id, report.restart_count): report.at for report in reports}
    rows = {row.id: row for row, _ in pairs}
    return {
        job_id: EndBounds(
            last_round_at=last_round_at, last_report_at=reported.get((job_id, rows[job_id].restart_count))
        )
        for job_id in uncertain
    }


def _is_new_run(row: Any, seen: JobObservation) -> bool:
    return seen.started_at is not None and utc(seen.started_at) > row.interval_started_at


def _known_jobs(connection: Connection, slurm_job_ids: Sequence[str]) -> dict[str, Any]:
    """Return the newest job of each Slurm job id, with its last allocation interval."""
    newest = (
        select(func.max(JobRow.id))
        .where(is_one_of(connection, JobRow.slurm_job_id, slurm_job_ids))
        .group_by(JobRow.slurm_job_id)
    )
    other = aliased(AllocationRow)
    last = (
        select(other.number)
        .where(other.job_id == JobRow.id)
        # A correction may have inserted an earlier one later.
        .order_by(other.started_at.desc(), other.number.desc())
        .limit(1)
        .correlate(JobRow)
        .scalar_subquery()
    )
    max_number = (
        select(func.max(other.number)).where(other.job_id == JobRow.id).correlate(JobRow).scalar_subquery()
    )
    rows = connection.execute(
        select(
            JobRow.id,
            JobRow.slurm_job_id,
            JobRow.first_job_id,
            JobRow.state,
            JobRow.started_at,
            JobRow.finished_at,
            JobRow.estimated,
            AllocationRow.number,
            AllocationRow.restart_count,
            AllocationRow.started_at.label("interval_started_at"),
            AllocationRow.ended_at.label("interval_ended_at"),
            max_number.label("max_number"),
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
    open_nodes: dict[int, dict[str, int]] = {}
    for row in rows:
        open_nodes.setdefault(row.job_id, {})[row.node_name] = row.num_gpus
    return open_nodes
