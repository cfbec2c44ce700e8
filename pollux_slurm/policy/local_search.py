"""Improve a placed state step by step until no step helps; each step is applied only if the sum grows.

Two steps are tried for each job:

- *better place*: take it out, and give it the best option that fits;
- *make room*: give it an option that does not fit, moving or shrinking jobs that stand in its way, each of
  which then takes the best option that still fits.

With λ the price of a GPU, an option's reduced value is value − λ·K. A step changes the sum by the change of
reduced values plus λ for each further GPU in use; so only options whose reduced value lies less than
λ·(idle GPUs) below the present one's can be part of an improvement that a single job leads, and only those
are tried. Work is bounded by counting steps, never by time: the same problem gives the same answer on any
machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from pollux_slurm.policy.options import JobOptions, Option
from pollux_slurm.policy.placement import Placed, State, members_of

_EPSILON = 1e-10
# How far each displacement looks, first narrowly, then, when that leads nowhere, widely.
_NARROW = (4, 6)
_WIDE = (1000, 1000)


class LocalSearch:
    """One climb of one state. `steps_left` counts down the displacements that may still be tried."""

    def __init__(
        self,
        state: State,
        jobs: Sequence[JobOptions],
        *,
        price: float,
        max_steps: int,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.state = state
        self._jobs = jobs
        self._price = price
        self.steps_left = max_steps
        self._wishes_tried, self._nodes_tried = _NARROW
        self._stop = stop
        self.stopped = False

    def climb(self) -> None:
        """Improve the state until nothing helps or the steps are used up."""
        movable = [index for index, job in enumerate(self._jobs) if job.movable]
        for width in (_NARROW, _WIDE):
            self._wishes_tried, self._nodes_tried = width
            improved = True
            while improved and self.steps_left > 0:
                improved = False
                for index in sorted(movable, key=lambda job: (value(self.state, [job]), job)):
                    if self._stop():
                        self.stopped = True
                        return
                    if self._better_place(index) or self._make_room(index):
                        improved = True

    def _better_place(self, index: int) -> bool:
        before = self.state.take(index)
        found = best_place(self.state, self._jobs[index].options, index, least=above(before.option.value))
        self.state.put(index, found or before)
        return found is not None

    def _make_room(self, index: int) -> bool:
        for option in self._wishes(index):
            for nodes in self._targets(index, option):
                if self.steps_left <= 0:
                    return False
                self.steps_left -= 1
                if self._displace(index, option, nodes):
                    return True
        return False

    def _wishes(self, index: int) -> list[Option]:
        """Return the options worth leading a displacement for, the most promising first."""
        present = self.state.at(index).option
        slack = self._price * max(self.state.idle_gpus, 0)
        least = present.value - self._price * present.num_gpus - slack
        found = [
            (option.value - self._price * option.num_gpus, option)
            for option in self._jobs[index].options
            if option.value > above(present.value)
        ]
        found = sorted((pair for pair in found if pair[0] >= least), key=lambda pair: -pair[0])
        return [option for _, option in found[: self._wishes_tried]]

    def _targets(self, index: int, option: Option) -> list[tuple[int, ...]]:
        """Return sets of nodes on which `option` is worth trying: those where the least is in the way."""
        state = self.state
        if option.stays:
            return [tuple(node for node, _ in state.home(index))]
        possible = state.large_enough(index, option)
        if possible.bit_count() < option.num_nodes:
            return []
        own = dict(state.at(index).gpus)
        each = -(-option.num_gpus // option.num_nodes)
        free = state.free
        order = sorted(
            members_of(possible), key=lambda node: max(each - free[node] - own.get(node, 0), 0)
        )
        if option.num_nodes == 1:
            return [(node,) for node in order[: self._nodes_tried]]
        starts = range(min(len(order) - option.num_nodes + 1, self._nodes_tried))
        return [tuple(order[start : start + option.num_nodes]) for start in starts]

    def _displace(self, index: int, option: Option, nodes: tuple[int, ...]) -> bool:
        """Put `option` of a job on `nodes`, whoever is there; keep the result only if the sum grew."""
        state = self.state
        own = state.take(index)
        found = state.fit(index, option, nodes)
        if found is not None:
            return self._keep_or_undo(index, found, {index: own})
        in_the_way = {other for node in nodes for other in state.members[node]}
        in_the_way.update(state.rivals(index, option))
        victims = [other for other in in_the_way if self._jobs[other].movable]
        victims.sort(key=lambda other: (self._cost(other), other))
        taken = {index: own}
        for position, other in enumerate(victims):
            taken[other] = state.take(other)
            found = state.fit(index, option, nodes)
            if found is not None:
                if self._keep_or_undo(index, found, taken):
                    return True
                # Any other of them alone may be enough, and mind less than it seemed.
                rest = victims[1:] if position == 0 else victims[: position + 1]
                return self._displace_one(index, option, nodes, rest)
        for other, placed in taken.items():
            state.put(other, placed)
        return False

    def _displace_one(
        self, index: int, option: Option, nodes: tuple[int, ...], victims: Sequence[int]
    ) -> bool:
        state = self.state
        for other in victims:
            taken = {job: state.take(job) for job in (index, other)}
            found = state.fit(index, option, nodes)
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
        before = sum(placed.option.value for placed in taken.values())
        state.put(index, found)
        others = [other for other in taken if other != index]
        for order in (others, others[::-1])[: max(len(others), 1)]:
            if self._settle(order, above(before) - found.option.value):
                return True
            for other in order:
                if state.placed[other] is not None:
                    state.take(other)
        state.take(index)
        for other, placed in taken.items():
            state.put(other, placed)
        return False

    def _settle(self, order: Sequence[int], least: float) -> bool:
        """Give each of these jobs the best option that fits; False as soon as they cannot exceed `least`."""
        reachable = sum(self._jobs[other].options[0].value for other in order)
        for other in order:
            options = self._jobs[other].options
            # What this job must be worth at least, should all after it get their best.
            found = best_place(self.state, options, other, least=least - (reachable - options[0].value))
            if found is None:
                return False
            reachable += found.option.value - options[0].value
            self.state.put(other, found)
        return reachable > least

    def _cost(self, other: int) -> float:
        """Return a guess of what displacing a job costs: its value less that of its least option, if any."""
        smaller = [option.value for option in self._jobs[other].options if option.num_gpus > 0]
        return self.state.at(other).option.value - smaller[-1]


def above(value: float) -> float:
    """Return what a change of something worth `value` must exceed, so that rounding never moves a job."""
    return value + _EPSILON * max(abs(value), 1.0)


def value(state: State, indices: Iterable[int]) -> float:
    """Return what these jobs' options add to the sum."""
    return sum(state.at(index).option.value for index in indices)


def best_place(
    state: State, options: Sequence[Option], index: int, *, least: float = -np.inf
) -> Placed | None:
    """Return the first option of a taken-out job that fits, None where none worth more than `least` does.

    `options` come best first.
    """
    largest, total = state.room_for(index)
    for option in options:
        if option.value <= least:
            return None
        if option.per_node > largest or (option.per_node and option.num_gpus > total):
            continue
        placed = state.find(index, option)
        if placed is not None:
            return placed
    return None
