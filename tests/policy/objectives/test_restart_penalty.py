"""The restart penalty, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from pollux_slurm.model import MovingRules, Objective, ProblemJob
from pollux_slurm.policy.objectives.restart_penalty import (
    in_place_penalties,
    paper_penalty,
    restart_penalties,
)
from tests.policy.builders import job


def by_requeue(moved: ProblemJob, *, hysteresis: float = 0.0, left_s: float = np.inf) -> float:
    """Return f of a move by requeue."""
    found = restart_penalties([moved], Objective(), MovingRules(hysteresis=hysteresis), np.array([[left_s]]))
    return found.item()


@pytest.mark.parametrize(
    ("age_s", "num_restarts", "delay_s", "expected"),
    [
        (600.0, 0, 30.0, 600 / 630),
        (3600.0, 9, 30.0, 3330 / 3630),
        # A move lasts for five minutes at least.
        (0.0, 0, 30.0, 300 / 330),
        (60.0, 2, 30.0, 300 / 330),
        (1200.0, 4, 250.0, 300 / 550),
        (0.0, 5, 0.0, 1.0),
    ],
)
def test_that_the_penalty_is_the_part_of_its_life_that_a_job_does_not_spend_restarting(
    age_s: float, num_restarts: int, delay_s: float, expected: float
) -> None:
    moved = job("a", {"n0": 1}, age_s=age_s, num_restarts=num_restarts, restart_delay_s=delay_s)
    assert by_requeue(moved) == pytest.approx(expected)


def test_that_a_move_by_requeue_that_takes_longer_than_it_counts_is_never_made() -> None:
    moved = job("a", {"n0": 1}, age_s=9000.0, restart_delay_s=250.0)
    amortised = Objective(penalty="amortised", horizon_s=100.0)
    assert restart_penalties([moved], amortised, MovingRules(), np.array([[np.inf]])).tolist() == [[0.0]]


@pytest.mark.parametrize(
    ("age_s", "spent_s", "cost_s", "expected"),
    [
        (600.0, 0.0, 30.0, 600 / 630),
        (600.0, 90.0, 30.0, 510 / 630),
        (60.0, 90.0, 30.0, 0.0),
        (0.0, 0.0, 0.0, 1.0),
    ],
)
def test_that_the_papers_penalty_counts_what_restarts_have_cost(
    age_s: float, spent_s: float, cost_s: float, expected: float
) -> None:
    found = paper_penalty(np.array([age_s]), np.array([spent_s]), np.array([cost_s]))
    assert found.tolist() == [pytest.approx(expected)]


# Columns in which the job is as fast as now, twice and four times as fast, half as fast, and impossible.
SPEEDUP = np.array([[1.0, 2.0, 4.0, 0.5, 0.0]])
NUM_GPUS = np.array([2, 2, 4, 1, 2])


def in_place(
    moved: ProblemJob, objective: Objective, *, hysteresis: float = 0.0, left_s: float = np.inf
) -> list[float]:
    """Return f of moves in place to each column."""
    moving = MovingRules(hysteresis=hysteresis)
    now = np.array([1.0])
    found = in_place_penalties(
        [moved],
        objective,
        moving,
        speedup=SPEEDUP,
        current_speedup=now,
        num_gpus=NUM_GPUS,
        left_s=np.full(SPEEDUP.shape, left_s),
    )
    return [float(f) for f in found[0]]


@pytest.mark.parametrize(
    ("age_s", "num_restarts", "spent_s"),
    [(500.0, 0, 0.0), (5000.0, 7, 210.0)],
)
def test_that_a_move_in_place_costs_what_the_job_would_gain_until_its_new_processes_train(
    age_s: float, num_restarts: int, spent_s: float
) -> None:
    moved = job(
        "a", {"n0": 2}, age_s=age_s, num_restarts=num_restarts, restart_delay_s=30.0, in_place_delay_s=24.0
    )
    twice, four_times = (age_s - spent_s) / (age_s + 12.0), (age_s - spent_s) / (age_s + 18.0)
    found = in_place(moved, Objective())
    assert found == pytest.approx([1.0, max(twice, 300 / 312), max(four_times, 300 / 318), 1.0, 1.0])
    amortised = Objective(penalty="amortised", horizon_s=100.0)
    assert in_place(moved, amortised) == pytest.approx([1.0, 0.88, 0.82, 1.0, 1.0])
    # To grow in place costs nobody a stop: it may gain less than the hysteresis.
    assert in_place(moved, amortised, hysteresis=0.5) == pytest.approx([0.5, 0.44, 0.82, 0.5, 0.5])


def test_that_a_job_without_gpus_has_no_penalty_in_place() -> None:
    waits = job("a", in_place_delay_s=24.0)
    assert in_place(waits, Objective(), hysteresis=0.5) == [1.0] * 5


def test_that_a_job_without_gpus_has_no_restart_penalty() -> None:
    assert by_requeue(job("a", age_s=0.0, num_restarts=9), hysteresis=0.5) == 1.0


@pytest.mark.parametrize(("num_restarts", "part"), [(0, 1.0), (1, 0.5)])
def test_that_hysteresis_does_not_keep_a_job_from_its_first_restart(num_restarts: int, part: float) -> None:
    moved = job("a", {"n0": 1}, age_s=600.0, num_restarts=num_restarts, restart_delay_s=30.0)
    alone = by_requeue(moved)
    assert by_requeue(moved, hysteresis=0.5) == pytest.approx(part * alone)


@pytest.mark.parametrize(("left_s", "expected"), [(10.0, 0.25), (270.0, 0.9), (3000.0, 600 / 630)])
def test_that_a_move_counts_for_no_longer_than_the_job_still_trains(left_s: float, expected: float) -> None:
    moved = job("a", {"n0": 2}, age_s=600.0, restart_delay_s=30.0, in_place_delay_s=24.0)
    assert by_requeue(moved, left_s=left_s) == pytest.approx(expected)
    amortised = Objective(penalty="amortised", horizon_s=240.0)
    twice = min(228 / 240, left_s / (left_s + 12.0))
    assert in_place(moved, amortised, left_s=left_s)[1] == pytest.approx(twice)
