"""Turn one complete read of Slurm and the store into the picture that a round decides on. Pure.

A job is *managed* when its Comment carries terms, the store has registered it, and it may be moved at all.
Everything else that holds GPUs, CPUs or memory is a neighbour whose share is taken off the nodes.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from pollux_slurm.model import (
    Allocation,
    ClusterSnapshot,
    JobState,
    NodeCapacity,
    SlurmJob,
)
from pollux_slurm.slurm.parsing.comment_terms import decode_comment, parse_comment
from pollux_slurm.store.contract.interface import JobObservation, JobRecord, JobRegistration, RunPhase

# How far the clocks of this host and of slurmctld's may be apart. A time limit is a minute at least.
_CLOCKS_DIFFER = timedelta(seconds=30)
# A run that reported so near to its time limit has met it: reports come every half minute or so.
_NEAR_ITS_LIMIT = timedelta(seconds=60)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedJob:
    """One adaptive job, as Slurm sees it now and as the store knows it.

    `left_alone_because` is why the daemon no longer moves it, None as long as it does.
    """

    slurm: SlurmJob
    record: JobRecord
    left_alone_because: str | None = None

    @property
    def in_flight(self) -> bool:
        return self.record.open_reallocation is not None

    @property
    def has_reported_this_run(self) -> bool:
        """Whether the run that Slurm shows has finished a step and told so."""
        run = self.record.run
        return (
            run is not None
            and run.restart_count == self.slurm.restart_count
            and run.num_steps > 0
            and run.phase is RunPhase.TRAINING
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """What a round knows: the snapshot, the managed jobs, and what they may use of each node."""

    snapshot: ClusterSnapshot
    managed: tuple[ManagedJob, ...]
    nodes: tuple[NodeCapacity, ...]


def registrations(
    snapshot: ClusterSnapshot, partitions: Iterable[str] = (), *, only_user_id: int | None = None
) -> tuple[JobRegistration, ...]:
    """Return the adaptive jobs of `snapshot`, also those that ended before anybody saw them.

    Where they are given, only those in `partitions`, and those of the user `only_user_id`.
    """
    wanted = frozenset(partitions)
    found = []
    # Those that live first: one that is over must not take a token from under them.
    for job in sorted(snapshot.jobs, key=lambda job: job.state.is_over):
        if wanted and wanted.isdisjoint(job.partitions):
            continue
        if only_user_id not in (None, job.user_id):
            continue
        terms = decode_comment(job.comment)
        if terms is None or terms.user_id != job.user_id or job.submitted_at is None:
            continue
        gpus = max(job.requested_gpus, job.allocation.num_gpus, 1)
        held_memory = sum(mb for _, mb in job.memory_mb_by_node)
        found.append(
            JobRegistration(
                slurm_job_id=job.job_id,
                terms=terms,
                name=job.name,
                user_name=job.user_name,
                user_id=job.user_id,
                account=job.account,
                partition=job.partition,
                cpus_per_gpu=job.cpus_per_gpu or max(math.ceil(job.num_cpus / gpus), 1),
                memory_per_gpu_mb=job.memory_per_gpu_mb or math.ceil(held_memory / gpus),
                submitted_at=job.submitted_at,
                time_limit_s=job.time_limit_s,
                required_nodes=job.required_nodes,
                restart_count=job.restart_count,
            )
        )
    return tuple(found)


def refusals(
    snapshot: ClusterSnapshot, records: Iterable[JobRecord], left_out: Container[str] = ()
) -> dict[str, str]:
    """Return the jobs whose Comment carries terms by which they cannot be registered, and why, by their ids.

    Slurm's word on whose a job is decides, whatever its Comment says: Comments are public, and copied.
    `left_out` are those that the store did not take.
    """
    bearers = {(known.terms.user_id, known.terms.token_sha256): known.slurm_job_id for known in records}
    found = {}
    for job in snapshot.jobs:
        parsed = parse_comment(job.comment)
        if job.state.is_over:
            continue
        if parsed.problem is not None:
            found[job.job_id] = f"the terms in its Comment cannot be used: {parsed.problem}"
        elif parsed.terms is not None and parsed.terms.user_id != job.user_id:
            found[job.job_id] = (
                f"its token is another user's: its Comment says user id {parsed.terms.user_id}, "
                f"Slurm says {job.user_id}"
            )
        elif parsed.terms is not None:
            bearer = bearers.get((job.user_id, parsed.terms.token_sha256), job.job_id)
            if bearer != job.job_id:
                found[job.job_id] = f"its token is that of the same user's job {bearer}"
            elif job.job_id in left_out:
                found[job.job_id] = "its token was an earlier job's, or its bounds are impossible"
    return found


def is_recorded_job(job: SlurmJob, record: JobRecord) -> bool:
    """Whether Slurm's job of this number is the one that was registered.

    Numbers come again when a cluster is set up anew, and an owner may take the terms out of the Comment: only
    a job of the same user whose Comment carries the registered token's hash may be touched.
    """
    terms = decode_comment(job.comment)
    return (
        terms is not None
        and terms.token_sha256 == record.terms.token_sha256
        and job.user_id == terms.user_id == record.terms.user_id
    )


def served(
    snapshot: ClusterSnapshot, records: Iterable[JobRecord], only_user_id: int | None
) -> tuple[JobRecord, ...]:
    """Return the records without those of jobs that, by Slurm, belong to another user than the one served.

    What a store may hold of others, from a time with more rights, is theirs: their jobs are neighbours.
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
    unsettled: Callable[[JobRecord, SlurmJob], bool] = lambda _record, _job: False,
) -> tuple[tuple[JobObservation, ...], frozenset[str]]:
    """Return what `snapshot` says of the registered jobs, and the ids that slurmctld no longer knows as such.

    Of an `unsettled` job only that its run has ended is said: one that failed may still be brought back. A
    job that is missing for the second read in a row (`vanished_before`) is over: slurmctld forgets a job
    MinJobAge after its end. How it ended is then a guess from what its last run reported.
    """
    by_id = {job.job_id: job for job in snapshot.jobs}
    type_of_node = {node.name: node.gpu_type for node in snapshot.nodes}
    seen, missing = [], set()
    for record in records:
        job = by_id.get(record.slurm_job_id)
        if job is not None and is_recorded_job(job, record):
            look = _look_at(job, snapshot.read_at, type_of_node)
            seen.append(
                dataclasses.replace(look, state=JobState.COMPLETING) if unsettled(record, job) else look
            )
            continue
        missing.add(record.slurm_job_id)
        if record.slurm_job_id in vanished_before:
            seen.append(_vanished(record, snapshot.read_at))
    return tuple(seen), frozenset(missing)


