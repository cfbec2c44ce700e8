"""Failed starts: jobs whose script Slurm never ran, or that Slurm holds for that reason. Pure.

Slurm 22.05 has three cases:

- The node has just killed a leftover of an earlier run. The start fails with "Job credential revoked", and
  the job is FAILED with exit code 1.
- The end of a leftover's script counts as the end of the new run. The job is FAILED by the leftover's signal.
- A launch failed otherwise ("launch failed requeued held"), or the job was requeued too often after node
  failures. Slurm holds the job until it is released. It also holds a job in a shape that can never start.

Slurm does not distinguish the first two from a script that fails at its beginning. So four things must hold:
the exit code is one of these cases', the job was requeued before, it ended within seconds of its start, and
that run reported nothing. A user's script that fails in just this way is started a few times in vain.

Recovery is a reallocation in the journal; its cause is what limits the number of attempts.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from pollux_slurm.daemon.recovery import failed_moves
from pollux_slurm.model import Allocation, ClusterSnapshot, JobState, ReallocationCause, SlurmJob
from pollux_slurm.model import ReallocationStep as Step
from pollux_slurm.now.known_jobs import is_recorded_job
from pollux_slurm.now.refusals import is_held_for_its_shape
from pollux_slurm.store.contract.interface import AllocationRecord, JobRecord, Reallocation

_MAX_STARTS = 3
_STARTS_COUNTED_FOR = timedelta(hours=1)
# How soon after its start a job must end to count as a failed start. A job that trained before has a working
# script, so it gets longer.
_REVOKED_WITHIN = timedelta(seconds=10)
_FIRST_WITHIN = timedelta(seconds=3)
_MISTAKEN_WITHIN = timedelta(seconds=30)
_MISTAKEN_CODES = frozenset({128 + signal.SIGKILL, 128 + signal.SIGTERM})
# The wait before each release of a job that Slurm holds; after the last one it stays held.
_RELEASE_WAITS = tuple(timedelta(seconds=seconds) for seconds in (0, 60, 300, 1200, 3600))
_RELEASES_COUNTED_FOR = timedelta(days=1)


def was_ended_by_slurm(record: JobRecord, job: SlurmJob) -> bool:
    """Whether the job failed so soon after its start that Slurm, and not its script, may have ended it."""
    if job.state is not JobState.FAILED or job.restart_count == 0 or not is_recorded_job(job, record):
        return False
    if job.unschedulable_reason is not None or job.started_at is None or job.ended_at is None:
        return False
    run, lasted = record.run, job.ended_at - job.started_at
    if run is not None and run.restart_count >= job.restart_count:
        return False  # this run has reported
    if job.exit_code in _MISTAKEN_CODES:
        return lasted <= _MISTAKEN_WITHIN
    return job.exit_code == 1 and lasted <= (_FIRST_WITHIN if run is None else _REVOKED_WITHIN)


def may_start_again(moves: Iterable[Reallocation], now: datetime) -> bool:
    """Whether a job with these `moves` may be started again now, by the number of recent attempts."""
    return _count(moves, ReallocationCause.FAILED_START, now - _STARTS_COUNTED_FOR) < _MAX_STARTS


def restart_reason(job: SlurmJob) -> str:
    """Return the journal's reason for another start."""
    return f"started again, since Slurm ended its start before it trained: exit code {job.exit_code}"


def is_start_again(reallocation: Reallocation | None) -> bool:
    """Whether a reallocation starts a job again after a failed start."""
    return reallocation is not None and reallocation.cause is ReallocationCause.FAILED_START


def start_allocation(
    record: JobRecord, job: SlurmJob, history: Sequence[AllocationRecord], snapshot: ClusterSnapshot
) -> Allocation:
    """Return where a job is to start: its last or planned allocation, else its minimum on one node.

    Empty when no node has that many GPUs. If the GPUs are taken meanwhile, the reallocation gets another
    target.
    """
    last = record.last_reallocation
    if last is not None and last.target and last.step is not Step.ROLLED_BACK:
        return failed_moves.shape_to_return_to(last, history)
    if (newest := next((one.allocation for one in reversed(history) if one.allocation), None)) is not None:
        return newest
    least = record.terms.min_gpus
    fitting = [
        node
        for node in snapshot.nodes
        if node.available
        and node.num_gpus >= least
        and job.may_run_on(node, record.required_nodes, at=snapshot.read_at)
    ]
    node = min(fitting, key=lambda node: (node.used_gpus - node.num_gpus, node.name), default=None)
    return Allocation() if node is None else Allocation.of({node.name: least})


def jobs_held_by_slurm(
    snapshot: ClusterSnapshot, records: Iterable[JobRecord]
) -> list[tuple[JobRecord, SlurmJob]]:
    """Return the jobs that Slurm itself holds, without an open move and not paused.

    One that it holds for its shape must have run before: else the shape is its owner's.
    """
    by_id = {job.job_id: job for job in snapshot.jobs}
    pairs = ((record, by_id.get(record.slurm_job_id)) for record in records)
    return [
        (record, job)
        for record, job in pairs
        if job is not None
        and job.state is JobState.PENDING
        and job.held
        and (job.held_by_slurm or (is_held_for_its_shape(job) and record.started_at is not None))
        and (job.unschedulable_reason is None or job.anchor_waits)
        and record.open_reallocation is None
        and record.paused_at is None
        and is_recorded_job(job, record)
    ]


def may_be_released(moves: Sequence[Reallocation], now: datetime) -> bool:
    """Whether a job that Slurm holds, with these `moves` (oldest first), is released now."""
    count = _count(moves, ReallocationCause.HELD_BY_SLURM, now - _RELEASES_COUNTED_FOR)
    if count >= len(_RELEASE_WAITS):
        return False
    ends = [move.times[-1][1] for move in moves if move.cause is ReallocationCause.HELD_BY_SLURM]
    return not ends or now - ends[-1] >= _RELEASE_WAITS[count]


def release_reason(job: SlurmJob) -> str:
    """Return the journal's reason for releasing a job that Slurm holds."""
    if is_held_for_its_shape(job):
        return f"released in the shape it last ran in, since Slurm held it ({job.reason})"
    return f"released, since Slurm held it: it was requeued {job.restart_count} times"


def _count(moves: Iterable[Reallocation], cause: ReallocationCause, since: datetime) -> int:
    return sum(move.cause is cause and move.times[0][1] > since for move in moves)
