"""When each job of a round can leave for its new GPUs: they may still be held by others that move.

As the daemon enacts a plan: a reallocation stays planned while others hold its GPUs, the job goes on with
what it has; of jobs that wait for each other in a circle one makes its checkpoint first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from pollux_slurm.simulator.engine.job import Pieces


def waiting_times(
    before: Mapping[str, Pieces],
    after: Mapping[str, Pieces],
    free: Sequence[int],
    leaving_s: Mapping[str, float],
) -> dict[str, tuple[float, float]]:
    """Return, for each job in `after` that moves, how long it goes on as it is, and then stands in the queue.

    `free` are the GPUs of each node that nobody held before; jobs claim them in the order of `after`.
    `leaving_s` is how long each job of `before` takes from being told until its GPUs are free. Only a job
    that had to go first, out of a circle, finds its own GPUs still taken then.
    """
    blockers = _blockers(before, after, list(free))
    waits: dict[str, float] = {}
    for name in after:
        path = [name] if name not in waits else []  # each waits for the next
        while path:
            top = path[-1]
            known = [other for other in blockers.get(top, ()) if other in waits]
            unknown = (other for other in blockers.get(top, ()) if other not in waits and other not in path)
            following = next(unknown, None)  # none: what is left of its blockers waits for it, in a circle
            if following is None:
                waits[top] = max((waits[other] + leaving_s[other] for other in known), default=0.0)
                path.pop()
            else:
                path.append(following)
    found = {}
    for name, pieces in after.items():
        if pieces != before.get(name, ()):
            free_s = max((waits[other] + leaving_s[other] for other in blockers.get(name, ())), default=0.0)
            out_s = waits[name] + (leaving_s[name] if before.get(name) else 0.0)
            found[name] = (waits[name], max(free_s - out_s, 0.0))
    return found


def _blockers(
    before: Mapping[str, Pieces], after: Mapping[str, Pieces], free: list[int]
) -> dict[str, list[str]]:
    """Return, for each job that needs GPUs which others still hold, those that leave GPUs of these nodes."""
    leavers: defaultdict[int, list[str]] = defaultdict(list)
    for name, pieces in before.items():
        kept = dict(after.get(name, ()))
        for node, gpus in pieces:
            if kept.get(node, 0) < gpus:
                leavers[node].append(name)
    found: dict[str, list[str]] = {}
    for name, pieces in after.items():
        held = dict(before.get(name, ()))
        for node, gpus in pieces:
            wanted = gpus - held.get(node, 0)
            if wanted <= 0:
                continue
            taken = min(wanted, free[node])
            free[node] -= taken
            if taken < wanted:
                found.setdefault(name, []).extend(other for other in leavers[node] if other != name)
    return found
