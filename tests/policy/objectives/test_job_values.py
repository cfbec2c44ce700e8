"""The values of jobs: predictions for fewer GPUs are discounted by the prediction error."""

from __future__ import annotations

import numpy as np
import pytest

from pollux_slurm.policy.decide import decide
from pollux_slurm.policy.objectives.job_values import prediction_discount
from pollux_slurm.policy.problem.speedup_tables import build_tables
from tests.policy.builders import job, linear_model, nodes, problem, sizes


@pytest.mark.parametrize(
    ("error", "kept"), [(0.0, 1.0), (0.05, 1.0), (0.15, 0.9), (0.25, 0.8), (0.35, 0.7), (1.0, 0.7)]
)
def test_that_predictions_for_fewer_gpus_are_discounted_by_the_prediction_error(
    error: float, kept: float
) -> None:
    running = job("a", {"n0": 2}, model=linear_model(), prediction_error=error)
    waiting = job("b", model=linear_model(), prediction_error=error)
    tables = build_tables([running, waiting], nodes(2))
    found = prediction_discount([running, waiting], tables)
    np.testing.assert_allclose(found[0, tables.num_gpus < 2], kept)
    assert (found[0, tables.num_gpus >= 2] == 1.0).all(), "predictions for more GPUs count in full"
    assert (found[1] == 1.0).all()


@pytest.mark.parametrize("objective", ["generalized-mean", "attained-work"])
def test_that_a_job_gives_up_gpus_only_for_a_gain_above_its_prediction_error(objective: str) -> None:
    def given(error: float, name: str = objective) -> dict[str, int]:
        # By its model it is 14 % faster on one GPU than on the four that it holds.
        slower = linear_model(sync_s=4.5)
        running = job("a", {"n0": 4}, model=slower, age_s=10_000.0, progress=1e5, prediction_error=error)
        return sizes(decide(problem(nodes(1), running, name=name)))

    assert (given(0.05), given(0.3)) == ({"a": 1}, {"a": 4})
    assert given(0.3, "osdi21") == {"a": 1}, "the artifact's objective has no such rule"


def test_that_a_job_with_bad_predictions_shrinks_for_a_waiting_one() -> None:
    running = job("a", {"n0": 4}, model=linear_model(), age_s=10_000.0, prediction_error=1.0)
    found = sizes(decide(problem(nodes(1), running, job("b", model=linear_model()))))
    assert found["a"] == found["b"] == 2


@pytest.mark.parametrize("error", [-0.1, 1.1, float("nan")])
def test_that_an_impossible_prediction_error_excludes_its_job(error: float) -> None:
    found = decide(problem(nodes(1), job("a", prediction_error=error), job("b")))
    assert [job_id for job_id, _ in found.excluded] == ["a"]
