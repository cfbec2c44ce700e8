"""Equal shares of users, or accounts: which of their jobs take part in a decision, and with what weight.

GPUs are divided between users by progressive filling: one by one, each goes to the user who has the fewest of
those who can use one more. Users spend GPUs on the minimum of their next job. Once all of their jobs have
their minimums, they spend them on jobs that are faster on more GPUs, or will be by their models. So a user's
share depends on what others can use, not on how many jobs they have.

- A waiting job without its minimum takes no part: other jobs of its user come first.
- The n jobs of a user that have their minimums count as one. With U users and G GPUs, the fair share of each
  is G/(U·n) GPUs and its weight 1/n, so n jobs at their fair shares are worth what one job on G/U GPUs is. An
  objective that measures speedups s over one GPU uses the weight 1/n·(s(G/U)/s(G/(U·n)))^p, in the geometric
  mean of the user's jobs; for linear speedups that is n^(p − 1).
- A running job without its minimum keeps running, with less weight: the i-th job has (n/i)² of it.

Users' shares are in proportion to the mean weight of their jobs, and to what they used before, if that counts
(`share_memory`): where that makes a user's share f times an equal one, its n jobs count as n/f jobs. A job
without a user counts as a user.
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
# At most so many sets of nodes are distinguished; jobs with another set count as if they could use all nodes.
_MAX_CLASSES = 16


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UserShares:
    """How GPUs are divided between `num_users` users. `user` (J,) is the number of each job's user.

    `count` (J,) is how many jobs of that user have their minimum. `share` (J,) is that user's share relative
    to an equal one. `weight_factor` (J,) multiplies a job's weight: 1 for jobs
    with their minimum, 0 for a waiting job without it.
    """

    user: IntArray
    count: IntArray
    share: FloatArray
    weight_factor: FloatArray
    num_users: int

    def fair_shares(self, num_gpus: int) -> IntArray:
        """Return each job's fair share of `num_gpus`, (J,)."""
        found = np.ceil(num_gpus * self.share / (self.num_users * self.count) - 1e-9)
        return np.maximum(found, 1).astype(np.int64)

    def weight_factors(self, exponent: float, tables: SpeedupTables, *, in_gpus: bool) -> FloatArray:
        """Return the factor of each job's weight, (J,), relative to the largest.

        `in_gpus`, a speedup of 1 is that of one GPU, else that of the fair share.
        """
        total = tables.facts.num_gpus
        if not len(self.count) or not total:
            return self.weight_factor
        whole, part = total / self.num_users, total * self.share / (self.num_users * self.count)
        if in_gpus:
            ratio = np.log(_speedup_at(whole, tables)) - np.log(_speedup_at(part, tables))
            ratio = np.bincount(self.user, weights=ratio)[self.user] / np.bincount(self.user)[self.user]
        else:
            ratio = np.log(self.fair_shares(total) / part)
        found = exponent * ratio - np.log(self.count / self.share)
        return np.asarray(np.exp(found - found.max()) * self.weight_factor, dtype=np.float64)


def _speedup_at(share: FloatArray | float, tables: SpeedupTables) -> FloatArray:
    """Return each job's best SPEEDUP on `share` GPUs, (J,), scaled where that is not a whole number."""
    whole = np.ceil(share - 1e-9)
    within = (tables.num_gpus <= np.reshape(whole, (-1, 1))) & (tables.num_gpus > 0)
    best = np.where(within, tables.speedup, 0.0).max(axis=1, initial=0.0)
    # Where so few GPUs allow no batch, speedup counts as linear.
    found: FloatArray = np.where(best > 0, best / whole, 1.0) * share
    return found


def group_of(job: ProblemJob, between: str) -> str | None:
    """Return the user or account that a job counts for, None where it counts for itself.

    `between` accounts, a job without an account counts for its user.
    """
    return group_named(job.account, job.user, between)


def group_named(account: str, user: str, between: str) -> str | None:
    """Return `group_of` a job of an account and a user."""
    if between == "jobs":
        return None
    return (account if between == "accounts" else "") or user or None


