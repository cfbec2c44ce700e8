"""Plans that finish jobs by their moments within what is free, after ElasticFlow (ASPLOS 2023), algorithm 1.

A plan has a level q: the job gets q GPUs wherever so many are free, else as many as it can use of those that
are. The least q that finishes it in time is its *minimum satisfactory share*. Jobs are planned in the order
of their moments, each within what those before it leave. Unlike there, the GPUs are those of several pools
(a user's share, limits), rates are predicted, and each change of size costs a delay. Pure.

Times are in seconds from now on.
"""

from __future__ import annotations

import heapq
import itertools
import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What one job needs: `work` useful examples by `finish_by_s`, with GPUs for at most `time_left_s`.

    `rates` are the sizes that it may have, as (GPUs, useful examples a second), both ascending. It has
    `num_gpus` now, and makes no progress for `delay_s` after each change.
    """

    job_id: str
    work: float
    finish_by_s: float
    rates: tuple[tuple[int, float], ...]
    num_gpus: int = 0
    delay_s: float = 0.0
    time_left_s: float = math.inf

    def size_within(self, gpus: int) -> tuple[int, float]:
        """Return the largest size of at most so many GPUs, and its rate; (0, 0.0) where there is none."""
        at = bisect_left(self.rates, (gpus + 1, 0.0))
        return self.rates[at - 1] if at else (0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """When a job has how many GPUs, as (begin, end, GPUs), and when it is finished: infinite for never."""

    finish_s: float
    spans: tuple[tuple[float, float, int], ...] = ()

    @property
    def gpus_now(self) -> int:
        return self.spans[0][2] if self.spans and self.spans[0][0] <= 0 else 0

    @property
    def runs_s(self) -> float:
        """For how long it has GPUs."""
        return sum(end - begin for begin, end, _ in self.spans)

    def is_in_time(self, need: Need) -> bool:
        return self.finish_s <= need.finish_by_s and self.runs_s <= need.time_left_s


class Pool:
    """GPUs that jobs share, less what was planned so far."""

    def __init__(self, num_gpus: int) -> None:
        self._begins, self._free = [0.0], [num_gpus]

    def steps(self) -> Iterator[tuple[float, int]]:
        """Yield (begin, free GPUs from then on)."""
        return zip(self._begins, self._free, strict=True)

    def take(self, spans: Iterable[tuple[float, float, int]]) -> None:
        """Take GPUs for some spans of time."""
        for begin, end, gpus in spans:
            first, last = self._cut(begin), self._cut(end)
            for at in range(first, last):
                self._free[at] -= gpus

    def _cut(self, at_s: float) -> int:
        """Return the number of the step that begins at a time; make one."""
        if at_s == math.inf:
            return len(self._begins)
        at = bisect_left(self._begins, at_s)
        if at == len(self._begins) or self._begins[at] != at_s:
            self._begins.insert(at, at_s)
            self._free.insert(at, self._free[at - 1])
        return at


def plan_all(needs: Sequence[Need], pools: Mapping[str, Sequence[Pool]]) -> dict[str, Plan]:
    """Return the plans of all jobs within their `pools`, by job id; their GPUs are taken from these.

    A job that cannot be finished in time is planned after all that can, and as early as possible.
    """
    found: dict[str, Plan] = {}
    late = []
    for need in sorted(needs, key=lambda need: (need.finish_by_s, need.job_id)):
        plan = least_plan(need, pools[need.job_id])
        if plan is None:
            late.append(need)
            continue
        found[need.job_id] = plan
        for pool in pools[need.job_id]:
            pool.take(plan.spans)
    for need in late:
        plan = found[need.job_id] = earliest_plan(need, pools[need.job_id])
        for pool in pools[need.job_id]:
            pool.take(plan.spans)
    return found


def least_plan(need: Need, pools: Sequence[Pool]) -> Plan | None:
    """Return the plan with the least level that finishes a job in time, None where none does."""
    steps = _common_steps(pools)
    plans = (_plan_at(need, size, steps) for size, _ in need.rates)
    return next((plan for plan in plans if plan.is_in_time(need)), None)


def earliest_plan(need: Need, pools: Sequence[Pool]) -> Plan:
    """Return the plan that finishes a job first; of several, the one with the least level."""
    steps = _common_steps(pools)
    plans = [_plan_at(need, size, steps) for size, _ in need.rates]
    return min(plans, key=lambda plan: plan.finish_s, default=Plan(finish_s=math.inf))


def _plan_at(need: Need, level: int, steps: Sequence[tuple[float, float, int]]) -> Plan:
    """Return the plan of one level, where so many GPUs are free: `steps` are (begin, end, GPUs)."""
    left, has = need.work, need.num_gpus
    spans: list[tuple[float, float, int]] = []
    for begin, end, free in steps:
        size, rate = need.size_within(min(level, free))
        starts = begin + (need.delay_s if size not in (0, has) else 0.0)
        has = size
        if not size:
            continue
        done = max(starts, begin) + left / rate
        if done <= end:
            return Plan(finish_s=done, spans=(*spans, (begin, done, size)))
        spans.append((begin, end, size))
        left -= max(end - starts, 0.0) * rate
    return Plan(finish_s=math.inf, spans=tuple(spans))


def _common_steps(pools: Sequence[Pool]) -> list[tuple[float, float, int]]:
    """Return (begin, end, GPUs that are free in each of the pools); the last end is infinite."""
    free = [0] * len(pools)
    found: list[tuple[float, int]] = []
    changes = heapq.merge(
        *([(begin, number, gpus) for begin, gpus in pool.steps()] for number, pool in enumerate(pools))
    )
    for begin, of_time in itertools.groupby(changes, key=lambda change: change[0]):
        for _, number, gpus in of_time:
            free[number] = gpus
        found.append((begin, max(min(free, default=0), 0)))
    ends = [begin for begin, _ in found[1:]] + [math.inf]
    return [(begin, end, gpus) for (begin, gpus), end in zip(found, ends, strict=True)]
