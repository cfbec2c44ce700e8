"""The best batch in plain Python, one pair at a time: the readable twin of `goodput/batch_search.py`.

The same search, which that file explains, by halving alone. Answers agree but for rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pollux_slurm.goodput import GoodputEstimate, conservative_statistics
from pollux_slurm.goodput.batch_choice import is_possible
from pollux_slurm.goodput.batch_search import MAX_MICRO_BATCHES, SHORTEST_STEP_S
from pollux_slurm.model import (
    BatchChoice,
    BatchLimits,
    Configuration,
    GoodputModel,
    GradientStatistics,
    ThroughputParameters,
)


def best_batch(model: GoodputModel, configuration: Configuration) -> GoodputEstimate | None:
    """Return the batch with the highest goodput, None without a throughput model or an allowed batch.

    The low end of the noise scale's interval counts, where there is one. Ties go to fewer micro-batches, then
    to smaller batches, but even parts win over uneven ones.
    """
    if model.throughput is None or not is_possible(configuration):
        return None
    limits, gpus = model.limits, configuration.num_gpus
    statistics = conservative_statistics(model.statistics, limits.initial_batch_size)
    pair = _Pair(model.throughput, statistics, limits, configuration)
    goodput, size, micro_batches, atomic = 0.0, 0, 0, 0
    for tried, low, high in pair.choices():
        top = pair.top(tried, low, high)
        # The sign of a slope may be wrong by rounding, so the neighbour is tried, too.
        for m in (top - 1, top) if top > low else (top,):
            found = pair.goodput(tried, m, gpus * tried * m)
            if found > goodput:
                goodput, size, micro_batches, atomic = found, gpus * tried * m, tried, m
    whole = _exactly_initial(limits, gpus)
    if whole is not None:
        found = pair.goodput(*whole, limits.initial_batch_size)
        if found > goodput:
            goodput, size, (micro_batches, atomic) = found, limits.initial_batch_size, whole
    return pair.estimate(_choice(size, micro_batches, atomic)) if goodput > 0 else None


def best_of(
    model: GoodputModel, configuration: Configuration, batches: Sequence[BatchChoice]
) -> GoodputEstimate | None:
    """Return the first of `batches` with the highest goodput, allowed or not; None as in `best_batch`."""
    if model.throughput is None or not is_possible(configuration):
        return None
    limits = model.limits
    statistics = conservative_statistics(model.statistics, limits.initial_batch_size)
    pair = _Pair(model.throughput, statistics, limits, configuration)
    best, goodput = None, 0.0
    for batch in batches:
        found = pair.goodput(batch.accumulation_steps + 1, batch.atomic_batch_size, batch.global_batch_size)
        if found > goodput:
            best, goodput = batch, found
    return None if best is None else pair.estimate(best)


class _Pair:
    """One job in one configuration: the numbers of its formulas as floats."""

    __slots__ = ("_alpha", "_beta", "_gamma", "_gpus", "_limits", "_noise", "_sqr", "_sync", "_var")

    def __init__(
        self,
        theta: ThroughputParameters,
        statistics: GradientStatistics | None,
        limits: BatchLimits,
        configuration: Configuration,
    ) -> None:
        self._alpha, self._beta, self._gamma = theta.alpha_g, theta.beta_g, theta.gamma
        self._gpus, self._limits = configuration.num_gpus, limits
        self._sync = 0.0
        if self._gpus > 1:
            spread = configuration.num_nodes > 1
            alpha, beta = (theta.alpha_n, theta.beta_n) if spread else (theta.alpha_l, theta.beta_l)
            self._sync = alpha + beta * (self._gpus - 2)
        self._sqr, self._var = (0.0, 0.0) if statistics is None else (statistics.sqr, statistics.var)
        self._noise = self._var * limits.initial_batch_size

    def choices(self) -> list[tuple[int, int, int]]:
        """Return each number of micro-batches to try, with the range of m that keeps M within bounds."""
        limits, gpus = self._limits, self._gpus
        largest, initial = limits.max_batch_size or 0, limits.initial_batch_size
        if not largest:
            return []
        bound = max(min(limits.max_atomic, largest) if limits.max_atomic else largest, 1)
        fewest = max(-(-initial // (gpus * bound)), 1)
        most = max(-(-largest // (gpus * bound)), 2 if gpus == 1 else 1) if limits.accumulation else 1
        found = []
        for micro_batches in range(fewest, min(most, fewest + MAX_MICRO_BATCHES - 1) + 1):
            low = max(limits.min_atomic, -(-initial // (gpus * micro_batches)))
            high = min(bound, largest // (gpus * micro_batches))
            if gpus == 1 and micro_batches == 1:
                high = min(high, initial)
            if low <= high:
                found.append((micro_batches, low, high))
        return found

    def top(self, micro_batches: int, low: int, high: int) -> int:
        """Return the first m of a range beyond which goodput does not grow (`high` if it always grows)."""
        alpha, beta, gamma, sync, noise = self._alpha, self._beta, self._gamma, self._sync, self._noise
        inverse, steps, slope = 1.0 / gamma, micro_batches - 1, self._sqr * self._gpus * micro_batches
        while low < high:
            m = (low + high) // 2
            scaled = beta * m
            grad = max(alpha + scaled, SHORTEST_STEP_S)
            q = 1.0 + (sync / grad) ** gamma
            last = q**inverse
            if (noise + slope * m) * scaled * (steps + last / q) >= noise * grad * (steps + last):
                high = m
            else:
                low = m + 1
        return low

    def step_time_s(self, micro_batches: int, m: int) -> float:
        grad = max(self._alpha + self._beta * m, SHORTEST_STEP_S)
        longer, shorter = (grad, self._sync) if grad >= self._sync else (self._sync, grad)
        last: float = longer * (1.0 + (shorter / longer) ** self._gamma) ** (1.0 / self._gamma)
        return (micro_batches - 1) * grad + last

    def efficiency(self, size: int) -> float:
        scale = size / self._limits.initial_batch_size
        denominator = self._var + self._sqr * scale
        return (self._var + self._sqr) / denominator if denominator > 0 else 1.0 / scale

    def goodput(self, micro_batches: int, m: int, size: int) -> float:
        return size / self.step_time_s(micro_batches, m) * self.efficiency(size)

    def estimate(self, batch: BatchChoice) -> GoodputEstimate:
        step_time_s = self.step_time_s(batch.accumulation_steps + 1, batch.atomic_batch_size)
        throughput = batch.global_batch_size / step_time_s
        efficiency = self.efficiency(batch.global_batch_size)
        return GoodputEstimate(
            batch=batch,
            throughput=throughput,
            efficiency=efficiency,
            goodput=throughput * efficiency,
            step_time_s=step_time_s,
        )


def _exactly_initial(limits: BatchLimits, num_gpus: int) -> tuple[int, int] | None:
    """Return the number of micro-batches and m that split M0, None where that is impossible."""
    initial = limits.initial_batch_size
    most = initial // num_gpus if limits.accumulation else min(initial // num_gpus, 1)
    for micro_batches in range(1, most + 1):
        m = math.ceil(initial / (num_gpus * micro_batches))
        if m <= (limits.max_atomic or initial):  # the fewest micro-batches that memory has room for
            return (micro_batches, m) if m >= limits.min_atomic else None
    return None


def _choice(size: int, micro_batches: int, m: int) -> BatchChoice:
    return BatchChoice(global_batch_size=size, atomic_batch_size=m, accumulation_steps=micro_batches - 1)