def shares_of_all(problem: Problem, jobs: Sequence[ProblemJob]) -> UserShares | None:
    """Return the shares in which every job has its minimum; None where shares between jobs are the same.

    That is so for a single user, and where each has one job and an equal share. Rigid jobs have what they
    need: users who have no others do not count.
    """
    between = problem.objective.between
    if between == "jobs":
        return None
    numbers: dict[str | int, int] = {}
    names = (group_of(job, between) for job in jobs)
    user = [numbers.setdefault(row if name is None else name, len(numbers)) for row, name in enumerate(names)]
    sharing = {number for number, job in zip(user, jobs, strict=True) if not job.rigid}
    if len(sharing) <= 1:
        return None
    share = np.ones(len(numbers))
    share[user] = [job.share for job in jobs]
    if len(numbers) == len(jobs) and (share == 1).all():
        return None
    count = Counter(user)
    return UserShares(
        user=np.array(user, dtype=np.int64),
        count=np.array([count[one] for one in user], dtype=np.int64),
        share=share[user],
        weight_factor=np.ones(len(user)),
        num_users=len(sharing),
    )


def all_minimums_fit(shares: UserShares, jobs: Sequence[ProblemJob], facts: NodeFacts) -> bool:
    """Return whether the minimums of each user's jobs fit into their share of all GPUs."""
    if any(job.partition_nodes is not None for job in jobs) or not all(n.accepts_new for n in facts.nodes):
        return False
    needs = np.bincount(shares.user, weights=[_need(job) for job in jobs])
    weight = _weights(shares, jobs)
    return bool((needs <= facts.num_gpus * weight / weight.sum()).all())


