"""ElasticFlow (ASPLOS 2023): jobs with deadlines are admitted only if all admitted ones can meet theirs.

Slots are the rounds of the simulation. GPUs are given in powers of two, so that any set of jobs that needs no
more GPUs than there are can be placed (buddy allocation). Rates are known, and grow with the GPUs or are not
used. A job without a deadline, a refused one, and one that is late have what is left: best effort.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pollux_slurm.model import BatchChoice
from pollux_slurm.simulator.engine.cluster import Cluster
from pollux_slurm.simulator.engine.job import GpusByNode, SimulatedJob
from pollux_slurm.simulator.inputs.batch_splits import split_batch
from pollux_slurm.simulator.policies.adaptive.sia import SiaConfiguration, place
from pollux_slurm.simulator.policies.user_rates import UserRates

_IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """GPUs of a job in each slot from now on, and the GPU seconds that it needs with them."""

    gpus: _IntArray
    gpu_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """A job as a plan sees it: its steps left, its rates by level (1, 2, 4, ... GPUs), its seconds until
    the deadline; None without one."""

    left: float
    rates: tuple[float, ...]
    time_s: float | None


def least_share(demand: Demand, free: _IntArray, slot_s: float, *, first: int = 0) -> Plan | None:
    """Fill slots backwards from the deadline with q GPUs, or with the most below that are free.

    The first q of 1, 2, 4, ... that finishes is the job's least share. None if none finishes in time. `free`
    has the free GPUs of each slot; no slot before `first` is used.
    """
    assert demand.time_s is not None
    num_slots = min(math.ceil(demand.time_s / slot_s), len(free))
    if num_slots <= first:
        return None
    lengths = np.full(num_slots, slot_s)
    lengths[-1] = demand.time_s - slot_s * (num_slots - 1)
    levels = np.array([0.0, *demand.rates])
    # The level of the most GPUs that fit: 0 for none, n for 2^(n−1).
    fitting = np.floor(np.log2(np.maximum(free[:num_slots], 0.5))).astype(np.int64) + 1
    for most in range(1, len(levels)):
        used = np.minimum(fitting, most)
        used[:first] = 0
        done = np.cumsum((levels[used] * lengths)[::-1])[::-1]
        if done[0] < demand.left:
            continue
        begin = int(np.flatnonzero(done >= demand.left)[-1])
        used[:begin] = 0
        gpus = np.where(used > 0, 1 << np.maximum(used - 1, 0), 0)
        spare_s = (done[begin] - demand.left) / levels[used[begin]]
        return Plan(gpus=gpus, gpu_seconds=float(gpus @ lengths - gpus[begin] * spare_s))
    return None


class ElasticFlowPolicy:
    """Admission by least shares, then spare GPUs where an added one costs the least extra GPU time."""

    resizes = True

    def __init__(self) -> None:
        self._rates = UserRates()
        # Jobs that were admitted (True) or refused.
        self._admitted: dict[str, bool] = {}

    def choose_batch(self, job: SimulatedJob) -> BatchChoice:
        return split_batch(job.application, job.job.batch_size, job.num_gpus)

    def allocate(
        self, now_s: float, jobs: Sequence[SimulatedJob], cluster: Cluster
    ) -> Mapping[str, GpusByNode]:
        slot_s, num_gpus = cluster.interval_s, cluster.num_gpus
        demands = {job.job.name: self._demand(now_s, job, cluster) for job in jobs}
        for job in sorted(jobs, key=lambda job: job.job.submitted_s):
            name = job.job.name
            if name not in self._admitted:
                candidates = {other: one for other, one in demands.items() if self._admitted.get(other)}
                plans, _ = _plan(candidates | {name: demands[name]}, num_gpus, slot_s)
                self._admitted[name] = all(other in plans for other in (*candidates, name))
                if self._admitted[name]:
                    job.accepted_s = now_s
        admitted = {name: one for name, one in demands.items() if self._admitted[name]}
        plans, free = _plan(admitted, num_gpus, slot_s)
        counts = _add_spare(demands, plans, free, num_gpus, slot_s)
        return _place(counts, jobs, cluster)

    def _demand(self, now_s: float, job: SimulatedJob, cluster: Cluster) -> Demand:
        rates, gpus = [self._rates.on(job, 1, cluster)], 2
        while gpus <= cluster.num_gpus and (rate := self._rates.on(job, gpus, cluster)) > rates[-1]:
            rates.append(rate)
            gpus *= 2
        by_s = job.job.finish_by_s
        time_s = None if by_s is None or by_s <= now_s else by_s - now_s
        return Demand(left=max(self._rates.steps_left(job), 1e-6), rates=tuple(rates), time_s=time_s)


def _plan(demands: Mapping[str, Demand], num_gpus: int, slot_s: float) -> tuple[dict[str, Plan], _IntArray]:
    """Return the plans of all jobs that can meet their deadlines, the earliest first, and the free GPUs."""
    timed = {name: one.time_s for name, one in demands.items() if one.time_s is not None}
    free = np.full(math.ceil(max(timed.values(), default=0.0) / slot_s) or 1, num_gpus, dtype=np.int64)
    plans = {}
    for name in sorted(timed, key=lambda name: timed[name]):
        plan = least_share(demands[name], free, slot_s)
        if plan is not None:
            plans[name] = plan
            free[: len(plan.gpus)] -= plan.gpus
    return plans, free


def _add_spare(
    demands: Mapping[str, Demand], plans: Mapping[str, Plan], free: _IntArray, num_gpus: int, slot_s: float
) -> dict[str, int]:
    """Return the GPUs of each job in this slot, spare ones included."""
    levels = {name: int(plans[name].gpus[0]).bit_length() if name in plans else 0 for name in demands}
    spare = int(free[0])

    def cost(name: str, level: int) -> float:
        """Return the GPU seconds that the job needs with this level in this slot."""
        one, plan = demands[name], plans.get(name)
        rate = one.rates[level - 1] if level else 0.0
        if plan is None:
            return one.left / one.rates[0] if level == 0 else 2 ** (level - 1) * one.left / rate
        gpus = 2 ** (level - 1) if level else 0
        if rate * slot_s >= one.left:
            return gpus * one.left / rate
        rest = Demand(left=one.left - rate * slot_s, rates=one.rates, time_s=one.time_s)
        others = free.copy()
        others[: len(plan.gpus)] += plan.gpus
        later = least_share(rest, others, slot_s, first=1)
        return math.inf if later is None else gpus * slot_s + later.gpu_seconds

    def offer(order: int, name: str) -> tuple[float, int, str, int] | None:
        level = levels[name]
        if level == len(demands[name].rates):
            return None
        added = 2**level - (2 ** (level - 1) if level else 0)
        return ((cost(name, level + 1) - cost(name, level)) / added, order, name, added)

    offers = [found for order, name in enumerate(demands) if (found := offer(order, name)) is not None]
    heapq.heapify(offers)
    while offers and spare > 0:
        _, order, name, added = heapq.heappop(offers)
        if added <= spare:
            levels[name] += 1
            spare -= added
            if (found := offer(order, name)) is not None:
                heapq.heappush(offers, found)
    return {name: 2 ** (level - 1) if level else 0 for name, level in levels.items()}


def _place(
    counts: Mapping[str, int], jobs: Sequence[SimulatedJob], cluster: Cluster
) -> dict[str, GpusByNode]:
    """Place powers of two; jobs that keep their number stay, unless a larger one needs their node."""
    kind, size = cluster.gpu_types[0], cluster.gpus_per_node
    wanted = {
        name: SiaConfiguration(gpu_type=kind, num_nodes=-(-gpus // size), num_gpus=gpus)
        for name, gpus in counts.items()
        if gpus
    }
    kept = {job.job.name: job.allocation for job in jobs if job.num_gpus == counts[job.job.name] > 0}
    return place(wanted, kept, frozenset(), cluster)
