"""What is now: the daemon, each node's GPUs and who holds them, the jobs, the moves under way.

`read_cluster` reads the store in a number of statements that does not depend on the number of jobs, and
Slurm once where it can be reached. Without Slurm, the nodes are those of the last round.
"""

from __future__ import annotations

import enum
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from pollux_slurm.model import Allocation, ClusterSnapshot, JobState
from pollux_slurm.now.daemon_text import daemon_absence_text
from pollux_slurm.now.jobs import JobNow, is_moving, jobs_left_held, jobs_now
from pollux_slurm.store.contract.interface import DaemonStatus, NodeRecord, Reallocation, Store
from pollux_slurm.text import ago_text

SlurmReader = Callable[[], tuple[ClusterSnapshot | None, str]]
"""Returns Slurm's snapshot, or None and why it cannot be read."""


class NodeState(enum.Enum):
    """Whether a node takes jobs: `UP`, `DRAINED` (takes no new ones), `DOWN` (does not answer or is off)."""

    UP = "up"
    DRAINED = "drained"
    DOWN = "down"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNow:
    """One node with GPUs. `held` has job ids with their GPUs there; `num_other` are held by unknown jobs."""

    name: str
    gpu_type: str
    num_gpus: int
    state: NodeState
    held: tuple[tuple[str, int], ...]
    num_other: int = 0

    @property
    def num_held(self) -> int:
        return sum(number for _, number in self.held) + self.num_other

    @property
    def num_free(self) -> int:
        """GPUs that a job could get now: none on a node that takes no jobs."""
        return max(self.num_gpus - self.num_held, 0) if self.state is NodeState.UP else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterNow:
    """All that is shown of now.

    `missing` says that no daemon runs, and why; None while one does. `slurm_missing` says why Slurm was not
    read; None where it was. `jobs` are in the order of their submission.
    """

    read_at: datetime
    daemon: DaemonStatus
    missing: str | None
    slurm: ClusterSnapshot | None
    slurm_missing: str | None
    nodes: tuple[NodeNow, ...]
    jobs: tuple[JobNow, ...]

    @property
    def next_round_at(self) -> datetime | None:
        """When the next round is due at the latest; None without a daemon."""
        last, interval_s = self.daemon.last_round_at, self.daemon.interval_s
        if self.missing is not None or last is None or interval_s is None:
            return None
        return last + timedelta(seconds=interval_s)

    @property
    def daemon_sentence(self) -> str:
        """Whether a daemon runs, and how old its last round is."""
        if self.missing is not None:
            return f"{self.missing[0].upper()}{self.missing[1:]}."
        last = self.last_round_text
        return "A daemon runs; it has made no round yet." if last is None else f"The last round was {last}."

    @property
    def last_round_text(self) -> str | None:
        """How long ago the last round was, and what it moved in shadow mode; None before the first."""
        shadow = ", in shadow mode: it moved nothing" if self.daemon.is_shadow else ""
        last = self.daemon.last_round_at
        return None if last is None else f"{ago_text(last, self.read_at)}{shadow}"

    @property
    def num_gpus(self) -> int:
        return sum(node.num_gpus for node in self.nodes)

    @property
    def num_held(self) -> int:
        return sum(node.num_held for node in self.nodes)

    @property
    def moves(self) -> tuple[tuple[JobNow, Reallocation], ...]:
        """The jobs with an open reallocation, the oldest move first."""
        found = [(job, move) for job in self.jobs if (move := job.record.open_reallocation) is not None]
        return tuple(sorted(found, key=lambda one: one[1].id))

    @property
    def decided(self) -> tuple[JobNow, ...]:
        """The jobs with a last decision that are not over and not being moved, the newest decision first."""
        found = [
            (job.record.last_decision_at, job)
            for job in self.jobs
            if not (job.record.state.is_over or job.record.open_reallocation is not None)
            and job.record.last_decision is not None
            and job.record.last_decision_at is not None
        ]
        return tuple(job for _, job in sorted(found, key=lambda one: one[0], reverse=True))

    def state_of(self, job: JobNow) -> str:
        """Return a job's state as one word; without a daemon, no job is moving."""
        if self.missing is None and is_moving(job):
            return "moving"
        if job.held:
            return "held"
        return "paused" if job.record.paused_at is not None else job.record.state.value

    @property
    def jobs_sentence(self) -> str:
        """How many jobs are in which state, the most frequent first."""
        states = Counter(self.state_of(job) for job in self.jobs if not job.record.state.is_over)
        return ", ".join(f"{number:,} {state}" for state, number in states.most_common()) or "no active jobs"


