"""Why each job gets what it gets (invariant 9): from the final state, not from the search's course."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from pollux_slurm.model import Allocation, Configuration, JobDecision, ProblemJob
from pollux_slurm.policy.menu import Menu
from pollux_slurm.policy.options import Option
from pollux_slurm.policy.placement import Placed
from pollux_slurm.policy.search import Solution
from pollux_slurm.policy.shortage import Shortage

BoolArray = npt.NDArray[np.bool_]


def explain_all(solution: Solution, menu: Menu) -> list[JobDecision]:
    """Return the decisions about all jobs of the menu, in its order."""
    facts = Facts(solution, menu)
    return [_explain(solution, menu, facts, index) for index in range(menu.num_jobs)]


def _explain(solution: Solution, menu: Menu, facts: Facts, index: int) -> JobDecision:
    """Return the decision about job `index` of a solved state."""
    state, tables, job = solution.state, menu.tables, menu.jobs[index]
    placed = placed_of(solution, index)
    chosen = placed.option
    allocation = state.cluster.allocation_of(placed)
    estimate = tables.estimate(index, allocation) if allocation else None
    if estimate is None or not tables.base[index] > 0:
        speedup = tables.speedup_of(index, allocation)
    else:
        speedup = estimate.goodput / float(tables.base[index])
    column = _runner_up(facts, menu, index, placed)
    cost = facts.price_of(allocation)
    configuration = faster = other_cost = other_type = None
    if column is not None:
        option = menu.option(index, column)
        configuration = option.configuration if column >= 0 else job.current.configuration
        faster = option.speedup
        price = facts.price_of(job.current) if column < 0 else facts.price(index, option)
        other_type = tables.kinds[option.kind] or None if column >= 0 else facts.type_of(job.current)
        other_cost = price - cost
    return JobDecision(
        job_id=job.job_id,
        allocation=allocation,
        speedup=speedup,
        goodput=None if estimate is None else estimate.goodput,
        penalty=chosen.penalty,
        batch=None if estimate is None else estimate.batch,
        bound_by=_bound_by(solution, menu, facts, index, placed),
        runner_up=configuration,
        runner_up_speedup=faster,
        runner_up_cost=other_cost,
        cost=cost,
        gpu_type=facts.type_of(allocation),
        runner_up_gpu_type=other_type,
        declared_gain=facts.declared_gain(index),
        declaration_doubt=job.declaration_doubt,
        pinned_because=job.pinned_because if job.pinned else None,
    )


class Facts:
    """What the explanations of all jobs need of the menu, computed at once; arrays of shape `(J,)`."""

    def __init__(self, solution: Solution, menu: Menu) -> None:
        tables, count = menu.tables, menu.num_jobs
        self._state = solution.state
        self._tables, self._scores = tables, menu.scores
        self._node_prices: list[float] = solution.dual.node_prices().tolist()
        self._job_prices: list[list[float]] = solution.dual.job_prices(len(tables.kinds)).tolist()
        placed = [placed_of(solution, index) for index in range(count)]
        nodes = np.array([len(one.gpus) for one in placed], dtype=np.int64)[:, None]
        gpus = np.array([one.option.num_gpus for one in placed], dtype=np.int64)[:, None]
        now = np.array([one.option.speedup for one in placed], dtype=np.float64)[:, None]
        value = np.array([one.option.value for one in placed], dtype=np.float64)[:, None]
        more = tables.num_gpus > gpus
        most = [2**31 if job.max_gpus is None else job.max_gpus for job in menu.jobs]
        faster = (menu.scores.speedup > now * (1 + 1e-9)) & more
        self.faster: BoolArray = np.any(faster, axis=1)
        faster &= tables.num_gpus <= np.array(most, dtype=np.int64)[:, None]
        self.within_max: BoolArray = np.any(faster, axis=1)
        faster &= tables.num_gpus <= menu.tables.caps[:, None]
        self.within_cap: BoolArray = np.any(faster, axis=1)
        # On the nodes that the job may use; those of other partitions, or drained, say nothing.
        resources = solution.dual.resources
        reach: BoolArray = np.any(resources.may, axis=2)[resources.class_of] | (tables.num_gpus == 0)
        least = np.array([job.min_gpus for job in menu.jobs], dtype=np.int64)
        self.within_reach = faster & reach & (tables.num_gpus >= least[:, None])
        self.is_within_reach: BoolArray = np.any(self.within_reach, axis=1)
        self.wanted = (menu.value > value) & more & reach
        self.is_wanted: BoolArray = np.any(self.wanted, axis=1)
        # The fewest GPUs of each type that a job would rather have; 0: none of that type.
        fewest = np.array(
            [
                np.where(self.wanted & (tables.kind == kind), tables.num_gpus, 2**31).min(
                    axis=1, initial=2**31
                )
                for kind in range(len(tables.kinds))
            ]
        )
        self.least_wanted = np.where(fewest < 2**31, fewest, 0)
        same = (tables.num_nodes == nodes) & (tables.num_gpus == gpus)
        other = np.where(same | ~reach | ~self._allowed(menu), -np.inf, menu.value)
        self.runner_up = other.argmax(axis=1) if other.shape[1] else np.full(count, -1)
        self.runner_up_value = other.max(axis=1, initial=-np.inf)
        self._room: dict[tuple[int, int], int] = {}
        self.shortage = Shortage(solution.state, menu)

    def _allowed(self, menu: Menu) -> BoolArray:
        """Return what limits and the budget of moves leave each job, were all others of it away, (J, C)."""
        gpus = menu.tables.num_gpus
        found = np.ones((menu.num_jobs, len(gpus)), dtype=bool)
        for members, most in zip(menu.members[: menu.num_jobs].T, menu.group_budget.tolist(), strict=True):
            found[members] &= gpus <= most
        if menu.max_moves == 0:
            found[menu.moves] = False
        return found

    def price_of(self, allocation: Allocation) -> float:
        """Return what others pay for an allocation, at the prices of its nodes' GPUs."""
        index = self._state.cluster.index
        return sum(self._node_prices[index[node]] * gpus for node, gpus in allocation.gpus_by_node)

    def price(self, job: int, option: Option) -> float:
        """Return what others would pay for a new option of a job, where it is cheapest for them."""
        return self._job_prices[job][option.kind] * option.num_gpus

    def type_of(self, allocation: Allocation) -> str | None:
        """Return the one type of GPU that an allocation is of; None for several, and for a nameless one."""
        found = {self._tables.kinds[self._tables.kind_of_node[node]] for node in allocation.nodes}
        return (found.pop() or None) if len(found) == 1 else None

    def declared_gain(self, job: int) -> float | None:
        """Return the factor by which a job's declaration has changed its weight, None where it counts not."""
        gain = self._scores.declared_gain
        return None if gain is None or np.isnan(gain[job]) else float(gain[job])

    def room(self, job: int, kind: int) -> int:
        """Return the free GPUs of a type on all nodes that a job may use."""
        key = (self._state.eligible(job), kind)
        if key not in self._room:
            usable = self._state.usable(job, kind)
            self._room[key] = sum(self._state.num_with(usable)[1:])
        return self._room[key]


