"""Improve a placed state step by step until no step helps; each step is applied only if the sum grows.

Two steps are tried for each job:

- *better place*: take it out, and give it the best candidate that fits;
- *make room*: give it a candidate that does not fit, moving or shrinking jobs that stand in its way, each of
  which then takes the best candidate that still fits.

A step changes the sum by what the regrets shrink, and what less is left unused (see `candidate_pruning`); so
only candidates whose regret is less than the present one and the price of all that is unused together can be
part of an improvement that a single job leads, and only those are tried. Work is bounded by counting steps,
never by time: the same problem gives the same answer on any machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from pollux_slurm.policy.candidates.candidate import Candidate
from pollux_slurm.policy.candidates.placed_state import Placed, State
from pollux_slurm.policy.pricing.candidate_pruning import Offers
from pollux_slurm.policy.problem.node_sets import members_of

_EPSILON = 1e-10
# How far each displacement looks, first narrowly, then, when that leads nowhere, widely.
_NARROW = (4, 6)
_WIDE = (1000, 1000)


class LocalSearch:
    """One climb of one state. `steps_left` counts down the displacements that may still be tried."""

    def __init__(
        self, state: State, offers: Offers, *, max_steps: int, stop: Callable[[], bool] = lambda: False
    ) -> None:
        self.state = state
        self._offers = offers
        self.steps_left = max_steps
        self._wishes_tried, self._nodes_tried = _NARROW
        self._stop = stop
        self.stopped = False

    def climb(self, *, widely: bool = True) -> None:
        """Improve the state until nothing helps or the steps are used up."""
        for width in (_NARROW, _WIDE) if widely else (_NARROW,):
            self._wishes_tried, self._nodes_tried = width
            improved = True
            while improved and self.steps_left > 0:
                improved = False
                slack = self._offers.slack(self.state)
                for job in self._offers.regretful(self.state):
                    if self._stop():
                        self.stopped = True
                        return
                    if self._better_place(job) or self._make_room(job, slack):
                        improved = True
                        slack = self._offers.slack(self.state)

    def _better_place(self, job: int) -> bool:
        before = self.state.take(job)
        found = best_place(self.state, self._offers.by_value(job), job, least=above(before.candidate.value))
        self.state.put(job, found or before)
        return found is not None

    def _make_room(self, job: int, slack: float) -> bool:
        for candidate in self._wishes(job, slack):
            for nodes in self._targets(job, candidate):
                if self.steps_left <= 0:
                    return False
                self.steps_left -= 1
                if self._displace(job, candidate, nodes):
                    return True
        return False

    def _wishes(self, job: int, slack: float) -> list[Candidate]:
        """Return the candidates worth leading a displacement for, the most promising first."""
        present = self.state.at(job).candidate
        least, most = above(present.value), self._offers.regret(job, present) + slack
        found: list[Candidate] = []
        for regret, candidate in self._offers.near(job):
            if regret >= most or len(found) == self._wishes_tried:
                break
            if candidate.value > least:
                found.append(candidate)
        return found

    def _targets(self, index: int, candidate: Candidate) -> list[tuple[int, ...]]:
        """Return sets of nodes on which `candidate` is worth trying: those where the least is in the way."""
        state = self.state
        if candidate.stays:
            return [tuple(node for node, _ in state.home(index))]
        possible = state.large_enough(index, candidate)
        if possible.bit_count() < candidate.num_nodes:
            return []
        own = dict(state.at(index).gpus)
        each = -(-candidate.num_gpus // candidate.num_nodes)
        free = state.free
        order = sorted(members_of(possible), key=lambda node: max(each - free[node] - own.get(node, 0), 0))
        if candidate.num_nodes == 1:
            return [(node,) for node in order[: self._nodes_tried]]
        starts = range(min(len(order) - candidate.num_nodes + 1, self._nodes_tried))
        return [tuple(order[start : start + candidate.num_nodes]) for start in starts]

    def _displace(self, index: int, candidate: Candidate, nodes: tuple[int, ...]) -> bool:
        """Put `candidate` of a job on `nodes`, whoever is there; keep the result only if the sum grew."""
        state = self.state
        own = state.take(index)
        found = state.fit(index, candidate, nodes)
        if found is not None:
            return self._keep_or_undo(index, found, {index: own})
        in_the_way = {other for node in nodes for other in state.members[node]}
        in_the_way.update(state.rivals(index, candidate))
        victims = [other for other in in_the_way if self._offers.is_movable(other)]
        victims.sort(key=lambda other: (self._cost(other), other))
        taken = {index: own}
        for position, other in enumerate(victims):
            taken[other] = state.take(other)
            found = state.fit(index, candidate, nodes)
            if found is not None:
                if self._keep_or_undo(index, found, taken):
                    return True
                # Any other of them alone may be enough, and mind less than it seemed.
                rest = victims[1:] if position == 0 else victims[: position + 1]
                return self._displace_one(index, candidate, nodes, rest)
        for other, placed in taken.items():
            state.put(other, placed)
        return False

    def _displace_one(
        self, index: int, candidate: Candidate, nodes: tuple[int, ...], victims: Sequence[int]
    ) -> bool:
        state = self.state
        for other in victims:
            if self.steps_left <= 0:
                return False
            taken = {job: state.take(job) for job in (index, other)}
            found = state.fit(index, candidate, nodes)
            if found is None:
                for job, placed in taken.items():
                    state.put(job, placed)
                continue
            self.steps_left -= 1
            if self._keep_or_undo(index, found, taken):
                return True
        return False

    def _keep_or_undo(self, index: int, found: Placed, taken: dict[int, Placed]) -> bool:
        """Put a job at `found` and settle the others that were taken out; undo it all unless the sum grew."""
        state = self.state
        before = sum(placed.candidate.value for placed in taken.values())
        state.put(index, found)
        others = [other for other in taken if other != index]
        for order in (others, others[::-1])[: max(len(others), 1)]:
            if self._settle(order, above(before) - found.candidate.value):
                return True
            for other in order:
                if state.placed[other] is not None:
                    state.take(other)
        state.take(index)
        for other, placed in taken.items():
            state.put(other, placed)
        return False

    def _settle(self, order: Sequence[int], least: float) -> bool:
        """Give each of these jobs the best candidate that fits; False once they cannot exceed `least`."""
        reachable = sum(self._best_value(other) for other in order)
        for other in order:
            candidates = self._offers.by_value(other)
            best = candidates[0].value
            # What this job must be worth at least, should all after it get their best.
            needed = least - (reachable - best)
            found = best_place(self.state, candidates, other, least=needed)
            if found is None:
                return False
            reachable += found.candidate.value - best
            self.state.put(other, found)
        return reachable > least

    def _cost(self, other: int) -> float:
        """Return a guess of what displacing a job costs: its value less that of its least candidate."""
        return self.state.at(other).candidate.value - self._offers.by_value(other)[-1].value

    def _best_value(self, job: int) -> float:
        return self._offers.by_value(job)[0].value


def above(value: float) -> float:
    """Return what a change of something worth `value` must exceed, so that rounding never moves a job."""
    return value + _EPSILON * max(abs(value), 1.0)


def above_all(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return `above` of each of many values."""
    found: npt.NDArray[np.float64] = np.abs(values)
    np.maximum(found, 1.0, out=found)
    found *= _EPSILON
    found += values
    return found


def value(state: State, indices: Iterable[int]) -> float:
    """Return what these jobs' candidates add to the sum."""
    return sum(state.at(index).candidate.value for index in indices)


def best_place(
    state: State, candidates: Sequence[Candidate], index: int, *, least: float = -np.inf
) -> Placed | None:
    """Return the first candidate of a taken-out job that fits, None where none worth more than `least` does.

    `candidates` come best first.
    """
    largest, total = state.room_for(index)
    for candidate in candidates:
        if candidate.value <= least:
            return None
        if candidate.per_node > largest or (candidate.per_node and candidate.num_gpus > total):
            continue
        placed = state.find(index, candidate)
        if placed is not None:
            return placed
    return None
