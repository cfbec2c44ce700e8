"""Shockwave (NSDI 2023): plans that maximise the product of all jobs' progress and bound unfairness.

J jobs, R rounds of Δ seconds ahead, G GPUs. s[j]: GPUs; left[j], total[j]: seconds of training at the user's
size; c[j]: rounds in which the job runs; u[j] ≤ log(progress after the plan), in pieces;
rest[j] = left[j] − Δ·c[j].

    maximise Σ w[j]·u[j]/(J·R) − k·max_j rest[j]   subject to Σ s[j]·c[j] ≤ G·R,
    age[j] + Δ·R + rest[j]/min(1, G/J) ≤ ρmax·fair[j]

With w = 1; where no plan keeps the last line, it is dropped, and w = ρ^λ for the jobs beyond ρmax, with a
larger λ for those that a round ends, where ρ = (age[j] + left[j]/min(1, G/J))/fair[j]. fair[j] is the
momentum average of total[j]/min(1, G/J); in Sia's comparison, of (age[j] + left[j])/min(1, G/J).

Rounds are alike, so the program has only their number, and they are filled largest job first. Batches never
change here, so nothing is forecast: times are true.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from pollux_slurm.model import BatchChoice
from pollux_slurm.simulator.engine.cluster import Cluster
from pollux_slurm.simulator.engine.job import GpusByNode, SimulatedJob
from pollux_slurm.simulator.inputs.batch_splits import user_batch
from pollux_slurm.simulator.policies.packing import FreeGpus
from pollux_slurm.simulator.policies.user_rates import UserRates

FloatArray = npt.NDArray[np.float64]

ROUNDS = 20
_LARGEST_RHO, _MOMENTUM = 1.0, 0.9
# k and λ of the runs of Sia's comparison, in its public artifact; the other λ is of Shockwave's own.
_MAKESPAN_WEIGHT, _UNFAIR_POWER, _ENDING_POWER = 1e-9, 12.0, 100.0
# Larger weights are beyond the solver's tolerances.
_LARGEST_WEIGHT = 1e6
# Where the pieces of the logarithm meet; the first stands for no progress.
_BASES = np.array([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
_LOGS = np.log(np.array([1e-6, *_BASES[1:]]))
# A limit in nodes, not in seconds: a plan depends on nothing but its jobs.
_MOST_NODES, _GAP = 1000, 1e-3
# Of the runs of Sia's comparison.
_SIA_ROUNDS = 5


class ShockwavePolicy:
    """Plans 20 rounds, and anew when jobs or GPUs change. Sizes and batches are the users'.

    With `as_in_sia` it is what Sia's comparison (SOSP 2023) ran: five rounds, planned anew in each, and a
    fair finish that moves away while a job waits.
    """

    resizes = False

    def __init__(self, *, as_in_sia: bool = False) -> None:
        self._as_in_sia = as_in_sia
        self._num_rounds = _SIA_ROUNDS if as_in_sia else ROUNDS
        self._rates = UserRates()
        self._plan: list[set[str]] = []
        # The jobs and GPUs that it was made for.
        self._names: list[str] = []
        self._available: tuple[int, ...] | None = None
        # Of each job's fair finish: the sum over the rounds so far, their number, and the last one.
        self._fair: dict[str, tuple[float, int, float]] = {}

    def choose_batch(self, job: SimulatedJob) -> BatchChoice:
        return user_batch(job.job, job.application, job.num_gpus)

    def allocate(
        self, now_s: float, jobs: Sequence[SimulatedJob], cluster: Cluster
    ) -> Mapping[str, GpusByNode]:
        jobs = [job for job in jobs if job.job.num_replicas <= cluster.num_gpus]
        if not jobs:
            return {}
        names = [job.job.name for job in jobs]
        rates = np.array([self._rates.on(job, job.job.num_replicas, cluster) for job in jobs])
        left_s = np.array([self._rates.steps_left(job) for job in jobs]) / rates
        total_s = np.array([self._rates.steps(job) for job in jobs]) / rates
        age_s = np.array([now_s - job.job.submitted_s for job in jobs])
        share = min(1.0, cluster.num_gpus / len(jobs))
        fair_s = self._fair_finish(names, (age_s + left_s if self._as_in_sia else total_s) / share)
        known = names == self._names and cluster.available == self._available
        if self._as_in_sia or not known or not self._plan:
            sizes = np.array([float(job.job.num_replicas) for job in jobs])
            counts, weights = plan_counts(
                sizes=sizes,
                left_s=left_s,
                total_s=total_s,
                age_s=age_s,
                fair_s=fair_s,
                num_gpus=cluster.num_gpus,
                round_s=cluster.interval_s,
                num_rounds=self._num_rounds,
            )
            self._plan = fill_rounds(
                names, sizes, counts, weights, left_s, num_gpus=cluster.num_gpus, num_rounds=self._num_rounds
            )
            self._names, self._available = names, cluster.available
        chosen = self._plan.pop(0)
        return _place([job for job in jobs if job.job.name in chosen], cluster)

    def _fair_finish(self, names: Sequence[str], estimates_s: FloatArray) -> FloatArray:
        before, self._fair = self._fair, {}
        for name, estimate_s in zip(names, estimates_s.tolist(), strict=True):
            total_s, count, _ = before.get(name, (0.0, 0, 0.0))
            self._fair[name] = (total_s + estimate_s, count + 1, estimate_s)
        return np.array(
            [
                _MOMENTUM * total_s / count + (1 - _MOMENTUM) * last
                for total_s, count, last in self._fair.values()
            ]
        )


def plan_counts(
    *,
    sizes: FloatArray,
    left_s: FloatArray,
    total_s: FloatArray,
    age_s: FloatArray,
    fair_s: FloatArray,
    num_gpus: int,
    round_s: float,
    num_rounds: int = ROUNDS,
) -> tuple[npt.NDArray[np.int64], FloatArray]:
    """Return c and the jobs' weights w, each of shape `(J,)`."""
    share = min(1.0, num_gpus / len(sizes))
    ones = np.ones(len(sizes))
    most_rest_s = (_LARGEST_RHO * fair_s - age_s - round_s * num_rounds) * share
    least = np.maximum(np.ceil((left_s - most_rest_s) / round_s), 0.0)
    if (most_rest_s >= 0).all() and (least <= num_rounds).all():
        found = _solve(sizes, left_s, total_s, ones, least, num_gpus, round_s, num_rounds)
        if found is not None:
            return found, ones
    rho = (age_s + left_s / share) / fair_s
    # In logarithms, since a power of 100 may be too large for a number.
    power = np.where(left_s < round_s, _ENDING_POWER, _UNFAIR_POWER)
    weights = np.exp(np.clip(power * np.log(rho), 0.0, np.log(_LARGEST_WEIGHT)))
    found = _solve(sizes, left_s, total_s, weights, np.zeros(len(sizes)), num_gpus, round_s, num_rounds)
    return np.zeros(len(sizes), dtype=np.int64) if found is None else found, weights


