"""Random events of a simulation, drawn with a seed: failing nodes, unmanaged jobs, which jobs are adaptive.

Only `random.Random.random` is used, whose sequence Python guarantees for a seed in all versions.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from pollux_slurm.errors import SimulationError
from pollux_slurm.simulator.engine.cluster_rules import Failures, UnmanagedJob


class Outages:
    """When each node is down. Calls must have ascending times."""

    def __init__(self, failures: Failures | None, num_nodes: int, *, seed: int) -> None:
        self._nodes = [] if failures is None else [_times(failures, seed, node) for node in range(num_nodes)]
        # The next outage of each node that is not over: (from, until).
        self._next = [next(times) for times in self._nodes]

    def between(self, start_s: float, end_s: float) -> dict[int, float]:
        """Return the nodes that fail after `start_s` and up to `end_s`, each with its first failure time."""
        found = {}
        for node, times in enumerate(self._nodes):
            while self._next[node][1] <= start_s:
                self._next[node] = next(times)
            at_s = self._next[node][0]
            if start_s < at_s <= end_s:
                found[node] = at_s
        return found

    def down(self, now_s: float) -> frozenset[int]:
        """Return the nodes that are down at `now_s`."""
        found = set()
        for node, times in enumerate(self._nodes):
            while self._next[node][1] <= now_s:
                self._next[node] = next(times)
            if self._next[node][0] <= now_s:
                found.add(node)
        return frozenset(found)


def _times(failures: Failures, seed: int, node: int) -> Iterator[tuple[float, float]]:
    rng = random.Random(f"failures {seed} {node}")
    now_s = 0.0
    while True:
        fails_s = now_s + _exponential(rng, failures.mtbf_s)
        now_s = fails_s + failures.repair_s
        yield fails_s, now_s


def draw_unmanaged_jobs(
    *,
    seed: int,
    share: float,
    num_gpus: int,
    hours: float,
    mean_duration_s: float = 3600.0,
    most_gpus: int = 4,
) -> tuple[UnmanagedJob, ...]:
    """Return unmanaged jobs that would use `share` of `num_gpus` on average for `hours`.

    They arrive at random times and request 1, 2, 4, ... up to `most_gpus` GPUs with equal probability. Their
    durations are exponentially distributed with mean `mean_duration_s`, and one second at least.
    """
    if not 0 <= share < 1:
        raise SimulationError(
            f"the share of GPUs that others use must be 0 or more and below 1, not {share:g}"
        )
    if not (num_gpus >= 1 and hours > 0 and mean_duration_s >= 1 and most_gpus >= 1):
        raise SimulationError(
            f"unmanaged jobs cannot use {share} of {num_gpus} GPUs for {hours} h in jobs of "
            f"{mean_duration_s} s and up to {most_gpus} GPUs"
        )
    sizes = [1 << power for power in range(min(most_gpus, num_gpus).bit_length())]
    rng = random.Random(f"unmanaged {seed}")
    per_s = share * num_gpus / (mean_duration_s * sum(sizes) / len(sizes))
    found: list[UnmanagedJob] = []
    now_s = 0.0
    while per_s > 0:
        now_s += _exponential(rng, 1 / per_s)
        if now_s >= hours * 3600:
            break
        duration_s = max(_exponential(rng, mean_duration_s), 1.0)
        size = sizes[int(rng.random() * len(sizes))]
        found.append(UnmanagedJob(submitted_s=now_s, duration_s=duration_s, num_gpus=size))
    return tuple(found)


def draw_adaptive(num_jobs: int, share: float, *, seed: int) -> frozenset[int]:
    """Return the indices of the adaptive ones of `num_jobs` jobs: `share` of them, to the nearest job.

    The jobs of a smaller share are among those of a larger one.
    """
    return _draw_share(num_jobs, share, f"adoption {seed}")


def draw_in_place(num_jobs: int, share: float, *, seed: int) -> frozenset[int]:
    """Return the indices of the jobs that can be moved in place, likewise."""
    return _draw_share(num_jobs, share, f"in place {seed}")


def _draw_share(num_jobs: int, share: float, seed: str) -> frozenset[int]:
    rng = random.Random(seed)
    ranks = sorted((rng.random(), index) for index in range(num_jobs))
    return frozenset(index for _, index in ranks[: math.floor(share * num_jobs + 0.5)])


def _exponential(rng: random.Random, mean: float) -> float:
    return -mean * math.log(1.0 - rng.random())
