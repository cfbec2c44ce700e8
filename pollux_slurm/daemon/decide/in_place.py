"""Whether and how a running job can be moved in place: its wings, its processes, and who must wait. Pure.

The processes that train are those of the newest generation that has regrouped, or, where a start has had none
yet, those of the wing that it began with. Slurm must show their wings as running.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from pollux_slurm.config import MovesConfig
from pollux_slurm.model import (
    Allocation,
    ClusterSnapshot,
    JobState,
    Problem,
    ReallocationCause,
    ReallocationWay,
    SlurmJob,
    wing_changes,
)
from pollux_slurm.slurm.parsing.merged_wings import wings_of_start
from pollux_slurm.slurm.parsing.wing_comment import parse_wing_comment
from pollux_slurm.store.contract.interface import GenerationMember, GenerationState, JobRecord
from pollux_slurm.store.contract.membership import wing_members


@dataclass(frozen=True, slots=True, kw_only=True)
class Regroup:
    """A move in place.

    `members` are the next generation's, those that stay first. `added` are the GPUs of the new wings, one on
    each node, `leaving` the wings that are left.
    """

    members: tuple[GenerationMember, ...]
    added: Allocation
    leaving: tuple[SlurmJob, ...]

    def has_room(self, free: Callable[[str], int]) -> bool:
        """Whether new wings fit beside those that they replace, which leave their nodes only later."""
        left = {node for wing in self.leaving for node in wing.allocation.nodes}
        return all(free(node) >= gpus for node, gpus in self.added.gpus_by_node if node in left)


def allows_several_wings(snapshot: ClusterSnapshot, moves: MovesConfig) -> Callable[[str], bool]:
    """Return whether one job may have several wings on a node, by the node's type of GPU."""
    named = moves.gpu_types_without_nvlink
    # Asked for each job of a round: where none is named, no node is looked at.
    nodes = snapshot.nodes if named else ()
    allowed = {node.name for node in nodes if "*" in named or node.gpu_type in named}
    return allowed.__contains__


def running_wings(job: SlurmJob) -> list[SlurmJob]:
    """Return the wings of the job's newest start that own GPUs."""
    return [wing for wing in wings_of_start(job.wings) if wing.allocation]


def members_of(wing: SlurmJob) -> tuple[GenerationMember, ...]:
    """Return the processes of a running wing."""
    terms = parse_wing_comment(wing.comment)
    return () if terms is None else wing_members(terms.restart_count, terms.plan, wing.allocation)


def training_members(job: SlurmJob, record: JobRecord) -> tuple[GenerationMember, ...]:
    """Return the processes that train, in rank order; none where they are not known."""
    wings = running_wings(job)
    regrouped = [
        one
        for one in record.generations
        if one.state is GenerationState.REGROUPED and one.restart_count == job.restart_count
    ]
    if regrouped:
        members = regrouped[-1].members
    elif wings and (terms := parse_wing_comment(wings[0].comment)) is not None and terms.plan == 0:
        members = members_of(wings[0])
    else:
        return ()
    running = {member.id for wing in wings for member in members_of(wing)}
    return members if all(member.id in running for member in members) else ()


def regroup(
    job: SlurmJob, record: JobRecord, target: Allocation, *, plan: int, several_wings: Callable[[str], bool]
) -> Regroup | str:
    """Return how a job goes to `target` in place, or why it cannot. `plan` is the reallocation's id."""
    members = training_members(job, record)
    if not members:
        return "its processes are not known"
    train = {member.id for member in members}
    wings = running_wings(job)
    # A wing whose processes have left, and which is about to end, cannot be kept.
    usable = [wing for wing in wings if all(member.id in train for member in members_of(wing))]
    changes = wing_changes([wing.allocation for wing in usable], target, several_wings=several_wings)
    if changes is None:
        return "none of its wings could stay as it is"
    kept = [usable[place] for place in changes.kept]
    staying = {member.id for wing in kept for member in members_of(wing)}
    # Those that stay are ready, newcomers not yet.
    stay = tuple(
        GenerationMember(id=one.id, node_name=one.node_name, is_ready=True)
        for one in members
        if one.id in staying
    )
    return Regroup(
        members=(*stay, *wing_members(job.restart_count, plan, changes.added)),
        added=changes.added,
        leaving=tuple(wing for wing in wings if wing not in kept),
    )


