"""Join one snapshot of Slurm with the store's records into the cluster picture of a round. Pure.

A job is *managed* when its Comment has terms and the store has registered it. All other jobs are *unmanaged*:
what they use of a node is subtracted.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from pollux_slurm.model import (
    Allocation,
    ClusterSnapshot,
    JobState,
    NodeCapacity,
    SlurmJob,
)
from pollux_slurm.now.known_jobs import is_recorded_job
from pollux_slurm.slurm.parsing.comment_terms import decode_comment
from pollux_slurm.slurm.parsing.merged_wings import wings_of_start
from pollux_slurm.store.contract.interface import JobObservation, JobRecord, JobRegistration, RunPhase

# How far this host's clock and slurmctld's may differ. A time limit is a minute at least.
_MAX_CLOCK_SKEW = timedelta(seconds=30)
# A run whose last report came this near to its time limit reached it: reports are about 30 s apart.
_NEAR_TIME_LIMIT = timedelta(seconds=60)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedJob:
    """One adaptive job: Slurm's view and the store's record.

    `not_moved_because` is why the daemon does not move it, or None.
    """

    slurm: SlurmJob
    record: JobRecord
    not_moved_because: str | None = None

    @property
    def in_flight(self) -> bool:
        return self.record.open_reallocation is not None

    @property
    def own_gpus(self) -> int:
        """The GPUs that are its owner's: what it has beyond them is lent."""
        return max(self.record.terms.min_gpus, self.record.submitted_gpus or 0)

    @property
    def has_reported_this_run(self) -> bool:
        """Whether the run that Slurm shows has reported a step."""
        run = self.record.run
        return (
            run is not None
            and run.restart_count == self.slurm.restart_count
            and run.num_steps > 0
            and run.phase is RunPhase.TRAINING
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """What a round knows: the snapshot, the managed jobs, and what these may use of each node."""

    snapshot: ClusterSnapshot
    managed: tuple[ManagedJob, ...]
    nodes: tuple[NodeCapacity, ...]


def registrations(
    snapshot: ClusterSnapshot, partitions: Iterable[str] = (), *, only_user_id: int | None = None
) -> tuple[JobRegistration, ...]:
    """Return the adaptive jobs of `snapshot`, including jobs that ended before any round saw them.

    `partitions` and `only_user_id`, where given, restrict them. An anchor is left out until its first wing
    was submitted, which has what the job requests.
    """
    wanted = frozenset(partitions)
    found = []
    # Jobs that are not over come first: an ended job must not take their token.
    for job in sorted(snapshot.jobs, key=lambda job: job.state.is_over):
        if wanted and wanted.isdisjoint(job.partitions):
            continue
        if only_user_id not in (None, job.user_id):
            continue
        terms = decode_comment(job.comment)
        if terms is None or terms.user_id != job.user_id or job.submitted_at is None:
            continue
        if terms.in_place and not job.wings:
            continue
        # Of a job with wings, the one that its start began with has the request.
        own = wings_of_start(job.wings)[0] if job.wings else job
        gpus = max(own.requested_gpus, own.allocation.num_gpus, 1)
        used_memory_mb = sum(mb for _, mb in own.memory_mb_by_node)
        found.append(
            JobRegistration(
                slurm_job_id=job.job_id,
                terms=terms,
                name=job.name,
                user_name=job.user_name,
                user_id=job.user_id,
                account=job.account,
                partition=job.partition,
                cpus_per_gpu=own.cpus_per_gpu or max(math.ceil(own.num_cpus / gpus), 1),
                memory_per_gpu_mb=own.memory_per_gpu_mb or math.ceil(used_memory_mb / gpus),
                submitted_at=job.submitted_at,
                time_limit_s=job.time_limit_s,
                required_nodes=job.required_nodes,
                restart_count=job.restart_count,
                is_running=job.state is JobState.RUNNING,
                submitted_gpus=own.requested_gpus or None,
            )
        )
    return tuple(found)


def records_of_user(
    snapshot: ClusterSnapshot, records: Iterable[JobRecord], only_user_id: int | None
) -> tuple[JobRecord, ...]:
    """Return the records of `only_user_id`'s jobs, by Slurm's owner; all records where it is None.

    The store may contain other users' jobs, from a daemon with more rights. These are unmanaged here.
    """
    if only_user_id is None:
        return tuple(records)
    owners = {job.job_id: job.user_id for job in snapshot.jobs}
    return tuple(
        record for record in records if owners.get(record.slurm_job_id, only_user_id) == only_user_id
    )


def observations(
    snapshot: ClusterSnapshot,
    records: Iterable[JobRecord],
    *,
    vanished_before: frozenset[str],
    not_over: Callable[[JobRecord, SlurmJob], bool] = lambda _record, _job: False,
) -> tuple[tuple[JobObservation, ...], frozenset[str]]:
    """Return the observations of the registered jobs, and the ids of those missing from `snapshot`.

    Of a failed job that is `not_over`, only the end of its run is observed: it may still be requeued. A job
    that is missing in two reads in a row (`vanished_before`) is over: slurmctld forgets a job MinJobAge after
    its end. How it ended is then guessed from its last run's reports.
    """
    by_id = {job.job_id: job for job in snapshot.jobs}
    type_of_node = {node.name: node.gpu_type for node in snapshot.nodes}
    seen, missing = [], set()
    for record in records:
        job = by_id.get(record.slurm_job_id)
        if job is not None and is_recorded_job(job, record):
            observed = _observe(job, record, snapshot.read_at, type_of_node)
            seen.append(
                dataclasses.replace(observed, state=JobState.COMPLETING)
                if not_over(record, job)
                else observed
            )
            continue
        missing.add(record.slurm_job_id)
        if record.slurm_job_id in vanished_before:
            seen.append(_vanished(record, snapshot.read_at))
    return tuple(seen), frozenset(missing)


def _observe(
    job: SlurmJob, record: JobRecord, read_at: datetime, type_of_node: Mapping[str, str | None]
) -> JobObservation:
    started_at, ended_at = job.started_at, job.ended_at
    # An anchor itself has neither GPUs nor a count of the starts of its training.
    knows_starts = bool(job.wings) or not record.terms.in_place
    if job.state is JobState.COMPLETING and (ended_at is None or ended_at > read_at + _MAX_CLOCK_SKEW):
        started_at = ended_at = None  # it is being requeued, and these are Slurm's expected times
    return JobObservation(
        slurm_job_id=job.job_id,
        state=job.state,
        allocation=job.allocation,
        started_at=started_at,
        ended_at=ended_at,
        gpu_type=_one_type(job, type_of_node),
        restart_count=job.restart_count if knows_starts else None,
        submitted_at=job.submitted_at,
        last_allocation=job.last_allocation,
        suspended_at=job.suspended_at,
        resumed_at=job.resumed_at,
        counted_s=job.counted_s,
        changes=job.changes,
        in_place=record.terms.in_place,
    )


def _vanished(record: JobRecord, read_at: datetime) -> JobObservation:
    """Guess how a job ended that Slurm has forgotten."""
    run, started_at = record.run, record.started_at
    ended_at = read_at
    if run is not None and started_at is not None:
        ended_at = max(run.last_report_at, started_at)
    limit_s = record.granted_time_limit_s
    if started_at is None:
        state = JobState.CANCELLED  # a pending job disappears no other way
    elif run is not None and run.phase is RunPhase.FINISHED:
        state = JobState.COMPLETED
    elif (
        limit_s is not None
        and record.num_restarts == 0
        and ended_at - started_at >= timedelta(seconds=limit_s) - _NEAR_TIME_LIMIT
    ):
        state = JobState.TIMEOUT
    else:
        state = JobState.FAILED
    return JobObservation(
        slurm_job_id=record.slurm_job_id,
        state=state,
        allocation=Allocation(),
        started_at=None,
        ended_at=ended_at,
        estimated=True,
    )


def _one_type(job: SlurmJob, type_of_node: Mapping[str, str | None]) -> str | None:
    """Return the GPU type of the run that Slurm shows, None for several types or an unnamed one."""
    is_shown = job.state is JobState.RUNNING or job.state.is_over
    types = {type_of_node.get(node) for node in (job.allocation or job.last_allocation).nodes}
    return types.pop() if is_shown and len(types) == 1 else None


def build_picture(
    snapshot: ClusterSnapshot,
    records: Iterable[JobRecord],
    partitions: Iterable[str] = (),
    *,
    not_moved_because: Callable[[JobRecord], str | None] = lambda _record: None,
) -> Picture:
    """Join the snapshot with the store's records of active jobs.

    Jobs outside `partitions`, if any are given, are unmanaged, except those with an open reallocation.
    """
    wanted = frozenset(partitions)
    by_id = {job.job_id: job for job in snapshot.jobs}
    managed = []
    for record in records:
        job = by_id.get(record.slurm_job_id)
        if job is None or not is_recorded_job(job, record):
            continue
        if job.state.is_over and record.open_reallocation is None:
            continue
        served = [name for name in job.partitions if name in wanted]
        if served:  # with -p a,b, where only a is served, the job gets nodes of a only
            job = dataclasses.replace(job, partition=",".join(served))
        if not wanted or served or record.open_reallocation is not None:
            because = not_moved_because(record) or _named_nodes(record)
            managed.append(ManagedJob(slurm=job, record=record, not_moved_because=because))
    return Picture(snapshot=snapshot, managed=tuple(managed), nodes=node_capacities(snapshot, managed))


def _named_nodes(record: JobRecord) -> str | None:
    """Return why a job with several nodes in --nodelist is not moved: Slurm starts it on all of them."""
    if len(record.required_nodes) <= 1:
        return None
    return f"its owner asks for {len(record.required_nodes)} nodes by name (--nodelist)"


def node_capacities(snapshot: ClusterSnapshot, managed: Iterable[ManagedJob]) -> tuple[NodeCapacity, ...]:
    """Return what managed jobs may use of each node: its total minus what unmanaged jobs use.

    Unmanaged jobs use what the node has in use beyond the managed jobs' part. A managed job that started
    between the reads of jobs and nodes counts as unmanaged in this round, which errs on the safe side. So
    does an anchor, which keeps its CPU and memory wherever its wings are.
    """
    gpus: defaultdict[str, int] = defaultdict(int)
    cpus: defaultdict[str, int] = defaultdict(int)
    memory_mb: defaultdict[str, int] = defaultdict(int)
    movable = (
        part for job in managed for part in (job.slurm.wings if job.record.terms.in_place else [job.slurm])
    )
    for part in movable:
        for used, owned in (
            (gpus, part.allocation.gpus_by_node),
            (cpus, part.cpus_by_node),
            (memory_mb, part.memory_mb_by_node),
        ):
            for node, amount in owned:
                used[node] += amount
    return tuple(
        NodeCapacity(
            name=node.name,
            gpu_type=node.gpu_type,
            num_gpus=_left(node.num_gpus, node.used_gpus, gpus[node.name]),
            num_cpus=_left(node.num_cpus, node.used_cpus, cpus[node.name]),
            memory_mb=_left(node.memory_mb, node.used_memory_mb, memory_mb[node.name]),
            accepts_new=node.available,
        )
        for node in snapshot.nodes
    )


def _left(total: int, used: int, used_by_managed: int) -> int:
    return max(total - max(used - used_by_managed, 0), 0)