def _runner_up(facts: Facts, menu: Menu, index: int, placed: Placed) -> int | None:
    """Return the column of the best other configuration for this job alone, −1 for what it holds."""
    job, most = menu.jobs[index], float(facts.runner_up_value[index])
    if job.current and menu.stay_value[index] >= most:
        held = job.current
        if (held.num_nodes, held.num_gpus) != (len(placed.gpus), placed.option.num_gpus):
            return -1
    return int(facts.runner_up[index]) if most > -np.inf else None


def _bound_by(solution: Solution, menu: Menu, facts: Facts, index: int, placed: Placed) -> str:
    """Return what kept the job from more speedup; see `JobDecision.bound_by`."""
    state, tables = solution.state, menu.tables
    job, chosen = menu.jobs[index], placed.option
    if job.pinned:
        return "pinned"
    if menu.settled[index]:
        return "young"
    if job.rigid and placed.gpus:
        return "rigid"
    if not facts.faster[index]:
        return "exploration" if _could_explore(menu, index, solution, chosen.num_gpus) else "nothing"
    if not facts.within_max[index]:
        return "max_gpus"
    if not facts.within_cap[index]:
        return "exploration"
    if not facts.is_within_reach[index]:
        return "partition"
    short = facts.shortage.in_general(index, facts.within_reach[index])
    if short is not None:
        return short
    if not facts.is_wanted[index]:
        return "penalty"
    if chosen.stays and job.current and menu.max_moves is not None and state.moves_left <= 0:
        return "moves"
    wanted = facts.wanted[index]
    limit = state.limit_left(index)
    if limit is not None and int(tables.num_gpus[wanted].min()) - chosen.num_gpus > limit:
        return "limit"
    for kind in range(len(tables.kinds)):
        room = facts.room(index, kind)
        if not room and not placed.gpus:
            continue
        eligible = state.eligible(index)
        own = sum(g for node, g in placed.gpus if eligible >> node & 1 and state.cluster.kind[node] == kind)
        if 0 < facts.least_wanted[kind, index] <= room + own:
            return facts.shortage.now(index, wanted) or "placement"
    return "capacity"


