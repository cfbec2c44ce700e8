"""Conservative backfill: first come, first served, but a later job may start if it delays no earlier one.

Every waiting job gets a reservation at the earliest time at which enough GPUs are free for its time limit;
jobs whose reservation begins now start. Only the number of GPUs counts: a job may be spread over nodes. Free
GPUs without a reservation are spare: a job without a time limit may use them.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from pollux_slurm.simulator.engine.job import GpusByNode

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A job in the queue: the GPUs it needs, of one pool, and its time limit."""

    num_gpus: int
    limit_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """GPUs of a pool that are expected to be free at `until_s`."""

    pool: str
    num_gpus: int
    until_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillResult(Generic[Key]):
    """The pool of each job that starts now, and the GPUs of each pool that are spare after them."""

    pools: Mapping[Key, str]
    spare: Mapping[str, int]


class _Profile:
    """The free GPUs of one pool over time: `free[i]` from `times[i]` on."""

    def __init__(self, now_s: float, free: int, releases: Iterable[tuple[float, int]]) -> None:
        self.times, self.free = [now_s], [free]
        for at_s, gpus in sorted(releases):
            if at_s > self.times[-1]:
                self.times.append(at_s)
                self.free.append(self.free[-1])
            self.free[-1] += gpus

    def earliest_s(self, num_gpus: int, duration_s: float) -> float:
        """Return the first time from which `num_gpus` are free for `duration_s`, infinity if none."""
        start: int | None = None
        for index, free in enumerate(self.free):
            if free < num_gpus:
                start = None
            elif start is None:
                start = index
            if start is not None:
                end_s = self.times[index + 1] if index + 1 < len(self.times) else math.inf
                if end_s >= self.times[start] + duration_s:
                    return self.times[start]
        return math.inf

    @property
    def spare(self) -> int:
        """The GPUs that are free from now on without end."""
        return max(min(self.free), 0)

    def reserve(self, start_s: float, duration_s: float, num_gpus: int) -> None:
        first, last = self._split(start_s), self._split(start_s + duration_s)
        for index in range(first, last):
            self.free[index] -= num_gpus

    def _split(self, at_s: float) -> int:
        """Return the index of the time `at_s`, which is inserted if it is missing."""
        index = bisect_right(self.times, at_s)
        if self.times[index - 1] == at_s:
            return index - 1
        self.times.insert(index, at_s)
        self.free.insert(index, self.free[index - 1])
        return index


def backfill(
    now_s: float,
    free: Mapping[str, int],
    running: Sequence[Running],
    queue: Mapping[Key, Waiting],
) -> BackfillResult[Key]:
    """Return which jobs of `queue`, in its order, start now, and the spare GPUs of each pool.

    `free` are the GPUs of each pool. A job goes to the pool in which it can start first, at equal times to
    the first one. Jobs that exceeded their limit are expected to end in a second.
    """
    if not any(free.values()):
        return BackfillResult(pools={}, spare=dict.fromkeys(free, 0))
    profiles = {
        pool: _Profile(
            now_s,
            gpus,
            ((max(one.until_s, now_s + 1.0), one.num_gpus) for one in running if one.pool == pool),
        )
        for pool, gpus in free.items()
    }
    found: dict[Key, str] = {}
    left = dict(free)
    for key, job in queue.items():
        begins = {pool: profile.earliest_s(job.num_gpus, job.limit_s) for pool, profile in profiles.items()}
        pool = min(begins, key=lambda pool: begins[pool])
        if math.isinf(begins[pool]):
            continue
        profiles[pool].reserve(begins[pool], job.limit_s, job.num_gpus)
        if begins[pool] <= now_s:
            found[key] = pool
            left[pool] -= job.num_gpus
            if not any(left.values()):
                break
    return BackfillResult(pools=found, spare={pool: profile.spare for pool, profile in profiles.items()})


def pool_sizes(gpus: Sequence[int], types: Sequence[str], order: Sequence[str]) -> dict[str, int]:
    """Return the sum of `gpus` over the nodes of each type, in `order`; negative numbers count as 0."""
    found = dict.fromkeys(order, 0)
    for count, kind in zip(gpus, types, strict=True):
        found[kind] += max(count, 0)
    return found


def pack_pool(num_gpus: int, free: Sequence[int], types: Sequence[str], kind: str) -> GpusByNode:
    """Return GPUs of one type, packed: see `pack`."""
    return pack(
        num_gpus,
        {node: gpus for node, gpus in enumerate(free) if gpus > 0 and types[node] == kind},
    )


def pack(num_gpus: int, free: Mapping[int, int]) -> GpusByNode:
    """Return GPUs of the fullest node that has enough, else of as few nodes as possible.

    `free` must contain that many.
    """
    fitting = [node for node, gpus in free.items() if gpus >= num_gpus]
    if fitting:
        return ((min(fitting, key=lambda node: (free[node], node)), num_gpus),)
    allocation = []
    for node in sorted(free, key=lambda node: (-free[node], node)):
        taken = min(free[node], num_gpus)
        allocation.append((node, taken))
        num_gpus -= taken
        if num_gpus == 0:
            break
    return tuple(allocation)
