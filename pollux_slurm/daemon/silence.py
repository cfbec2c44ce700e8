"""Jobs that do not answer: after a request that no checkpoint was confirmed for, a job is left alone a while.

A request lasts `daemon.checkpoint_timeout_s`, and as long one of the moves that may be under way is taken. A
job that lets requests run out is asked again after as long once more, then after twice that, and so on, up to
six hours. Counted are the journal's last moves, so that a daemon that starts knows as much, and so that to
answer now and then does not buy the next silence. Pure.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from pollux_slurm.model import JobState
from pollux_slurm.store.contract import JobRecord

_LONGEST_S = 6 * 3600.0


def left_alone_because(record: JobRecord, now: datetime, *, timeout_s: float) -> str | None:
    """Return why a running job is not asked for a checkpoint now, None where it may be.

    A request counts that lasted `timeout_s`, or that the job confirmed in vain: it trained on, say. What else
    ended sooner did so because the job or the daemon ended.
    """
    if record.state is not JobState.RUNNING:
        return None  # one that waits in the queue has no checkpoint to confirm
    ends = [
        request.ended_at
        for request in record.unanswered
        if request.was_confirmed or (request.ended_at - request.asked_at).total_seconds() >= timeout_s
    ]
    if not ends:
        return None
    wait_s = min(timeout_s * 2.0 ** (len(ends) - 1), max(timeout_s, _LONGEST_S))
    again_at = ends[-1] + timedelta(seconds=wait_s)
    if now >= again_at:
        return None
    times = "once" if len(ends) == 1 else f"{len(ends)} times of late"
    return f"it confirmed no checkpoint in time, {times}; it is asked again at {again_at:%H:%M:%S} UTC"
