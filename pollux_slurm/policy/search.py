"""The solver: several starts, each improved by local search, and the best of them.

The starts are what the jobs hold, budget optima (`knapsack`) over several sets of options placed job by job,
and everyone at the minimum. It ends early when the upper bound is reached. Ties go to the earlier start, so
that what the jobs hold wins unless a change is worth it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pollux_slurm.policy.bound import Dual, solve_dual
from pollux_slurm.policy.branch import Branch
from pollux_slurm.policy.knapsack import choose
from pollux_slurm.policy.local_search import LocalSearch, above, best_place, value
from pollux_slurm.policy.options import JobOptions, Option
from pollux_slurm.policy.placement import Cluster, Placed, State

# Displacements tried from each start: at the least, for each job, and at most. One takes about half a
# millisecond.
_MIN_STEPS, _STEPS_PER_JOB, _MAX_STEPS = 500, 10, 3000
# Nodes of the branch-and-bound tree visited at most, and the most jobs for which it is worth a try.
_BRANCH_STEPS = 10_000
_BRANCH_JOBS = 8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Solution:
    """The best placed state found, its value, and a value that none can exceed."""

    state: State
    value: float
    bound: float

    @property
    def is_proved(self) -> bool:
        """Tell whether no other answer is worth more, by more than rounding."""
        return above(self.value) >= self.bound


def solve(cluster: Cluster, jobs: Sequence[JobOptions]) -> Solution:
    """Return the best placed state found; never worth less than what the jobs hold."""
    jobs = _possible(cluster, jobs)
    budget = int(cluster.capacity[:, 0].sum())
    dual = solve_dual([job.options for job in jobs], budget)
    steps = min(_MIN_STEPS + _STEPS_PER_JOB * len(jobs), _MAX_STEPS)
    best: State | None = None
    best_value = 0.0
    for state in _starts(cluster, jobs, budget, dual):
        LocalSearch(state, jobs, price=dual.price, max_steps=steps).climb()
        state_value = value(state, range(len(jobs)))
        if best is None or state_value > above(best_value):
            best, best_value = state, state_value
        if above(best_value) >= dual.bound:
            break
    assert best is not None
    solution = Solution(state=best, value=best_value, bound=dual.bound)
    if not solution.is_proved and sum(len(job.options) > 1 for job in jobs) <= _BRANCH_JOBS:
        proved = Branch(best, jobs, price=dual.price, max_steps=_BRANCH_STEPS).run()
        best_value = value(best, range(len(jobs)))
        solution = Solution(state=best, value=best_value, bound=best_value if proved else dual.bound)
    return solution


def _possible(cluster: Cluster, jobs: Sequence[JobOptions]) -> list[JobOptions]:
    """Return the jobs without the options that do not even fit while every movable job is out of the way."""
    state = _held(cluster, jobs)
    movable = [index for index, job in enumerate(jobs) if len(job.options) > 1]
    for index in movable:
        state.take(index)
    found = list(jobs)
    for index in movable:
        options = tuple(o for o in jobs[index].options if o.stays or state.find(index, o) is not None)
        found[index] = dataclasses.replace(jobs[index], options=options)
    return found


def _starts(cluster: Cluster, jobs: Sequence[JobOptions], budget: int, dual: Dual) -> Iterator[State]:
    """Return the states to start from, what the jobs hold first."""
    yield _held(cluster, jobs)
    tried: list[list[Option]] = []
    for wishes in _wishes(cluster, jobs, budget):
        if wishes in tried:
            continue
        tried.append(wishes)
        state = _placed_anew(cluster, jobs, wishes)
        if state is not None:
            yield state


def _held(cluster: Cluster, jobs: Sequence[JobOptions]) -> State:
    return State(cluster, [job.job for job in jobs], [job.options for job in jobs])


def _wishes(cluster: Cluster, jobs: Sequence[JobOptions], budget: int) -> Iterator[list[Option]]:
    """Return sets of one option for each job: budget optima, then everyone at the minimum."""
    widest = int(cluster.capacity[:, 0].max(initial=0))
    rules: tuple[Callable[[Option], bool], ...] = (
        lambda option: True,
        lambda option: option.per_node > 0 and widest % option.per_node == 0,
        lambda option: option.num_gpus & (option.num_gpus - 1) == 0 or option.per_node == widest,
    )
    for rule in rules:
        chosen = choose([[o for o in job.options if o.stays or rule(o)] for job in jobs], budget)
        if chosen is not None:
            yield chosen
    yield [_smallest(job) for job in jobs]


def _smallest(job: JobOptions) -> Option:
    """Return the option with the fewest GPUs, waiting aside."""
    return min(
        (option for option in job.options if option.num_gpus > 0),
        key=lambda option: (option.num_gpus, not option.stays),
        default=job.options[-1],
    )


def _placed_anew(cluster: Cluster, jobs: Sequence[JobOptions], wishes: Sequence[Option]) -> State | None:
    """Return a state with each job at its wish, or at what fits; None if a running job finds no place.

    Those that stay come first, then the hard to place: over several nodes, then many GPUs on one.
    """
    state = _held(cluster, jobs)
    movable = [index for index, job in enumerate(jobs) if len(job.options) > 1]
    for index in movable:
        state.take(index)
    order = sorted(
        movable,
        key=lambda index: (
            not (wishes[index].stays and wishes[index].num_gpus),
            -wishes[index].num_nodes,
            -wishes[index].per_node,
            index,
        ),
    )
    for index in order:
        placed = state.find(index, wishes[index]) or _nearest(state, jobs[index], index, wishes[index])
        if placed is None:
            return None
        state.put(index, placed)
    return state


def _nearest(state: State, job: JobOptions, index: int, wish: Option) -> Placed | None:
    """Return the best option that fits among those no larger than the wish, else among all."""
    smaller = [option for option in job.options if option.num_gpus <= wish.num_gpus]
    return best_place(state, smaller, index) or best_place(state, job.options, index)
