"""The Lagrangian dual of scheduling: a lower bound on the average completion time of any policy.

docs/bound.md derives it. For any prices λ ≥ 0 of a GPU second, the sum of what each job pays at least, minus
the price of all GPUs, is at most the sum of the jobs' completion times under any policy. Prices are looked
for with a coarse model; the bound is then computed with the exact one, so it holds whatever they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pollux_slurm.errors import SimulationError
from pollux_slurm.simulator.bound.best_replies import BestReplies
from pollux_slurm.simulator.bound.speeds import Options, epoch_seconds, in_whole_seconds, make_options
from pollux_slurm.simulator.engine.cluster import Cluster, with_traced_speeds
from pollux_slurm.simulator.inputs.applications import Application
from pollux_slurm.simulator.inputs.workload import WorkloadJob

FloatArray = npt.NDArray[np.float64]

# Jobs whose work differs by less are of one kind, with the least work of it.
_WORK_WIDTH = 1.05
# The end of an epoch is rounded to a second: a run gains at most half a second by it.
_ROUNDING_S = 0.5
# A cell is this part of the delay, or less where the training is short: it has at least so many cells, and
# at most so many.
_CELLS_A_DELAY, _CELLS = 4, (100, 20_000)
# The coarse model: rounds, cells, and how far apart options are.
_COARSE_ROUNDS, _COARSE_CELL_S, _COARSE_CELLS, _COARSE_RATIO = 240, 60.0, (30, 300), 2.0
# The search of prices: its steps, where it begins, as a part of the jobs per GPU, and what a step aims at.
_PRICE_STEPS, _FIRST_PRICE, _FIRST_AIM, _LEAST_AIM, _PROGRESS, _MOST_MISSES = 40, 0.3, 0.4, 0.1, 0.02, 3
_SMOOTHING = np.array([0.25, 0.5, 0.25])
# Equal shares are computed with so many parts of a coarse round.
_PARTS = 8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Kind:
    """Jobs that train the same: their options, and when they were submitted, ascending."""

    options: Options
    submitted_s: FloatArray


def average_bound(
    workload: Sequence[WorkloadJob],
    applications: Mapping[str, Application],
    cluster: Cluster,
    *,
    on_done: Callable[[float, str], None] = lambda done, text: None,
) -> float:
    """Return seconds below which no policy can bring the average completion time, under rules `osdi21`.

    Moves are requeues that cost the cluster's restart delay. `on_done` hears of the part that is done.
    Raises `SimulationError` for a job that can train on no number of GPUs.
    """
    cluster = with_traced_speeds(cluster, applications)
    kinds = _kinds(workload, applications, cluster)
    on_done(0.1, "speeds")
    prices, coarse_rounds = _find_prices(kinds, cluster, lambda part: on_done(0.1 + 0.3 * part, "prices"))
    prices = np.repeat(prices, coarse_rounds)
    models = [_exact_model(kind.options, cluster) for kind in kinds]
    sizes = np.cumsum([model.size for model in models])
    total_s, free_s = -cluster.num_gpus * cluster.interval_s * float(prices.sum()), 0.0
    for kind, model, size in zip(kinds, models, sizes, strict=True):
        costs = model.start_costs(prices)
        total_s += _paid(kind, costs, cluster.interval_s)
        # Where GPUs are free for ever, as they are after the last priced round.
        free_s += _paid(kind, costs[-1:], cluster.interval_s)
        on_done(0.4 + 0.6 * size / sizes[-1], "bound")
    return max(total_s, free_s) / len(workload)


def _paid(kind: _Kind, start_costs: FloatArray, round_s: float) -> float:
    """Return what the jobs of a kind pay from their submissions on."""
    first = _first_rounds(kind, round_s)
    costs = start_costs[np.minimum(first, len(start_costs) - 1).astype(np.int64)]
    return float((first * round_s - kind.submitted_s + costs).sum())


def _first_rounds(kind: _Kind, round_s: float) -> FloatArray:
    """Return the first rounds in which the jobs are seen; no decision is made at time 0."""
    return np.asarray(np.maximum(np.ceil(kind.submitted_s / round_s), 1.0), dtype=np.float64)


def _kinds(
    workload: Sequence[WorkloadJob], applications: Mapping[str, Application], cluster: Cluster
) -> list[_Kind]:
    batch_sizes: dict[str, set[int]] = {}
    most_gpus: dict[str, int] = {}  # of applications with a fixed batch; others may have all
    members: dict[tuple[str, float], list[float]] = {}
    for job in workload:
        name = job.application
        batch_sizes.setdefault(name, set()).add(job.batch_size)
        most_gpus[name] = max(most_gpus.get(name, applications[name].most_gpus), job.num_replicas)
        members.setdefault((name, _least_work(job.work)), []).append(job.submitted_s)
    epoch_s = {
        name: epoch_seconds(
            applications[name],
            cluster,
            batch_sizes[name],
            cluster.num_gpus
            if applications[name].fixed_batch is None
            else min(most_gpus[name], cluster.num_gpus),
        )
        for name in batch_sizes
    }
    whole = all(value == int(value) for value in (cluster.interval_s, cluster.restart_delay_s))
    kinds = []
    for (name, work), submitted_s in members.items():
        least_s = in_whole_seconds(epoch_s[name], exactly=whole) if work == 1.0 else epoch_s[name] * work
        options = make_options(least_s)
        if not len(options.num_gpus):
            raise SimulationError(f"{name}: the traces have no step time on {cluster.num_gpus} GPUs or fewer")
        kinds.append(_Kind(options=options, submitted_s=np.sort(submitted_s)))
    return kinds


def _least_work(work: float) -> float:
    """Return the least work of a job's kind."""
    if work == 1.0:
        return work
    return float(_WORK_WIDTH ** math.floor(math.log(work) / math.log(_WORK_WIDTH)))


