"""Gandiva (OSDI 2018), as Gavel restates it: time slices, packing by trial, migration against fragments.

    if requests exceed GPUs: pair all jobs of equal size at random
    keep a pair while the sum of its normalised rates is 1 or more
    time slices: per type, fastest first, who had it for the least part of its time since it came
    migrate where free GPUs do not fit a job on one node

As in Gavel's artifact, pairs run only while requests exceed the GPUs, and the order of types is its only
knowledge of their speeds.
"""

from __future__ import annotations

import random
from collections import Counter
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
        # Rounds of each job on each type.
        self._rounds: Counter[tuple[str, str]] = Counter()

    def choose_batch(self, job: SimulatedJob) -> BatchChoice:
        return user_batch(job.job, job.application, job.num_gpus)

    def allocate(
        self, now_s: float, jobs: Sequence[SimulatedJob], cluster: Cluster
    ) -> Mapping[str, GpusByNode]:
        pairs = self._pair(jobs, cluster)
        found: dict[str, GpusByNode] = {}
        for kind, units in self._round(now_s, _units(jobs, pairs), cluster).items():
            self._rounds.update((job.job.name, kind) for unit in units for job in unit)
            found |= _place(units, cluster.with_only(kind))
        self.pairs = tuple(Pair(first=a, second=b) for a, b in sorted(pairs.items()) if a in found)
        return found

    def _pair(self, jobs: Sequence[SimulatedJob], cluster: Cluster) -> dict[str, str]:
        """Return the second job by the first of each pair that shares in this round, by name.

        Pairs that do not pay are parted. While requests exceed the GPUs, all others are paired.
        """
        by_name = {job.job.name: job for job in jobs}
        ran = {(pair.first, pair.second) for pair in self.pairs}
        for name, other in list(self._partner.items()):
            if name not in by_name or other not in by_name:
                self._part(name, other)
            elif (name, other) in ran and not self._pays(by_name[name], by_name[other]):
                self._refused.add(frozenset((name, other)))
                self._part(name, other)
        if sum(job.job.num_replicas for job in jobs) <= cluster.num_gpus:
            return {}
        singles = [job for job in jobs if job.job.name not in self._partner]
        self._rng.shuffle(singles)
        while singles:
            job = singles.pop()
            mate = next((one for one in singles if self._may_share(job, one, cluster)), None)
            if mate is not None:
                singles.remove(mate)
                self._partner[job.job.name], self._partner[mate.job.name] = mate.job.name, job.job.name
        return {name: other for name, other in self._partner.items() if name < other}

    def _part(self, name: str, other: str) -> None:
        self._partner.pop(name, None)
        self._partner.pop(other, None)

    def _pays(self, first: SimulatedJob, second: SimulatedJob) -> bool:
        """Return whether the pair is as fast as taking turns, where it runs."""
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

    def _round(self, now_s: float, units: Sequence[_Unit], cluster: Cluster) -> dict[str, list[_Unit]]:
        """Return the units of each type in this round."""
        left = dict(zip(cluster.gpu_types, type_counts(cluster), strict=True))
        chosen: dict[str, list[_Unit]] = {kind: [] for kind in cluster.fastest_types}
        waiting = list(units)
        for kind in chosen:
            for unit in sorted(waiting, key=lambda unit: self._least_part(now_s, unit, kind)):
                size = unit[0].job.num_replicas
                fits = len(unit) == 1 or self._rates_on(kind, *unit) is not None
                if size <= left[kind] and fits:
                    waiting.remove(unit)
                    left[kind] -= size
                    chosen[kind].append(unit)
        return chosen

    def _least_part(self, now_s: float, unit: _Unit, kind: str) -> float:
        """Return the rounds on this type by second since the job came; of two jobs, the lesser."""
        return min(self._rounds[job.job.name, kind] / max(now_s - job.job.submitted_s, 1.0) for job in unit)


def _units(jobs: Sequence[SimulatedJob], pairs: Mapping[str, str]) -> list[_Unit]:
    """Return what runs together."""
    by_name = {job.job.name: job for job in jobs}
    seconds = set(pairs.values())
    return [
        (job, by_name[pairs[job.job.name]]) if job.job.name in pairs else (job,)
        for job in jobs
        if job.job.name not in seconds
    ]


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
