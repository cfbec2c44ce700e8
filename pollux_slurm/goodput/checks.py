"""Check a goodput model before anything is computed from it."""

from __future__ import annotations

import re

from pollux_slurm.errors import InvalidModelError
from pollux_slurm.model import BatchLimits, GoodputModel, GradientStatistics, ThroughputParameters

MAX_TIME_S = 1e6
MAX_BATCH_SIZE = 10**9
MAX_GPUS = 10**6
MAX_PARAMETERS = 10**15
MAX_STATISTIC = 1e30
MIN_MICRO_BATCH_TIME_S = 1e-9


def check_model(model: GoodputModel) -> None:
    """Raise `InvalidModelError`, naming the field, unless every number is one that a job can have.

    A model may come from an untrusted client, so types are checked, too: a string or a boolean is
    not a number.
    """
    check_limits(model.limits)
    if model.statistics is not None:
        _check_statistics(model.statistics)
    if model.throughput is not None:
        _check_throughput(model.throughput)
    gpus = _whole("max_gpus_seen", model.max_gpus_seen, 0, MAX_GPUS)
    _whole("max_nodes_seen", model.max_nodes_seen, 0, gpus)
    if model.num_parameters is not None:
        _whole("num_parameters", model.num_parameters, 1, MAX_PARAMETERS)
    if model.precision is not None and not (
        isinstance(model.precision, str) and re.fullmatch(r"\w{1,32}", model.precision, re.ASCII)
    ):
        raise InvalidModelError(f"precision must be the name of a type, not {shown(model.precision)}")


def check_limits(limits: BatchLimits) -> None:
    """Raise `InvalidModelError` unless the batch limits are whole, positive and leave something to choose."""
    initial = _whole("limits.initial_batch_size", limits.initial_batch_size, 1, MAX_BATCH_SIZE)
    largest = initial
    if limits.max_batch_size is not None:
        largest = _whole("limits.max_batch_size", limits.max_batch_size, initial, MAX_BATCH_SIZE)
    smallest_atomic = _whole("limits.min_atomic", limits.min_atomic, 1, largest)
    if limits.max_atomic is not None:
        _whole("limits.max_atomic", limits.max_atomic, smallest_atomic, MAX_BATCH_SIZE)
    if limits.failed_atomic is not None:
        _whole("limits.failed_atomic", limits.failed_atomic, 2, MAX_BATCH_SIZE)
    if not isinstance(limits.accumulation, bool):
        raise InvalidModelError("limits.accumulation must be true or false")


def _check_statistics(statistics: GradientStatistics) -> None:
    _real("statistics.sqr", statistics.sqr, 0.0, MAX_STATISTIC)
    _real("statistics.var", statistics.var, 0.0, MAX_STATISTIC)
    low, high = statistics.noise_low, statistics.noise_high
    if low is not None:
        _real("statistics.noise_low", low, 0.0, MAX_STATISTIC)
    if high is not None:
        # Without a low end there is no interval, so any high end is wrong.
        _real("statistics.noise_high", high, MAX_STATISTIC if low is None else low, MAX_STATISTIC)


def _check_throughput(theta: ThroughputParameters) -> None:
    times = (theta.alpha_g, theta.beta_g, theta.alpha_n, theta.beta_n, theta.alpha_l, theta.beta_l)
    # Fast for valid parameters, which nearly all are; a sum that contains NaN is not at most anything.
    if {*map(type, times)} != {float} or min(times) < 0.0 or not sum(times) <= MAX_TIME_S:
        for name in ("alpha_g", "beta_g", "alpha_n", "beta_n", "alpha_l", "beta_l"):
            _real(f"throughput.{name}", getattr(theta, name), 0.0, MAX_TIME_S)
    _real("throughput.gamma", theta.gamma, 1.0, 10.0)
    if theta.alpha_g + theta.beta_g < MIN_MICRO_BATCH_TIME_S:
        raise InvalidModelError(
            "throughput.alpha_g + throughput.beta_g, the time of a micro-batch of one example, must be at "
            f"least {MIN_MICRO_BATCH_TIME_S:g} s, not {theta.alpha_g + theta.beta_g:g}"
        )


def _whole(name: str, value: object, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidModelError(f"{name} must be a whole number from {low} to {high}, not {shown(value)}")
    return value


def _real(name: str, value: object, low: float, high: float) -> None:
    # NaN fails every comparison, and an integer beyond a float's range is still compared exactly.
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise InvalidModelError(f"{name} must be a number from {low:g} to {high:g}, not {shown(value)}")


def shown(value: object) -> str:
    """Return a short text for an untrusted client's value; a number of a million digits is not printed."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**18:
        return "a number beyond 1e18"
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
