"""Jobs that do not answer: after a request that no checkpoint was confirmed for, a job is left alone a while.

A request lasts `daemon.checkpoint_timeout_s`, and as long one of the moves that may be under way is taken. A
job that lets requests run out is asked again after as long once more, then after twice that, and so on, up to
six hours. Counted are the journal's last moves, so that a daemon that starts knows as much, and so that to
answer now and then does not buy the next silence. Of the moves at a time such jobs have a small part
(`slots.Slots`), as have those that take long over the request of now. Pure.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from pollux_slurm.model import JobState, ReallocationStep
from pollux_slurm.store.contract.interface import JobRecord

_LONGEST_S = 6 * 3600.0
# Most checkpoints take seconds. Whoever is asked for longer than this part of the time leaves others room,
# whether an answer comes or not.
_LONG = 1 / 5


def is_doubtful(record: JobRecord, now: datetime, *, timeout_s: float) -> bool:
    """Whether a job left a request unanswered of late, or has taken long over the one of now."""
    if _ends_of_unanswered(record, timeout_s):
        return True
    move = record.open_reallocation
    if move is None or move.step is not ReallocationStep.CHECKPOINT_REQUESTED:
        return False
    asked_at = move.entered_at(ReallocationStep.CHECKPOINT_REQUESTED)
    return asked_at is not None and (now - asked_at).total_seconds() >= timeout_s * _LONG


def has_answered(record: JobRecord) -> bool:
    """Whether a job has confirmed a checkpoint that it was asked for: in an earlier move, or just now."""
    move = record.open_reallocation
    return record.num_restarts > 0 or (
        move is not None
        and move.entered_at(ReallocationStep.CHECKPOINT_REQUESTED) is not None
        and move.entered_at(ReallocationStep.CHECKPOINTED) is not None
    )


def left_alone_because(record: JobRecord, now: datetime, *, timeout_s: float) -> str | None:
    """Return why a running job is not asked for a checkpoint now, None where it may be.

    A request counts that lasted `timeout_s`, or that the job confirmed and trained on. What else ended sooner
    did so because the job or the daemon ended.
    """
    if record.state is not JobState.RUNNING:
        return None  # one that waits in the queue has no checkpoint to confirm
    ends = _ends_of_unanswered(record, timeout_s)
    if not ends:
        return None
    wait_s = min(timeout_s * 2.0 ** (len(ends) - 1), max(timeout_s, _LONGEST_S))
    again_at = ends[-1] + timedelta(seconds=wait_s)
    if now >= again_at:
        return None
    times = "once" if len(ends) == 1 else f"{len(ends)} times of late"
    return f"it confirmed no checkpoint in time, {times}; it is asked again at {again_at:%H:%M:%S} UTC"


def _ends_of_unanswered(record: JobRecord, timeout_s: float) -> list[datetime]:
    return [
        request.ended_at
        for request in record.unanswered
        if request.was_confirmed or (request.ended_at - request.requested_at).total_seconds() >= timeout_s
    ]