def not_in_place_because(job: SlurmJob, record: JobRecord) -> str | None:
    """Return why a running job with wings is moved by requeue for now; None where it can move in place."""
    last = record.last_reallocation
    if (
        last is not None
        and last.way is ReallocationWay.IN_PLACE
        and last.job_failed
        and last.from_restart_count == job.restart_count
    ):
        return f"its last move in place failed: {last.reason}"
    newest = record.generations[-1] if record.generations else None
    if (
        newest is not None
        and newest.state is GenerationState.REFUSED
        and newest.restart_count == job.restart_count
    ):
        # The script stays the same until the next start, whatever was ordered or failed meanwhile.
        return f"a regroup was refused: {newest.reason}"
    if not training_members(job, record):
        return "its processes are not known"
    return None


# A wing may have been submitted, or left, just before the journal or Slurm shows it.
_STRAY_AGE = timedelta(seconds=60)


# Whoever submits stray wings all the time must not keep a move open, and with it the job's GPUs.
_STRAY_PAUSE = timedelta(seconds=120)


def had_stray_wings_lately(record: JobRecord, now: datetime) -> bool:
    """Whether the job's stray wings were its last move, so that the policy's moves come first now."""
    last = record.last_reallocation
    if last is None or last.cause is not ReallocationCause.STRAY_WINGS:
        return False
    ended_at = last.entered_at(last.step)
    return ended_at is not None and now - ended_at < _STRAY_PAUSE


def stray_wings(job: SlurmJob, record: JobRecord, now: datetime) -> list[SlurmJob]:
    """Return the wings in which no process of the running training is, and to which none is about to come."""
    train = {member.id for member in training_members(job, record)}
    if not train or job.state is not JobState.RUNNING:
        return []
    return [
        wing
        for wing in job.wings
        if wing.state in (JobState.PENDING, JobState.RUNNING)
        and not any(member.id in train for member in members_of(wing))
        and now - (wing.started_at or wing.submitted_at or now) > _STRAY_AGE
    ]


def way_of_move(
    job: SlurmJob,
    record: JobRecord,
    target: Allocation,
    snapshot: ClusterSnapshot,
    problem: Problem,
    *,
    several_wings: Callable[[str], bool],
    may_prioritise: bool,
) -> tuple[ReallocationWay, str | None]:
    """Return how a job goes to `target`, and why a running one with wings goes by requeue.

    One that waits starts, and nothing of it could be moved in place. A daemon that `may_prioritise` no wing
    leaves the free GPUs to what is older in the queue. `problem` is that of the decision, with its limits.
    """
    if not job.wings or not job.allocation or not target:
        return ReallocationWay.REQUEUE, None
    because = not_in_place_because(job, record)
    if because is None:
        found = regroup(job, record, target, plan=1, several_wings=several_wings)
        if isinstance(found, str):
            because = found
        elif not found.has_room(_free_gpus(snapshot)):
            because = "its new wings have no room beside those that they replace"
        elif found.leaving and (limit := _limit_exceeded(job, record, found.added.num_gpus, problem)):
            because = f"its new wings and those that they replace together exceed {limit}"
        elif found.added and not may_prioritise and _others_wait(job, snapshot.jobs):
            because = "other jobs wait in its partition"
    if because is None:
        return ReallocationWay.IN_PLACE, None
    return ReallocationWay.REQUEUE, f"by requeue, since {because}"


def _free_gpus(snapshot: ClusterSnapshot) -> Callable[[str], int]:
    free = {node.name: node.num_gpus - node.used_gpus for node in snapshot.nodes}
    return lambda node: free.get(node, 0)


def _limit_exceeded(job: SlurmJob, record: JobRecord, added: int, problem: Problem) -> str | None:
    """Return the limit of Slurm's that a job exceeds while it has `added` GPUs more; None for none.

    Slurm compares each wing alone with a limit per job, and would not start a new one above other limits.
    """
    asked = next((one for one in problem.jobs if one.job_id == job.job_id), None)
    if asked is None or added == 0:
        return None
    per_job = asked.max_gpus if asked.max_gpus != record.terms.max_gpus else None
    if per_job is not None and job.allocation.num_gpus + added > per_job:
        return f"the limit of {per_job} GPUs per job"
    for limit in problem.limits:
        members = limit.members(problem.jobs)
        counted = [one for one, counts in zip(problem.jobs, members, strict=True) if counts]
        if asked in counted and sum(one.current.num_gpus for one in counted) + added > limit.max_gpus:
            return f"the limit of {limit.max_gpus} GPUs of {limit.kind} {limit.name}"
    return None


def _others_wait(job: SlurmJob, jobs: Sequence[SlurmJob]) -> bool:
    partitions = set(job.partitions)
    return any(
        other.state is JobState.PENDING
        and not other.held
        and other.blocked_because is None
        and other.job_id != job.job_id
        and not partitions.isdisjoint(other.partitions)
        for other in jobs
    )
