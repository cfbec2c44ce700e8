"""One decision: a scheduling problem in, an allocation for every job out (Pollux, OSDI 2021, section 4.2)."""

from __future__ import annotations

from collections.abc import Mapping

from pollux_slurm.model import Decision, Problem, ProblemJob
from pollux_slurm.policy.admission import check_problem, find_exclusions, frozen
from pollux_slurm.policy.explain import explain, keep
from pollux_slurm.policy.objective import fitness
from pollux_slurm.policy.options import JobOptions, build_options, build_tables, only_what_it_holds
from pollux_slurm.policy.placement import Cluster
from pollux_slurm.policy.search import solve


def decide(problem: Problem) -> Decision:
    """Return an allocation for every job, in the order of `problem.jobs`.

    Held whatever the objective says: a node's GPUs, CPUs and memory suffice for all on it; a job has between
    its minimum and maximum of GPUs, on nodes it may use, in a shape that Slurm can express; a running job is
    never taken below its minimum; a waiting one may get nothing, but as many as possible get their minimum
    before any gets more; pinned jobs and jobs that are left out keep exactly what they have. The same problem
    gives the same answer.

    Raises `InvalidProblemError` if the problem contradicts itself.
    """
    check_problem(problem)
    reasons = find_exclusions(problem)
    jobs = [job for job in problem.jobs if job.job_id not in reasons]
    tables = build_tables(jobs, problem.nodes)
    options = build_options(jobs, tables, problem.objective)
    for job_options in options:
        if len(job_options.options) == 1 and not job_options.job.pinned and not job_options.job.current:
            reasons[job_options.job.job_id] = (
                "no configuration of this cluster allows it a batch and its GPUs"
            )

    known = {node.name for node in problem.nodes}
    left_out = [frozen(job, known) for job in problem.jobs if job.job_id in reasons]
    fixed = [only_what_it_holds(job) for job in left_out]
    scheduled: list[JobOptions] = [o for o in options if o.job.job_id not in reasons]
    everyone = [*scheduled, *fixed]
    cluster = Cluster(problem.nodes, [o.job for o in everyone])
    state = solve(cluster, everyone).state
    chosen = [placed.option for placed in state.placed[: len(scheduled)] if placed is not None]

    decisions = {o.job.job_id: explain(state, everyone, tables, index) for index, o in enumerate(scheduled)}
    originals: Mapping[str, ProblemJob] = {job.job_id: job for job in problem.jobs}
    decisions |= {job_id: keep(originals[job_id]) for job_id in reasons}
    return Decision(
        jobs=tuple(decisions[job.job_id] for job in problem.jobs),
        fitness=fitness(problem.objective, [option.penalty * option.speedup for option in chosen]),
        solver="search",
        excluded=tuple((job.job_id, reasons[job.job_id]) for job in problem.jobs if job.job_id in reasons),
    )
