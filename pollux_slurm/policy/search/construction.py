"""Place each job's choice at the dual prices, and close the gap job by job.

With prices λ, the gap to the bound is exactly Σ_j regret_j + λ·(what is idle). A job's regret is the value of
its best candidate less that of its present one, prices included. So jobs are improved in the order of their
regrets, and only jobs with a regret are tried.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pollux_slurm.policy.candidates.candidates import Candidates
from pollux_slurm.policy.candidates.place_search import find_place
from pollux_slurm.policy.candidates.placed_state import Placement, State
from pollux_slurm.policy.pricing.relaxation import Relaxation
from pollux_slurm.policy.problem.deterministic_rounding import above, above_all

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

# The parts of the prices at which idle GPUs are allowed, one after the other.
_CLEARANCE = (1.0, 0.5, 0.0)
# After this many failures, as a part of the jobs, the jobs that may gain are computed again for all together,
# which takes about as long.
_SURVEY_EVERY = 1 / 16


class Constructor:
    """Builds one solution at fixed prices."""

    def __init__(
        self, state: State, candidates: Candidates, relaxation: Relaxation, prices: FloatArray
    ) -> None:
        self._state = state
        self._candidates = candidates
        self._relaxation = relaxation
        self._prices = prices
        tables = candidates.tables
        self._uneven = (tables.per_node == 0) & (tables.num_gpus > 0)
        self._widest = state.cluster.max_gpus_per_node
        # The share of each node that a column needs, at most one more than any node has.
        self._share = np.clip(tables.per_node, 1, self._widest + 1)
        self._any_uneven = bool(np.logical_or.reduce(self._uneven))
        # Where `_may_fit` has the number of nodes that a column may use.
        self._counted_at = (2 * tables.kind + (tables.num_nodes != 1)) * (self._widest + 2) + self._share

    def build(self, choice: IntArray) -> bool:
        """Give each job its choice or the best that fits; return False if a running job fits nowhere.

        Jobs that stay are placed first, then those on several nodes, then those with many GPUs on one node.
        """
        state, candidates = self._state, self._candidates
        tables = candidates.tables
        movers = np.flatnonzero((choice >= 0) & ~candidates.settled)
        columns = choice[movers]
        share = np.where(tables.per_node[columns] > 0, tables.per_node[columns], tables.num_gpus[columns])
        order = movers[np.lexsort((movers, -share, -tables.num_nodes[columns]))].tolist()
        for job in order:
            state.take(job)
        unplaced = []
        reduced = self._relaxation.reduced(self._prices)
        if candidates.in_place is not None:
            order = self._place_in_place(order, choice)
        for job in order:
            placed = find_place(state, job, candidates.candidate(job, int(choice[job])))
            if placed is not None and placed.candidate.shortfall > 0:
                placed = self.best_fit(job, reduced[job])
            if placed is None:
                unplaced.append(job)
            else:
                state.put(job, placed)
        for position, job in enumerate(unplaced):
            placed = self.best_fit(job, reduced[job])
            if placed is None:
                # Leave a complete state to the caller.
                for other in unplaced[position:]:
                    state.put(other, Placement(candidates.candidate(other, -1), state.current[other]))
                return False
            state.put(job, placed)
        return True

    def _place_in_place(self, order: list[int], choice: IntArray) -> list[int]:
        """Place the jobs that can keep wings with their choice, before others take their nodes.

        Return the other jobs.
        """
        state, others = self._state, []
        for job in order:
            candidate = self._candidates.candidate(job, int(choice[job]))
            placed = find_place(state, job, candidate) if candidate.in_place else None
            if placed is not None and placed.candidate.in_place:
                state.put(job, placed)
            else:
                others.append(job)
        return others

    def fill(self) -> None:
        """Give idle GPUs to the jobs that gain most, first at the prices, then below them.

        No job ever gets less, so the sum only grows.
        """
        for part in _CLEARANCE:
            if self._state.idle_gpus <= 0:
                return
            self._fill_at(self._relaxation.reduced(self._prices * part))

    def regretful(self) -> list[int]:
        """Return the jobs with a regret at the prices, the largest first."""
        reduced = self._relaxation.reduced(self._prices)
        return self._gaining(reduced, self._present(reduced))

    def _present(self, reduced: FloatArray) -> FloatArray:
        """Return the reduced value of what each job has now, (J,)."""
        chosen = [placed.candidate for placed in self._state.placed_jobs()]
        columns = [candidate.column for candidate in chosen]
        found = np.asarray(reduced[np.arange(len(columns)), columns], dtype=np.float64)
        if self._candidates.in_place is not None:
            found -= np.array([candidate.shortfall for candidate in chosen], dtype=np.float64)
        return found

    def _gaining(self, reduced: FloatArray, now: FloatArray) -> list[int]:
        """Return the jobs of which another candidate has a higher reduced value, the highest first."""
        most = np.maximum.reduce(reduced, axis=1)
        gain = most - now
        order = ((gain > 1e-9 * np.maximum(np.abs(most), 1.0)) & ~self._candidates.settled).nonzero()[0]
        if len(order) > 1:
            order = order.take((-gain.take(order)).argsort(kind="stable"))
        return order.tolist()  # type: ignore[no-any-return]

    def _fill_at(self, reduced: FloatArray) -> None:
        state = self._state
        now = self._present(reduced)
        gaining = self._gaining(reduced, now)
        if not gaining:
            return
        gains, idle, missed = self.may_gain(reduced, now), state.idle_gpus, 0
        for job in gaining:
            if state.idle_gpus <= 0:
                return
            if not gains[job] and state.idle_gpus <= idle:
                continue
            before = state.take(job)
            found = self.best_fit(job, reduced[job], least=above(before.candidate.value))
            if found is not None:
                gained = reduced[job, found.candidate.column] - found.candidate.shortfall
                found = found if gained > above(float(now[job])) else None
            state.put(job, found or before)
            missed += found is None
            if missed >= _SURVEY_EVERY * len(now) + 1 and state.idle_gpus < idle:
                # Others took what these might have had, and those to come.
                gains, idle, missed = self.may_gain(reduced, self._present(reduced)), state.idle_gpus, 0

    def may_gain(self, reduced: FloatArray, now: FloatArray) -> BoolArray:
        """Return which jobs (J,) may have room for a candidate that gains, by free GPUs alone.

        `reduced` (J, C + 1) is `Relaxation.reduced`, `now` (J,) that of what each job has. Few GPUs are
        idle, so most jobs need not be tried.
        """
        state, candidates, tables = self._state, self._candidates, self._candidates.tables
        placed = state.placed_jobs()
        count, width, free = len(placed), self._widest + 2, state.free
        values = np.array([one.candidate.value for one in placed], dtype=np.float64)
        least, enough = above_all(values), above_all(now)
        better = (candidates.value > least[:, None]) & (reduced[:, :-1] > enough[:, None])
        # Ten times as fast as by rows.
        jobs, columns = np.divmod(better.ravel().nonzero()[0], max(len(self._share), 1))
        # How many of a job's own nodes have at least so many GPUs that are free or its own.
        has = [job * width + free[node] + gpus for job, one in enumerate(placed) for node, gpus in one.gpus]
        own = np.bincount(np.array(has, dtype=np.int64), minlength=count * width).reshape(count, width)
        own = own[:, ::-1].cumsum(axis=1)[:, ::-1]
        with_room = np.array([state.num_with(nodes) for nodes in state.cluster.of_kind], dtype=np.int64)
        missing = tables.num_nodes - with_room[tables.kind, self._share]
        room = own.ravel().take(jobs * width + self._share.take(columns)) >= missing.take(columns)
        if self._any_uneven:
            owned = np.array([one.candidate.num_gpus for one in placed], dtype=np.int64)
            missing = tables.num_gpus - with_room[:, 1:].sum(axis=1)[tables.kind]
            room = np.where(self._uneven[columns], owned[jobs] >= missing[columns], room)
        gains: BoolArray = (candidates.stay_value > least) & (reduced[:, -1] > enough)
        gains[jobs[room]] = True
        return gains

    def best_fit(self, job: int, reduced: FloatArray, *, least: float = -np.inf) -> Placement | None:
        """Return the candidate of a taken-out job that fits and has most reduced value, None if none does.

        `reduced` (C + 1,) is the job's row of `Relaxation.reduced`. Only those worth more than `least` count.
        It has the better of two ways, so one that is placed by the other way is compared with the next ones.
        """
        candidates = self._candidates
        # The last column is what the job has.
        counts = np.empty(len(reduced), dtype=bool)
        counts[:-1] = (candidates.value[job] > least) & self._may_fit(job)
        counts[-1] = candidates.stay_value.item(job) > least
        columns = counts.nonzero()[0]
        best, most = None, -np.inf
        for column in columns.take(np.argsort(-reduced.take(columns), kind="stable")).tolist():
            if reduced[column] <= most:
                break
            candidate = candidates.candidate(job, column if column < len(counts) - 1 else -1)
            placed = find_place(self._state, job, candidate)
            if placed is None:
                continue
            short = placed.candidate.shortfall
            if short == 0:
                return placed
            if placed.candidate.value > least and reduced[column] - short > most:
                best, most = placed, float(reduced[column] - short)
        return best

    def _may_fit(self, job: int) -> BoolArray:
        """Return which columns have enough nodes with enough free GPUs, of shape `(C,)`."""
        state, tables = self._state, self._candidates.tables
        open_nodes = state.without_spanning()
        # For each GPU type and number of free GPUs: all nodes, then those that several-node jobs may use.
        counts: list[int] = []
        for kind in range(len(tables.kinds)):
            usable = state.usable(job, kind)
            counts += state.num_with(usable)
            counts += state.num_with(usable & open_nodes)
        counted = np.array(counts, dtype=np.int64)
        found: BoolArray = counted.take(self._counted_at) >= tables.num_nodes
        if self._any_uneven:
            several = counted.reshape(len(tables.kinds), 2, -1)[:, 1, 1:]
            room, enough = several.sum(axis=1), several[:, 0] >= 2
            uneven = (tables.num_gpus <= room[tables.kind]) & enough[tables.kind]
            found = np.where(self._uneven, uneven, found)
        return found