def _solve(
    sizes: FloatArray,
    left_s: FloatArray,
    total_s: FloatArray,
    weights: FloatArray,
    least: FloatArray,
    num_gpus: int,
    round_s: float,
    num_rounds: int,
) -> npt.NDArray[np.int64] | None:
    """Return c, at least `least`; None if there is no such plan."""
    # Imported here because the other policies do not need it, and it takes long.
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    num_jobs, num_pieces = len(sizes), len(_BASES) - 1
    job = np.arange(num_jobs)
    slopes = np.diff(_LOGS) / np.diff(_BASES)
    done = 1.0 - left_s / total_s
    # Variables c, u, largest rest. Rows: the GPUs; u ≤ each piece; rest ≤ the largest.
    parts = [(np.zeros(num_jobs, dtype=np.int64), job, sizes)]
    limits = [np.array([float(num_gpus * num_rounds)])]
    for piece in range(num_pieces):
        row = 1 + piece * num_jobs + job
        parts += [(row, job, -slopes[piece] * round_s / total_s), (row, num_jobs + job, np.ones(num_jobs))]
        limits.append(_LOGS[piece] + slopes[piece] * (done - _BASES[piece]))
    row = 1 + num_pieces * num_jobs + job
    parts += [
        (row, job, np.full(num_jobs, -round_s)),
        (row, np.full(num_jobs, 2 * num_jobs), np.full(num_jobs, -1.0)),
    ]
    limits.append(-left_s)
    rows, columns, values = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    matrix = csr_array((values, (rows, columns)), shape=(1 + (num_pieces + 1) * num_jobs, 2 * num_jobs + 1))
    most = np.maximum(np.minimum(np.ceil(left_s / round_s), num_rounds), least)
    found = milp(
        np.concatenate([np.zeros(num_jobs), -weights / (num_jobs * num_rounds), [_MAKESPAN_WEIGHT]]),
        integrality=np.concatenate([np.ones(num_jobs), np.zeros(num_jobs + 1)]),
        bounds=Bounds(
            np.concatenate([least, np.full(num_jobs, -np.inf), [0.0]]),
            np.concatenate([most, np.zeros(num_jobs), [np.inf]]),
        ),
        constraints=LinearConstraint(matrix, ub=np.concatenate(limits)),
        options={"node_limit": _MOST_NODES, "mip_rel_gap": _GAP},
    )
    return None if found.x is None else np.round(found.x[:num_jobs]).astype(np.int64)


def fill_rounds(
    names: Sequence[str],
    sizes: FloatArray,
    counts: npt.NDArray[np.int64],
    weights: FloatArray,
    left_s: FloatArray,
    *,
    num_gpus: int,
    num_rounds: int = ROUNDS,
) -> list[set[str]]:
    """Return the jobs of each round: the largest first, each in the emptiest rounds.

    Rounds with the most weight come first, and GPUs that a round has left go to the jobs with the most left.
    """
    free = np.full(num_rounds, float(num_gpus))
    chosen: list[set[int]] = [set() for _ in range(num_rounds)]
    for row in sorted(range(len(names)), key=lambda row: -sizes[row]):
        fitting = [at for at in np.argsort(-free, kind="stable").tolist() if free[at] >= sizes[row]]
        for at in fitting[: int(counts[row])]:
            chosen[at].add(row)
            free[at] -= sizes[row]
    planned = [sum(weights[row] for row in rows) for rows in chosen]
    order = sorted(range(len(names)), key=lambda row: -left_s[row])
    for at, rows in enumerate(chosen):
        for row in order:
            if row not in rows and sizes[row] <= free[at]:
                rows.add(row)
                free[at] -= sizes[row]
    return [
        {names[row] for row in chosen[at]} for at in sorted(range(num_rounds), key=lambda at: -planned[at])
    ]


def _place(jobs: Sequence[SimulatedJob], cluster: Cluster) -> dict[str, GpusByNode]:
    """Place jobs at their users' sizes: those that run stay, then the largest first."""
    given = {job.job.name: job.allocation for job in jobs if job.allocation}
    free = FreeGpus(cluster, given.values())
    for job in sorted(jobs, key=lambda job: -job.job.num_replicas):
        if job.job.name not in given:
            given[job.job.name] = free.take(job.job.num_replicas)
    return given
