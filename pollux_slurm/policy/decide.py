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
from pollux_slurm.policy.exact.local_search import above
from pollux_slurm.policy.exact.search import Solution, solve
from pollux_slurm.policy.exact.upper_bound import bound_serving
from pollux_slurm.policy.explain.missing_resources import find_unplaceable
from pollux_slurm.policy.explain.reasons import (
    explain_all,
    left_out_decision,
    waiting_for_own_user,
    waiting_for_starving,
    with_share_bounds,
)
from pollux_slurm.policy.genetic import solve_genetically
from pollux_slurm.policy.greedy import solve_greedily
from pollux_slurm.policy.objectives.registry import OBJECTIVES
from pollux_slurm.policy.participation import user_shares
from pollux_slurm.policy.participation.admission import check_problem, find_exclusions, pinned_copy
from pollux_slurm.policy.participation.longest_wait import restrict_newcomers
from pollux_slurm.policy.problem.node_facts import NodeFacts, NodeFactsCache
from pollux_slurm.policy.problem.node_sets import Cluster
from pollux_slurm.policy.problem.speedup_tables import build_tables

Solver = Callable[..., Solution]

SOLVERS: Mapping[str, Solver] = MappingProxyType(
    {"exact": solve, "genetic": solve_genetically, "greedy": solve_greedily}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocations:
    """What each job gets, and for each job left out why, by job id; these keep what they have."""

    allocations: Mapping[str, Allocation]
    excluded: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Solved:
    """A solved problem: `jobs` as they took part, `reasons` of others, when tables and answer were there.

    Jobs that wait `behind` others of their users took none.
    """

    jobs: Sequence[ProblemJob]
    behind: Sequence[ProblemJob]
    candidates: Candidates
    cluster: Cluster
    reasons: Mapping[str, str]
    solution: Solution
    tables_at_s: float
    solved_at_s: float


def decide(
    problem: Problem,
    *,
    solver: str = "exact",
    tables: TableCache | None = None,
    nodes: NodeFactsCache | None = None,
    effort: float = 1.0,
    time_limit_s: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Decision:
    """Return an allocation for every job, in the order of `problem.jobs`.

    Held whatever the objective says: a node's GPUs, CPUs and memory suffice for all on it; a job has between
    its minimum and maximum of GPUs, on nodes it may use, of one type, in a shape that Slurm can express; a
    running job is never taken below its minimum; limits and the budget of reallocations are kept; pinned jobs
    and jobs that are left out keep exactly what they have. But for objective "osdi21", as many waiting jobs
    as possible get their minimum before any gets more.

    The same problem and effort give the same answer: work is bounded by counting, and the bounds grow with
    `effort`: 1 is for a daemon that has seconds, a few hundredths for a simulation of a thousand rounds.
    `time_limit_s` is a watchdog: when it strikes, the best answer so far, or that of `greedy` where it is
    better, is returned, with `timed_out` set.
    `tables` keeps goodput tables from one call to the next, `nodes` what follows from the nodes alone.

    Raises `InvalidProblemError` if the problem contradicts itself, `UsageError` for an unknown solver.
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
    candidates, solution, reasons = solved.candidates, solved.solution, solved.reasons
    state, scores = solution.state, candidates.scores
    chosen = [placed.candidate for placed in state.placed[: candidates.num_jobs] if placed is not None]
    fitness = scores.fitness([candidate.penalty * candidate.speedup for candidate in chosen])
    upper_bound = None
    if candidates.num_jobs:
        waiting = np.array([candidate.num_gpus == 0 for candidate in chosen], dtype=bool)
        # An answer may be better by serving more; of those that serve as many, none is worth more than this.
        total = bound_serving(candidates, solved.cluster, solution, waiting)
        upper_bound = max(scores.fitness_of_sum(total), fitness)
    explained = with_share_bounds(explain_all(solution, candidates), candidates.jobs, problem)
    decisions = {one.job_id: one for one in explained}
    originals: Mapping[str, ProblemJob] = {job.job_id: job for job in problem.jobs}
    for job in solved.jobs:
        if job is not originals[job.job_id] and not job.current and job.job_id in decisions:
            decisions[job.job_id] = waiting_for_starving(decisions[job.job_id])
    decisions |= {job_id: left_out_decision(originals[job_id]) for job_id in reasons}
    decisions |= {job.job_id: waiting_for_own_user(job) for job in solved.behind}
    kinds = candidates.tables.kinds
    return Decision(
        jobs=tuple(decisions[job.job_id] for job in problem.jobs),
        fitness=fitness,
        solver=solver,
        excluded=tuple((job.job_id, reasons[job.job_id]) for job in problem.jobs if job.job_id in reasons),
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
    solver: str = "exact",
    tables: TableCache | None = None,
    nodes: NodeFactsCache | None = None,
    effort: float = 1.0,
) -> Allocations:
    """Return what `decide` gives to jobs, and nothing of how good that is or why, which takes longer to tell.

    Raises as `decide` does.
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
    for row, job in enumerate(solved.candidates.jobs):
        placed = state.at(row)
        if not placed.candidate.stays:
            found[job.job_id] = state.cluster.allocation_of(placed.gpus)
    return Allocations(allocations=found, excluded=solved.reasons)


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
    """Check a problem and search until `stop`; `within_caps` as in `build_candidates`."""
    if solver not in SOLVERS:
        raise UsageError(f"unknown solver {solver!r}; there are {', '.join(sorted(SOLVERS))}")
    known_nodes = NodeFactsCache() if nodes is None else nodes
    check_problem(problem, known_nodes)
    facts = known_nodes.of(problem.nodes)
    cache = TableCache() if tables is None else tables
    reasons = find_exclusions(problem, cache)
    jobs = [job for job in problem.jobs if job.job_id not in reasons]
    everyone = standing = user_shares.shares_of_all(problem, jobs)
    candidates = build_candidates(problem, jobs, cache, facts, standing=standing, within_caps=within_caps)
    nowhere = {
        job.job_id
        for row, job in enumerate(jobs)
        if not candidates.settled[row] and not job.current and not candidates.allowed[row].any()
    }
    unfit = find_unplaceable(problem, candidates)
    nowhere |= set(unfit)
    known: list[ProblemJob] = jobs
    behind: list[ProblemJob] = []
    if standing is not None and (nowhere or not user_shares.all_minimums_fit(standing, jobs, facts)):
        able = [job.job_id not in nowhere for job in jobs]
        useful = user_shares.useful_gpus(jobs, candidates.tables)[able]
        jobs, standing, behind = user_shares.divide_gpus(problem, list(compress(jobs, able)), useful, facts)
        if len(jobs) == len(known) and standing is not None and (standing.weight_factor == 1).all():
            standing = everyone  # all were dealt theirs: nothing is new
    # Nothing is kept free for a job that could not use it.
    narrowed = {
        job.job_id: job for job in restrict_newcomers(problem, [j for j in jobs if j.job_id not in nowhere])
    }
    jobs = [narrowed.get(job.job_id, job) for job in jobs]
    if standing is not everyone or any(map(operator.is_not, jobs, known)):
        candidates = build_candidates(problem, jobs, cache, facts, standing=standing, within_caps=within_caps)
    if nowhere:
        reason = "no configuration of what adaptive jobs may use now allows it a batch and its GPUs"
        reasons |= {job_id: unfit.get(job_id, reason) for job_id in nowhere}
    left_out = [pinned_copy(job, facts.index) for job in problem.jobs if job.job_id in reasons]
    if left_out:
        candidates = candidates.without(problem, nowhere, left_out)
    tables_at_s = clock()

    cluster = Cluster(facts, candidates.everyone)
    solution = SOLVERS[solver](cluster, candidates, seed=problem.seed, effort=effort, stop=stop)
    if solution.timed_out and solver != "greedy":
        solution = _at_least_greedy(solution, cluster, candidates)
    return _Solved(
        jobs=jobs,
        behind=behind,
        candidates=candidates,
        cluster=cluster,
        reasons=reasons,
        solution=solution,
        tables_at_s=tables_at_s,
        solved_at_s=clock(),
    )


def _at_least_greedy(solution: Solution, cluster: Cluster, candidates: Candidates) -> Solution:
    """Return what a search had when it was cut short, or the greedy answer where that is better."""
    quick = solve_greedily(cluster, candidates)
    if quick.value <= above(solution.value):
        return solution
    return dataclasses.replace(quick, bound=min(quick.bound, solution.bound), timed_out=True)


def fitness_of(problem: Problem, allocations: Mapping[str, Allocation]) -> float:
    """Return the fitness of any allocation on the scale of the problem's objective, feasible or not.

    A job that is not named counts as having nothing; jobs that cannot be scheduled are left out. Raises
    `InvalidProblemError` if the problem contradicts itself.
    """
    check_problem(problem)
    reasons = find_exclusions(problem)
    jobs = [job for job in problem.jobs if job.job_id not in reasons]
    candidates = build_candidates_of_participants(problem, jobs)
    penalised = []
    for row, job in enumerate(candidates.jobs):
        given = allocations.get(job.job_id, Allocation())
        penalised.append(candidates.penalised(row, given))
    return candidates.scores.fitness(penalised)


def build_candidates_of_participants(
    problem: Problem, jobs: list[ProblemJob], cache: TableCache | None = None
) -> Candidates:
    """Return the candidates of those of `jobs` that take part, where users share."""
    facts = NodeFacts(problem.nodes)
    standing = user_shares.shares_of_all(problem, jobs)
    candidates = build_candidates(problem, jobs, cache, facts, standing=standing)
    if standing is None or user_shares.all_minimums_fit(standing, jobs, facts):
        return candidates
    jobs, standing, _ = user_shares.divide_gpus(
        problem, jobs, user_shares.useful_gpus(jobs, candidates.tables), facts
    )
    return build_candidates(problem, jobs, cache, facts, standing=standing)


def build_candidates(
    problem: Problem,
    jobs: list[ProblemJob],
    cache: TableCache | None = None,
    facts: NodeFacts | None = None,
    *,
    standing: user_shares.UserShares | None = None,
    within_caps: bool = False,
) -> Candidates:
    """Return what `jobs` could get and what the problem's objective makes of it.

    `standing` is what they were dealt, where users share. `within_caps`, speedups beyond what jobs may have
    now are not computed, where no weight depends on them.
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
        fair_shares=None if standing is None else standing.fair_shares(facts.num_gpus),
        uneven=name == "osdi21" if problem.uneven is None else problem.uneven,
        pauses=problem.moving.pauses,
        within_caps=within_caps and name != "price-rank",
    )
    scores = OBJECTIVES[name](problem, jobs, tables)
    if standing is not None:
        factors = standing.factors(scores.exponent, tables, in_gpus=scores.units is not None)
        scores = dataclasses.replace(scores, weight=scores.weight * factors)
    return Candidates(problem, jobs, tables, scores)
