"""The restart penalty, by hand."""

from __future__ import annotations

import pytest

from pollux_slurm.model import Objective
from pollux_slurm.policy.objectives.restart_penalty import restart_penalty
from tests.policy.builders import job


@pytest.mark.parametrize(
    ("age_s", "num_restarts", "delay_s", "expected"),
    [
        (240.0, 0, 30.0, 240 / 270),
        (240.0, 2, 30.0, 180 / 270),
        (240.0, 9, 30.0, 0.0),
        # A job counts as two minutes old.
        (0.0, 0, 30.0, 120 / 150),
        (60.0, 2, 30.0, 60 / 150),
        (60.0, 9, 30.0, 0.0),
        (0.0, 5, 0.0, 1.0),
    ],
)
def test_that_the_penalty_is_the_part_of_its_life_a_job_did_not_spend_restarting(
    age_s: float, num_restarts: int, delay_s: float, expected: float
) -> None:
    moved = job("a", {"n0": 1}, age_s=age_s, num_restarts=num_restarts, restart_delay_s=delay_s)
    assert restart_penalty(moved, Objective()) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("age_s", "num_restarts", "in_place_delay_s", "expected"),
    [
        (200.0, 0, 25.0, 200 / 225),
        # What it has spent restarting was spent by requeue.
        (200.0, 2, 25.0, 200 / 225),
        (200.0, 7, 25.0, 200 / 225),
        (200.0, 1, 0.0, 1.0),
        (0.0, 0, 0.0, 1.0),
        (0.0, 3, 30.0, 120 / 150),
    ],
)
def test_that_a_move_in_place_costs_its_own_delay_whatever_restarts_have_cost(
    age_s: float, num_restarts: int, in_place_delay_s: float, expected: float
) -> None:
    moved = job(
        "a",
        {"n0": 1},
        age_s=age_s,
        num_restarts=num_restarts,
        restart_delay_s=30.0,
        in_place_delay_s=in_place_delay_s,
    )
    assert restart_penalty(moved, Objective(), in_place=True) == pytest.approx(expected)
    amortised = Objective(penalty="amortised", horizon_s=100.0)
    assert restart_penalty(moved, amortised, in_place=True) == pytest.approx(1 - in_place_delay_s / 100)
    assert restart_penalty(moved, amortised) == pytest.approx(0.7)


def test_that_a_job_without_gpus_has_no_restart_penalty() -> None:
    assert restart_penalty(job("a", age_s=0.0, num_restarts=9), Objective()) == 1.0
