"""The horizon over which a move must pay, for delays of minutes."""

from __future__ import annotations

import numpy as np
import pytest

from pollux_slurm.model import Objective, Problem
from pollux_slurm.policy import decide
from pollux_slurm.policy.objectives.restart_penalty import horizon_s
from tests.policy.builders import job, linear_model, nodes


@pytest.mark.parametrize(
    ("delay_s", "age_s", "num_restarts", "expected_s"),
    [
        (10.0, 1e6, 0, 250.0),
        (30.0, 1e6, 0, 250.0),
        (120.0, 0.0, 0, 500.0),
        (120.0, 700.0, 0, 700.0),
        (120.0, 1000.0, 3, 640.0),
        (120.0, 1e6, 0, 1000.0),
    ],
)
def test_that_a_horizon_grows_with_the_delay_and_the_time_not_spent_restarting(
    delay_s: float, age_s: float, num_restarts: int, expected_s: float
) -> None:
    one = job("a", {"n0": 1}, age_s=age_s, num_restarts=num_restarts, restart_delay_s=delay_s)
    assert horizon_s(np.array([delay_s]), 250.0, [one]).tolist() == pytest.approx([expected_s])


@pytest.mark.parametrize("objective", ["price-rank", "attained-work", "generalized-mean"])
@pytest.mark.parametrize("delay_s", [30.0, 120.0, 250.0, 600.0])
def test_that_a_lone_job_leaves_its_first_node_whatever_a_restart_costs(
    objective: str, delay_s: float
) -> None:
    """It has trained for twenty times the delay, and the other node of two is idle."""
    model = linear_model(seen=4, sync_s=0.1, network_s=0.2)
    lone = job(
        "a", {"n0": 4}, model=model, age_s=20 * delay_s, restart_delay_s=delay_s, progress=1e9, max_gpus=8
    )
    found = decide(Problem(nodes=nodes(2), jobs=(lone,), objective=Objective(name=objective)))
    assert found.jobs[0].allocation.num_gpus == 8


@pytest.mark.parametrize("objective", ["price-rank", "attained-work", "generalized-mean"])
@pytest.mark.parametrize(("left_s", "moves"), [(10.0, False), (3600.0, True)])
def test_that_no_job_moves_just_before_its_end(objective: str, left_s: float, moves: bool) -> None:
    """Four GPUs instead of two, which are idle, make it twice as fast; a restart takes 30 s."""
    lone = job(
        "a",
        {"n0": 2},
        model=linear_model(seen=4),
        age_s=1e4,
        progress=1e7,
        expected_progress=1e7 + 2000.0 * left_s,
        max_gpus=4,
    )
    found = decide(Problem(nodes=nodes(1), jobs=(lone,), objective=Objective(name=objective)))
    assert found.jobs[0].allocation.num_gpus == (4 if moves else 2)
