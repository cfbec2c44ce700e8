"""Branch and bound over placed answers: proves the best one where the problem is small enough.

Jobs are decided one after the other; for each, every option on every set of nodes that differs in what
matters (room, spanning jobs, who is at home there, who may use it). With λ the price of a GPU, no completion
of a partial answer exceeds

    value so far + Σ over undecided jobs of max_o (value_o − λ·K_o) + λ·(GPUs still free),

so branches that cannot beat the best answer known are cut.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from pollux_slurm.policy.local_search import above
from pollux_slurm.policy.options import JobOptions, Option
from pollux_slurm.policy.placement import Placed, State, members_of

# Ways to spread one uneven allocation that are looked at, possible or not.
_SPLITS = 60


class Branch:
    """One search from `state`, whose movable jobs, or `only` some, are taken out and put in place again.

    Jobs whose shares are free to choose get some of their possible shares only: nothing is proved then.
    """

    def __init__(
        self,
        state: State,
        jobs: Sequence[JobOptions],
        *,
        price: float,
        max_steps: int,
        only: Sequence[int] | None = None,
    ) -> None:
        self._state = state
        self._jobs = jobs
        self._price = price
        self._steps_left = max_steps
        movable = [index for index, job in enumerate(jobs) if job.movable] if only is None else only
        # Those with most at stake first: a wrong choice of theirs is cut early.
        self._order = sorted(movable, key=lambda i: (-_spread(jobs[i].options), i))
        reduced = [max(o.value - price * o.num_gpus for o in jobs[i].options) for i in self._order]
        self._rest = [*np.cumsum(reduced[::-1])[::-1].tolist(), 0.0]
        self._best: dict[int, Placed] = {}
        self._best_value = 0.0

    def run(self) -> bool:
        """Put the best answer into the state; True if it was proved best within the steps allowed."""
        state = self._state
        for index in self._order:
            self._best[index] = state.take(index)
        self._best_value = sum(placed.option.value for placed in self._best.values())
        self._descend(0, 0.0)
        for index in self._order:
            state.put(index, self._best[index])
        return self._steps_left > 0

    def _descend(self, depth: int, so_far: float) -> None:
        state = self._state
        if depth == len(self._order):
            if so_far > above(self._best_value):
                found = [state.placed[index] for index in self._order]
                self._best = {i: p for i, p in zip(self._order, found, strict=True) if p is not None}
                self._best_value = so_far
            return
        index = self._order[depth]
        for option in self._jobs[index].options:
            left = state.idle_gpus - option.num_gpus
            reachable = so_far + option.value + self._rest[depth + 1] + self._price * max(left, 0)
            if reachable <= above(self._best_value):
                continue
            for placed in self._places(depth, option):
                if self._steps_left <= 0:
                    return
                self._steps_left -= 1
                state.put(index, placed)
                self._descend(depth + 1, so_far + option.value)
                state.take(index)

    def _places(self, depth: int, option: Option) -> Iterator[Placed]:
        """Yield the places of an option that differ in what matters to the jobs still undecided."""
        state, index = self._state, self._order[depth]
        if not state.may_have(index, option):
            return
        if option.stays:
            found = state.find(index, option)
            if found is not None:
                yield found
            return
        alike: dict[tuple[object, ...], list[int]] = {}
        for node in members_of(state.candidates(index, option)):
            alike.setdefault(self._signature(depth, node), []).append(node)
        if option.num_nodes == 1:
            for nodes in alike.values():
                yield Placed(option, ((nodes[0], option.per_node),))
            return
        if option.is_uneven:
            yield from self._uneven_places(index, option, list(alike.values()))
            return
        classes = [min(len(nodes), option.num_nodes) for nodes in alike.values()]
        for counts in itertools.product(*(range(most + 1) for most in classes)):
            if sum(counts) != option.num_nodes:
                continue
            chosen = [
                node for count, nodes in zip(counts, alike.values(), strict=True) for node in nodes[:count]
            ]
            yield Placed(option, tuple((node, option.per_node) for node in sorted(chosen)))

    def _uneven_places(self, index: int, option: Option, alike: list[list[int]]) -> Iterator[Placed]:
        """Yield an option on as few nodes as hold it, or one more, each filled in turn."""
        classes = [range(min(len(nodes), option.num_nodes + 1) + 1) for nodes in alike]
        for counts in itertools.islice(itertools.product(*classes), _SPLITS):
            if not option.num_nodes <= sum(counts) <= option.num_nodes + 1:
                continue
            chosen = [node for count, nodes in zip(counts, alike, strict=True) for node in nodes[:count]]
            placed = self._state.fit(index, option, chosen)
            if placed is not None and len(placed.gpus) == len(chosen):
                yield placed

    def _signature(self, depth: int, node: int) -> tuple[object, ...]:
        state = self._state
        undecided = self._order[depth + 1 :]
        at_home = tuple((i, gpus) for i in undecided for home, gpus in state.home(i) if home == node)
        usable = tuple(state.eligible(i) >> node & 1 for i in undecided)
        kind = int(state.cluster.kind[node])
        return (kind, *state.free_on(node), *state.spanning(node), at_home, usable)


def _spread(options: Sequence[Option]) -> float:
    return options[0].value - options[-1].value
