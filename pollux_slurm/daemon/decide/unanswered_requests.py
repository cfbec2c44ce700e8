"""Back-off for jobs that do not confirm checkpoint requests. Pure.

A request occupies a move slot for up to `daemon.checkpoint_timeout_s`. After an unanswered request, the job
is not asked again for as long, then for twice that, and so on, up to six hours. The count comes from the
journal, so it survives a restart of the daemon. A confirmed request does not reset it, so that a job cannot
alternate. Such jobs share a small part of the slots (`move_slots.Slots`), as do jobs that are slow to
answer now.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from pollux_slurm.model import JobState, ReallocationStep
from pollux_slurm.store.contract.interface import JobRecord

_MAX_BACKOFF_S = 6 * 3600.0
# Most checkpoints take seconds. A request older than this part of the time-out counts as slow.
_SLOW_PART = 1 / 5


def may_not_answer(record: JobRecord, now: datetime, *, timeout_s: float) -> bool:
    """Whether a job recently left a request unanswered, or is slow to answer the current one."""
    if _ends_of_unanswered(record, timeout_s):
        return True
    move = record.open_reallocation
    if move is None or move.step is not ReallocationStep.CHECKPOINT_REQUESTED:
        return False
    requested_at = move.entered_at(ReallocationStep.CHECKPOINT_REQUESTED)
    return requested_at is not None and (now - requested_at).total_seconds() >= timeout_s * _SLOW_PART


def has_answered(record: JobRecord) -> bool:
    """Whether a job has confirmed a requested checkpoint, in an earlier move or the current one."""
    move = record.open_reallocation
    return record.num_restarts > 0 or (
        move is not None
        and move.entered_at(ReallocationStep.CHECKPOINT_REQUESTED) is not None
        and move.entered_at(ReallocationStep.CHECKPOINTED) is not None
    )


def not_asked_because(record: JobRecord, now: datetime, *, timeout_s: float) -> str | None:
    """Return why a running job is not asked for a checkpoint now, None where it may be.

    A request counts as unanswered if it lasted `timeout_s`, or if the job confirmed it and trained on. Other
    requests ended sooner because the job or the daemon ended.
    """
    if record.state is not JobState.RUNNING:
        return None  # a pending job has no checkpoint to confirm
    ends = _ends_of_unanswered(record, timeout_s)
    if not ends:
        return None
    wait_s = min(timeout_s * 2.0 ** (len(ends) - 1), max(timeout_s, _MAX_BACKOFF_S))
    again_at = ends[-1] + timedelta(seconds=wait_s)
    if now >= again_at:
        return None
    times = "once" if len(ends) == 1 else f"{len(ends)} times recently"
    return f"it confirmed no checkpoint in time, {times}; it is asked again at {again_at:%H:%M:%S} UTC"


def _ends_of_unanswered(record: JobRecord, timeout_s: float) -> list[datetime]:
    return [
        request.ended_at
        for request in record.unanswered
        if request.was_confirmed or (request.ended_at - request.requested_at).total_seconds() >= timeout_s
    ]