def _exact_model(options: Options, cluster: Cluster) -> BestReplies:
    return BestReplies(
        options,
        round_s=cluster.interval_s,
        delay_s=cluster.restart_delay_s - _ROUNDING_S,
        cells_a_round=_cells_a_round(
            options, cluster.interval_s, max(cluster.restart_delay_s, 1.0) / _CELLS_A_DELAY, _CELLS
        ),
    )


def _cells_a_round(options: Options, round_s: float, cell_s: float, counts: tuple[int, int]) -> int:
    """Return how many cells of about `cell_s` a round has; the whole training has between `counts`."""
    longest_s = float(options.total_s.max())
    least, most = counts
    return max(int(round_s / max(min(cell_s, longest_s / least), longest_s / most)), 1)


# ------------------------------------------------------------------------------------------------ the prices


def _find_prices(
    kinds: Sequence[_Kind], cluster: Cluster, on_done: Callable[[float], None]
) -> tuple[FloatArray, int]:
    """Return good prices of coarse rounds, and how many rounds each of them is."""
    num_gpus, round_s = cluster.num_gpus, cluster.interval_s
    gpu_s = sum(
        float((kind.options.num_gpus * (kind.options.total_s + cluster.restart_delay_s)).min())
        * len(kind.submitted_s)
        for kind in kinds
    )
    last_s = max(float(kind.submitted_s[-1]) for kind in kinds)
    longest_s = max(float(kind.options.total_s.min()) for kind in kinds)
    horizon_s = last_s + gpu_s / num_gpus + longest_s + 2 * round_s
    least = math.ceil(max(cluster.restart_delay_s, round_s) / round_s)
    merged = max(math.ceil(horizon_s / round_s / _COARSE_ROUNDS), least)
    step_s = merged * round_s
    coarse = _CoarseDual(kinds, cluster, step_s, math.ceil(horizon_s / step_s))
    return coarse.best_prices(on_done), merged


