"""Which batches a job's bounds allow in a configuration, the goodput of one, and the best of some given ones.

Legend: K replicas on N nodes, atomic batch m, accumulation steps s, P = s + 1 micro-batches, global batch M.

A batch is allowed when (Pollux section 4.1)

- *fixed* (no `max_batch_size`): M is exactly M0 on any K ≤ M0, in the fewest micro-batches for which
  m = ⌈M0/(K·P)⌉ ≤ max_atomic; P > 1 needs `accumulation`. Shares may be uneven: every micro-batch of every
  replica gets m examples or one less. Efficiency is 1.
- *adaptive*: M = K·m·P with M0 ≤ M ≤ M_max and min_atomic ≤ m ≤ max_atomic, and P ≥ 2 for one replica with
  M > M0; P is at most what reaches M_max. Or M0 itself, split as above.

`batch_search.py` finds the best one of all that are allowed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pollux_slurm.goodput.batch_search import GEOMETRIC, SHORTEST_STEP_S
from pollux_slurm.goodput.efficiency import conservative_statistics, efficiency
from pollux_slurm.goodput.throughput_model import iteration_time_s
from pollux_slurm.model import (
    BatchChoice,
    BatchLimits,
    Configuration,
    GoodputModel,
    GradientStatistics,
    ThroughputParameters,
)

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodputEstimate:
    """The prediction for one batch: throughput in examples/s, goodput = throughput × efficiency."""

    batch: BatchChoice
    throughput: float
    efficiency: float
    goodput: float
    step_time_s: float


class BatchChoices(tuple[BatchChoice, ...]):
    """Batches to choose among, with their numbers as arrays for repeated choices."""

    @functools.cached_property
    def columns(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Global batch sizes, examples per micro-batch of a replica, and accumulation steps, each `(B,)`."""
        rows = [(one.global_batch_size, one.atomic_batch_size, one.accumulation_steps) for one in self]
        sizes, atomic, steps = np.array(rows, dtype=np.float64).reshape(-1, 3).T.copy()
        return sizes, atomic, steps


class BatchChooser:
    """Chooses among batches of one θ in one configuration, repeatedly, as gradient statistics change.

    Step times are computed once.
    """

    def __init__(
        self,
        theta: ThroughputParameters,
        limits: BatchLimits,
        configuration: Configuration,
        batches: Sequence[BatchChoice],
    ) -> None:
        self._batches = batches if isinstance(batches, BatchChoices) else BatchChoices(batches)
        self._initial = limits.initial_batch_size
        sizes, atomic, steps = self._batches.columns
        self._steps_s = _step_times_s(theta, configuration, atomic, steps)
        self._throughput, self._scale = sizes / self._steps_s, sizes / self._initial
        self._possible = is_possible(configuration) and bool(self._batches)
        # In a simulation, jobs of one application ask with the same statistics.
        self._found: dict[GradientStatistics | None, GoodputEstimate | None] = {}

    def best(self, statistics: GradientStatistics | None) -> GoodputEstimate | None:
        """Return the first batch with the highest goodput, None where there is none."""
        if not self._possible:
            return None
        # Hashing takes longer than the look-up, so there is only one look-up.
        found = self._found.get(statistics, False)
        if isinstance(found, bool):
            found = self._found[statistics] = self._best(statistics)
        return found

    def _best(self, statistics: GradientStatistics | None) -> GoodputEstimate | None:
        counted = conservative_statistics(statistics, self._initial)
        if counted is None or not (counted.var > 0 or counted.sqr > 0):
            efficiencies = 1.0 / self._scale
        else:
            efficiencies = (counted.var + counted.sqr) / (counted.var + counted.sqr * self._scale)
        goodput = self._throughput * efficiencies
        index = int(goodput.argmax())
        highest = goodput.item(index)
        if not highest > 0:
            return None
        return GoodputEstimate(
            batch=self._batches[index],
            throughput=self._throughput.item(index),
            efficiency=efficiencies.item(index),
            goodput=highest,
            step_time_s=self._steps_s.item(index),
        )


