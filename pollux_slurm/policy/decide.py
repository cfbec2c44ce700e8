"""One decision: a scheduling problem in, an allocation for every job out (Pollux, OSDI 2021, section 4.2)."""

from __future__ import annotations

import dataclasses
import operator
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from types import MappingProxyType

import numpy as np

from pollux_slurm.errors import UsageError
from pollux_slurm.goodput import TableCache
from pollux_slurm.model import Allocation, Decision, Problem, ProblemJob
from pollux_slurm.policy.candidates.candidates import Candidates
from pollux_slurm.policy.explain.missing_resources import find_unplaceable
from pollux_slurm.policy.explain.reasons import (
    excluded_decision,
    explain_all,
    waiting_for_own_user,
    waiting_for_starving,
    with_share_bounds,
)
from pollux_slurm.policy.genetic import solve_genetically
from pollux_slurm.policy.greedy import solve_greedily
from pollux_slurm.policy.objectives.score_checks import scores_of
from pollux_slurm.policy.participation import user_shares
from pollux_slurm.policy.participation.longest_wait import restrict_newcomers
from pollux_slurm.policy.participation.problem_checks import check_problem, find_exclusions, pinned_copy
from pollux_slurm.policy.problem.deterministic_rounding import above
from pollux_slurm.policy.problem.node_facts import NodeFacts, NodeFactsCache
from pollux_slurm.policy.problem.node_sets import Cluster
from pollux_slurm.policy.problem.speedup_tables import build_tables
from pollux_slurm.policy.search.search import Solution, solve
from pollux_slurm.policy.search.upper_bound import bound_for_number_served

Solver = Callable[..., Solution]

