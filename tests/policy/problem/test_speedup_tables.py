"""Which configurations there are, and goodput on types of GPUs that a job has not run on."""

from __future__ import annotations

import dataclasses

import pytest

from pollux_slurm.model import BatchLimits, GoodputModel
from pollux_slurm.policy import decide
from pollux_slurm.policy.problem.speedup_tables import EXPLORATION_GROWTH, build_tables
from tests.policy.builders import job, linear_model, node, nodes, problem


def slower(factor: float) -> GoodputModel:
    """Return the linear model with each micro-batch taking `factor` times as long."""
    model = linear_model()
    assert model.throughput is not None
    theta = model.throughput
    return dataclasses.replace(
        model,
        throughput=dataclasses.replace(theta, alpha_g=factor * theta.alpha_g, beta_g=factor * theta.beta_g),
    )


@pytest.mark.parametrize(("factor", "where"), [(1.5, "new"), (1 / 1.5, "old")])
def test_that_a_type_a_job_has_not_seen_is_as_fast_for_it_as_for_a_job_that_has_seen_both(
    factor: float, where: str
) -> None:
    both = job(
        "both", pinned=True, current={"third": 1}, models=(("old", slower(factor)), ("new", slower(1.0)))
    )
    cluster = (
        node("old", 1, gpu_type="old"),
        node("new", 1, gpu_type="new"),
        node("third", 1, gpu_type="old"),
    )
    found = decide(problem(cluster, both, job("one", model=None, models=(("old", linear_model()),))))
    assert found.allocation("one").nodes == (where,)


def test_that_configurations_end_where_no_job_may_have_more() -> None:
    cluster = [node(f"n{number}", 4) for number in range(4)]
    wide = job("a", max_gpus=8, model=linear_model(seen=16))
    assert max(build_tables([wide, job("b", max_gpus=1)], cluster).num_gpus) == 8
    assert max(build_tables([job("b", max_gpus=1)], cluster).num_gpus) == 4, "the sizes of one node"
    assert max(build_tables([wide, job("b")], cluster).num_gpus) == 16
    assert max(build_tables([job("b", model=linear_model(seen=1))], cluster).num_gpus) == EXPLORATION_GROWTH


def test_that_a_pinned_job_beyond_its_maximum_counts_by_what_it_has() -> None:
    """Its batch of 8 fits on 8 GPUs only, and it may have 4 since its owner changed the maximum."""
    of_eight = dataclasses.replace(
        linear_model(seen=8),
        limits=BatchLimits(initial_batch_size=8, min_atomic=1, max_atomic=1, accumulation=False),
    )
    pinned = job("a", {"n0": 4, "n1": 4}, pinned=True, max_gpus=4, model=of_eight)
    found = decide(problem(nodes(4), pinned, job("b", max_gpus=4)))
    assert found.jobs[0].speedup == pytest.approx(2.0), "of a fair share of 4 GPUs"
    assert found.fitness > 1.0
