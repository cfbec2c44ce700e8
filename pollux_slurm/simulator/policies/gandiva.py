"""Gandiva (OSDI 2018), as Gavel restates it: time slices, packing by trial, migration against fragments.

    if requests exceed GPUs: pair jobs of equal size at random
    keep a pair while the sum of its normalised rates is 1 or more
    time slices: who had least time runs in the next round
    migrate where free GPUs do not fit a job on one node

It knows no speeds of GPU types: on a cluster of several, the type of a slice is drawn.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence

from pollux_slurm.model import BatchChoice
from pollux_slurm.simulator.engine.cluster import Cluster
from pollux_slurm.simulator.engine.job import GpusByNode, SimulatedJob
from pollux_slurm.simulator.engine.sharing import Pair, PairRates, SharingPolicy
from pollux_slurm.simulator.inputs.batch_splits import user_batch
from pollux_slurm.simulator.policies.packing import FreeGpus
from pollux_slurm.simulator.policies.user_rates import type_counts

# One or two jobs that run together.
_Unit = tuple[SimulatedJob, ...]


class GandivaPolicy(SharingPolicy):
    """Users' sizes and batches; pairs are drawn with a fixed seed."""

    resizes = False

    def __init__(self, rates: PairRates) -> None:
        super().__init__(rates)
        self._rng = random.Random(0)
        self._partner: dict[str, str] = {}
        # Pairs that were slower than taking turns.
        self._refused: set[frozenset[str]] = set()
        self._got_s: dict[str, float] = {}
        self._running: set[str] = set()
        self._decided_s = 0.0

    def choose_batch(self, job: SimulatedJob) -> BatchChoice:
        return user_batch(job.job, job.application, job.num_gpus)

    def allocate(
        self, now_s: float, jobs: Sequence[SimulatedJob], cluster: Cluster
    ) -> Mapping[str, GpusByNode]:
        for job in jobs:
            ran_s = now_s - self._decided_s if job.job.name in self._running else 0.0
            self._got_s[job.job.name] = self._got_s.get(job.job.name, 0.0) + ran_s
        self._decided_s = now_s
        self._pair(jobs, cluster)
        found: dict[str, GpusByNode] = {}
        for kind, units in self._round(self._units(jobs), cluster).items():
            found |= _place(units, cluster.with_only(kind))
        self._running = set(found)
        pairs = {tuple(sorted((name, other))) for name, other in self._partner.items()}
        self.pairs = tuple(Pair(first=a, second=b) for a, b in sorted(pairs) if a in found)
        return found

    def _pair(self, jobs: Sequence[SimulatedJob], cluster: Cluster) -> None:
        """Part pairs that do not pay; while requests exceed the GPUs, pair jobs of equal size at random.

        A pair that pays stays, also when GPUs become free.
        """
        by_name = {job.job.name: job for job in jobs}
        for name, other in list(self._partner.items()):
            if name not in by_name or other not in by_name:
                self._part(name, other)
            elif name < other and not self._pays(by_name[name], by_name[other]):
                self._refused.add(frozenset((name, other)))
                self._part(name, other)
        excess = sum(job.job.num_replicas for job in jobs) - cluster.num_gpus
        excess -= sum(by_name[name].job.num_replicas for name in self._partner) // 2
        singles = [job for job in jobs if job.job.name not in self._partner]
        self._rng.shuffle(singles)
        while singles and excess > 0:
            job = singles.pop()
            mate = next((one for one in singles if self._may_share(job, one, cluster)), None)
            if mate is not None:
                singles.remove(mate)
                self._partner[job.job.name], self._partner[mate.job.name] = mate.job.name, job.job.name
                excess -= job.job.num_replicas

    def _part(self, name: str, other: str) -> None:
        self._partner.pop(name, None)
        self._partner.pop(other, None)

    def _pays(self, first: SimulatedJob, second: SimulatedJob) -> bool:
        """Return whether the pair is as fast as taking turns, where it ran; True before it has run."""
        if not first.allocation or sorted(first.allocation) != sorted(second.allocation):
            return True
        rates = self._rates_on(first.gpu_type, first, second)
        return rates is None or sum(rates) >= 1.0

    def _may_share(self, first: SimulatedJob, second: SimulatedJob, cluster: Cluster) -> bool:
        return (
            first.job.num_replicas == second.job.num_replicas
            and frozenset((first.job.name, second.job.name)) not in self._refused
            and any(self._rates_on(kind, first, second) is not None for kind in cluster.gpu_types)
        )

    def _rates_on(self, kind: str, first: SimulatedJob, second: SimulatedJob) -> tuple[float, float] | None:
        names = (first.job.application, second.job.application)
        return self.rates.of(kind, *names, first.job.num_replicas)

    def _units(self, jobs: Sequence[SimulatedJob]) -> list[_Unit]:
        """Return what runs together, who had least time first."""
        by_name = {job.job.name: job for job in jobs}
        units: list[_Unit] = []
        for job in jobs:
            other = self._partner.get(job.job.name)
            if other is None:
                units.append((job,))
            elif job.job.name < other:
                units.append((job, by_name[other]))
        return sorted(units, key=lambda unit: min(self._got_s[job.job.name] for job in unit))

    def _round(self, units: Sequence[_Unit], cluster: Cluster) -> dict[str, list[_Unit]]:
        """Return the units of each type in this round."""
        left = dict(zip(cluster.gpu_types, type_counts(cluster), strict=True))
        order = list(left)
        self._rng.shuffle(order)
        chosen: dict[str, list[_Unit]] = {kind: [] for kind in order}
        waiting = list(units)
        for kind in order:
            for unit in list(waiting):
                size = unit[0].job.num_replicas
                fits = len(unit) == 1 or self._rates_on(kind, *unit) is not None
                if size <= left[kind] and fits:
                    waiting.remove(unit)
                    left[kind] -= size
                    chosen[kind].append(unit)
        return chosen


def _place(units: Sequence[_Unit], cluster: Cluster) -> dict[str, GpusByNode]:
    """Leave units where they run, unless free GPUs then fit another on no node that could hold it."""
    found = dict(_placed(units, cluster, stay=True))
    most = cluster.gpus_per_node
    if any(len(one) > 1 and sum(gpus for _, gpus in one) <= most for one in found.values()):
        found = dict(_placed(units, cluster, stay=False))
    return found


def _placed(units: Sequence[_Unit], cluster: Cluster, *, stay: bool) -> Iterator[tuple[str, GpusByNode]]:
    """Yield the jobs' allocations, largest first; with `stay`, those that keep theirs come before all."""
    free, left = FreeGpus(cluster, ()), []
    by_size = sorted(units, key=lambda unit: -unit[0].job.num_replicas)
    for unit in by_size:
        if stay and free.keep(unit[0].allocation):
            yield from ((job.job.name, unit[0].allocation) for job in unit)
        else:
            left.append(unit)
    for unit in left:
        same = unit[0].allocation
        place = same if free.keep(same) else free.take(unit[0].job.num_replicas)
        yield from ((job.job.name, place) for job in unit)