def _could_explore(menu: Menu, index: int, solution: Solution, num_gpus: int) -> bool:
    """Whether twice the job's cap, within its maximum and the cluster, is predicted to be faster."""
    cap, job, tables = int(menu.tables.caps[index]), menu.jobs[index], menu.tables
    capacity = solution.state.cluster.capacity[:, 0]
    most = min(2 * cap, int(capacity.sum()), 10**9 if job.max_gpus is None else job.max_gpus)
    if num_gpus < cap or most <= cap:
        return False
    row = int(tables.rows[index, 0])
    if row < 0:
        return True
    ratio, spread = float(tables.ratio[index, 0]), most > int(capacity.max())
    found = tables.cache.estimate(row, (spread, most), ratio, geometric=tables.geometric)
    now = tables.estimate(index, solution.state.cluster.allocation_of(placed_of(solution, index)))
    return found is not None and (now is None or found.goodput > now.goodput * (1 + 1e-9))


def placed_of(solution: Solution, index: int) -> Placed:
    placed = solution.state.placed[index]
    assert placed is not None
    return placed


def not_overtaking(decision: JobDecision) -> JobDecision:
    """Return the decision about a job that was held back for others that have waited for too long."""
    return decision if decision.allocation else dataclasses.replace(decision, bound_by="waiting")


def keep(job: ProblemJob) -> JobDecision:
    """Return the decision about a job that is left out: it keeps what it has."""
    return JobDecision(
        job_id=job.job_id,
        allocation=job.current,
        speedup=0.0,
        goodput=None,
        penalty=1.0,
        batch=None,
        bound_by="pinned",
        runner_up=None,
        runner_up_speedup=None,
        declaration_doubt=job.declaration_doubt,
    )


_BOUNDS = {
    "capacity": "more GPUs are worth more to others",
    "max_gpus": "its owner's maximum",
    "exploration": "it may at most double what it was measured on",
    "penalty": "a restart would cost more than it gains",
    "placement": "what is free does not lie together",
    "cpus": "there are not CPUs enough where GPUs are free",
    "memory": "there is not memory enough where GPUs are free",
    "partition": "the nodes that it may use have no more",
    "rigid": "it has one size only",
    "young": "it is too young, or too near its end, to be moved",
    "limit": "its account's or user's limit of GPUs",
    "moves": "this round's budget of reallocations",
    "waiting": "GPUs are kept for a job that has waited for too long",
    "pinned": "it keeps its place",
    "nothing": "more GPUs would not help",
}


def explanation(job: JobDecision, excluded: str | None = None) -> str:
    """Return one line that says what a job gets and why; `excluded` is why it was left out, if it was."""
    if excluded is not None:
        return f"job {job.job_id} is left as it is: {excluded}"
    of_type = f" ({job.gpu_type})" if job.gpu_type else ""
    parts = [f"job {job.job_id}: {job.allocation}{of_type}"]
    if job.allocation:
        parts.append(f"speedup {job.speedup:.3g}")
    if job.goodput is not None:
        parts.append(f"goodput {job.goodput:.4g}/s")
    if job.penalty != 1.0:
        parts.append(f"restart factor {job.penalty:.2f}")
    bound = job.pinned_because or _BOUNDS.get(job.bound_by, "see the docs")
    parts.append(f"bound by {job.bound_by} ({bound})")
    if job.runner_up is not None and job.runner_up_speedup is not None:
        cost = "" if job.runner_up_cost is None else f", at a price of {job.runner_up_cost:+.3g} to others"
        parts.append(f"next best {shape(job.runner_up, job)}, speedup {job.runner_up_speedup:.3g}{cost}")
    if job.declared_gain is not None:
        parts.append(f"what it declares changes its weight by a factor of {job.declared_gain:.2f}")
    if job.declaration_doubt is not None:
        parts.append(f"what it declares does not count: {job.declaration_doubt}")
    return "; ".join(parts)


def shape(of: Configuration, job: JobDecision) -> str:
    """Return the runner-up's size in words."""
    if not of.num_gpus:
        return "nothing"
    kind = f" {job.runner_up_gpu_type}" if job.runner_up_gpu_type else ""
    gpus = f"{of.num_gpus}{kind} GPU{'s' if of.num_gpus != 1 else ''}"
    return f"{gpus} on {of.num_nodes} node{'s' if of.num_nodes != 1 else ''}"
