"""A job as the queue shows it to an anchor: one line of squeue."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pollux_slurm.errors import SlurmReadError
from pollux_slurm.model import JobState
from pollux_slurm.slurm.parsing.job_json import state_of

SEEN_FORMAT = "%i|%T|%Q|%L|%B|%r"
"""Number, state, priority, time left, node of the batch script, reason. Only the last may have spaces."""

_TIME_LEFT = re.compile(r"(?:([0-9]{1,9})-)?(?:(?:([0-9]{1,9}):)?([0-9]{1,9}):)?([0-9]{1,9})")


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenJob:
    """A wing, or the anchor, as the queue shows it.

    - `has_failed`: its batch script failed. It was not cancelled, preempted, or lost with its node
    - `is_held`: also of a job that runs: Slurm takes note of a `scontrol hold` then, without effect (22.05)
    - `node`: that of its batch script, empty while it waits
    - `time_left_s`: None without a time limit
    """

    state: JobState
    reason: str = ""
    has_failed: bool = False
    is_held: bool = False
    node: str = ""
    time_left_s: float | None = None


def parse_seen_job(line: str) -> tuple[str, SeenJob]:
    """Return a job's number, and the job, of a line of squeue. Raises `SlurmReadError`."""
    fields = line.strip().split("|", 5)
    if len(fields) != 6:
        raise SlurmReadError(f"squeue: {line[:120]!r} is not what was asked for")
    number, state, priority, left, node, reason = fields
    return number, SeenJob(
        state=state_of((state,), f"job {number}"),
        reason=reason,
        has_failed=state == "FAILED",
        is_held=priority == "0",
        node="" if node == "n/a" else node,
        time_left_s=_seconds(left),
    )


def _seconds(text: str) -> float | None:
    """Parse `[days-][[hours:]minutes:]seconds`; None for the words of a job without a time limit."""
    found = _TIME_LEFT.fullmatch(text)
    if found is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return 86400.0 * days + 3600 * hours + 60 * minutes + seconds
