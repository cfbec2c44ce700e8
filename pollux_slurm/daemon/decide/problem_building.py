"""Build a round's scheduling problem from the cluster picture, with each job's terms and models. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from types import MappingProxyType

from pollux_slurm.config import MovesConfig, PolicyConfig
from pollux_slurm.daemon.decide import declared_epochs, in_place, model_checks, policy_settings
from pollux_slurm.daemon.decide.kinds import Kinds, Taught
from pollux_slurm.daemon.decide.lent_gpus import gives_way, is_starting
from pollux_slurm.daemon.decide.promises import finish_by_s, time_left_s
from pollux_slurm.daemon.observe.cluster_picture import ManagedJob, Picture
from pollux_slurm.goodput import expected_progress
from pollux_slurm.model import (
    Allocation,
    ClusterSnapshot,
    JobState,
    NodeCapacity,
    Problem,
    ProblemJob,
    SlurmJob,
)
from pollux_slurm.slurm.parsing.comment_terms import decode_comment
from pollux_slurm.store.contract.interface import AllocationRecord, JobRecord, RunPhase


def build_problem(
    picture: Picture,
    *,
    now: datetime,
    default_restart_delay_s: float,
    max_restart_delay_s: float = 300.0,
    policy: PolicyConfig | None = None,
    pause_ttl_s: float = 900.0,
    unmanaged: Sequence[ProblemJob] = (),
    nodes: Sequence[NodeCapacity] | None = None,
    moves: MovesConfig | None = None,
    default_in_place_delay_s: float = 15.0,
    kinds: Kinds | None = None,
    histories: Mapping[str, Sequence[AllocationRecord]] = MappingProxyType({}),
) -> Problem:
    """Build the scheduling problem of a round: which jobs take part, and which are pinned.

    - A job with an open reallocation is pinned at its target, so that its GPUs are not given to another.
    - A running job is pinned until its current run has reported a step.
    - While `unmanaged` jobs wait, neither holds for those that may give way (`lent_gpus`).
    - A pending job takes no part if Slurm would not start it now (`not_moved_because`), if it is held, or if
      its owner or an admin gave it a later begin time.

    A measured restart delay counts up to `max_restart_delay_s`: a job could otherwise avoid moves by
    reporting its first step late. `pause_ttl_s` is how far ahead a pause sets the begin time. `unmanaged`
    jobs are added as they are. `nodes` replaces the picture's nodes. `kinds` teach jobs what others of their
    kind have measured; a job whose model is in doubt learns nothing. `histories` are the allocations of the
    jobs whose promises their total time bounds, by job id.

    The delay of a move in place is the time for which gained GPUs are idle, and the standstill after it:
    `default_in_place_delay_s` until the job's own warm-up, or that of its kind, was measured. A requeue
    starts the same processes, so its delay is never below that of a move in place: else decisions would
    prefer to stop jobs.
    """
    policy = PolicyConfig() if policy is None else policy
    kinds = Kinds() if kinds is None else kinds
    usable = UsableNodes(picture.snapshot)
    several_wings = in_place.allows_several_wings(picture.snapshot, moves or MovesConfig())
    doubts = model_checks.doubts_about([job.record for job in picture.managed])
    jobs = []
    for job, doubt in zip(picture.managed, doubts, strict=True):
        placement = _placement(job, now, pause_ttl_s, makes_room=bool(unmanaged))
        if placement is None:
            continue
        taught = Taught(models=(None, ()))
        if doubt is None:
            taught = kinds.teach(job.record, model_checks.models_of(job.record))
        delays = _delays(
            job.record, taught, default_restart_delay_s, default_in_place_delay_s, max_restart_delay_s
        )
        on_nodes = usable.by(job.slurm, job.record.required_nodes)
        history = histories.get(job.slurm.job_id, ())
        left_s = None if job.record.terms.finish_by is None else time_left_s(job, now, history)
        jobs.append(
            _problem_job(
                job, *placement, delays, on_nodes, doubt, taught, now=now, policy=policy, left_s=left_s
            )
        )
    jobs.extend(unmanaged)
    return Problem(
        nodes=tuple(
            replace(node, several_wings=several_wings(node.name))
            for node in _with_room_for_pinned(picture.nodes if nodes is None else nodes, jobs)
        ),
        jobs=tuple(jobs),
        objective=policy_settings.objective(policy),
        seed=policy.seed,
        limits=policy_settings.limits(policy, jobs),
        moving=policy_settings.moving(policy),
        gpu_speeds=policy.gpu_speeds,
        # Slurm itself distributes GPUs over nodes unless the numbers are equal.
        uneven=False,
        max_wait_s=policy.max_wait_s,
    )


def _problem_job(
    job: ManagedJob,
    current: Allocation,
    because: str | None,
    delays: tuple[float, float | None],
    partition_nodes: frozenset[str] | None,
    doubt: str | None,
    taught: Taught,
    *,
    now: datetime,
    policy: PolicyConfig,
    left_s: float | None,
) -> ProblemJob:
    """Return a job that takes part, in its `current` allocation, and pinned there where it is so `because`.

    `delays` are those of its moves, by requeue and in place. `taught` has the models that count for it.
    """
    record, slurm = job.record, job.slurm
    declaration = declared_epochs.check_declaration(record)
    model, by_type = taught.models
    restart_delay_s, in_place_delay_s = delays
    expected = expected_progress(declaration.progress or 0.0, taught.lengths)
    return ProblemJob(
        job_id=slurm.job_id,
        model=model,
        models=by_type,
        model_doubt=doubt,
        kind_note=taught.note,
        min_gpus=record.terms.min_gpus,
        max_gpus=_most_gpus(job),
        cpus_per_gpu=record.cpus_per_gpu,
        memory_per_gpu_mb=record.memory_per_gpu_mb,
        age_s=_seconds_since(record.first_submitted_at or record.submitted_at, now),
        num_restarts=record.num_restarts,
        restart_delay_s=restart_delay_s,
        # Those of a job that is being moved are not those of its target.
        wings=_wings(job) if current == slurm.allocation else (),
        in_place_delay_s=in_place_delay_s,
        current=current,
        pinned=because is not None,
        pinned_because=because,
        one_node=slurm.one_node,
        held_off=_is_held_off(job, now, policy.min_age_s) or is_starting(job, now),
        partition_nodes=partition_nodes,
        weight=policy_settings.weight(
            policy, account=slurm.account, user=slurm.user_name, job_id=slurm.job_id
        ),
        account=slurm.account,
        user=slurm.user_name,
        progress=declaration.progress,
        epochs_done=declaration.epochs_done,
        epochs_declared=declaration.epochs_declared,
        declaration_doubt=declaration.doubt,
        expected_progress=None if expected is None else expected.median,
        expected_low=None if expected is None else expected.low,
        expected_high=None if expected is None else expected.high,
        prediction_error=record.prediction_error,
        course=taught.course,
        finish_by_s=finish_by_s(record, now),
        time_left_s=left_s,
        promise=None if record.promise is None else record.promise.state,
        waiting_s=0.0 if current else _seconds_since(record.last_allocated_at or record.submitted_at, now),
    )


def _seconds_since(moment: datetime, now: datetime) -> float:
    return max((now - moment).total_seconds(), 0.0)


def _is_held_off(job: ManagedJob, now: datetime, default_s: float) -> bool:
    """Whether a job has run for less than its owner, or else the site, wants it to run undisturbed."""
    min_run_s = _min_run_s(job)
    least_s = default_s if min_run_s is None else min_run_s
    started_at = job.slurm.started_at
    if job.slurm.state is not JobState.RUNNING or started_at is None:
        return False
    return (now - started_at).total_seconds() < least_s


def _min_run_s(job: ManagedJob) -> float | None:
    terms = decode_comment(job.slurm.comment)
    return None if terms is None else terms.min_run_s


def _most_gpus(job: ManagedJob) -> int | None:
    """Return the most GPUs of a job; one that never moves again keeps nothing that is lent."""
    terms, submitted = job.record.terms, job.record.submitted_gpus
    if submitted is None or _min_run_s(job) != math.inf:
        return terms.max_gpus
    own = max(submitted, terms.min_gpus)
    return own if terms.max_gpus is None else min(own, terms.max_gpus)


def _wings(job: ManagedJob) -> tuple[Allocation, ...]:
    """Return the allocations of the wings of a job that can move in place now; none of any other."""
    if not job.slurm.wings or in_place.not_in_place_because(job.slurm, job.record) is not None:
        return ()
    return tuple(wing.allocation for wing in in_place.running_wings(job.slurm))


def _delays(
    record: JobRecord, taught: Taught, default_restart_s: float, default_warm_up_s: float, max_s: float
) -> tuple[float, float | None]:
    """Return the delays of a job's moves: by requeue, and in place, None where it never can.

    What the job has not measured counts as its kind has, and else as the site assumes.
    """
    measured_s = record.mean_restart_delay_s or taught.restart_delay_s
    restart_s = min(measured_s, max_s) if measured_s else default_restart_s
    if not record.terms.in_place:
        return restart_s, None
    warm_up_s = taught.warm_up_s if record.mean_warm_up_s is None else record.mean_warm_up_s
    standstill_s = taught.standstill_s if record.mean_standstill_s is None else record.mean_standstill_s
    idle_s = default_warm_up_s if warm_up_s is None else warm_up_s
    in_place_s = min(idle_s + (standstill_s or 0.0), max_s)
    if warm_up_s is not None and not record.mean_restart_delay_s:
        restart_s = max(restart_s, in_place_s)
    return restart_s, min(in_place_s, restart_s)


class UsableNodes:
    """The nodes that each job may use, computed once for jobs with the same request."""

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        self._nodes, self._at = snapshot.nodes, snapshot.read_at
        self._any_reserved = any(node.reserved_from is not None for node in snapshot.nodes)
        self._found: dict[tuple[object, ...], frozenset[str]] = {}

    def by(self, job: SlurmJob, named: tuple[str, ...]) -> frozenset[str] | None:
        """Return the nodes on which Slurm may start a job with `named` nodes in --nodelist; None for all.

        Slurm keeps a job's constraints when its shape changes (docs/slurm-facts.md). None keeps a problem of
        many jobs and nodes small.
        """
        request = (job.requested_gpu_type, job.feature_sets, job.excluded_nodes, named)
        ends = (job.time_limit_s, job.started_at, bool(job.wings)) if self._any_reserved else ()
        key = (job.partition, *request, *ends)
        if key not in self._found:
            self._found[key] = frozenset(
                node.name for node in self._nodes if job.may_run_on(node, named, at=self._at)
            )
        return None if len(self._found[key]) == len(self._nodes) else self._found[key]


def is_parked(job: ManagedJob, now: datetime) -> bool:
    """Whether the job is paused and waits only for a round that gives it GPUs."""
    begins_at = job.slurm.begins_at
    return (
        job.record.paused_at is not None
        and not job.in_flight
        and job.slurm.state is JobState.PENDING
        and not job.slurm.held
        and begins_at is not None
        and begins_at > now
    )


# More than the begin time that Slurm sets for a requeued job (121 s ahead in 22.05).
_REQUEUE_DELAY_S = 180.0


def _begins_later(job: ManagedJob, now: datetime, pause_ttl_s: float) -> bool:
    """Whether a pending job may not start yet, by a begin time that its owner or an admin set."""
    if job.slurm.begins_at is None:
        return False
    max_delay_s = 0.0 if job.slurm.restart_count == 0 else _REQUEUE_DELAY_S
    if job.record.paused_at is not None:
        max_delay_s = max(pause_ttl_s, max_delay_s)
    # slurmctld's clock may differ from this host's.
    return (job.slurm.begins_at - now).total_seconds() > max_delay_s + 60.0


def not_moved_because(job: ManagedJob) -> str | None:
    """Return why no round moves or places the job, None where one may."""
    return job.not_moved_because or job.slurm.unschedulable_reason or job.slurm.blocked_because


def participants(picture: Picture, *, now: datetime, pause_ttl_s: float = 900.0) -> frozenset[str]:
    """Return the adaptive jobs that take part in a round, by job id."""
    return frozenset(
        job.slurm.job_id for job in picture.managed if _placement(job, now, pause_ttl_s) is not None
    )


def _placement(
    job: ManagedJob, now: datetime, pause_ttl_s: float, *, makes_room: bool = False
) -> tuple[Allocation, str | None] | None:
    """Return the job's current allocation and why it is pinned there, or None; None: it takes no part.

    `makes_room`: other jobs wait, to which it may give way.
    """
    reallocation = job.record.open_reallocation
    if reallocation is not None and not (makes_room and gives_way(job, now)):
        return reallocation.target, "it is being moved"
    if job.slurm.state is JobState.PENDING:
        if job.slurm.held or not_moved_because(job) is not None:
            return None
        if _begins_later(job, now, pause_ttl_s):
            return None
        return Allocation(), None
    if not job.slurm.allocation:
        return None
    because = not_moved_because(job)
    if because is not None:
        return job.slurm.allocation, because
    if job.slurm.state is not JobState.RUNNING:
        because = f"it is {job.slurm.state.value}"
    elif not (job.has_reported_this_run or (makes_room and is_starting(job, now))):
        ended = job.record.run is not None and job.record.run.phase is RunPhase.FINISHED
        because = "it is about to end" if ended else "its present run has not reported a step yet"
    return job.slurm.allocation, because


def _with_room_for_pinned(
    nodes: Iterable[NodeCapacity], jobs: Iterable[ProblemJob]
) -> tuple[NodeCapacity, ...]:
    """Raise a node's capacity to what is pinned there, so that the problem has a solution.

    An unmanaged job may have taken GPUs of a moving job's target; that move itself deals with it.
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
