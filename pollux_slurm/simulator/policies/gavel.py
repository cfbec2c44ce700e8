"""Gavel (OSDI 2020): linear programs say which part of the time a job should have on each GPU type.

Rounds of fixed length, 360 s in the paper, give it that.

Restated from the paper and from its public artifact (stanford-futuredata/gavel), which decides what the paper
leaves open. Jobs have their users' sizes and batches, and rates are known, as in both.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias, get_args

import numpy as np

from pollux_slurm.model import BatchChoice
from pollux_slurm.simulator.engine.cluster import Cluster
from pollux_slurm.simulator.engine.job import GpusByNode, SimulatedJob
from pollux_slurm.simulator.inputs.batch_splits import user_batch
from pollux_slurm.simulator.policies.gavel_programs import (
    FloatArray,
    equal_shares,
    least_rho,
    max_min,
    max_sum,
    normalised,
)
from pollux_slurm.simulator.policies.packing import FreeGpus
from pollux_slurm.simulator.policies.user_rates import UserRates, type_counts

GavelObjective: TypeAlias = Literal["las", "ftf", "makespan", "sum"]
GAVEL_OBJECTIVES: tuple[GavelObjective, ...] = get_args(GavelObjective)

# Times on types count from the last program at least this long ago.
_COUNTED_S = 1920.0


class GavelPolicy:
    """One of its objectives: `las` (least attained service), `ftf` (finish-time fairness), `makespan`, `sum`.

    `sum` is summed throughput in steps a second. A policy that is not `aware` takes all types for one, gives
    each job the same part of every type, and fills them in random order.
    """

    resizes = False

    def __init__(self, objective: GavelObjective = "las", *, aware: bool = True) -> None:
        self._objective, self._aware = objective, aware
        self._rates = UserRates()
        self._rng = random.Random(0)
        # Jobs and available GPUs of the last program, its T and X.
        self._jobs: list[str] = []
        self._available: tuple[int, ...] | None = None
        self._possible = self._solution = np.zeros((0, 0))
        # Seconds on each type since `_counted_since_s`, by job; and the time of the last decision.
        self._got_s: dict[str, list[float]] = {}
        self._counted_since_s = self._decided_s = 0.0
        # Of `ftf`: how long a job's steps so far take on equal shares, steps left, its rate on the share.
        self._isolated: dict[str, tuple[float, float, float]] = {}

    def choose_batch(self, job: SimulatedJob) -> BatchChoice:
        return user_batch(job.job, job.application, job.num_gpus)

    def allocate(
        self, now_s: float, jobs: Sequence[SimulatedJob], cluster: Cluster
    ) -> Mapping[str, GpusByNode]:
        types = cluster.gpu_types
        names = [job.job.name for job in jobs]
        before = self._got_s
        if names != self._jobs and now_s - self._counted_since_s >= _COUNTED_S:
            before, self._counted_since_s = {}, now_s
        # A new job counts as one that had half a round on each type.
        self._got_s = {name: before.get(name) or [cluster.interval_s / 2] * len(types) for name in names}
        for job in jobs:
            if job.allocation and job.job.name in before:
                self._got_s[job.job.name][types.index(job.gpu_type)] += now_s - self._decided_s
        self._decided_s = now_s
        if names != self._jobs or cluster.available != self._available:
            self._possible = self._rates.of(jobs, cluster)
            self._solution = self._solve(now_s, jobs, self._possible, cluster)
            self._jobs, self._available = names, cluster.available
        return self._place(self._round(jobs, cluster), cluster)

    def _solve(
        self, now_s: float, jobs: Sequence[SimulatedJob], rates: FloatArray, cluster: Cluster
    ) -> FloatArray:
        """Return X of shape `(J, K)`."""
        counts = np.array(type_counts(cluster), dtype=np.float64)
        if not counts.any():
            return np.zeros(rates.shape)
        if not self._aware:
            merged = rates.max(axis=1, keepdims=True, initial=0.0)
            shares: FloatArray = counts / counts.sum()
            return self._program(now_s, jobs, merged, counts.sum(keepdims=True)) * shares
        return self._program(now_s, jobs, rates, counts)

    def _program(
        self, now_s: float, jobs: Sequence[SimulatedJob], rates: FloatArray, counts: FloatArray
    ) -> FloatArray:
        """Return X, of the shape of `rates`: zeros for jobs that fit on no type."""
        found = np.zeros(rates.shape)
        fitting = [row for row in range(len(jobs)) if rates[row].any()]
        if not fitting:
            return found
        jobs, rates = [jobs[row] for row in fitting], rates[fitting]
        sizes = np.array([float(job.job.num_replicas) for job in jobs])
        left = np.array([max(self._rates.steps_left(job), 1.0) for job in jobs])
        if self._objective == "las":
            solution = max_min(normalised(rates, sizes, counts), rates, sizes, counts)[0]
        elif self._objective == "makespan":
            solution = max_min(rates / left[:, None], rates, sizes, counts)[0]
        elif self._objective == "sum":
            solution = max_sum(rates, sizes, counts)
        else:
            solution = least_rho(
                rates,
                sizes,
                counts,
                left=left,
                age_s=np.array([now_s - job.job.submitted_s for job in jobs]),
                ideal_s=self._ideal_s(jobs, left, (rates * equal_shares(sizes, counts)).sum(axis=1)),
            )
        found[fitting] = solution
        return found

    def _ideal_s(self, jobs: Sequence[SimulatedJob], left: FloatArray, shares: FloatArray) -> FloatArray:
        """Return how long each whole job takes on equal shares, each part at the rate of its time."""
        isolated, ideal_s = {}, []
        for job, now_left, share in zip(jobs, left.tolist(), shares.tolist(), strict=True):
            done_s, then_left, then_share = self._isolated.get(job.job.name, (0.0, now_left, share))
            done_s += (then_left - now_left) / then_share
            isolated[job.job.name] = (done_s, now_left, share)
            ideal_s.append(done_s + now_left / share)
        self._isolated = isolated
        return np.array(ideal_s)

    def _round(self, jobs: Sequence[SimulatedJob], cluster: Cluster) -> dict[str, list[SimulatedJob]]:
        """Return the jobs that run on each type: by priority X/f what fits, f the part of the time it got."""
        got_s = np.array(list(self._got_s.values()))
        priority = self._solution / (got_s / got_s.sum(axis=0))
        left = dict(zip(cluster.gpu_types, type_counts(cluster), strict=True))
        order = list(cluster.fastest_types)
        if not self._aware:
            self._rng.shuffle(order)
        sizes = [job.job.num_replicas for job in jobs]
        chosen: dict[str, list[SimulatedJob]] = {kind: [] for kind in order}
        taken: set[int] = set()
        for kind in order:
            at = cluster.gpu_types.index(kind)
            possible = self._possible[:, at] > 0
            for row in np.argsort(-priority[:, at], kind="stable").tolist():
                if left[kind] == 0:
                    break
                if row not in taken and sizes[row] <= left[kind] and possible[row]:
                    taken.add(row)
                    left[kind] -= sizes[row]
                    chosen[kind].append(jobs[row])
        return chosen

    def _place(self, chosen: Mapping[str, Sequence[SimulatedJob]], cluster: Cluster) -> dict[str, GpusByNode]:
        """Place the largest jobs first; those of a size keep their GPUs where these are still free."""
        placed: dict[str, GpusByNode] = {}
        for kind, jobs in chosen.items():
            free = FreeGpus(cluster.with_only(kind), ())
            for size in sorted({job.job.num_replicas for job in jobs}, reverse=True):
                alike = [job for job in jobs if job.job.num_replicas == size]
                placed |= {job.job.name: job.allocation for job in alike if free.keep(job.allocation)}
                placed |= {job.job.name: free.take(size) for job in alike if job.job.name not in placed}
        return placed
