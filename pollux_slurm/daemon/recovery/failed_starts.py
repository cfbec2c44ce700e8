"""Starts of which Slurm made nothing: jobs whose script it never ran, or that it holds because of that. Pure.

Slurm (22.05) ends a start before the batch script runs where the node has just ended what was left of an
earlier run of the job: "Job credential revoked", and the job is FAILED with exit code 1; or it takes the end
of such a leftover's script for the end of the new one, and the job is FAILED by the leftover's signal. And a
job whose launch failed otherwise ("launch failed requeued held"), or that was requeued too often after
failed nodes, is held by Slurm for somebody to look at.

Nothing in Slurm tells such an end from that of a script that fails at its beginning. Taken for Slurm's are
only: exit codes that those cases leave, in a job that was requeued before, within seconds of the start, and
with no word of training in that run. An owner's script that fails just so is started some times in vain.

What is done is a reallocation in the journal, whose cause is what later ones are counted by.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from pollux_slurm.daemon.observe.cluster_picture import is_recorded_job
from pollux_slurm.daemon.recovery import failed_moves
from pollux_slurm.model import Allocation, ClusterSnapshot, JobState, ReallocationCause, SlurmJob
from pollux_slurm.model import ReallocationStep as Step
from pollux_slurm.store.contract.interface import AllocationRecord, JobRecord, Reallocation

_MOST_STARTS = 3
_COUNTED_FOR = timedelta(hours=1)
# How long after its start a job's end may be Slurm's doing. One that has trained before has a script that
# works; of another one only what ends at once is taken for that.
_REVOKED_WITHIN = timedelta(seconds=10)
_FIRST_WITHIN = timedelta(seconds=3)
_MISTAKEN_WITHIN = timedelta(seconds=30)
_MISTAKEN_CODES = frozenset({128 + signal.SIGKILL, 128 + signal.SIGTERM})
# The pause before each time that a job which Slurm holds is let go; after the last one it stays held.
_PAUSES = tuple(timedelta(seconds=seconds) for seconds in (0, 60, 300, 1200, 3600))
_HELD_COUNTED_FOR = timedelta(days=1)


def was_ended_by_slurm(record: JobRecord, job: SlurmJob) -> bool:
    """Whether the job failed so soon after a start that Slurm, and not its script, may have ended it."""
    if job.state is not JobState.FAILED or job.restart_count == 0 or not is_recorded_job(job, record):
        return False
    if job.unschedulable_reason is not None or job.started_at is None or job.ended_at is None:
        return False
    run, lasted = record.run, job.ended_at - job.started_at
    if run is not None and run.restart_count >= job.restart_count:
        return False  # it came as far as its training
    if job.exit_code in _MISTAKEN_CODES:
        return lasted <= _MISTAKEN_WITHIN
    return job.exit_code == 1 and lasted <= (_FIRST_WITHIN if run is None else _REVOKED_WITHIN)


def may_start_again(moves: Iterable[Reallocation], now: datetime) -> bool:
    """Whether a job with these `moves` has not been started again too often of late."""
    return _count(moves, ReallocationCause.FAILED_START, now - _COUNTED_FOR) < _MOST_STARTS


def reason_to_start(job: SlurmJob) -> str:
    """Return what the journal says of another start."""
    return f"started again, since Slurm ended its start before it trained: exit code {job.exit_code}"


def is_start_again(reallocation: Reallocation | None) -> bool:
    """Whether a reallocation starts a job again whose start Slurm had ended."""
    return reallocation is not None and reallocation.cause is ReallocationCause.FAILED_START


def place_of(
    record: JobRecord, job: SlurmJob, history: Sequence[AllocationRecord], snapshot: ClusterSnapshot
) -> Allocation:
    """Return where a job is to start: where it ran last or was to run, else with its minimum on some node.

    Empty when no node has so many GPUs. A place that is taken is given up for another on the way.
    """
    last = record.last_reallocation
    if last is not None and last.target and last.step is not Step.ROLLED_BACK:
        return failed_moves.shape_to_return_to(last, history)
    if (held := next((held.allocation for held in reversed(history) if held.allocation), None)) is not None:
        return held
    least = record.terms.min_gpus
    fitting = [
        node
        for node in snapshot.nodes
        if node.available and node.num_gpus >= least and job.may_run_on(node, record.required_nodes)
    ]
    node = min(fitting, key=lambda node: (node.used_gpus - node.num_gpus, node.name), default=None)
    return Allocation() if node is None else Allocation.of({node.name: least})


def given_up(snapshot: ClusterSnapshot, records: Iterable[JobRecord]) -> list[tuple[JobRecord, SlurmJob]]:
    """Return the jobs that Slurm itself holds, with no move under way and not paused."""
    by_id = {job.job_id: job for job in snapshot.jobs}
    pairs = ((record, by_id.get(record.slurm_job_id)) for record in records)
    return [
        (record, job)
        for record, job in pairs
        if job is not None
        and job.state is JobState.PENDING
        and job.held
        and job.held_by_slurm
        and job.unschedulable_reason is None
        and record.open_reallocation is None
        and record.paused_at is None
        and is_recorded_job(job, record)
    ]


def may_be_let_go(moves: Sequence[Reallocation], now: datetime) -> bool:
    """Whether a job that Slurm holds, with these `moves` (oldest first), is let go now."""
    count = _count(moves, ReallocationCause.HELD_BY_SLURM, now - _HELD_COUNTED_FOR)
    if count >= len(_PAUSES):
        return False
    ends = [move.times[-1][1] for move in moves if move.cause is ReallocationCause.HELD_BY_SLURM]
    return not ends or now - ends[-1] >= _PAUSES[count]


def reason_to_let_go(job: SlurmJob) -> str:
    """Return what the journal says of a job that is let go."""
    return f"let go, since Slurm held it: it was requeued {job.restart_count} times"


def _count(moves: Iterable[Reallocation], cause: ReallocationCause, since: datetime) -> int:
    return sum(move.cause is cause and move.times[0][1] > since for move in moves)
