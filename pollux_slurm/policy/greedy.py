"""The solver `greedy`: one GPU step after the other, always the one with the most gain per GPU.

The fallback when time is short. Every waiting job gets its minimum first, from idle GPUs or from a job that
can spare them. Then the step with the most gain per GPU is taken for as long as any fits. Its bound is the
dual's.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from pollux_slurm.policy.candidates.candidates import Candidates
from pollux_slurm.policy.candidates.place_search import find_place
from pollux_slurm.policy.candidates.placed_state import Placement, State
from pollux_slurm.policy.pricing.dual_bound import solve_dual
from pollux_slurm.policy.pricing.relaxation import Relaxation
from pollux_slurm.policy.problem.node_sets import Cluster
from pollux_slurm.policy.search.construction import Constructor
from pollux_slurm.policy.search.exchange import Exchange
from pollux_slurm.policy.search.search import Solution

FloatArray = npt.NDArray[np.float64]


def solve_greedily(
    cluster: Cluster,
    candidates: Candidates,
    *,
    seed: int = 0,
    effort: float = 1.0,
    stop: Callable[[], bool] = lambda: False,
) -> Solution:
    """Return the greedy solution from the current allocations. `seed` and `effort` are not used."""
    del seed, effort
    relaxation = Relaxation(candidates, cluster)
    dual = solve_dual(candidates, relaxation)
    state = State(cluster, candidates)
    constructor = Constructor(state, candidates, relaxation, dual.prices)
    free = relaxation.reduced(np.zeros(len(dual.prices)))
    timed_out = False
    for job in np.flatnonzero(candidates.waits & ~candidates.settled).tolist():
        if state.idle_gpus <= 0:
            break
        before = state.take(job)
        gpus = np.where(candidates.allowed[job], candidates.tables.num_gpus, 10**9)
        least = int(gpus.argmin()) if gpus.size else -1
        found = None
        if least >= 0 and gpus[least] < 10**9:
            cheapest = candidates.candidate(job, least)
            found = find_place(state, job, cheapest) or constructor.best_fit(job, free[job])
        state.put(job, found or before)
    waiting = [
        job
        for job in np.flatnonzero(candidates.waits & ~candidates.settled).tolist()
        if _gpus(state, job) == 0
    ]
    if waiting and not stop():
        Exchange(state, candidates).run(waiting)

    heap = [
        (-gain, job) for job in range(candidates.num_jobs) if (gain := _step(state, candidates, job)[0]) > 0
    ]
    heapq.heapify(heap)
    while heap and state.idle_gpus > 0:
        if stop():
            timed_out = True
            break
        promised, job = heapq.heappop(heap)
        gain, column = _step(state, candidates, job)
        if gain <= 0:
            continue
        if gain < -promised:
            heapq.heappush(heap, (-gain, job))
            continue
        before = state.take(job)
        found = find_place(state, job, candidates.candidate(job, column))
        if found is None or found.candidate.value <= before.candidate.value:
            found = _better(constructor, before, job, free)
        state.put(job, found or before)
        if found is not None and (gain := _step(state, candidates, job)[0]) > 0:
            heapq.heappush(heap, (-gain, job))
    return Solution(state=state, value=state.value(), bound=dual.bound, dual=dual, timed_out=timed_out)


def _gpus(state: State, job: int) -> int:
    placed = state.placed[job]
    return placed.candidate.num_gpus if placed is not None else 0


def _better(constructor: Constructor, before: Placement, job: int, free: FloatArray) -> Placement | None:
    return constructor.best_fit(job, free[job], least=before.candidate.value)


def _step(state: State, candidates: Candidates, job: int) -> tuple[float, int]:
    """Return a job's largest gain per further GPU within the idle GPUs, and its column."""
    placed = state.at(job)
    more = candidates.tables.num_gpus - placed.candidate.num_gpus
    gain = candidates.value[job] - placed.candidate.value
    possible = (gain > 0) & (more > 0) & (more <= state.idle_gpus)
    if candidates.settled[job] or not possible.any():
        return 0.0, -1
    rate = np.where(possible, gain / np.maximum(more, 1), -np.inf)
    best = int(rate.argmax())
    return float(rate[best]), best
