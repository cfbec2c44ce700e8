"""Whether a daemon runs, and what to say of one that does not: each sentence once. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from pollux_slurm.text import ago_text, since_text

if TYPE_CHECKING:
    from pollux_slurm.store.contract.interface import DaemonStatus

# A daemon counts as silent only this long after its lease ended: two hosts' clocks may differ.
_MAX_CLOCK_SKEW = timedelta(seconds=10)


def is_silent(seen: DaemonStatus, now: datetime) -> bool:
    """Whether a daemon died or hangs, and did not release its lease."""
    return seen.expires_at is not None and now > seen.expires_at + _MAX_CLOCK_SKEW


def daemon_absence_text(seen: DaemonStatus, now: datetime, held: Iterable[str] = ()) -> str | None:
    """Return a text for people when no daemon runs, naming the jobs left `held`; None when one runs."""
    if seen.owner is None:
        ran = seen.last_round_at
        text = (
            "no daemon has run on this store yet"
            if ran is None
            else f"no daemon runs: the last one was stopped, its last round is {since_text(ran, now)} old"
        )
    elif is_silent(seen, now) and seen.renewed_at is not None:
        host, _, rest = seen.owner.partition(":")
        text = (
            f"the daemon is silent: process {rest.partition(':')[0] or '?'} on {host} renewed its lease "
            f"{ago_text(seen.renewed_at, now)} for the last time, and was not stopped"
        )
    else:
        return None
    held = list(held)
    if not held:
        return text
    return (
        f"{text}; held in the middle of a move: {', '.join(held)}; the next daemon "
        f"continues them; to start them without it: scontrol release {' '.join(held)}"
    )


def next_read_text(seen: DaemonStatus, now: datetime) -> str:
    """Return a text for people on when the daemon reads Slurm next, or why none does."""
    missing = daemon_absence_text(seen, now)
    if missing is not None:
        return missing
    if seen.watch_s is None:
        return "the daemon reads Slurm every few seconds"
    return f"the daemon reads Slurm every {seen.watch_s:g} s, and runs a round at once when something changed"