def read_cluster(
    store: Store,
    *,
    now: datetime,
    slurm: SlurmReader | None = None,
    job_id: str | None = None,
    include_finished: bool = False,
) -> ClusterNow:
    """Read what is now; of one job only with `job_id`.

    Raises `UnknownJobError` for a job that the store does not know, and what the store raises.
    """
    daemon = store.lease.daemon_status()
    records = (
        (store.jobs.get(job_id),) if job_id is not None else store.jobs.all(include_finished=include_finished)
    )
    snapshot, why_not = None, "it was not asked"
    if slurm is not None and (job_id is None or not records[0].state.is_over):
        snapshot, why_not = slurm()
    jobs = jobs_now(records, snapshot)
    return ClusterNow(
        read_at=now,
        daemon=daemon,
        missing=daemon_absence_text(daemon, now, jobs_left_held(jobs)),
        slurm=snapshot,
        slurm_missing=None if snapshot is not None else why_not,
        nodes=_nodes_of_store(store.rounds.nodes(), jobs) if snapshot is None else _nodes_of_slurm(snapshot),
        jobs=jobs,
    )


def _nodes_of_slurm(snapshot: ClusterSnapshot) -> tuple[NodeNow, ...]:
    held = _held(
        (job.job_id, job.allocation)
        for job in snapshot.jobs
        if job.state in (JobState.RUNNING, JobState.COMPLETING)
    )
    nodes = []
    for node in snapshot.nodes:
        if not node.num_gpus:
            continue
        known = sum(number for _, number in held[node.name])
        state = NodeState.UP
        if not node.available:
            state = NodeState.DRAINED if node.draining and node.responds else NodeState.DOWN
        nodes.append(
            NodeNow(
                name=node.name,
                gpu_type=node.gpu_type or "",
                num_gpus=node.num_gpus,
                state=state,
                held=tuple(held[node.name]),
                num_other=max(node.used_gpus - known, 0),
            )
        )
    return tuple(nodes)


def _nodes_of_store(nodes: Iterable[NodeRecord], jobs: Iterable[JobNow]) -> tuple[NodeNow, ...]:
    """Return the last round's nodes; where jobs hold more than a round could allocate, a node has so many."""
    held = _held((job.record.slurm_job_id, job.record.allocation) for job in jobs)
    known = {node.name: node for node in nodes}
    return tuple(
        NodeNow(
            name=name,
            gpu_type=known[name].gpu_type if name in known else "",
            num_gpus=max(
                known[name].num_gpus if name in known else 0, sum(number for _, number in held[name])
            ),
            state=NodeState.UP,
            held=tuple(held[name]),
        )
        for name in sorted({*known, *held}, key=_by_numbers)
    )


def _by_numbers(name: str) -> list[str | int]:
    """Return what sorts node2 before node10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"([0-9]+)", name)]


def _held(allocations: Iterable[tuple[str, Allocation]]) -> defaultdict[str, list[tuple[str, int]]]:
    """Return node name → job ids with their GPUs there."""
    held: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
    for job_id, allocation in allocations:
        for name, num_gpus in allocation.as_dict().items():
            held[name].append((job_id, num_gpus))
    return held
