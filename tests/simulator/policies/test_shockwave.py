"""Shockwave's plan on problems of a few jobs, and how its rounds are filled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pollux_slurm.simulator.policies import ShockwavePolicy, shockwave
from pollux_slurm.simulator.policies.shockwave import ROUNDS, fill_rounds, plan_counts
from tests.simulator.rated import hours, one_gpu_cluster, run_rated


def plan(
    left_s: list[float],
    total_s: list[float],
    *,
    num_gpus: int = 1,
    sizes: tuple[float, ...] = (1.0, 1.0),
    age_s: tuple[float, ...] = (0.0, 0.0),
    fair_s: tuple[float, ...] = (1e9, 1e9),
) -> tuple[list[int], list[float]]:
    """Return the planned rounds of 120 s and the weights of two jobs."""
    counts, weights = plan_counts(
        sizes=np.array(sizes),
        left_s=np.array(left_s),
        total_s=np.array(total_s),
        age_s=np.array(age_s),
        fair_s=np.array(fair_s),
        num_gpus=num_gpus,
        round_s=120.0,
    )
    return counts.tolist(), weights.tolist()


def test_that_equal_jobs_share_the_rounds() -> None:
    """Up to a fifth of a training, a second counts most: four rounds at least for each."""
    counts, _ = plan([2400.0, 2400.0], [2400.0, 2400.0])
    assert sum(counts) == ROUNDS
    assert min(counts) >= 4


def test_that_the_job_with_less_behind_it_gains_more() -> None:
    """From 0 to 0.2, log progress rises by 12; from 0.8 to 1 by 0.2: all rounds go to the new job."""
    counts, _ = plan([12000.0, 2400.0], [12000.0, 12000.0])
    assert counts == [20, 0]


def test_that_the_longest_rest_counts_less_than_progress() -> None:
    """Each round of the short job adds more to its logarithm, though the other will end last."""
    counts, _ = plan([9000.0, 2400.0], [12000.0, 2400.0])
    assert counts == [0, 20]


def test_that_a_fair_finish_bounds_what_may_be_left() -> None:
    """The second may have 600 s left, 1,200 s at half a share: 15 of its 20 rounds are planned."""
    counts, weights = plan([12000.0, 2400.0], [12000.0, 12000.0], fair_s=(1e9, 2400.0 + 1200.0))
    assert counts == [5, 15]
    assert weights == [1.0, 1.0]


def test_that_an_impossible_bound_is_dropped_for_weights() -> None:
    """ρ of the second is (0 + 2400/0.5)/1600 = 3: beyond 1, it counts 3^12 times."""
    counts, weights = plan([12000.0, 2400.0], [12000.0, 12000.0], fair_s=(1e9, 1600.0))
    assert weights == [1.0, pytest.approx(3.0**12)]
    assert counts == [0, 20]


def test_that_a_late_job_that_a_round_ends_counts_most() -> None:
    """ρ of the first is (150 + 50/0.5)/200 = 1.25, with 1.25^12 = 15 beyond a round; the bound is 10^6."""
    ending = plan([50.0, 12000.0], [100.0, 12000.0], age_s=(150.0, 0.0), fair_s=(200.0, 1e9))
    assert ending[1] == [pytest.approx(1e6), 1.0]
    longer = plan([150.0, 12000.0], [300.0, 12000.0], age_s=(450.0, 0.0), fair_s=(600.0, 1e9))
    assert longer[1] == [pytest.approx(1.25**12), 1.0]


def test_that_free_gpus_of_a_round_go_to_the_job_with_the_most_left() -> None:
    rounds = fill_rounds(
        ["a", "b", "c"],
        np.array([1.0, 1.0, 1.0]),
        np.array([2, 0, 0]),
        np.array([9.0, 9.0, 1.0]),
        np.array([200.0, 300.0, 900.0]),
        num_gpus=2,
        num_rounds=2,
    )
    assert rounds == [{"a", "c"}] * 2


def plans_of_an_hour_each(monkeypatch: pytest.MonkeyPatch, policy: ShockwavePolicy) -> list[list[float]]:
    """Return the sorted fair finishes of each plan: two jobs of an hour on one GPU, in rounds of 120 s."""
    seen: list[list[float]] = []

    def plan_and_keep(**given: Any) -> object:
        seen.append(sorted(given["fair_s"].tolist()))
        return plan_counts(**given)

    monkeypatch.setattr(shockwave, "plan_counts", plan_and_keep)
    rates = {name: {"v100": 1.0} for name in ("a", "b")}
    run_rated(policy, one_gpu_cluster("v100", interval_s=120.0), rates, hours("a", 1), hours("b", 1))
    return seen


def test_that_a_fair_finish_is_the_whole_job_on_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """60 rounds are planned 20 at a time, and once more when the first job ends; a share is half a GPU."""
    plans = plans_of_an_hour_each(monkeypatch, ShockwavePolicy())
    assert plans[:3] == [[7200.0, 7200.0]] * 3
    assert len(plans) <= 4


def test_that_a_fair_finish_as_in_sia_moves_away_from_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Age and left are 120 + 3600 s at first, then 240 + 3480 for who ran, 240 + 3600 for who waited."""
    plans = plans_of_an_hour_each(monkeypatch, ShockwavePolicy(as_in_sia=True))
    assert plans[0] == pytest.approx([7440.0, 7440.0])
    assert plans[1] == pytest.approx([7440.0, 0.9 * (7440.0 + 7680.0) / 2 + 0.1 * 7680.0])
    assert len(plans) == 60


def test_that_no_job_has_more_rounds_than_it_needs() -> None:
    assert plan([100.0, 130.0], [12000.0, 12000.0])[0] == [1, 2]


def test_that_rounds_are_filled_with_the_largest_first() -> None:
    """Of 4 GPUs, the job of 3 has two rounds; the jobs of 2 share the others, the job of 1 is beside it."""
    rounds = fill_rounds(
        ["a", "b", "c", "d"],
        np.array([3.0, 2.0, 2.0, 1.0]),
        np.array([2, 18, 18, 2]),
        np.array([5.0, 1.0, 1.0, 1.0]),
        np.array([240.0, 2160.0, 2160.0, 240.0]),
        num_gpus=4,
    )
    assert rounds == [{"a", "d"}] * 2 + [{"b", "c"}] * 18


def test_that_jobs_end_under_it() -> None:
    """Two jobs of an hour on one GPU: no round stays idle, so the last ends after two hours."""
    rates = {name: {"v100": 1.0} for name in ("a", "b")}
    result = run_rated(
        ShockwavePolicy(),
        one_gpu_cluster("v100", interval_s=120.0),
        rates,
        hours("a", 1),
        hours("b", 1),
    )
    assert max(job.finished_s or 0.0 for job in result.jobs) == pytest.approx(120 + 7200)
