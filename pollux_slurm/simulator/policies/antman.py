"""AntMan (OSDI 2020): guaranteed jobs keep their GPUs, opportunistic ones run in idle cycles of the same.

    guaranteed: first come, first served, at their size, never moved
    opportunistic: on GPUs that are free, else beside a guaranteed job of equal size
    beside one: slowed down until the guaranteed job loses no more than 1 %

With p the part of the time in which the opportunistic job runs, and r the guaranteed job's relative rate
beside it, the guaranteed job has the rate (1 − p) + p·r ≥ 0.99. So p = 0.01/(1 − r), at most 1.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from pollux_slurm.model import BatchChoice
from pollux_slurm.simulator.engine.cluster import Cluster
from pollux_slurm.simulator.engine.job import GpusByNode, SimulatedJob
from pollux_slurm.simulator.engine.sharing import Pair, PairRates, SharingPolicy
from pollux_slurm.simulator.inputs.batch_splits import user_batch
from pollux_slurm.simulator.policies.packing import FreeGpus

# The part of its rate that a guaranteed job may lose.
MOST_LOST = 0.01


class AntManPolicy(SharingPolicy):
    """Users' sizes and batches. `guaranteed` of the jobs, drawn by their names, are guaranteed."""

    resizes = False

    def __init__(self, rates: PairRates, *, guaranteed: float = 0.5) -> None:
        super().__init__(rates)
        self._share = guaranteed

    def choose_batch(self, job: SimulatedJob) -> BatchChoice:
        return user_batch(job.job, job.application, job.num_gpus)

    def is_guaranteed(self, name: str) -> bool:
        return random.Random(f"guaranteed {name}").random() < self._share

    def allocate(
        self, now_s: float, jobs: Sequence[SimulatedJob], cluster: Cluster
    ) -> Mapping[str, GpusByNode]:
        order = sorted(jobs, key=lambda job: job.job.submitted_s)
        guaranteed = [job for job in order if self.is_guaranteed(job.job.name)]
        others = [job for job in order if not self.is_guaranteed(job.job.name)]
        found = {job.job.name: job.allocation for job in guaranteed if job.allocation}
        free = FreeGpus(cluster, found.values())
        for job in guaranteed:
            if job.allocation:
                continue
            if job.job.num_replicas > free.num_free:
                break  # nobody overtakes
            found[job.job.name] = free.take(job.job.num_replicas)
        hosts = {job.job.name: job for job in guaranteed if job.job.name in found}
        pairs = self._stay_beside(others, hosts, found, cluster)
        placed = {pair.second for pair in pairs}
        for job in others:
            if job.job.name in placed:
                continue
            if job.job.num_replicas <= free.num_free:
                kept = job.allocation
                found[job.job.name] = kept if free.keep(kept) else free.take(job.job.num_replicas)
                continue
            pair = self._beside_any(job, hosts, found, cluster)
            if pair is not None:
                pairs.append(pair)
                del hosts[pair.first]
                found[job.job.name] = found[pair.first]
        self.pairs = tuple(pairs)
        return found

    def _stay_beside(
        self,
        others: Sequence[SimulatedJob],
        hosts: dict[str, SimulatedJob],
        found: dict[str, GpusByNode],
        cluster: Cluster,
    ) -> list[Pair]:
        """Return the pairs of the last round that go on, and take their hosts out of `hosts`."""
        before = {pair.second: pair.first for pair in self.pairs}
        stayed = []
        for job in others:
            host = hosts.get(before.get(job.job.name, ""))
            pair = None if host is None else self._beside(job, host, found[host.job.name], cluster)
            if pair is not None:
                stayed.append(pair)
                del hosts[pair.first]
                found[job.job.name] = found[pair.first]
        return stayed

    def _beside_any(
        self,
        job: SimulatedJob,
        hosts: Mapping[str, SimulatedJob],
        found: Mapping[str, GpusByNode],
        cluster: Cluster,
    ) -> Pair | None:
        """Return the pair in which the job is fastest."""
        best, best_rate = None, 0.0
        for name, host in hosts.items():
            pair = self._beside(job, host, found[name], cluster)
            if pair is not None:
                rate = pair.part * self._rates(job, host, found[name], cluster)[1]
                if rate > best_rate:
                    best, best_rate = pair, rate
        return best

    def _beside(
        self, job: SimulatedJob, host: SimulatedJob, held: GpusByNode, cluster: Cluster
    ) -> Pair | None:
        """Return the pair of a host and a job of its size, where their memory allows it."""
        if job.job.num_replicas != host.job.num_replicas:
            return None
        of_host, of_job = self._rates(job, host, held, cluster)
        part = 1.0 if of_host >= 1 - MOST_LOST else MOST_LOST / (1 - of_host)
        return Pair(first=host.job.name, second=job.job.name, part=part) if of_job else None

    def _rates(
        self, job: SimulatedJob, host: SimulatedJob, held: GpusByNode, cluster: Cluster
    ) -> tuple[float, float]:
        """Return the relative rates of host and job on these GPUs, 0 where they cannot share."""
        kinds = {cluster.node_types[node] for node, _ in held}
        names = (host.job.application, job.job.application)
        both = self.rates.of(min(kinds), *names, job.job.num_replicas) if len(kinds) == 1 else None
        return (0.0, 0.0) if both is None else both
