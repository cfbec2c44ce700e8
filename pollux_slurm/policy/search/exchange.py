"""Grow one job where another shrinks, if the two together gain. Fast enough for thousands of jobs.

A table has, for each node and number of GPUs, the least loss of value with which one job there frees so many.
A job with a regret takes the node where its gain less that loss is largest. Of two ways to reach a candidate
the dearer one counts, so that an exchange gains on any node.
Legend: J jobs, n nodes, k GPUs on one node.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pollux_slurm.policy.candidates.candidates import Candidates
from pollux_slurm.policy.candidates.place_search import fit_on
from pollux_slurm.policy.candidates.placed_state import Placement, State
from pollux_slurm.policy.problem.deterministic_rounding import above
from pollux_slurm.policy.problem.node_sets import members_of

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


class Exchange:
    """Improves one state; the sum of values grows with every step."""

    def __init__(self, state: State, candidates: Candidates) -> None:
        self._state = state
        self._candidates = candidates
        tables = candidates.tables
        self._widest = widest = state.cluster.max_gpus_per_node
        kinds = len(tables.kinds)
        # The best value with at most k GPUs on one node of each type, and its column.
        exact = np.full((kinds, candidates.num_jobs, widest + 1), -np.inf)
        with_gpus = np.full((kinds, widest + 1), -1, dtype=np.int64)
        single = (tables.num_nodes == 1).nonzero()[0]
        of_kind, gpus = tables.kind[single], tables.num_gpus[single]
        exact[of_kind, :, gpus] = candidates.sure_value.T[single]
        with_gpus[of_kind, gpus] = single
        self._value = np.maximum.accumulate(exact, axis=2)
        # How many GPUs the best is with: of equals, as few as can be.
        self._counts = np.arange(1, widest + 1)
        most = np.zeros(exact.shape, dtype=np.int64)
        most[:, :, 1:] = (exact[:, :, 1:] > self._value[:, :, :-1]) * self._counts
        np.maximum.accumulate(most, axis=2, out=most)
        self._column = np.array([table.take(at) for table, at in zip(with_gpus, most, strict=True)])
        self._nodes = [np.flatnonzero(state.cluster.kind == kind) for kind in range(kinds)]
        num_nodes = len(state.cluster.names)
        self._free = np.array(state.free, dtype=np.int64)
        self._known: dict[tuple[int, int], BoolArray] = {}
        self._cost = np.full((num_nodes, widest + 1), np.inf)
        self._victim = np.full((num_nodes, widest + 1), -1, dtype=np.int64)
        self._cost[:, 0] = 0.0
        for node in range(num_nodes):
            self._look_for_victims(node)

    def run(self, jobs: Sequence[int]) -> None:
        """Try an exchange for each of these jobs, in this order."""
        for job in jobs:
            self._look(job)

    def _usable(self, job: int, kind: int) -> BoolArray:
        nodes = self._state.usable(job, kind)
        if (kind, nodes) not in self._known:
            flags = np.zeros(len(self._free), dtype=bool)
            flags[list(members_of(nodes))] = True
            self._known[kind, nodes] = flags[self._nodes[kind]]
        return self._known[kind, nodes]

    def _survey(self, node: int) -> None:
        """Compute again the loss for freeing each number of GPUs of a node."""
        state = self._state
        self._free[node] = state.free[node]
        self._cost[node] = np.inf
        self._victim[node] = -1
        self._cost[node, 0] = 0.0
        self._look_for_victims(node)

    def _look_for_victims(self, node: int) -> None:
        """For each number of GPUs of a node, find the job that frees them with the least loss."""
        state = self._state
        if not state.cluster.open >> node & 1 or not state.members[node]:
            return
        kind = int(state.cluster.kind[node])
        least, victim = self._cost[node].tolist(), self._victim[node].tolist()
        for job in sorted(state.members[node]):
            if (
                job >= self._candidates.num_jobs
                or self._candidates.settled[job]
                or not state.eligible[job] >> node & 1
            ):
                continue
            placed = state.at(job)
            if len(placed.gpus) != 1:
                continue
            owned, now = placed.candidate.num_gpus, placed.candidate.value
            if owned < 2:
                continue
            values = self._value[kind, job].tolist()
            for freed in range(1, owned):
                cost = now - values[owned - freed]
                if cost < least[freed]:
                    least[freed], victim[freed] = cost, job
        self._cost[node], self._victim[node] = least, victim

    def _look(self, job: int) -> None:
        state = self._state
        placed = state.at(job)
        now = placed.candidate.value
        own = placed.gpus[0] if len(placed.gpus) == 1 else None
        best, target = above(now) - now, None
        for kind, nodes in enumerate(self._nodes):
            values = self._value[kind, job, 1:]
            wanted = self._counts[values > now + best]
            if not len(wanted) or not len(nodes):
                continue
            free = self._free[nodes]
            if own is not None and state.cluster.kind[own[0]] == kind:
                free = free + np.where(nodes == own[0], own[1], 0)
            missing = np.maximum(wanted[:, None] - free, 0)
            cost = self._cost[nodes, np.minimum(missing, self._widest)]
            cost = np.where(self._usable(job, kind), cost, np.inf)
            pick = cost.argmin(axis=1)
            gain = self._value[kind, job, wanted] - now - cost[np.arange(len(wanted)), pick]
            first = int(gain.argmax())
            if gain[first] > best:
                best = float(gain[first])
                target = (kind, int(wanted[first]), int(nodes[pick[first]]), int(missing[first, pick[first]]))
        if target is not None:
            self._apply(job, placed, *target)

    def _apply(self, job: int, placed: Placement, kind: int, wanted: int, node: int, missing: int) -> None:
        """Move a job to a node on which another one shrinks; put everything back where that does not fit."""
        state, candidates = self._state, self._candidates
        victim = int(self._victim[node, missing]) if missing else -1
        if victim == job:
            return
        state.take(job)
        before = None
        if victim >= 0:
            before = state.take(victim)
            column = int(self._column[kind, victim, before.candidate.num_gpus - missing])
            smaller = candidates.candidate(victim, column)
            settled = fit_on(state, victim, smaller, [node])
            if settled is None:
                state.put(victim, before)
                state.put(job, placed)
                return
            state.put(victim, settled)
        found = fit_on(state, job, candidates.candidate(job, int(self._column[kind, job, wanted])), [node])
        if found is None:
            if before is not None:
                state.take(victim)
                state.put(victim, before)
            state.put(job, placed)
            return
        state.put(job, found)
        for touched in {node, *(one for one, _ in placed.gpus)}:
            self._survey(touched)
