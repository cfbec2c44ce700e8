"""How long each moving job of a round waits for its new GPUs, which other moving jobs may still own.

This follows how the daemon enacts a plan. A reallocation stays planned while others own its GPUs, and the job
trains on its source. Of jobs that wait for each other in a circle, one makes its checkpoint first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from pollux_slurm.simulator.engine.job import GpusByNode


def move_waits(
    before: Mapping[str, GpusByNode],
    after: Mapping[str, GpusByNode],
    free: Sequence[int],
    leaving_s: Mapping[str, float],
    continuing: Mapping[str, Mapping[int, int]] = MappingProxyType({}),
) -> dict[str, tuple[float, float]]:
    """Return for each moving job of `after` how long it trains on its source, and then waits in the queue.

    `free` are the unowned GPUs of each node; jobs take them in the order of `after`. `leaving_s` is how long
    each job of `before` takes from the request until its GPUs are free. Only a job that left first to break a
    circle waits in the queue. A job keeps the GPUs by node in `continuing`; one that is not in it keeps all
    that it owns before and after.
    """
    blockers = _blockers(before, after, list(free), continuing)
    waits: dict[str, float] = {}
    for name in after:
        path = [name] if name not in waits else []  # each job waits for the next one
        while path:
            top = path[-1]
            known = [other for other in blockers.get(top, ()) if other in waits]
            unknown = (other for other in blockers.get(top, ()) if other not in waits and other not in path)
            following = next(unknown, None)  # None: its other blockers wait for it, in a circle
            if following is None:
                waits[top] = max((waits[other] + leaving_s[other] for other in known), default=0.0)
                path.pop()
            else:
                path.append(following)
    found = {}
    for name, allocation in after.items():
        if allocation != before.get(name, ()):
            free_s = max((waits[other] + leaving_s[other] for other in blockers.get(name, ())), default=0.0)
            out_s = waits[name] + (leaving_s[name] if before.get(name) else 0.0)
            found[name] = (waits[name], max(free_s - out_s, 0.0))
    return found


def _blockers(
    before: Mapping[str, GpusByNode],
    after: Mapping[str, GpusByNode],
    free: list[int],
    continuing: Mapping[str, Mapping[int, int]],
) -> dict[str, list[str]]:
    """Return for each job that needs GPUs which others own those that will free GPUs of these nodes."""
    leavers: defaultdict[int, list[str]] = defaultdict(list)
    for name, allocation in before.items():
        kept = continuing.get(name) or dict(after.get(name, ()))
        for node, gpus in allocation:
            if kept.get(node, 0) < gpus:
                leavers[node].append(name)
    found: dict[str, list[str]] = {}
    for name, allocation in after.items():
        owned = continuing.get(name) or dict(before.get(name, ()))
        for node, gpus in allocation:
            wanted = gpus - owned.get(node, 0)
            if wanted <= 0:
                continue
            taken = min(wanted, free[node])
            free[node] -= taken
            if taken < wanted:
                found.setdefault(name, []).extend(other for other in leavers[node] if other != name)
    return found
