"""Two jobs on the same GPUs, in simulations only: the daemon gives whole GPUs.

A GPU has two slots. Jobs of a pair have equally many GPUs, and hold the very same ones: so the pair says
which GPU each slot is of. Their rates are measured, from a table that also says which have too little memory.
A pair's rates hold from one decision to the next, also while one of the two starts, or after it has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pollux_slurm.errors import SimulationError
from pollux_slurm.simulator.engine.cluster_rules import Rules
from pollux_slurm.simulator.engine.job import GpusByNode, SimulatedJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two jobs by name. The second runs in `part` of the time, from 0 to 1; the first all the time."""

    first: str
    second: str
    part: float = 1.0

    def __post_init__(self) -> None:
        if self.first == self.second or not 0 <= self.part <= 1:
            raise SimulationError(f"no pair: {self}")


class PairRates:
    """Rates of pairs relative to each job alone, by GPU type, both applications, and GPUs of each.

    Absent pairs have too little memory, or were never measured.
    """

    def __init__(self, rates: Mapping[tuple[str, str, str, int], tuple[float, float]]) -> None:
        self._rates = dict(rates)

    def of(self, gpu_type: str, first: str, second: str, num_gpus: int) -> tuple[float, float] | None:
        """Return the relative rates of the two; None where they cannot share."""
        found = self._rates.get((gpu_type, first, second, num_gpus))
        if found is None:
            turned = self._rates.get((gpu_type, second, first, num_gpus))
            found = None if turned is None else (turned[1], turned[0])
        return found


class SharingPolicy:
    """A `SchedulingPolicy` that also says which jobs share: after each decision it has `pairs`."""

    def __init__(self, rates: PairRates) -> None:
        self.rates = rates
        self.pairs: tuple[Pair, ...] = ()


def check_sharing(rules: Rules, *, scales: bool) -> None:
    """Refuse rules under which jobs that share are not simulated. Raises `SimulationError`."""
    if rules.name != "osdi21" or rules.in_place is not None or rules.interference or scales:
        raise SimulationError(
            "GPUs are shared under rules osdi21 only, without moves in place, interference and autoscaling"
        )


def relative_rates(
    pairs: Iterable[Pair],
    decision: Mapping[str, GpusByNode],
    jobs: Sequence[SimulatedJob],
    types: Sequence[str],
    rates: PairRates,
) -> dict[str, float]:
    """Return the rate of each job of a pair relative to alone; `types` are the nodes'.

    In 1 − p of the time the first runs alone, in p of it both do. Raises `SimulationError` for a pair that
    does not hold the same GPUs of one type, has a third job, or has no measured rates.
    """
    by_name = {job.job.name: job for job in jobs}
    found: dict[str, float] = {}
    for pair in pairs:
        names = (pair.first, pair.second)
        held = [decision.get(name, ()) for name in names]
        if not held[0] or sorted(held[0]) != sorted(held[1]) or any(name in found for name in names):
            raise SimulationError(
                f"jobs {names[0]} and {names[1]} share, but not the same GPUs as two: {held}"
            )
        kinds = {types[node] for node, _ in held[0]}
        first, second = (by_name[name].job.application for name in names)
        num_gpus = sum(gpus for _, gpus in held[0])
        both = rates.of(min(kinds), first, second, num_gpus) if len(kinds) == 1 else None
        if both is None:
            raise SimulationError(
                f"jobs {names[0]} and {names[1]} cannot share {num_gpus} GPUs of {', '.join(sorted(kinds))}: "
                "too little memory, or never measured"
            )
        found[pair.first] = (1 - pair.part) + pair.part * both[0]
        found[pair.second] = pair.part * both[1]
    return found


def held_once(decision: Mapping[str, GpusByNode], pairs: Iterable[Pair]) -> dict[str, GpusByNode]:
    """Return the allocations without those of the pairs' second jobs, which take no GPUs of their own."""
    seconds = {pair.second for pair in pairs}
    return {name: allocation for name, allocation in decision.items() if name not in seconds}
