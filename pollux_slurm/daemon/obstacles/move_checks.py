"""All that stands against one job's move: why it is not given what a decision has for it. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from pollux_slurm.daemon.observe.cluster_picture import ManagedJob
from pollux_slurm.daemon.obstacles import places
from pollux_slurm.daemon.obstacles.tried_allocations import NotTried
from pollux_slurm.model import (
    Allocation,
    ClusterSnapshot,
    ProblemJob,
    ReallocationWay,
    RefusedConfiguration,
    SlurmJob,
)
from pollux_slurm.now import refusals
from pollux_slurm.slurm.parsing.comment_terms import decode_comment


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveChecks:
    """The checks of one round.

    - `managed`, `asked`: the jobs that are managed, and those of the problem, by id
    - `waiting`: the jobs that wait and are not held
    - `way_to`: how a running job would go to an allocation
    - `keeps_places`: whether a job that moves by requeue keeps its place, whatever waits
    - `longest_stop_s`: how long such a job may be without GPUs at worst
    - `had`: what jobs had that a move has stopped, and that wait since then, by id
    - `configured_at`: when slurmctld was last configured anew, None where that is not known
    """

    snapshot: ClusterSnapshot
    waiting: Collection[SlurmJob]
    managed: Mapping[str, ManagedJob]
    asked: Mapping[str, ProblemJob]
    now: datetime
    way_to: Callable[[ManagedJob, Allocation], ReallocationWay]
    keeps_places: bool
    longest_stop_s: float
    configured_at: datetime | None = None
    had: Mapping[str, Allocation] = field(default_factory=dict)

    def not_tried(self, job_id: str, target: Allocation) -> NotTried | None:
        """Return why a job is not given `target`; None where it is."""
        job = self.managed.get(job_id)
        if job is None:
            return None
        known, request = job.record.refusals, refusals.request_of(job.slurm)
        because = refusals.not_tried_because(
            known, request, target, self.now, configured_at=self.configured_at
        )
        if because is not None:
            return NotTried(because=because, leaves_out=refusals.refused_configurations(target, known))
        if job.slurm.allocation:
            if (because := self._not_moved_because(job, target)) is not None:
                return NotTried(because=because)
            return self._delays_others(job.slurm, target)
        if (had := self.had.get(job_id)) is None:
            return None
        # It starts before the queue: as if it still had what it had, it takes nothing new.
        stood = dataclasses.replace(job.slurm, allocation=had)
        return self._takes_more(job_id, had, target) or self._delays_others(stood, target)

    def _delays_others(self, job: SlurmJob, target: Allocation) -> NotTried | None:
        because = places.delays_because(job, target, self.waiting, self.snapshot, self.managed.keys())
        if because is None:
            return None
        return NotTried(because=because, leaves_out=refusals.refused_configurations(target, ()))

    def _takes_more(self, job_id: str, had: Allocation, target: Allocation) -> NotTried | None:
        """Return why a job that has lost its place is not given more than it had: it would wait for that."""
        most = max(had.num_gpus, self.asked[job_id].min_gpus)
        if target.num_gpus <= most:
            return None
        # At once for all numbers of nodes: a decision is made again a few times only.
        left_out = tuple(
            RefusedConfiguration(num_nodes=count, least_gpus=most + 1, most_gpus=None)
            for count in range(1, len(self.snapshot.nodes) + 1)
        )
        return NotTried(because="it first gets back what it had", leaves_out=left_out)

    def _not_moved_because(self, job: ManagedJob, target: Allocation) -> str | None:
        """Return why a running job is not moved in this round, wherever it would go; None where it is."""
        is_in_place = self.way_to(job, target) is ReallocationWay.IN_PLACE
        terms = decode_comment(job.slurm.comment)
        if terms is None or terms.total_s is None:  # else it gets another slice of time
            because = places.ends_too_soon_because(
                job.slurm,
                self.snapshot.read_at,
                move_s=self._delay_s(job, is_in_place=is_in_place),
                longest_s=0.0 if is_in_place else self.longest_stop_s,
            )
            if because is not None:
                return because
        if is_in_place:
            return None
        if target.num_gpus >= job.slurm.allocation.num_gpus:  # fewer are owed to others
            because = places.frees_slot_because(job.slurm, self.waiting) or places.cannot_return_because(
                job.slurm, self.snapshot, longest_s=self.longest_stop_s
            )
            if because is not None:
                return because
        if self.keeps_places:
            return None
        return places.loses_place_because(job.slurm, self.waiting, self.snapshot)

    def _delay_s(self, job: ManagedJob, *, is_in_place: bool) -> float:
        asked = self.asked[job.slurm.job_id]
        in_place_s = asked.in_place_delay_s
        return in_place_s if is_in_place and in_place_s is not None else asked.restart_delay_s
