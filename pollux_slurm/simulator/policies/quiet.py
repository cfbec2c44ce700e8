"""Rounds in which nothing happens that would change an answer: there the last one stands.

A job that runs on alters a problem slowly: by its age, its progress, the noise of its gradients, one more
batch size that it measured. Where nobody came or ended, and nobody measured a number of GPUs for the first
time, 97 of 100 answers are to leave all as it is (workload 6 of the artifact). A daemon has the time to ask
each round; in a simulation of a thousand rounds that would be a good part of all its work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pollux_slurm.simulator.engine.cluster import Cluster
from pollux_slurm.simulator.engine.job import GpusByNode, SimulatedJob
from pollux_slurm.simulator.policies.agents import num_sizes


class QuietRounds:
    """Remembers the last round that was decided.

    An answer stands for `patience_rounds` more at most, and for a part of the youngest job's age then: what a
    restart costs is told from ages, and changes little from round to round once these are several rounds.
    """

    def __init__(self, patience_rounds: int, *, part_of_age: float = 0.25) -> None:
        self._patience_rounds, self._part_of_age = patience_rounds, part_of_age
        self._view: tuple[object, ...] = ()
        self._until_s = -1.0
        # By job: how many situations it had measured when its sizes were counted, and how many these were.
        self._num_sizes: dict[str, tuple[int, int]] = {}

    def stands(self, now_s: float, jobs: Sequence[SimulatedJob], cluster: Cluster) -> bool:
        """Whether all can be left with what they have since the last answer."""
        if now_s > self._until_s:
            return False
        return self._view == self._look(jobs, {job.job.name: job.allocation for job in jobs}, cluster)

    def decided(
        self, now_s: float, jobs: Sequence[SimulatedJob], cluster: Cluster, given: Mapping[str, GpusByNode]
    ) -> None:
        """Remember a round and its answer."""
        youngest_s = min((now_s - job.job.submitted_s for job in jobs), default=0.0)
        self._view = self._look(jobs, given, cluster)
        self._until_s = now_s + min(
            self._patience_rounds * cluster.interval_s, self._part_of_age * youngest_s
        )

    def _look(
        self, jobs: Sequence[SimulatedJob], given: Mapping[str, GpusByNode], cluster: Cluster
    ) -> tuple[object, ...]:
        """Return what a round looks like, ages and progress aside."""
        return (
            cluster.node_gpus,
            [(job.job.name, given.get(job.job.name, ()), job.in_flight, self._sizes(job)) for job in jobs],
        )

    def _sizes(self, job: SimulatedJob) -> int:
        """Return how many sizes were measured, by GPU type, on one node and on several."""
        num_situations = sum(map(len, job.measurements.values()))
        known = self._num_sizes.get(job.job.name)
        if known is None or known[0] != num_situations:
            sizes = sum(map(num_sizes, job.measurements.values()))
            self._num_sizes[job.job.name] = known = (num_situations, sizes)
        return known[1]
