"""Shares between users, or accounts, before shares between jobs: who takes part, and with what weight.

GPUs are dealt one by one, in thought: each to the user who has the fewest of those who could use one more.
He takes the minimum of his next job with it or, when all of his have theirs, one more for a job that gains by
more, or will by its model. So what he is dealt depends on what others could use, not on how many jobs he has.

- A waiting job that is not dealt its minimum takes no part: others of its user come first.
- The n jobs of a user that are, of U users, count as one: each has the part G/(U·n) of G GPUs as its fair
  share, and the weight 1/n. What it gains is measured over what it has on that part: n jobs that have it each
  are worth what one job with G/U is. An objective that measures speedups over one GPU has the weight
  1/n·(s(G/U)/s(G/(U·n)))^p instead, in the geometric mean of the user's jobs: for linear speeds, n^(p − 1).
- A running job that is not dealt its minimum keeps running, with less weight: the i-th has (n/i)² of it.

Users are dealt for in proportion to the mean weight of their jobs. A job without a user stands for itself.
Legend: J jobs, U users (or accounts), n jobs of one user, G GPUs.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pollux_slurm.model import Problem, ProblemJob
from pollux_slurm.policy.problem.allocation_shapes import gpu_bounds
from pollux_slurm.policy.problem.node_facts import NodeFacts
from pollux_slurm.policy.problem.speedup_tables import SpeedupTables

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

SHARES_BETWEEN = ("users", "accounts", "jobs")
# Sets of nodes that are told apart; a job with another is dealt GPUs as if it might use all.
_MOST_CLASSES = 16


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UserShares:
    """What jobs were dealt. `count` (J,) is how many jobs of its user were dealt their minimum.

    `weight_factor` (J,) multiplies a job's weight: 1 for those, 0 for a job that waits behind them. There
    are `num_users`, and `user` (J,) is each job's.
    """

    user: IntArray
    count: IntArray
    weight_factor: FloatArray
    num_users: int

    def fair_shares(self, num_gpus: int) -> IntArray:
        """Return each job's fair share of `num_gpus`, (J,)."""
        return np.maximum(-(-num_gpus // (self.num_users * self.count)), 1)

    def factors(self, exponent: float, tables: SpeedupTables, *, in_gpus: bool) -> FloatArray:
        """Return what each job's weight is multiplied with, (J,), the largest being 1.

        `in_gpus`, a speedup of 1 stands for one GPU, else for the fair share.
        """
        total = tables.facts.num_gpus
        if not len(self.count) or not total:
            return self.weight_factor
        whole, part = total / self.num_users, total / (self.num_users * self.count)
        if in_gpus:
            ratio = np.log(_speedup_at(whole, tables)) - np.log(_speedup_at(part, tables))
            ratio = np.bincount(self.user, weights=ratio)[self.user] / np.bincount(self.user)[self.user]
        else:
            ratio = np.log(self.fair_shares(total) / part)
        found = exponent * ratio - np.log(self.count)
        return np.asarray(np.exp(found - found.max()) * self.weight_factor, dtype=np.float64)


def _speedup_at(share: FloatArray | float, tables: SpeedupTables) -> FloatArray:
    """Return each job's best SPEEDUP on a share of GPUs, (J,), that need not be a whole number."""
    whole = np.ceil(share - 1e-9)
    within = (tables.num_gpus <= np.reshape(whole, (-1, 1))) & (tables.num_gpus > 0)
    best = np.where(within, tables.speedup, 0.0).max(axis=1, initial=0.0)
    # Where so few allow no batch, as if speed were linear in GPUs.
    found: FloatArray = np.where(best > 0, best / whole, 1.0) * share
    return found


def group_of(job: ProblemJob, between: str) -> str | None:
    """Return who a job counts for, None where that is nobody but itself.

    Where accounts share and a job has none, its user counts.
    """
    if between == "jobs":
        return None
    return (job.account if between == "accounts" else "") or job.user or None


def shares_of_all(problem: Problem, jobs: Sequence[ProblemJob]) -> UserShares | None:
    """Return the standing where every job takes part; None where users share as their jobs would.

    That is so with one user, or one job for each. Jobs of one size, that are no user's here, share nothing:
    they have what they need.
    """
    between = problem.objective.between
    if between == "jobs":
        return None
    numbers: dict[str | int, int] = {}
    names = (group_of(job, between) for job in jobs)
    user = [numbers.setdefault(row if name is None else name, len(numbers)) for row, name in enumerate(names)]
    sharing = {number for number, job in zip(user, jobs, strict=True) if not job.rigid}
    if len(sharing) <= 1 or len(numbers) == len(jobs):
        return None
    count = Counter(user)
    return UserShares(
        user=np.array(user, dtype=np.int64),
        count=np.array([count[one] for one in user], dtype=np.int64),
        weight_factor=np.ones(len(user)),
        num_users=len(sharing),
    )


def all_minimums_fit(standing: UserShares, jobs: Sequence[ProblemJob], facts: NodeFacts) -> bool:
    """Whether every user's minimums fit into an equal part of all GPUs, so that nothing need be dealt."""
    if any(job.partition_nodes is not None for job in jobs) or not all(n.accepts_new for n in facts.nodes):
        return False
    needs = np.bincount(standing.user, weights=[_need(job) for job in jobs])
    weight = _weights(standing, jobs)
    return bool((needs <= facts.num_gpus * weight / weight.sum()).all())


def divide_gpus(
    problem: Problem, jobs: list[ProblemJob], useful: IntArray, facts: NodeFacts
) -> tuple[list[ProblemJob], UserShares | None, list[ProblemJob]]:
    """Return the jobs that take part, their standing, and those that wait behind others of their users.

    `useful` (J,) is how many GPUs each job could use.
    """
    standing = shares_of_all(problem, jobs)
    if standing is None:
        return jobs, None, []
    dealing = _Dealing(problem, jobs, standing, useful, facts)
    dealing.run()
    found = dealing.result()
    taking_part = found.weight_factor > 0
    kept = UserShares(
        user=found.user[taking_part],
        count=found.count[taking_part],
        weight_factor=found.weight_factor[taking_part],
        num_users=found.num_users,
    )
    return (
        list(itertools.compress(jobs, taking_part.tolist())),
        kept,
        list(itertools.compress(jobs, (~taking_part).tolist())),
    )


def useful_gpus(jobs: Sequence[ProblemJob], tables: SpeedupTables) -> IntArray:
    """Return the GPUs on which each job is fastest by its model, (J,).

    Where that is the most it may have until it is measured on more, it is all that it may ever have.
    """
    low, most = gpu_bounds(jobs)
    within = (tables.num_gpus >= low) & (tables.num_gpus <= np.minimum(most, tables.caps[:, None]))
    speedup = np.where(within & (tables.num_gpus > 0), tables.speedup, 0.0)
    if not speedup.shape[1]:
        return np.array([_need(job) for job in jobs], dtype=np.int64)
    best = tables.num_gpus[speedup.argmax(axis=1)]
    at_cap = best >= np.where(speedup > 0, tables.num_gpus, 0).max(axis=1)
    found = np.where(at_cap & (most[:, 0] > tables.caps), most[:, 0], best)
    fixed = np.array([job.pinned or job.rigid for job in jobs], dtype=bool)
    needs = np.array([_need(job) for job in jobs], dtype=np.int64)
    return np.where(fixed, needs, np.maximum(found, needs))


def _need(job: ProblemJob) -> int:
    """Return the GPUs that a job cannot do without."""
    return job.current.num_gpus if job.pinned else job.min_gpus


def _weights(standing: UserShares, jobs: Sequence[ProblemJob]) -> FloatArray:
    """Return the mean weight of each user's jobs, (U,)."""
    total = np.bincount(standing.user, weights=[job.weight for job in jobs])
    found: FloatArray = total / np.bincount(standing.user)
    return found


class _Dealing:
    """The course of one dealing: what is left of each cell, and what each user has."""

    def __init__(
        self,
        problem: Problem,
        jobs: Sequence[ProblemJob],
        standing: UserShares,
        useful: IntArray,
        facts: NodeFacts,
    ) -> None:
        self._jobs, self._standing = jobs, standing
        self._useful: list[int] = useful.tolist()
        self._user: list[int] = standing.user.tolist()
        self._weight: list[float] = _weights(standing, jobs).tolist()
        self._has = [0.0] * len(self._weight)
        self._dealt = [False] * len(jobs)
        self._cells = _Cells(jobs, facts)
        # What each user's jobs would still use of each class's nodes.
        self._more: list[Counter[int]] = [Counter() for _ in self._has]
        self._order = self._ordered(problem.max_wait_s)
        self._queue: list[list[int]] = [[] for _ in self._has]
        for row in reversed(self._order):
            if not jobs[row].pinned:
                self._queue[self._user[row]].append(row)
        self._settle(problem)

    def _settle(self, problem: Problem) -> None:
        """Deal what nobody else can have: what pinned jobs hold, and those that are left out."""
        between = problem.objective.between
        rows = {job.job_id: row for row, job in enumerate(self._jobs)}
        users = {group_of(job, between): user for job, user in zip(self._jobs, self._user, strict=True)}
        for job in problem.jobs:
            row, name = rows.get(job.job_id), group_of(job, between)
            if row is not None and not job.pinned:
                continue
            self._cells.settle(job)
            if row is not None:
                self._dealt[row] = True
                self._has[self._user[row]] += job.current.num_gpus
            elif name is not None and name in users:
                self._has[users[name]] += job.current.num_gpus

    def run(self) -> None:
        """Deal until nobody can use what is left."""
        heap = [self._entry(user) for user in range(len(self._has))]
        heapq.heapify(heap)
        first = [True] * len(self._has)
        for row in itertools.compress(range(len(self._jobs)), self._dealt):
            first[self._user[row]] = False
        while heap:
            user = heapq.heappop(heap)[-1]
            if self._deal_next(user, always=first[user]):
                heapq.heappush(heap, self._entry(user))
            first[user] = False

    def result(self) -> UserShares:
        """Return what came of it."""
        count = Counter(itertools.compress(self._user, self._dealt))
        beyond = count.copy()
        weight_factor = [1.0] * len(self._jobs)
        for row in self._order:
            if not self._dealt[row]:
                user = self._user[row]
                beyond[user] += 1
                weight_factor[row] = (count[user] / beyond[user]) ** 2 if self._jobs[row].current else 0.0
        return UserShares(
            user=self._standing.user,
            count=np.array([count[user] for user in self._user], dtype=np.int64),
            weight_factor=np.array(weight_factor, dtype=np.float64),
            num_users=self._standing.num_users,
        )

    def _ordered(self, max_wait_s: float | None) -> list[int]:
        """Return the jobs in the order in which their users are dealt for them.

        Those that run come first, for they hold GPUs already; but before them a user's longest waiting job,
        once it has waited for `max_wait_s`.
        """
        jobs = self._jobs
        longest: dict[int, tuple[float, int]] = {}
        for row, job in enumerate(jobs):
            if max_wait_s is not None and not job.current and job.waiting_s >= max_wait_s:
                user = self._user[row]
                longest[user] = max(longest.get(user, (-1.0, 0)), (job.waiting_s, -row))
        starving = {-row for _, row in longest.values()}
        return sorted(
            range(len(jobs)),
            key=lambda row: (
                row not in starving,
                not jobs[row].current,
                -jobs[row].weight,
                -jobs[row].waiting_s,
                -jobs[row].age_s,
                row,
            ),
        )

    def _entry(self, user: int) -> tuple[float, int, float, int]:
        """Return the user's turn: who has least comes first, then who keeps what runs, then who waits."""
        queue = self._queue[user]
        job = self._jobs[queue[-1]] if queue else None
        claim = 2 if job is None else 0 if job.current else 1
        waiting_s = 0.0 if job is None else job.waiting_s
        return self._has[user] / self._weight[user], claim, -waiting_s, user

    def _deal_next(self, user: int, *, always: bool) -> bool:
        """Deal a user the minimum of his next job that fits, or one GPU more; False: he can use nothing.

        `always`, his next job takes part even where it does not fit any more.
        """
        queue, cells = self._queue[user], self._cells
        while queue:
            row = queue.pop()
            need, of_class = _need(self._jobs[row]), cells.of_job[row]
            if cells.take(of_class, need) or always:
                self._dealt[row] = True
                self._has[user] += need
                self._more[user][of_class] += self._useful[row] - need
                return True
        more = self._more[user]
        for of_class in list(more):
            if more[of_class] > 0 and cells.take(of_class, 1):
                more[of_class] -= 1
                self._has[user] += 1
                return True
            del more[of_class]
        return False


class _Cells:
    """What is left of the nodes that the same jobs may use. `of_job` (J,) is the class of each job.

    A class is the jobs that may use the same nodes; its nodes are in one cell or several.
    """

    def __init__(self, jobs: Sequence[ProblemJob], facts: NodeFacts) -> None:
        common = Counter(job.partition_nodes for job in jobs).most_common(_MOST_CLASSES)
        named = [nodes for nodes, _ in common if nodes is not None]
        anywhere = len(named)  # those that may use every node, or are of no class
        classes: dict[frozenset[str] | None, int] = {nodes: number for number, nodes in enumerate(named)}
        self.of_job = [classes.get(job.partition_nodes, anywhere) for job in jobs]
        number_of: dict[tuple[int, ...], int] = {}
        self._free: list[int] = []
        self._cell: dict[str, int] = {}
        for node in facts.nodes:
            if not node.accepts_new or not node.num_gpus:
                continue
            inside = tuple(number for number, nodes in enumerate(named) if node.name in nodes)
            cell = self._cell[node.name] = number_of.setdefault(inside, len(number_of))
            if cell == len(self._free):
                self._free.append(0)
            self._free[cell] += node.num_gpus
        self._cells_of: list[list[int]] = [[] for _ in range(anywhere)]
        for inside, cell in number_of.items():
            for of_class in inside:
                self._cells_of[of_class].append(cell)
        self._cells_of.append(list(number_of.values()))

    def settle(self, job: ProblemJob) -> None:
        """Take what a job holds, whoever is dealt it."""
        for node, gpus in job.current.gpus_by_node:
            cell = self._cell.get(node)
            if cell is not None:
                self._free[cell] = max(self._free[cell] - gpus, 0)

    def take(self, of_class: int, gpus: int) -> bool:
        """Take GPUs of the nodes that a class may use, where most are left; False: there are too few."""
        cells, free = self._cells_of[of_class], self._free
        if sum([free[cell] for cell in cells]) < gpus:
            return False
        while gpus > 0:
            cell = max(cells, key=free.__getitem__)
            taken = min(gpus, free[cell])
            free[cell] -= taken
            gpus -= taken
        return True
