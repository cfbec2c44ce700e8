"""Nodes and jobs with plain numbers, for problems built by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

from pollux_slurm.model import (
    Allocation,
    BatchLimits,
    Decision,
    GoodputModel,
    NodeCapacity,
    Objective,
    Problem,
    ProblemJob,
    ThroughputParameters,
)


def node(name: str, num_gpus: int = 4, **fields: Any) -> NodeCapacity:
    return NodeCapacity(
        name=name, num_gpus=num_gpus, num_cpus=fields.pop("num_cpus", 64), memory_mb=10**6, **fields
    )


def nodes(count: int, num_gpus: int = 4) -> tuple[NodeCapacity, ...]:
    return tuple(node(f"n{index}", num_gpus) for index in range(count))


def linear_model(*, seen: int = 64, sync_s: float = 0.0, network_s: float = 0.0) -> GoodputModel:
    """A job of fixed batch 5040 whose micro-batch takes a second for every thousand examples.

    Without synchronisation, goodput is exactly linear in GPUs: K thousand examples/s on K that divide 5040.
    """
    return GoodputModel(
        limits=BatchLimits(initial_batch_size=5040),
        throughput=ThroughputParameters(
            alpha_g=0.0,
            beta_g=1e-3,
            alpha_n=sync_s + network_s,
            beta_n=0.0,
            alpha_l=sync_s,
            beta_l=0.0,
            gamma=1.0,
        ),
        max_gpus_seen=seen,
        max_nodes_seen=1,
    )


def job(job_id: str, current: dict[str, int] | None = None, **fields: Any) -> ProblemJob:
    fields.setdefault("model", linear_model())
    fields.setdefault("age_s", 1e6)
    return ProblemJob(job_id=job_id, current=Allocation.of(current or {}), **fields)


def problem(cluster: tuple[NodeCapacity, ...], *jobs: ProblemJob, **objective: float) -> Problem:
    return Problem(nodes=cluster, jobs=jobs, objective=Objective(**objective))


def given(decision: Decision) -> dict[str, str]:
    return {job.job_id: str(job.allocation) for job in decision.jobs}


def sizes(decision: Decision) -> dict[str, int]:
    return {job.job_id: job.allocation.num_gpus for job in decision.jobs}


def in_other_units(one: ProblemJob, factor: float) -> ProblemJob:
    """Return the job with all its measured times multiplied by `factor`."""
    if one.model is None or one.model.throughput is None:
        return one
    theta = one.model.throughput
    names = ("alpha_g", "beta_g", "alpha_n", "beta_n", "alpha_l", "beta_l")
    theta = dataclasses.replace(theta, **{name: getattr(theta, name) * factor for name in names})
    return dataclasses.replace(one, model=dataclasses.replace(one.model, throughput=theta))
