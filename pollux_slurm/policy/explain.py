"""Why each job gets what it gets (invariant 9): from the final state, not from the search's course."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pollux_slurm.model import Allocation, JobDecision, ProblemJob
from pollux_slurm.policy.options import JobOptions, Option, Tables
from pollux_slurm.policy.placement import Placed, State


def explain(state: State, jobs: Sequence[JobOptions], tables: Tables, index: int) -> JobDecision:
    """Return the decision about job `index` of a solved state."""
    placed = state.placed[index]
    assert placed is not None
    options = jobs[index]
    chosen = placed.option
    allocation = state.cluster.allocation_of(placed)
    estimate = tables.estimate(options.row, allocation.configuration) if allocation else None
    runner_up = next((o for o in options.options if o.num_gpus and not _is_same(o, chosen)), None)
    return JobDecision(
        job_id=options.job.job_id,
        allocation=allocation,
        speedup=_speedup(tables, options.row, allocation),
        goodput=None if estimate is None else estimate.goodput,
        penalty=chosen.penalty,
        batch=None if estimate is None else estimate.batch,
        bound_by=_bound_by(state, options, tables, index, placed),
        runner_up=None if runner_up is None else runner_up.configuration,
        runner_up_speedup=None if runner_up is None else runner_up.speedup,
    )


def _speedup(tables: Tables, row: int, allocation: Allocation) -> float:
    if not allocation:
        return 0.0
    return float(tables.speedup[row, tables.column[allocation.configuration]])


def _is_same(option: Option, chosen: Option) -> bool:
    return option.num_nodes == chosen.num_nodes and option.num_gpus == chosen.num_gpus


def _bound_by(state: State, options: JobOptions, tables: Tables, index: int, placed: Placed) -> str:
    """Return what kept the job from more speedup; see `JobDecision.bound_by`."""
    job, chosen = options.job, placed.option
    if job.pinned:
        return "pinned"
    now = float(chosen.speedup)
    faster = (tables.per_node > 0) & (tables.speedup[options.row] > now * (1 + 1e-9))
    faster &= tables.num_gpus > chosen.num_gpus
    if not faster.any():
        return "nothing"
    within_max = faster if job.max_gpus is None else faster & (tables.num_gpus <= job.max_gpus)
    if not within_max.any():
        return "max_gpus"
    if not (within_max & (tables.num_gpus <= options.exploration_cap)).any():
        return "exploration"
    wanted = [o for o in options.options if o.value > chosen.value and o.num_gpus > chosen.num_gpus]
    if not wanted:
        return "penalty"
    room = int(np.where(state.eligible(index), state.free[:, 0], 0).sum())
    own = sum(gpus for node, gpus in placed.gpus if state.eligible(index)[node])
    return "placement" if min(o.num_gpus for o in wanted) <= room + own else "capacity"


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
    )
