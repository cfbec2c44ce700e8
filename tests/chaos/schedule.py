"""The order of the faults: seeded, bounded, every kind with its share. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass

# Where a daemon can die: before and after each step is journaled, and before and after each command.
# `checkpointed` is journaled by the job's own report, except for a job that may continue without.
_STEPS = (
    *("checkpoint_requested", "requeued", "reshaped", "released", "running"),
    *("regrouped", "confirmed", "failed", "rolled_back"),
)
_COMMANDS = ("scontrol requeuehold", "scontrol update", "scontrol release", "scancel")
POINTS = tuple(
    f"{when} {place}"
    for place in (
        "plan",
        *(f"advance {step}" for step in _STEPS),
        "regroup",
        "end of generation",
        *_COMMANDS,
        "record",
        "register",
    )
    for when in ("before", "after")
)
DAEMON_KILL = "daemon killed at a point"
# Kinds of faults with their share of a run.
SHARES = {
    DAEMON_KILL: 10,
    "daemon killed at any time": 2,
    "daemon frozen, another takes over": 2,
    "slurmctld stopped": 3,
    "node lost with its steps": 2,
    "slurmd lost, its steps go on": 2,
    "store away": 3,
    "disk full": 3,
    "job cancelled": 2,
    "job held externally": 3,
    "job requeued externally": 3,
    "job requeued and held externally": 2,
    "wing cancelled": 2,
    "wing of a move cancelled": 2,
    "store away in mid-regroup": 2,
    "newcomer killed": 1,
    "newcomers late": 2,
    "rank 0 killed": 1,
    "anchor killed": 1,
    "anchor suspended": 1,
    "anchor's node drained": 1,
    "queue races for a move's GPUs": 2,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One fault of the schedule; `point` only for a daemon that is killed at one."""

    kind: str
    point: str | None = None


def make_schedule(num_faults: int, rng: random.Random) -> list[Planned]:
    """Return `num_faults` faults: each kind at least once where there are enough, the rest by share.

    All points at which the daemon dies are used before one is repeated.
    """
    kinds = list(SHARES)
    counts = dict.fromkeys(kinds[:num_faults], 1)
    total = sum(SHARES.values())
    while (left := num_faults - sum(counts.values())) > 0:
        # The kind that is furthest behind its share comes next; ties in the order of SHARES.
        behind = max(kinds, key=lambda kind: SHARES[kind] * num_faults / total - counts.get(kind, 0))
        counts[behind] += min(1, left)
    order = [kind for kind, count in counts.items() for _ in range(count)]
    rng.shuffle(order)
    points: list[str] = []
    planned = []
    for kind in order:
        if kind != DAEMON_KILL:
            planned.append(Planned(kind=kind))
            continue
        if not points:
            points = rng.sample(POINTS, len(POINTS))
        planned.append(Planned(kind=kind, point=points.pop()))
    return planned
