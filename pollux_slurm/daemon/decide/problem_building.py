"""Pose a round's problem from its picture: who may move, where to, and what is known of each job. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime

from pollux_slurm.config import PolicyConfig
from pollux_slurm.daemon.decide import declared_epochs, model_checks, policy_settings
from pollux_slurm.daemon.observe.cluster_picture import ManagedJob, Picture
from pollux_slurm.model import (
    Allocation,
    ClusterSnapshot,
    JobState,
    NodeCapacity,
    Problem,
    ProblemJob,
    SlurmJob,
)
from pollux_slurm.store.contract.interface import RunPhase


def problem(
    picture: Picture,
    *,
    now: datetime,
    default_restart_delay_s: float,
    max_restart_delay_s: float = 300.0,
    policy: PolicyConfig | None = None,
    pause_ttl_s: float = 900.0,
    neighbours: Sequence[ProblemJob] = (),
    nodes: Sequence[NodeCapacity] | None = None,
) -> Problem:
    """Build the scheduling problem of a round: who takes part, who is pinned, and with what history.

    A job in flight is pinned at its target, so that nobody else is promised those GPUs. A running job is
    pinned until its current run has reported a step: before that it has no checkpoint to lose and no model
    to decide by. A waiting job that Slurm would not start now whatever it is given takes no part
    (`excluded_reason`), nor does one that its owner or an admin holds, or lets begin later: the hand wins.
    A measured delay counts for `max_restart_delay_s` at most: a job that tells late of its steps would else
    be too dear to be moved. `policy` is what the admin wants; without it the defaults hold. `pause_ttl_s` is
    how far ahead a pause sets a job's begin time. `neighbours` take part as they are; `nodes` stands for the
    picture's.
    """
    policy = PolicyConfig() if policy is None else policy
    usable = UsableNodes(picture.snapshot)
    jobs = []
    for job in picture.managed:
        placed = _placement(job, now, pause_ttl_s)
        if placed is None:
            continue
        current, because = placed
        record = job.record
        claim = declared_epochs.checked(record)
        model_doubt = model_checks.doubt_of(record)
        model, by_type = (None, ()) if model_doubt is not None else model_checks.models_of(record)
        idle_since = record.last_allocated_at or record.submitted_at
        jobs.append(
            ProblemJob(
                job_id=job.slurm.job_id,
                model=model,
                models=by_type,
                model_doubt=model_doubt,
                min_gpus=record.terms.min_gpus,
                max_gpus=record.terms.max_gpus,
                cpus_per_gpu=record.cpus_per_gpu,
                memory_per_gpu_mb=record.memory_per_gpu_mb,
                age_s=max((now - (record.first_submitted_at or record.submitted_at)).total_seconds(), 0.0),
                num_restarts=record.num_restarts,
                restart_delay_s=min(record.mean_restart_delay_s, max_restart_delay_s)
                if record.mean_restart_delay_s
                else default_restart_delay_s,
                current=current,
                pinned=because is not None,
                pinned_because=because,
                partition_nodes=usable.by(job.slurm, record.required_nodes),
                weight=policy_settings.weight(
                    policy, account=job.slurm.account, user=job.slurm.user_name, job_id=job.slurm.job_id
                ),
                account=job.slurm.account,
                user=job.slurm.user_name,
                progress=claim.progress,
                epochs_done=claim.epochs_done,
                epochs_declared=claim.epochs_declared,
                declaration_doubt=claim.doubt,
                prediction_error=record.prediction_error,
                waiting_s=0.0 if current else max((now - idle_since).total_seconds(), 0.0),
            )
        )
    jobs.extend(neighbours)
    return Problem(
        nodes=_with_room_for_pinned(picture.nodes if nodes is None else nodes, jobs),
        jobs=tuple(jobs),
        objective=policy_settings.objective(policy),
        seed=policy.seed,
        limits=policy_settings.limits(policy, jobs),
        moving=policy_settings.moving(policy),
        gpu_speeds=policy.gpu_speeds,
        # Slurm chooses the shares itself unless they are equal, so unequal ones are not to be decided on.
        uneven=False,
        max_wait_s=policy.max_wait_s,
    )


class UsableNodes:
    """The nodes that jobs may use, found once for all jobs that ask for the same."""

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        self._nodes = snapshot.nodes
        self._found: dict[tuple[object, ...], frozenset[str]] = {}

    def by(self, job: SlurmJob, named: tuple[str, ...]) -> frozenset[str] | None:
        """Return the nodes on which Slurm would ever start a job whose owner `named` nodes, or none.

        Slurm keeps what the job asked for whatever shape it is given later (docs/slurm-facts.md). None: any
        node, where that is all of them (two thousand jobs need not each name a thousand nodes).
        """
        asked = (job.requested_gpu_type, job.feature_sets, job.excluded_nodes, named)
        key = (job.partition, *asked)
        if key not in self._found:
            self._found[key] = frozenset(node.name for node in self._nodes if job.may_run_on(node, named))
        return None if len(self._found[key]) == len(self._nodes) else self._found[key]


def is_parked(job: ManagedJob, now: datetime) -> bool:
    """Whether the job waits for a round that gives it GPUs again, and for nothing else."""
    begins_at = job.slurm.begins_at
    return (
        job.record.paused_at is not None
        and not job.in_flight
        and job.slurm.state is JobState.PENDING
        and not job.slurm.held
        and begins_at is not None
        and begins_at > now
    )


# How far ahead Slurm sets the begin time of a job that somebody requeued (121 s in 22.05), and more.
_REQUEUE_DELAY_S = 180.0


def _begins_later(job: ManagedJob, now: datetime, pause_ttl_s: float) -> bool:
    """Whether a waiting job may not start yet because of a begin time that its owner or an admin set."""
    if job.slurm.begins_at is None:
        return False
    most_s = 0.0 if job.slurm.restart_count == 0 else _REQUEUE_DELAY_S
    if job.record.paused_at is not None:
        most_s = max(pause_ttl_s, most_s)
    # slurmctld's clock need not be ours.
    return (job.slurm.begins_at - now).total_seconds() > most_s + 60.0


def excluded_reason(job: ManagedJob) -> str | None:
    """Return why no round moves the job or gives it a place, None where one may."""
    return job.left_alone_because or job.slurm.unschedulable_reason or job.slurm.blocked_because


def _placement(job: ManagedJob, now: datetime, pause_ttl_s: float) -> tuple[Allocation, str | None] | None:
    """Return what the job counts as holding and why it is pinned there, if it is; None: it takes no part."""
    reallocation = job.record.open_reallocation
    if reallocation is not None:
        return reallocation.target, "it is being moved"
    if job.slurm.state is JobState.PENDING:
        if job.slurm.held or excluded_reason(job) is not None:
            return None
        if _begins_later(job, now, pause_ttl_s):
            return None
        return Allocation(), None
    if not job.slurm.allocation:
        return None
    because = excluded_reason(job)
    if because is not None:
        return job.slurm.allocation, because
    if job.slurm.state is not JobState.RUNNING:
        because = f"it is {job.slurm.state.value}"
    elif not job.has_reported_this_run:
        ended = job.record.run is not None and job.record.run.phase is RunPhase.FINISHED
        because = "it is about to end" if ended else "its present run has not told of a step yet"
    return job.slurm.allocation, because


def _with_room_for_pinned(
    nodes: Iterable[NodeCapacity], jobs: Iterable[ProblemJob]
) -> tuple[NodeCapacity, ...]:
    """Raise a node's capacity to what is pinned there.

    A neighbour may have taken GPUs that a job in flight was promised; that job's own way back deals with
    it, and the others must still get a problem that has a solution.
    """
    gpus: defaultdict[str, int] = defaultdict(int)
    cpus: defaultdict[str, int] = defaultdict(int)
    memory_mb: defaultdict[str, int] = defaultdict(int)
    for job in jobs:
        for node, count in job.current.gpus_by_node:
            gpus[node] += count
            cpus[node] += count * job.cpus_per_gpu
            memory_mb[node] += count * job.memory_per_gpu_mb
    return tuple(
        NodeCapacity(
            name=node.name,
            gpu_type=node.gpu_type,
            num_gpus=max(node.num_gpus, gpus[node.name]),
            num_cpus=max(node.num_cpus, cpus[node.name]),
            memory_mb=max(node.memory_mb, memory_mb[node.name]),
            accepts_new=node.accepts_new,
        )
        for node in nodes
    )
