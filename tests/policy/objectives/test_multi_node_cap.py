"""The multi-node cap: which speedups it bounds, and under which objectives."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import pytest

from pollux_slurm.model import GoodputModel, NodeCapacity, Objective, ProblemJob
from pollux_slurm.policy.decide import build_candidates, decide
from pollux_slurm.policy.objectives.multi_node_cap import capped_speedup
from pollux_slurm.policy.problem.speedup_tables import SpeedupTables, build_tables
from tests.policy.builders import job, linear_model, node, nodes, problem, sizes


def measured_on(num_nodes: int, **costs: float) -> GoodputModel:
    return dataclasses.replace(linear_model(**costs), max_nodes_seen=num_nodes)


def speedups(
    one: ProblemJob, cluster: tuple[NodeCapacity, ...]
) -> tuple[SpeedupTables, npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the tables of a job, its predicted speedups, and the capped ones."""
    tables = build_tables([one], cluster)
    return tables, tables.speedup[0], capped_speedup([one], tables)[0]


def test_that_speedup_on_several_nodes_is_capped_for_a_job_that_ran_on_one_only() -> None:
    tables, predicted, capped = speedups(job("a", model=measured_on(1)), nodes(4))
    one = tables.num_nodes == 1
    np.testing.assert_array_equal(capped[one], predicted[one])
    # By its model it is linear: 4 GPUs are 4 times as fast as one, and 16 GPUs no more than 4·4^0.5 times.
    unit = predicted[tables.num_gpus == 1]
    for gpus in (8, 16):
        found = capped[(tables.num_gpus == gpus) & ~one] / unit
        assert found == pytest.approx(4 * (gpus / 4) ** 0.5)
        assert (found < predicted[(tables.num_gpus == gpus) & ~one] / unit).all()


@pytest.mark.parametrize("model", [measured_on(2), None])
def test_that_a_job_measured_on_several_nodes_and_one_without_a_model_are_not_capped(
    model: GoodputModel | None,
) -> None:
    _, predicted, capped = speedups(job("a", model=model), nodes(4))
    np.testing.assert_array_equal(capped, predicted)


def test_that_a_prediction_below_the_cap_stays() -> None:
    _, predicted, capped = speedups(job("a", model=measured_on(1, network_s=50.0)), nodes(4))
    np.testing.assert_array_equal(capped, predicted)


def test_that_a_job_which_is_fastest_on_a_part_of_a_node_is_bounded_from_there() -> None:
    # Synchronisation costs two GPUs 4.5 s and several nodes hardly more; a micro-batch alone takes 5 s.
    tables, predicted, capped = speedups(job("a", model=measured_on(1, sync_s=4.5)), nodes(4))
    most = predicted[tables.num_nodes == 1].max()
    gpus = tables.num_gpus[predicted == most][0]
    several = tables.num_nodes > 1
    bound = most * (tables.num_gpus[several] / gpus) ** 0.5
    np.testing.assert_allclose(capped[several], np.minimum(predicted[several], bound))


def test_that_each_gpu_type_has_its_own_cap_and_one_measured_on_several_nodes_lifts_all() -> None:
    cluster = tuple(
        node(f"{gpu_type}-{index}", size, gpu_type=gpu_type)
        for gpu_type, size in (("a100", 4), ("t4", 2))
        for index in range(2)
    )
    for on_t4, bounded in ((1, True), (2, False)):
        models = (("a100", measured_on(1)), ("t4", measured_on(on_t4)))
        tables, predicted, capped = speedups(job("a", model=None, models=models), cluster)
        several = tables.num_nodes > 1
        assert several.any()
        assert (capped[several] < predicted[several]).any() == bounded
        if bounded:
            for kind, size in ((tables.kinds.index("a100"), 4), (tables.kinds.index("t4"), 2)):
                of_kind = tables.kind == kind
                on_one = predicted[of_kind & (tables.num_nodes == 1) & (tables.num_gpus == size)]
                beyond = of_kind & several & (tables.num_gpus == 2 * size)
                assert capped[beyond] == pytest.approx(on_one * 2**0.5)


def test_that_a_job_that_fits_on_no_single_node_is_not_capped() -> None:
    one = job("a", model=measured_on(1), min_gpus=8)
    tables = build_tables([one], nodes(4), within_caps=True)
    predicted = tables.speedup.copy()
    predicted[:, tables.num_nodes == 1] = 0.0
    tables = dataclasses.replace(tables, speedup=predicted)
    np.testing.assert_array_equal(capped_speedup([one], tables), predicted)


def test_that_capping_leaves_the_tables_unchanged() -> None:
    one = job("a", model=measured_on(1))
    tables = build_tables([one], nodes(4))
    before = tables.speedup.copy()
    capped_speedup([one], tables)
    np.testing.assert_array_equal(tables.speedup, before)


@pytest.mark.parametrize(
    ("objective", "counts"),
    [("price-rank", True), ("attained-work", True), ("generalized-mean", False), ("osdi21", False)],
)
def test_that_only_the_objectives_of_completion_time_have_the_cap(objective: str, counts: bool) -> None:
    asked = problem(nodes(4), job("a", model=measured_on(1)), job("b", model=measured_on(2)))
    asked = dataclasses.replace(asked, objective=Objective(name=objective))
    candidates = build_candidates(asked, list(asked.jobs))
    several = candidates.tables.num_nodes > 1
    never, before = candidates.scores.speedup[:, several]
    assert (never < before).any() == counts


def test_that_a_job_that_ran_on_several_nodes_gets_them_before_one_that_did_not() -> None:
    declared = {"progress": 1000.0, "epochs_done": 1.0, "epochs_declared": 10.0}
    asked = problem(
        nodes(3), job("never", model=measured_on(1), **declared), job("was", model=measured_on(2), **declared)
    )
    given = sizes(decide(dataclasses.replace(asked, objective=Objective(name="price-rank"))))
    assert given == {"never": 4, "was": 8}
