"""A goodput model of an untrusted client: each field is checked, and named where it is impossible."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from pollux_slurm.errors import InvalidModelError
from pollux_slurm.goodput import check_limits, check_model
from pollux_slurm.model import BatchLimits, GoodputModel, GradientStatistics, ThroughputParameters

GOOD = GoodputModel(
    limits=BatchLimits(initial_batch_size=32, max_batch_size=512, min_atomic=4, max_atomic=64),
    statistics=GradientStatistics(sqr=1.0, var=2.0),
    throughput=ThroughputParameters(
        alpha_g=0.1, beta_g=0.01, alpha_n=0.5, beta_n=0.0, alpha_l=0.2, beta_l=0.0, gamma=1.5
    ),
    max_gpus_seen=4,
    max_nodes_seen=2,
)


def changed(part: str, **fields: Any) -> GoodputModel:
    if part == "model":
        return dataclasses.replace(GOOD, **fields)
    return dataclasses.replace(GOOD, **{part: dataclasses.replace(getattr(GOOD, part), **fields)})


def test_that_a_valid_model_is_accepted() -> None:
    check_model(GOOD)


def test_that_a_model_without_measurements_is_accepted() -> None:
    check_model(GoodputModel(limits=BatchLimits(initial_batch_size=1)))


@pytest.mark.parametrize("name", ["alpha_g", "beta_g", "alpha_n", "beta_n", "alpha_l", "beta_l", "gamma"])
@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, -math.inf, -1e-9, 1e300, "0.1", None, True, pytest.param(10**5000, id="huge")],
)
def test_that_an_impossible_parameter_is_named(name: str, value: Any) -> None:
    with pytest.raises(InvalidModelError, match=rf"throughput\.{name}"):
        check_model(changed("throughput", **{name: value}))


@pytest.mark.parametrize("gamma", [0.99, 10.01])
def test_that_gamma_stays_in_its_range(gamma: float) -> None:
    with pytest.raises(InvalidModelError, match="gamma must be a number from 1 to 10"):
        check_model(changed("throughput", gamma=gamma))


def test_that_a_micro_batch_takes_time() -> None:
    with pytest.raises(InvalidModelError, match="time of a micro-batch"):
        check_model(changed("throughput", alpha_g=0.0, beta_g=0.0))


@pytest.mark.parametrize("name", ["sqr", "var"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 1e31, "1", False])
def test_that_an_impossible_statistic_is_named(name: str, value: Any) -> None:
    with pytest.raises(InvalidModelError, match=rf"statistics\.{name}"):
        check_model(changed("statistics", **{name: value}))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("initial_batch_size", 0),
        ("initial_batch_size", 10**9 + 1),
        ("initial_batch_size", 32.0),
        ("max_batch_size", 31),
        ("max_batch_size", math.nan),
        ("min_atomic", 0),
        ("min_atomic", 513),
        ("max_atomic", 3),
        ("max_atomic", True),
        ("accumulation", 1),
    ],
)
def test_that_an_impossible_batch_limit_is_named(field: str, value: Any) -> None:
    with pytest.raises(InvalidModelError, match=rf"limits\.{field}"):
        check_limits(dataclasses.replace(GOOD.limits, **{field: value}))


def test_that_a_fixed_batch_is_not_smaller_than_its_smallest_part() -> None:
    with pytest.raises(InvalidModelError, match=r"limits\.min_atomic"):
        check_limits(BatchLimits(initial_batch_size=8, min_atomic=9))


@pytest.mark.parametrize(
    ("field", "value"), [("max_gpus_seen", -1), ("max_gpus_seen", 10**7), ("max_nodes_seen", 5)]
)
def test_that_an_impossible_count_is_named(field: str, value: int) -> None:
    with pytest.raises(InvalidModelError, match=field):
        check_model(changed("model", **{field: value}))


def test_that_the_message_does_not_repeat_a_megabyte() -> None:
    with pytest.raises(InvalidModelError) as caught:
        check_model(changed("throughput", alpha_g="x" * 10**6))
    assert len(str(caught.value)) < 200
