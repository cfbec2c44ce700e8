"""The restart penalty, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from pollux_slurm.model import MovingRules, Objective, ProblemJob
from pollux_slurm.policy.objectives.restart_penalty import in_place_penalties, restart_penalties
from tests.policy.builders import job


def by_requeue(moved: ProblemJob, *, hysteresis: float = 0.0) -> float:
    """Return f of a move by requeue."""
    return float(restart_penalties([moved], Objective(), MovingRules(hysteresis=hysteresis))[0])


@pytest.mark.parametrize(
    ("age_s", "num_restarts", "delay_s", "expected"),
    [
        (600.0, 0, 30.0, 600 / 630),
        # What it has spent restarting is spent.
        (600.0, 9, 30.0, 600 / 630),
        # A job counts as five minutes old.
        (0.0, 0, 30.0, 300 / 330),
        (60.0, 2, 30.0, 300 / 330),
        (0.0, 5, 0.0, 1.0),
    ],
)
def test_that_the_penalty_is_the_part_of_its_life_that_a_job_does_not_lose_by_the_move(
    age_s: float, num_restarts: int, delay_s: float, expected: float
) -> None:
    moved = job("a", {"n0": 1}, age_s=age_s, num_restarts=num_restarts, restart_delay_s=delay_s)
    assert by_requeue(moved) == pytest.approx(expected)


# Columns in which the job is as fast as now, twice and four times as fast, half as fast, and impossible.
SPEEDUP = np.array([[1.0, 2.0, 4.0, 0.5, 0.0]])
NUM_GPUS = np.array([2, 2, 4, 1, 2])


def in_place(moved: ProblemJob, objective: Objective, *, hysteresis: float = 0.0) -> list[float]:
    """Return f of moves in place to each column."""
    moving = MovingRules(hysteresis=hysteresis)
    now = np.array([1.0])
    found = in_place_penalties(
        [moved], objective, moving, speedup=SPEEDUP, current_speedup=now, num_gpus=NUM_GPUS
    )
    return [float(f) for f in found[0]]


@pytest.mark.parametrize(
    ("age_s", "num_restarts", "counts_s"),
    # A job counts as five minutes old.
    [(500.0, 0, 500.0), (500.0, 7, 500.0), (0.0, 3, 300.0)],
)
def test_that_a_move_in_place_costs_what_the_job_would_gain_until_its_new_processes_train(
    age_s: float, num_restarts: int, counts_s: float
) -> None:
    moved = job("a", {"n0": 2}, age_s=age_s, num_restarts=num_restarts, in_place_delay_s=24.0)
    twice, four_times = counts_s / (counts_s + 12.0), counts_s / (counts_s + 18.0)
    assert in_place(moved, Objective()) == pytest.approx([1.0, twice, four_times, 1.0, 1.0])
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