def _look_at(job: SlurmJob, read_at: datetime, type_of_node: Mapping[str, str | None]) -> JobObservation:
    started_at, ended_at = job.started_at, job.ended_at
    if job.state is JobState.COMPLETING and (ended_at is None or ended_at > read_at + _CLOCKS_DIFFER):
        started_at = ended_at = None  # it is being requeued, and these are what Slurm expects
    return JobObservation(
        slurm_job_id=job.job_id,
        state=job.state,
        allocation=job.allocation,
        started_at=started_at,
        ended_at=ended_at,
        gpu_type=_one_type(job, type_of_node),
        restart_count=job.restart_count,
        submitted_at=job.submitted_at,
        last_allocation=job.last_allocation,
        suspended_at=job.suspended_at,
        resumed_at=job.resumed_at,
        counted_s=job.counted_s,
        resized_at=job.resized_at,
    )


def _vanished(record: JobRecord, read_at: datetime) -> JobObservation:
    """Return the guess of how a job ended that Slurm has forgotten."""
    run, started_at = record.run, record.started_at
    ended_at = read_at
    if run is not None and started_at is not None:
        ended_at = max(run.last_report_at, started_at)
    limit_s = record.granted_time_limit_s
    if started_at is None:
        state = JobState.CANCELLED  # what else becomes of a job that waits
    elif run is not None and run.phase is RunPhase.FINISHED:
        state = JobState.COMPLETED
    elif (
        limit_s is not None
        and record.num_restarts == 0
        and ended_at - started_at >= timedelta(seconds=limit_s) - _NEAR_ITS_LIMIT
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
    """Return the type of the GPUs of the run that Slurm shows, None for several or a nameless one."""
    is_shown = job.state is JobState.RUNNING or job.state.is_over
    types = {type_of_node.get(node) for node in (job.allocation or job.last_allocation).nodes}
    return types.pop() if is_shown and len(types) == 1 else None


def picture(
    snapshot: ClusterSnapshot,
    records: Iterable[JobRecord],
    partitions: Iterable[str] = (),
    *,
    left_alone_because: Callable[[JobRecord], str | None] = lambda _record: None,
) -> Picture:
    """Join the snapshot with the store's records of active jobs.

    Jobs outside `partitions`, if any are named, are neighbours, but for those that are in flight.
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
        if served:  # of a job of -p a,b where only a is served, only the nodes of a are given
            job = dataclasses.replace(job, partition=",".join(served))
        if not wanted or served or record.open_reallocation is not None:
            because = left_alone_because(record) or _named_nodes(record)
            managed.append(ManagedJob(slurm=job, record=record, left_alone_because=because))
    return Picture(snapshot=snapshot, managed=tuple(managed), nodes=node_capacities(snapshot, managed))


def _named_nodes(record: JobRecord) -> str | None:
    """Return why a job whose owner named several nodes is left alone: Slurm starts it on all of them only."""
    if len(record.required_nodes) <= 1:
        return None
    return f"its owner asks for {len(record.required_nodes)} nodes by name (--nodelist)"


def node_capacities(snapshot: ClusterSnapshot, managed: Iterable[ManagedJob]) -> tuple[NodeCapacity, ...]:
    """Return what managed jobs may use of each node: its total less what its neighbours hold.

    Neighbours hold what the node has in use beyond the managed jobs' part. A managed job that started
    between the read of the jobs and that of the nodes counts as a neighbour for this one round, which errs
    on the safe side.
    """
    gpus: defaultdict[str, int] = defaultdict(int)
    cpus: defaultdict[str, int] = defaultdict(int)
    memory_mb: defaultdict[str, int] = defaultdict(int)
    for job in managed:
        for used, held in (
            (gpus, job.slurm.allocation.gpus_by_node),
            (cpus, job.slurm.cpus_by_node),
            (memory_mb, job.slurm.memory_mb_by_node),
        ):
            for node, amount in held:
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
