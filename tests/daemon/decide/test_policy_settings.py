"""The admin's settings as fields of a problem."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from pollux_slurm.config import PolicyConfig
from pollux_slurm.daemon.decide import policy_settings
from pollux_slurm.errors import ConfigError
from pollux_slurm.model import GpuLimit, MovingRules, Objective
from tests.policy.builders import job


def test_that_the_defaults_are_the_policys() -> None:
    assert policy_settings.objective(PolicyConfig()) == Objective(between="users")
    assert policy_settings.moving(PolicyConfig()) == MovingRules(hysteresis=0.1)
    assert policy_settings.limits(PolicyConfig(), [job("1", account="x")]) == ()
    policy_settings.check(PolicyConfig())


def test_that_objective_and_rules_of_moving_are_passed_on() -> None:
    policy = PolicyConfig(
        objective="price-rank",
        between="accounts",
        exponent=0.5,
        floor=0.01,
        fair_share_gpus=2,
        penalty="amortised",
        horizon_s=9.0,
        hysteresis=0.1,
        max_reallocations=3,
        min_age_s=60.0,
        min_remaining_s=30.0,
    )
    assert policy_settings.objective(policy) == Objective(
        name="price-rank",
        exponent=0.5,
        floor=0.01,
        fair_share_gpus=2,
        penalty="amortised",
        horizon_s=9.0,
        between="accounts",
    )
    assert policy_settings.moving(policy) == MovingRules(
        hysteresis=0.1, max_reallocations=3, min_remaining_s=30.0, pauses=True
    )


@pytest.mark.parametrize(
    ("objective", "chosen", "expected"),
    [
        ("generalized-mean", None, 0.1),
        ("generalized-mean", 0.0, 0.0),
        ("osdi21", None, 0.0),
        ("price-rank", None, 0.0),
        ("attained-work", 0.2, 0.2),
    ],
)
def test_that_only_the_default_objective_has_a_hysteresis_of_its_own(
    objective: str, chosen: float | None, expected: float
) -> None:
    policy = PolicyConfig(objective=objective, hysteresis=chosen)
    assert policy_settings.moving(policy).hysteresis == expected


def test_that_used_gpus_count_in_shares_only_with_a_half_life() -> None:
    assert policy_settings.share_half_life_s(PolicyConfig()) is None
    assert policy_settings.share_half_life_s(PolicyConfig(share_half_life="1.5w")) == 10.5 * 86400


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"share_half_life": "a week"}, "such as 90s, 5m, 1.5h, 30d or 2w, of at least 1d, not 'a week'"),
        ({"share_half_life": "23h"}, "of at least 1d, not '23h'"),
        ({"share_half_life": "7d", "between": "jobs"}, "jobs have no memory"),
    ],
)
def test_that_a_half_life_that_means_nothing_is_refused(settings: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        policy_settings.check(PolicyConfig(**settings))


def test_that_the_star_limits_whom_no_line_names() -> None:
    policy = PolicyConfig(account_limits=(("*", 4), ("x", 64)), user_limits=(("ada", 2),))
    jobs = [job("1", account="x", user="ada"), job("2", account="y", user="bob"), job("3", account="y")]
    assert policy_settings.limits(policy, jobs) == (
        GpuLimit(kind="account", name="x", max_gpus=64),
        GpuLimit(kind="account", name="y", max_gpus=4),
        GpuLimit(kind="user", name="ada", max_gpus=2),
    )


def test_that_a_jobs_weight_is_the_product_of_its_accounts_its_users_and_its_own() -> None:
    policy = PolicyConfig(
        account_weights=(("x", 2.0),), user_weights=(("ada", 3.0),), job_weights=(("7", 0.5),)
    )
    assert policy_settings.weight(policy, account="x", user="ada", job_id="7") == 3.0
    assert policy_settings.weight(policy, account="", user="bob", job_id="8") == 1.0


def test_that_what_no_problem_allows_is_a_mistake_in_the_settings() -> None:
    bad = dataclasses.replace(PolicyConfig(), exponent=float("nan"))
    with pytest.raises(ConfigError, match=r"\[policy\]: the objective's exponent"):
        policy_settings.check(bad)


def test_that_objectives_made_for_pauses_have_them_unless_they_are_switched_off() -> None:
    def pauses(**settings: Any) -> bool:
        return policy_settings.moving(PolicyConfig(**settings)).pauses

    assert [pauses(objective=name) for name in ("generalized-mean", "osdi21")] == [False, False]
    assert [pauses(objective=name) for name in ("price-rank", "attained-work")] == [True, True]
    assert (pauses(objective="price-rank", pauses=False), pauses(pauses=True)) == (False, True)
