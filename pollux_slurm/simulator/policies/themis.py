"""Themis (NSDI 2020): leases of GPUs, auctioned among the jobs that are furthest from their fair finish.

ρ_j(A) = (age_j + left_j/rate_j(A)) / (total_j/rate_j(1/N of the cluster)), N jobs. A job without GPUs waits
for the next auction and trains on one GPU then. Rates are true; a job takes at most its user's GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pollux_slurm.model import BatchChoice
from pollux_slurm.simulator.engine.cluster import Cluster
from pollux_slurm.simulator.engine.job import GpusByNode, SimulatedJob
from pollux_slurm.simulator.inputs.batch_splits import split_batch
from pollux_slurm.simulator.policies.packing import FreeGpus
from pollux_slurm.simulator.policies.user_rates import UserRates

_FAIRNESS = 0.8
_LEASE_S = 1200.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bid:
    """What a job would gain: log_values[g] = −ln ρ with g GPUs, from none to the most that it takes."""

    name: str
    log_values: npt.NDArray[np.float64]


class ThemisPolicy:
    """When leases end, their GPUs are offered to the part 1 − `fairness` of all jobs with the worst ρ."""

    resizes = True

    def __init__(self, *, fairness: float = _FAIRNESS, lease_s: float = _LEASE_S) -> None:
        self._fairness, self._lease_s = fairness, lease_s
        self._rates = UserRates()
        # Until when each job has its GPUs.
        self._until_s: dict[str, float] = {}

    def choose_batch(self, job: SimulatedJob) -> BatchChoice:
        return split_batch(job.application, job.job.batch_size, job.num_gpus)

    def allocate(
        self, now_s: float, jobs: Sequence[SimulatedJob], cluster: Cluster
    ) -> Mapping[str, GpusByNode]:
        given = {
            job.job.name: job.allocation
            for job in jobs
            if job.allocation and self._until_s.get(job.job.name, 0.0) > now_s
        }
        offered = cluster.num_gpus - sum(gpus for allocation in given.values() for _, gpus in allocation)
        if offered == 0:
            return given
        free = FreeGpus(cluster, given.values())
        bids = {job.job.name: self._bid(now_s, job, len(jobs), cluster) for job in jobs}
        without = [job for job in jobs if job.job.name not in given]
        # The worst ρ is the least −ln ρ with the GPUs that a job has now.
        without.sort(key=lambda job: bids[job.job.name].log_values[_most(bids[job.job.name], job.num_gpus)])
        invited = without[: math.ceil((1 - self._fairness) * len(jobs))]
        won = auction([bids[job.job.name] for job in invited], offered)
        left = offered - sum(won.values())
        others = without[len(invited) :]
        while left > 0 and (taker := _taker(others, won, bids) or _taker(invited, won, bids)) is not None:
            won[taker] = won.get(taker, 0) + 1
            left -= 1
        winners = [job for job in without if won.get(job.job.name)]
        self._until_s |= {job.job.name: now_s + self._lease_s for job in winners}
        same = [job for job in winners if won[job.job.name] == job.num_gpus]
        given |= {job.job.name: job.allocation for job in same if free.keep(job.allocation)}
        return given | {
            job.job.name: free.take(won[job.job.name]) for job in winners if job.job.name not in given
        }

    def _bid(self, now_s: float, job: SimulatedJob, num_jobs: int, cluster: Cluster) -> Bid:
        age_s, left = now_s - job.job.submitted_s, self._rates.steps_left(job)
        rates = np.array([self._rates.on(job, gpus, cluster) for gpus in range(1, job.job.num_replicas + 1)])
        rates = np.maximum.accumulate(rates)
        rest_s = np.array([self._lease_s + left / rates[0], *(left / rates)])
        share = np.interp(cluster.num_gpus / num_jobs, np.arange(len(rates) + 1), [0.0, *rates])
        ideal_s = self._rates.steps(job) / share
        return Bid(name=job.job.name, log_values=-np.log((age_s + np.maximum(rest_s, 1.0)) / ideal_s))


def auction(bids: Sequence[Bid], offered: int) -> dict[str, int]:
    """Return how many of the `offered` GPUs each bidder wins.

    The allocation maximises Π 1/ρ. A winner keeps the part c of its GPUs by which its absence would raise the
    product of the others no further: c = Π_{i≠j} with it / Π_{i≠j} without it.
    """
    best = _best(bids, offered)
    won = {}
    for bid in bids:
        others = [other for other in bids if other is not bid]
        without = _best(others, offered)
        gained = sum(
            other.log_values[best[other.name]] - other.log_values[without[other.name]] for other in others
        )
        won[bid.name] = int(best[bid.name] * math.exp(min(gained, 0.0)) + 1e-9)
    return won


def _best(bids: Sequence[Bid], offered: int) -> dict[str, int]:
    """Return the GPUs of each bidder that maximise the sum of −ln ρ: a knapsack with a choice for each."""
    total = np.zeros(offered + 1)
    choices = []
    for bid in bids:
        most = min(len(bid.log_values) - 1, offered)
        options = np.full((most + 1, offered + 1), -np.inf)
        for gpus in range(most + 1):
            options[gpus, gpus:] = total[: offered + 1 - gpus] + bid.log_values[gpus]
        choices.append(options.argmax(axis=0))
        total = options.max(axis=0)
    found, left = {}, offered
    for bid, choice in zip(reversed(bids), reversed(choices), strict=True):
        found[bid.name] = int(choice[left])
        left -= found[bid.name]
    return found


def _taker(jobs: Sequence[SimulatedJob], won: Mapping[str, int], bids: Mapping[str, Bid]) -> str | None:
    """Return the first job with the fewest GPUs of those that one more GPU makes faster."""
    able = []
    for job in jobs:
        name, values = job.job.name, bids[job.job.name].log_values
        has = won.get(name, 0)
        if has + 1 < len(values) and values[has + 1] > values[has]:
            able.append(name)
    return min(able, key=lambda name: won.get(name, 0), default=None)


def _most(bid: Bid, num_gpus: int) -> int:
    return min(num_gpus, len(bid.log_values) - 1)