def geometric_batches(limits: BatchLimits, num_gpus: int) -> BatchChoices:
    """Return the distinct batches among `GEOMETRIC` geometrically spaced ones, as the artifact tries them.

    M runs from max(M0, m_min·K) to M_max. P is the fewest micro-batches into which M/K examples fit, at least
    two for one replica with M > M0, and m = ⌈M/(K·P)⌉ within its bounds. A fixed batch: M0 alone.
    """
    if limits.max_batch_size is None:
        whole = _exactly_initial(limits, num_gpus)
        return BatchChoices(() if whole is None else [_choice(limits.initial_batch_size, *whole)])
    first = max(limits.initial_batch_size, limits.min_atomic * num_gpus)
    if first > limits.max_batch_size:
        return BatchChoices()
    largest = limits.max_atomic or limits.max_batch_size
    found: dict[tuple[int, int], None] = {}
    for part in np.linspace(0.0, 1.0, GEOMETRIC).tolist():
        local: float = first * (limits.max_batch_size / first) ** part / num_gpus
        micro_batches = max(math.ceil(local / largest - 1e-8), 1) if limits.accumulation else 1
        if num_gpus == 1 and local > limits.initial_batch_size + 1e-8:
            if limits.accumulation:
                micro_batches = max(micro_batches, 2)
            else:
                local = limits.initial_batch_size
        atomic = math.ceil(local / micro_batches - 1e-8)
        found[micro_batches, min(max(atomic, limits.min_atomic), largest)] = None
    return BatchChoices(
        _choice(num_gpus * micro_batches * atomic, micro_batches, atomic) for micro_batches, atomic in found
    )


def evaluate(model: GoodputModel, configuration: Configuration, batch: BatchChoice) -> GoodputEstimate | None:
    """Return the prediction for `batch`, allowed or not; None without a throughput model."""
    if model.throughput is None or not is_possible(configuration):
        return None
    step_time_s = float(
        iteration_time_s(
            model.throughput,
            configuration.num_nodes,
            configuration.num_gpus,
            batch.atomic_batch_size,
            batch.accumulation_steps,
        )
    )
    throughput = batch.global_batch_size / step_time_s
    part = float(efficiency(model.statistics, model.limits.initial_batch_size, batch.global_batch_size))
    return GoodputEstimate(
        batch=batch,
        throughput=throughput,
        efficiency=part,
        goodput=throughput * part,
        step_time_s=step_time_s,
    )


def is_possible(configuration: Configuration) -> bool:
    """Return whether a configuration has a node, and a GPU on each."""
    return 1 <= configuration.num_nodes <= configuration.num_gpus


def _step_times_s(
    theta: ThroughputParameters, configuration: Configuration, atomic: FloatArray, steps: FloatArray
) -> FloatArray:
    """Return the step times of batches, `(B,)`, in seconds; `steps` are micro-batches − 1."""
    sync_s = 0.0
    if configuration.num_gpus > 1:
        spread = configuration.num_nodes > 1
        alpha, beta = (theta.alpha_n, theta.beta_n) if spread else (theta.alpha_l, theta.beta_l)
        sync_s = alpha + beta * (configuration.num_gpus - 2)
    grad = np.maximum(theta.alpha_g + theta.beta_g * atomic, SHORTEST_STEP_S)
    if sync_s == 0.0:
        return steps * grad + grad
    longer, shorter = np.maximum(grad, sync_s), np.minimum(grad, sync_s)
    last = longer * (1.0 + (shorter / longer) ** theta.gamma) ** (1.0 / theta.gamma)
    return np.asarray(steps * grad + last)


def _exactly_initial(limits: BatchLimits, num_gpus: int) -> tuple[int, int] | None:
    """Return the number of micro-batches and m that split M0, None where that is impossible."""
    initial = limits.initial_batch_size
    bound = limits.max_atomic or initial
    micro_batches = max(-(-initial // (num_gpus * bound)), 1)
    m = -(-initial // (num_gpus * micro_batches))
    fits = num_gpus * micro_batches <= initial and (micro_batches == 1 or limits.accumulation)
    return (micro_batches, m) if fits and limits.min_atomic <= m <= bound else None


def _choice(size: int, micro_batches: int, m: int) -> BatchChoice:
    return BatchChoice(global_batch_size=size, atomic_batch_size=m, accumulation_steps=micro_batches - 1)