class _CoarseDual:
    """The dual with long rounds and few options, as a function of the prices."""

    def __init__(self, kinds: Sequence[_Kind], cluster: Cluster, step_s: float, num_steps: int) -> None:
        num_gpus, round_s, delay_s = cluster.num_gpus, cluster.interval_s, cluster.restart_delay_s
        self._kinds, self._num_gpus, self._step_s, self._num_steps = kinds, num_gpus, step_s, num_steps
        # The nearest step: on average, it is as long before the first round as after it.
        self._first = [
            np.rint(_first_rounds(kind, round_s) * round_s / step_s).astype(np.int64) for kind in kinds
        ]
        self._start_s = delay_s
        self._models = []
        for kind in kinds:
            few = kind.options.thinned(_COARSE_RATIO)
            cells = _cells_a_round(few, step_s, _COARSE_CELL_S, _COARSE_CELLS)
            self._models.append(
                BestReplies(few, round_s=step_s, delay_s=delay_s, cells_a_round=cells, round_up=True)
            )

    def value(self, prices: FloatArray) -> tuple[float, FloatArray]:
        """Return the dual's value, and its slope for each price: GPU seconds used less those there are."""
        capacity_s = self._num_gpus * self._step_s
        total_s, slope = -capacity_s * float(prices.sum()), np.full(self._num_steps, -float(capacity_s))
        for kind, first, model in zip(self._kinds, self._first, self._models, strict=True):
            costs = model.start_costs(prices, keep=True)[first]
            total_s += float((first * self._step_s - kind.submitted_s + costs).sum())
            slope += model.gpu_seconds(first, self._num_steps)
        return total_s, slope

    def best_prices(self, on_done: Callable[[float], None]) -> FloatArray:
        """Return the best prices found by subgradient steps.

        A step aims at a value between the best one and that of equal shares. It aims lower when there is no
        better value three times in a row, and begins at the best prices again.
        """
        equal_s, crowd = self._equal_shares()
        found = [(*self.value(prices), prices) for prices in (0.0 * crowd, _FIRST_PRICE * crowd)]
        value, slope, prices = best, best_slope, best_prices = max(found, key=lambda one: one[0])
        aim, misses = _FIRST_AIM, 0
        for step in range(_PRICE_STEPS):
            on_done(step / _PRICE_STEPS)
            uphill = np.convolve(np.pad(slope, 1, mode="edge"), _SMOOTHING, "valid")
            uphill[(prices <= 0) & (uphill < 0)] = 0.0
            gain = float(uphill @ slope)
            if gain <= 0:
                break
            aimed = aim * max(equal_s - best, _LEAST_AIM * best)
            wanted = best + aimed - value
            prices = np.maximum(prices + wanted / gain * uphill, 0.0)
            value, slope = self.value(prices)
            misses += 1
            if value > best:
                misses = 0 if value > best + _PROGRESS * aimed else misses
                best, best_prices, best_slope = value, prices, slope
            if misses >= _MOST_MISSES:
                aim, misses = aim / 2, 0
                value, prices, slope = best, best_prices, best_slope
        return best_prices

    def _equal_shares(self) -> tuple[float, FloatArray]:
        """Return the sum of completion times under equal shares, about, and jobs per GPU at each step."""
        waiting = sorted(
            (submitted_s, index)
            for index, kind in enumerate(self._kinds)
            for submitted_s in kind.submitted_s.tolist()
        )
        rates = [1 / kind.options.total_s for kind in self._kinds]
        present: list[tuple[int, float, float]] = []
        total_s, crowd = len(waiting) * self._start_s, np.zeros(self._num_steps)
        part_s = self._step_s / _PARTS
        for part in range(self._num_steps * _PARTS):
            while waiting and waiting[0][0] <= part * part_s:
                submitted_s, index = waiting.pop(0)
                present.append((index, submitted_s, 1.0))
            if not present:
                continue
            crowd[part // _PARTS] += len(present) / self._num_gpus / _PARTS
            total_s += len(present) * part_s
            share = self._num_gpus / len(present)
            speeds = [
                min(share, 1.0) * float(rate[kind.options.num_gpus <= max(share, 1.0)].max(initial=rate[0]))
                for kind, rate in zip(self._kinds, rates, strict=True)
            ]
            left = ((index, at_s, rest - speeds[index] * part_s) for index, at_s, rest in present)
            present = [one for one in left if one[-1] > 0]
        return total_s, crowd