def divide_gpus(
    problem: Problem, jobs: list[ProblemJob], useful: IntArray, facts: NodeFacts
) -> tuple[list[ProblemJob], UserShares | None, list[ProblemJob]]:
    """Return the jobs that take part, their shares, and the waiting jobs beyond their users' shares.

    `useful` (J,) is how many GPUs each job can use.
    """
    shares = shares_of_all(problem, jobs)
    if shares is None:
        return jobs, None, []
    division = _Division(problem, jobs, shares, useful, facts)
    division.run()
    found = division.result()
    taking_part = found.weight_factor > 0
    kept = UserShares(
        user=found.user[taking_part],
        count=found.count[taking_part],
        share=found.share[taking_part],
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

    Where that is its exploration cap, it is the job's maximum.
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
    """Return the fewest GPUs that a job must have."""
    return job.current.num_gpus if job.pinned else max(job.min_gpus, job.promised_gpus)


def _weights(shares: UserShares, jobs: Sequence[ProblemJob]) -> FloatArray:
    """Return the mean weight of each user's jobs, times the user's share, (U,)."""
    total = np.bincount(shares.user, weights=np.array([job.weight for job in jobs]) * shares.share)
    found: FloatArray = total / np.bincount(shares.user)
    return found


class _Division:
    """Progressive filling: what is left of each cell, and what each user has."""

    def __init__(
        self,
        problem: Problem,
        jobs: Sequence[ProblemJob],
        shares: UserShares,
        useful: IntArray,
        facts: NodeFacts,
    ) -> None:
        self._jobs, self._shares = jobs, shares
        self._useful: list[int] = useful.tolist()
        self._user: list[int] = shares.user.tolist()
        self._weight: list[float] = _weights(shares, jobs).tolist()
        self._has = [0.0] * len(self._weight)
        self._has_minimum = [False] * len(jobs)
        self._cells = _Cells(jobs, facts)
        # What jobs with their minimums can still use of the nodes of each class, by user.
        self._more: list[Counter[int]] = [Counter() for _ in self._has]
        self._order = self._ordered(problem.max_wait_s)
        self._queue: list[list[int]] = [[] for _ in self._has]
        for row in reversed(self._order):
            if not jobs[row].pinned:
                self._queue[self._user[row]].append(row)
        self._give_fixed(problem)

    def _give_fixed(self, problem: Problem) -> None:
        """Give users the GPUs that nobody else can have: those of their pinned and excluded jobs."""
        between = problem.objective.between
        rows = {job.job_id: row for row, job in enumerate(self._jobs)}
        users = {group_of(job, between): user for job, user in zip(self._jobs, self._user, strict=True)}
        for job in problem.jobs:
            row, name = rows.get(job.job_id), group_of(job, between)
            if row is not None and not job.pinned:
                continue
            self._cells.take_current(job)
            if row is not None:
                self._has_minimum[row] = True
                self._has[self._user[row]] += job.current.num_gpus
            elif name is not None and name in users:
                self._has[users[name]] += job.current.num_gpus

    def run(self) -> None:
        """Give GPUs until nobody can use those that are left."""
        heap = [self._entry(user) for user in range(len(self._has))]
        heapq.heapify(heap)
        first = [True] * len(self._has)
        for row in itertools.compress(range(len(self._jobs)), self._has_minimum):
            first[self._user[row]] = False
        while heap:
            user = heapq.heappop(heap)[-1]
            if self._give_next(user, always=first[user]):
                heapq.heappush(heap, self._entry(user))
            first[user] = False

    def result(self) -> UserShares:
        """Return the shares: who has a minimum, and the weights of those who do not."""
        count = Counter(itertools.compress(self._user, self._has_minimum))
        beyond = count.copy()
        weight_factor = [1.0] * len(self._jobs)
        for row in self._order:
            if not self._has_minimum[row]:
                user = self._user[row]
                beyond[user] += 1
                weight_factor[row] = (count[user] / beyond[user]) ** 2 if self._jobs[row].current else 0.0
        return UserShares(
            user=self._shares.user,
            count=np.array([count[user] for user in self._user], dtype=np.int64),
            share=self._shares.share,
            weight_factor=np.array(weight_factor, dtype=np.float64),
            num_users=self._shares.num_users,
        )

    def _ordered(self, max_wait_s: float | None) -> list[int]:
        """Return the jobs in the order in which their users give them their minimums.

        Jobs with a promise come first, then running jobs, for they have GPUs already; but a user's longest
        waiting job comes before these once it has waited for `max_wait_s`.
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
                jobs[row].promised_gpus == 0,
                row not in starving,
                not jobs[row].current,
                -jobs[row].weight,
                -jobs[row].waiting_s,
                -jobs[row].age_s,
                row,
            ),
        )

    def _entry(self, user: int) -> tuple[float, int, float, int]:
        """Return a user's place in the order: by GPUs over weight, then running jobs before waiting ones."""
        queue = self._queue[user]
        job = self._jobs[queue[-1]] if queue else None
        kind = 2 if job is None else 0 if job.current else 1
        waiting_s = 0.0 if job is None else job.waiting_s
        return self._has[user] / self._weight[user], kind, -waiting_s, user

    def _give_next(self, user: int, *, always: bool) -> bool:
        """Give a user the minimum of their next job that fits, or one GPU more; False if they can use none.

        `always`, their next job gets its minimum even where too few GPUs are left.
        """
        queue, cells = self._queue[user], self._cells
        while queue:
            row = queue.pop()
            need, of_class = _need(self._jobs[row]), cells.of_job[row]
            if cells.take(of_class, need) or always:
                self._has_minimum[row] = True
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
    """The GPUs left in each cell. `of_job` (J,) is the class of each job.

    Jobs of a class may use the same nodes. A cell is the nodes that the same classes may use.
    """

    def __init__(self, jobs: Sequence[ProblemJob], facts: NodeFacts) -> None:
        common = Counter(job.partition_nodes for job in jobs).most_common(_MAX_CLASSES)
        named = [nodes for nodes, _ in common if nodes is not None]
        anywhere = len(named)  # the class of jobs that may use every node, and of all others
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

    def take_current(self, job: ProblemJob) -> None:
        """Take the GPUs that a job has."""
        for node, gpus in job.current.gpus_by_node:
            cell = self._cell.get(node)
            if cell is not None:
                self._free[cell] = max(self._free[cell] - gpus, 0)

    def take(self, of_class: int, gpus: int) -> bool:
        """Take GPUs of a class's cells, most from where most are left; False if there are too few."""
        cells, free = self._cells_of[of_class], self._free
        if sum([free[cell] for cell in cells]) < gpus:
            return False
        while gpus > 0:
            cell = max(cells, key=free.__getitem__)
            taken = min(gpus, free[cell])
            free[cell] -= taken
            gpus -= taken
        return True