SOLVERS: Mapping[str, Solver] = MappingProxyType(
    {"search": solve, "genetic": solve_genetically, "greedy": solve_greedily}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocations:
    """The allocation of each job, by job id. Excluded jobs keep theirs; `excluded` has the reasons."""

    allocations: Mapping[str, Allocation]
    excluded: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Participants:
    """The `jobs` that take part, as they are given to the search, and their candidates.

    `excluded` has the reasons of those that do not. `beyond_share` are waiting jobs that take no part because
    their user's share goes to others of their jobs.
    """

    jobs: Sequence[ProblemJob]
    beyond_share: Sequence[ProblemJob]
    candidates: Candidates
    excluded: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Solved:
    """A solved problem."""

    participants: _Participants
    cluster: Cluster
    solution: Solution
    tables_at_s: float
    solved_at_s: float


def decide(
    problem: Problem,
    *,
    solver: str = "search",
    tables: TableCache | None = None,
    nodes: NodeFactsCache | None = None,
    effort: float = 1.0,
    time_limit_s: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Decision:
    """Return an allocation for every job, in the order of `problem.jobs`.

    These rules hold under every objective:

    - The GPUs, CPUs and memory of a node suffice for all jobs on it.
    - A job gets between its minimum and its maximum of GPUs, of one type, on nodes that it may use, in a
      shape that Slurm can express. A running job never gets fewer than its minimum.
    - Limits and the budget of reallocations are kept.
    - Pinned jobs and excluded jobs keep exactly the allocation that they have.

    Under all objectives but "osdi21", jobs get what keeps their promises, as far as possible. Then as many
    waiting jobs as possible get their minimum before any job gets more.

    The same problem and effort give the same answer: work is bounded by counting, never by time.

    Args:
        problem: Nodes, jobs, limits and objective.
        solver: What finds the decision.
        tables: Caches goodput tables between calls.
        nodes: Caches what depends on nodes alone, between calls.
        effort: The bounds of the search grow with it: 1 suits a daemon that has seconds, a few hundredths a
            simulation.
        time_limit_s: A watchdog, in seconds. When it expires, the best answer so far is returned with
            `timed_out` set, or that of `greedy` where it is better. None: none.
        clock: What the watchdog reads, in seconds.

    Raises:
        InvalidProblemError: The problem contradicts itself.
        ObjectiveError: Its objective does not work.
        UsageError: An unknown solver.

    Examples:
        >>> decision = decide(problem)
        >>> decision.allocation("7").as_dict(), decision.allocation("8").as_dict()
        ({'n0': 2}, {'n0': 1})
    """
    began = clock()
    solved = _solve(
        problem,
        solver=solver,
        tables=tables,
        nodes=nodes,
        effort=effort,
        stop=lambda: time_limit_s is not None and clock() - began > time_limit_s,
        clock=clock,
    )
    participants, solution = solved.participants, solved.solution
    candidates, excluded = participants.candidates, participants.excluded
    state, scores = solution.state, candidates.scores
    chosen = [placed.candidate for placed in state.placed[: candidates.num_jobs] if placed is not None]
    fitness = scores.fitness([candidate.penalty * candidate.speedup for candidate in chosen])
    upper_bound = None
    if candidates.num_jobs:
        num_gpus = np.array([candidate.num_gpus for candidate in chosen], dtype=np.int64)
        # The bound is over answers that leave as many jobs waiting. One that serves more may be better.
        total = bound_for_number_served(candidates, solved.cluster, solution, num_gpus)
        upper_bound = max(scores.fitness_of_sum(total), fitness)
    explained = with_share_bounds(explain_all(solution, candidates), candidates.jobs, problem)
    decisions = {one.job_id: one for one in explained}
    originals: Mapping[str, ProblemJob] = {job.job_id: job for job in problem.jobs}
    for job in participants.jobs:
        if job is not originals[job.job_id] and not job.current and job.job_id in decisions:
            decisions[job.job_id] = waiting_for_starving(decisions[job.job_id])
    decisions |= {job_id: excluded_decision(originals[job_id]) for job_id in excluded}
    decisions |= {job.job_id: waiting_for_own_user(job) for job in participants.beyond_share}
    kinds = candidates.tables.kinds
    return Decision(
        jobs=tuple(decisions[job.job_id] for job in problem.jobs),
        fitness=fitness,
        solver=solver,
        excluded=tuple((job.job_id, excluded[job.job_id]) for job in problem.jobs if job.job_id in excluded),
        upper_bound=upper_bound,
        gap=None if not upper_bound else (upper_bound - fitness) / upper_bound,
        gpu_prices=tuple(zip(kinds, solution.dual.kind_prices(len(kinds)).tolist(), strict=True)),
        times_s=(
            ("tables", solved.tables_at_s - began),
            ("solve", solved.solved_at_s - solved.tables_at_s),
            ("explain", clock() - solved.solved_at_s),
        ),
        timed_out=solution.timed_out,
    )


def allocate(
    problem: Problem,
    *,
    solver: str = "search",
    tables: TableCache | None = None,
    nodes: NodeFactsCache | None = None,
    effort: float = 1.0,
) -> Allocations:
    """Return the allocations that `decide` returns, without fitness, bound and explanations.

    Args:
        problem: Nodes, jobs, limits and objective.
        solver: What finds the decision.
        tables: Caches goodput tables between calls.
        nodes: Caches what depends on nodes alone, between calls.
        effort: As for `decide`.

    Raises:
        PolluxError: As `decide` does.

    Examples:
        >>> found = allocate(problem)
        >>> {job_id: allocation.as_dict() for job_id, allocation in found.allocations.items()}
        {'7': {'n0': 2}, '8': {'n0': 1}}
    """
    solved = _solve(
        problem,
        solver=solver,
        tables=tables,
        nodes=nodes,
        effort=effort,
        within_caps=True,
        stop=lambda: False,
    )
    state = solved.solution.state
    found = {job.job_id: job.current for job in problem.jobs}
    for row, job in enumerate(solved.participants.candidates.jobs):
        placed = state.at(row)
        if not placed.candidate.stays:
            found[job.job_id] = state.cluster.allocation_of(placed.gpus)
    return Allocations(allocations=found, excluded=solved.participants.excluded)


def _solve(
    problem: Problem,
    *,
    solver: str,
    tables: TableCache | None,
    nodes: NodeFactsCache | None,
    effort: float,
    stop: Callable[[], bool],
    within_caps: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> _Solved:
    """Check a problem, select the jobs that take part, and search until `stop` returns True.

    `within_caps` is that of `build_candidates`.
    """
    if solver not in SOLVERS:
        raise UsageError(f"unknown solver {solver!r}; there are {', '.join(sorted(SOLVERS))}")
    nodes = NodeFactsCache() if nodes is None else nodes
    check_problem(problem, nodes)
    facts = nodes.of(problem.nodes)
    participants = _select(
        problem, TableCache() if tables is None else tables, facts, within_caps=within_caps
    )
    tables_at_s = clock()

    cluster = Cluster(facts, participants.candidates.all_jobs)
    solution = SOLVERS[solver](cluster, participants.candidates, seed=problem.seed, effort=effort, stop=stop)
    if solution.timed_out and solver != "greedy":
        solution = _at_least_greedy(solution, cluster, participants.candidates)
    return _Solved(
        participants=participants,
        cluster=cluster,
        solution=solution,
        tables_at_s=tables_at_s,
        solved_at_s=clock(),
    )


def _select(problem: Problem, cache: TableCache, facts: NodeFacts, *, within_caps: bool) -> _Participants:
    """Select the jobs that take part, by their candidates with all others."""

    def candidates_of(jobs: list[ProblemJob], shares: user_shares.UserShares | None) -> Candidates:
        return build_candidates(problem, jobs, cache, facts, shares=shares, within_caps=within_caps)

    excluded = find_exclusions(problem, cache)
    all_jobs = jobs = [job for job in problem.jobs if job.job_id not in excluded]
    equal_shares = shares = user_shares.shares_of_all(problem, jobs)
    candidates = candidates_of(jobs, shares)
    unplaceable = {
        job.job_id
        for row, job in enumerate(jobs)
        if not candidates.settled[row] and not job.current and not candidates.allowed[row].any()
    }
    reasons = find_unplaceable(problem, candidates)
    unplaceable |= set(reasons)
    beyond_share: list[ProblemJob] = []
    if shares is not None and (unplaceable or not user_shares.all_minimums_fit(shares, jobs, facts)):
        placeable = [job.job_id not in unplaceable for job in jobs]
        useful = user_shares.useful_gpus(jobs, candidates.tables)[placeable]
        jobs, shares, beyond_share = user_shares.divide_gpus(
            problem, list(compress(jobs, placeable)), useful, facts
        )
        if len(jobs) == len(all_jobs) and shares is not None and (shares.weight_factor == 1).all():
            shares = equal_shares  # every minimum fits, so that the candidates stay as they are
    # No node is kept free for a job that could not use it.
    restricted = {
        job.job_id: job
        for job in restrict_newcomers(problem, [j for j in jobs if j.job_id not in unplaceable])
    }
    jobs = [restricted.get(job.job_id, job) for job in jobs]
    if shares is not equal_shares or any(map(operator.is_not, jobs, all_jobs)):
        candidates = candidates_of(jobs, shares)
    if unplaceable:
        reason = "no configuration that adaptive jobs may use now fits its minimum of GPUs and its batch"
        excluded |= {job_id: reasons.get(job_id, reason) for job_id in unplaceable}
    pinned = [pinned_copy(job, facts.index) for job in problem.jobs if job.job_id in excluded]
    if pinned:
        candidates = candidates.without(problem, unplaceable, pinned)
    return _Participants(jobs=jobs, beyond_share=beyond_share, candidates=candidates, excluded=excluded)


def _at_least_greedy(solution: Solution, cluster: Cluster, candidates: Candidates) -> Solution:
    """Return the better of a search that timed out and the greedy answer."""
    greedy = solve_greedily(cluster, candidates)
    if greedy.value <= above(solution.value):
        return solution
    return dataclasses.replace(greedy, bound=min(greedy.bound, solution.bound), timed_out=True)


def fitness_of(problem: Problem, allocations: Mapping[str, Allocation]) -> float:
    """Return the fitness of any allocation on the scale of the problem's objective, feasible or not.

    Args:
        problem: Nodes, jobs and objective.
        allocations: Allocations by job id. A job that is not named counts with no GPUs; jobs that cannot be
            scheduled do not count.

    Raises:
        InvalidProblemError: The problem contradicts itself.

    Examples:
        >>> fitness_of(problem, {})  # no job has a GPU
        0.001
    """
    check_problem(problem)
    excluded = find_exclusions(problem)
    jobs = [job for job in problem.jobs if job.job_id not in excluded]
    candidates = build_candidates_of_participants(problem, jobs)
    penalised = [
        candidates.penalised(row, allocations.get(job.job_id, Allocation()))
        for row, job in enumerate(candidates.jobs)
    ]
    return candidates.scores.fitness(penalised)


def build_candidates_of_participants(
    problem: Problem, jobs: list[ProblemJob], cache: TableCache | None = None
) -> Candidates:
    """Return the candidates of `jobs`, less those beyond the shares of their users."""
    facts = NodeFacts(problem.nodes)
    shares = user_shares.shares_of_all(problem, jobs)
    candidates = build_candidates(problem, jobs, cache, facts, shares=shares)
    if shares is None or user_shares.all_minimums_fit(shares, jobs, facts):
        return candidates
    jobs, shares, _ = user_shares.divide_gpus(
        problem, jobs, user_shares.useful_gpus(jobs, candidates.tables), facts
    )
    return build_candidates(problem, jobs, cache, facts, shares=shares)


def build_candidates(
    problem: Problem,
    jobs: list[ProblemJob],
    cache: TableCache | None = None,
    facts: NodeFacts | None = None,
    *,
    shares: user_shares.UserShares | None = None,
    within_caps: bool = False,
) -> Candidates:
    """Return the candidates of `jobs`, valued by the problem's objective.

    `shares` are those of their users, where users have equal shares. With `within_caps`, speedups beyond the
    exploration caps are not computed, unless the objective's weights depend on them.
    """
    name = problem.objective.name
    facts = NodeFacts(problem.nodes) if facts is None else facts
    tables = build_tables(
        jobs,
        problem.nodes,
        gpu_speeds=problem.gpu_speeds,
        cache=cache,
        facts=facts,
        osdi21=name == "osdi21",
        fair_share_gpus=problem.objective.fair_share_gpus,
        fair_shares=None if shares is None else shares.fair_shares(facts.num_gpus),
        uneven=name == "osdi21" if problem.uneven is None else problem.uneven,
        pauses=problem.moving.pauses,
        within_caps=within_caps and name != "price-rank",
    )
    scores = scores_of(problem, jobs, tables)
    if shares is not None:
        factors = shares.weight_factors(scores.exponent, tables, in_gpus=scores.units is not None)
        scores = dataclasses.replace(scores, weight=scores.weight * factors)
    return Candidates(problem, jobs, tables, scores)
