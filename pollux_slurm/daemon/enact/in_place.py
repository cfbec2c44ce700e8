"""The steps of a move in place: planned → regroup_requested → regrouped → confirmed.

    planned             the job trains; a donor waits until those that get its GPUs are in the queue
    regroup_requested   the generation is in the store: the anchor brings its wings, and the ranks regroup
    regrouped           the first step was made; wings that were left end
    confirmed           Slurm's wings are the plan

Until rank 0 commits the generation, it can be withdrawn, and the training has not noticed. A generation that
was committed and makes no step is given up: all wings are cancelled, and the job goes on from its checkpoint,
as after any loss of a wing.

The owner may submit and change wings. So each is compared with the plan at every tick. Only one that is as
planned gets priority; any other is cancelled, and its move is withdrawn. One that was changed after it had
got priority is cancelled, too (`prioritised_wings`).
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence

from pollux_slurm.config import MovesConfig
from pollux_slurm.daemon.decide.in_place import allows_several_wings, regroup, stray_wings
from pollux_slurm.daemon.enact.gpu_ledger import RECEIVER_WAIT_S, GpuLedger
from pollux_slurm.daemon.enact.move_actions import MoveActions
from pollux_slurm.daemon.enact.open_move import OpenMove, Step
from pollux_slurm.daemon.enact.prioritised_wings import PrioritisedWings
from pollux_slurm.daemon.obstacles import places
from pollux_slurm.errors import SlurmCommandError
from pollux_slurm.model import ClusterSnapshot, JobState, ReallocationCause, SlurmAnswer, SlurmJob
from pollux_slurm.now import refusals
from pollux_slurm.slurm.parsing.merged_wings import wings_of_start
from pollux_slurm.slurm.parsing.wing_comment import parse_wing_comment
from pollux_slurm.store.contract.interface import GenerationRecord, GenerationState
from pollux_slurm.store.contract.membership import plan_of_member

_log = logging.getLogger(__name__)

# A process that has left may still send a tracker's last values.
_LEAVE_TIMEOUT_S = 30.0
# Wings of one job that are cancelled in one tick: its owner may have thousands, and other jobs' moves wait.
_MAX_CANCELLED = 20


class StepsInPlace:
    """Moves jobs by regroups. `may_prioritise`: whether this daemon's user may raise priorities."""

    def __init__(
        self,
        actions: MoveActions,
        *,
        moves: MovesConfig,
        may_prioritise: Callable[[], bool],
    ) -> None:
        self._actions = actions
        self.moves, self._may_prioritise = moves, may_prioritise
        self._prioritised = PrioritisedWings()

    def wings_to_check(self, *, after_round: bool) -> Collection[str]:
        """Return the wings that got priority and have not started; after a round, those not over yet."""
        return self._prioritised.known if after_round else self._prioritised.waiting

    def check_prioritised(self, snapshot: ClusterSnapshot, moves: Sequence[OpenMove]) -> None:
        """Cancel the wings that their owner has changed since they got priority, or that are left over."""
        requested = {
            move.reallocation.id for move in moves if move.reallocation.step is Step.REGROUP_REQUESTED
        }
        if self._may_prioritise():
            self._prioritised.adopt(snapshot.jobs)
        self._prioritised.check(snapshot, requested, self._actions.slurm.cancel)

    def planned(self, move: OpenMove, ledger: GpuLedger) -> None:
        """Ask for the regroup, once the new wings can get their GPUs."""
        reallocation, config = move.reallocation, self._actions.config
        if (changed := move.change_of_running_job()) is not None:
            self._roll_back(move, changed)
            return
        assert move.job is not None
        assert move.record is not None
        if reallocation.cause is ReallocationCause.STRAY_WINGS:
            self._actions.advance(reallocation, Step.REGROUPED)
            return
        if ledger.target_is_lost(reallocation):
            self._roll_back(move, "the GPUs were taken by other jobs or the node drained")
            return
        found = regroup(
            move.job,
            move.record,
            reallocation.target,
            plan=reallocation.id,
            several_wings=allows_several_wings(ledger.snapshot, self.moves),
        )
        if isinstance(found, str):
            self._roll_back(move, found)
        elif ledger.is_awaited(reallocation) and move.age_s < RECEIVER_WAIT_S:
            return
        # With priority, wings stand in the queue before donors free their GPUs, or others would get these.
        elif not found.added or self._may_prioritise() or ledger.is_free_for(reallocation):
            if self._actions.request_regroup(move, found.members):
                ledger.reserve(reallocation)
        elif move.age_s > config.start_timeout_s + config.checkpoint_timeout_s:
            self._roll_back(move, "the GPUs did not become free in time")

    def regroup_requested(self, move: OpenMove, ledger: GpuLedger) -> None:
        """Check and help the wings until the ranks have regrouped, and give up what does not come."""
        generation = move.generation
        if generation is None:
            self._roll_back(move, "its generation is gone")
        elif generation.state is GenerationState.REGROUPED:
            if self._actions.advance(move.reallocation, Step.REGROUPED):
                self.regrouped(move.at(Step.REGROUPED), ledger)
        elif generation.state is GenerationState.FAILED:
            self._actions.advance(move.reallocation, Step.FAILED, generation.reason, job_failed=True)
        elif not generation.state.is_open:
            refused = generation.state is GenerationState.REFUSED
            self._roll_back(move, generation.reason or generation.state.value, job_failed=refused)
        elif (changed := move.change_of_running_job()) is not None:
            self._give_up(move, generation, changed, job_failed=False)
        elif generation.state is GenerationState.PLANNED:
            if (failure := self._failure(move, generation, ledger.snapshot)) is not None:
                wing = refused_wing(move)
                if wing is not None:
                    answer = refusals.answer_of(wing.reason)
                    self._actions.remember_refusal(move, answer, wing.reason)
                # Another allocation may well be reached in place.
                self._give_up(move, generation, failure, job_failed=wing is None)
            elif self._are_gpus_lost(move, generation, ledger):
                self._give_up(move, generation, "other jobs have its GPUs", job_failed=False)
        elif (self._actions.clock() - generation.at).total_seconds() > self._timeout_s:
            # First of all, since it can be repeated: what follows ends the move, which nobody resumes. Where
            # Slurm refuses it, or the job has changed, there is nothing to repeat.
            try:
                self._actions.slurm.requeue(move.job_id, restart_count=move.reallocation.from_restart_count)
            except SlurmCommandError as error:
                _log.warning("job %s: it is not started again: %s", move.job_id, error)
            because = "the members made no step in the new generation in time"
            self._give_up(move, generation, because, job_failed=True)

    @property
    def _timeout_s(self) -> float:
        return self._actions.config.first_report_timeout_s

    def _are_gpus_lost(self, move: OpenMove, generation: GenerationRecord, ledger: GpuLedger) -> bool:
        """Prioritise the new wings that wait; return whether others have their GPUs."""
        wings = new_wings(move)
        if len([wing for wing in wings if wing.allocation]) == len(new_gpus(move, generation)):
            return False
        if self._may_prioritise():
            for wing in wings:
                self._prioritise(move.job_id, wing, ledger.snapshot)
        return ledger.target_is_lost(move.reallocation)

    def _failure(self, move: OpenMove, generation: GenerationRecord, snapshot: ClusterSnapshot) -> str | None:
        """Return what is wrong with a planned generation's wings, or that nothing comes of it."""
        wanted, wings = new_gpus(move, generation), new_wings(move)
        for wing in wings:
            if (found := fault(wing, wanted, wings, move, snapshot)) is not None:
                self._cancel(wing)
                return found
        if len([wing for wing in wings if wing.allocation]) < len(wanted):
            # A limit on jobs, for example, which nothing shows that could be read before.
            config, reasons = self._actions.config, {wing.reason for wing in wings if not wing.allocation}
            if move.age_s <= config.checkpoint_timeout_s + config.start_timeout_s:
                return None
            return f"its new wings did not start in time ({', '.join(sorted(reasons)) or 'none came'})"
        since = max([generation.at, *(wing.started_at for wing in wings if wing.started_at is not None)])
        if (self._actions.clock() - since).total_seconds() <= self._timeout_s:
            return None
        return "the new processes were not ready in time" if wanted else "the script came to no step in time"

    def _give_up(
        self, move: OpenMove, generation: GenerationRecord, because: str, *, job_failed: bool
    ) -> bool:
        """End a generation, and the reallocation with it; False where the job is just changing it."""
        is_planned = generation.state is GenerationState.PLANNED
        ended = GenerationState.WITHDRAWN if is_planned else GenerationState.FAILED
        if not self._actions.end_generation(move, generation, ended, because):
            return False
        step = Step.ROLLED_BACK if is_planned else Step.FAILED
        return self._actions.advance(move.reallocation, step, because, job_failed=job_failed)

    def regrouped(self, move: OpenMove, ledger: GpuLedger) -> None:
        """Wait until the wings that were left have ended; cancel those that stay."""
        reallocation, job, record = move.reallocation, move.job, move.record
        if self._actions.fail_if_over(move):
            return
        assert job is not None
        assert record is not None
        if job.state is not JobState.RUNNING or job.restart_count != reallocation.from_restart_count:
            self._actions.advance(reallocation, Step.FAILED, "the job was started again meanwhile")
            return
        is_maintenance = reallocation.cause is ReallocationCause.STRAY_WINGS
        strays = stray_wings(job, record, self._actions.clock())
        if job.allocation == reallocation.target and not strays:
            self._actions.advance(reallocation, Step.CONFIRMED)
        elif move.age_s > self._actions.config.requeue_timeout_s + self._actions.config.start_timeout_s:
            because = f"got {job.allocation} instead of {reallocation.target}"
            if job.allocation == reallocation.target:
                because = f"{len(strays)} wings without a process are left"
            self._actions.advance(reallocation, Step.FAILED, because)
        elif is_maintenance or move.age_s > _LEAVE_TIMEOUT_S:
            # Those with GPUs first.
            for wing in sorted(strays, key=lambda one: -one.allocation.num_gpus)[:_MAX_CANCELLED]:
                self._cancel(wing)

    def _prioritise(self, anchor_id: str, wing: SlurmJob, snapshot: ClusterSnapshot) -> None:
        """Put a wing before all others that wait for nodes of its partitions."""
        before = [
            priority
            for number, priority in places.priorities_beside(wing, snapshot).items()
            if number not in self._prioritised
        ]
        highest = max(before, default=0)
        if wing.state is not JobState.PENDING or (wing.priority is not None and wing.priority >= highest):
            return
        # Before the command: without an answer, it may have taken effect.
        self._prioritised.add(anchor_id, wing)
        try:
            self._actions.slurm.set_priority(wing.job_id, highest + 1)
        except SlurmCommandError as error:
            _log.info("wing %s gets no priority: %s", wing.job_id, error)

    def _cancel(self, wing: SlurmJob) -> None:
        _log.info("wing %s is cancelled", wing.job_id)
        self._actions.slurm.cancel(wing.job_id)

    def _roll_back(self, move: OpenMove, reason: str, *, job_failed: bool = False) -> None:
        self._actions.advance(move.reallocation, Step.ROLLED_BACK, reason, job_failed=job_failed)


def new_gpus(move: OpenMove, generation: GenerationRecord) -> Counter[str]:
    """Return the GPUs of the wings that a generation's newcomers need, by node."""
    plan = move.reallocation.id
    return Counter(one.node_name for one in generation.members if plan_of_member(one.id) == plan)


def new_wings(move: OpenMove) -> list[SlurmJob]:
    """Return the wings that were submitted for a move, those that have ended included."""
    wings = [] if move.job is None else wings_of_start(move.job.wings)
    return [wing for wing in wings if _plan_of(wing) == move.reallocation.id]


def refused_wing(move: OpenMove) -> SlurmJob | None:
    """Return a new wing that Slurm does not start for its GPUs, the one that never can first.

    A limit on jobs is not a refusal of the allocation: by requeue, the job may well have it.
    """
    waiting = [
        wing
        for wing in new_wings(move)
        if wing.state is JobState.PENDING
        and (not wing.held or refusals.is_held_for_its_shape(wing))
        and wing.blocked_because is None
        and wing.reason not in ("BeginTime", "None")
    ]
    return min(
        waiting, key=lambda wing: refusals.answer_of(wing.reason) is not SlurmAnswer.NEVER, default=None
    )


def is_in_queue(move: OpenMove) -> bool:
    """Whether all new wings of a move are in the queue, or run already."""
    return move.generation is not None and len(new_wings(move)) >= len(new_gpus(move, move.generation))


def _plan_of(wing: SlurmJob) -> int | None:
    terms = parse_wing_comment(wing.comment)
    return None if terms is None else terms.plan


def fault(
    wing: SlurmJob,
    wanted: Counter[str],
    wings: Sequence[SlurmJob],
    move: OpenMove,
    snapshot: ClusterSnapshot,
) -> str | None:
    """Return how a new wing differs from what is `wanted`, None where it does not."""
    name = f"its wing {wing.job_id}"
    if wing.state.is_over or wing.state is JobState.COMPLETING:
        return f"{name} is {wing.state.value} before it could join"
    never_starts = refusals.answer_of(wing.reason) is SlurmAnswer.NEVER
    if wing.held or wing.blocked_because is not None or never_starts:
        return f"{name} waits whatever is free ({wing.reason})"
    nodes = _nodes_of(wing)
    gpus = wing.allocation.num_gpus or wing.requested_gpus
    if len(nodes) != 1 or wanted[nodes[0]] != gpus:
        return f"{name} has {gpus} GPUs on {','.join(nodes) or 'any node'}, which is not the plan"
    if any(other.job_id != wing.job_id and _nodes_of(other) == nodes for other in wings):
        return f"{name} is not the only one on {nodes[0]}"
    if wing.unschedulable_reason is not None:
        return f"{name} is not as its anchor submits it: {wing.unschedulable_reason}"
    start = None if move.job is None else wings_of_start(move.job.wings)[0]
    if start is not None and not set(wing.partitions) <= set(start.partitions):
        return f"{name} is in partition {wing.partition}, its start in {start.partition}"
    if start is not None and _has_more_memory(wing, start):
        return f"{name} has more memory per GPU than its start"
    cpus_per_gpu = 1 if move.record is None else move.record.cpus_per_gpu
    # One that runs has whole cores.
    threads = _threads_per_core(nodes[0], snapshot) if wing.allocation else 1
    if wing.num_cpus > math.ceil(gpus * cpus_per_gpu / threads) * threads:
        return f"{name} has {wing.num_cpus} CPUs for {gpus} GPUs, more than {cpus_per_gpu} each"
    limit_s = None if start is None else start.time_limit_s
    if limit_s is not None and _may_last_longer(wing, limit_s):
        return f"{name} has a longer time limit than its start"
    return None


def _threads_per_core(name: str, snapshot: ClusterSnapshot) -> int:
    return next((node.threads_per_core for node in snapshot.nodes if node.name == name), 1)


def _may_last_longer(wing: SlurmJob, limit_s: float) -> bool:
    """Whether a wing has a longer time limit. One that asks for none has its partition's once it runs."""
    if wing.time_limit_s is None:
        return wing.state is not JobState.PENDING
    return wing.time_limit_s > limit_s


def _has_more_memory(wing: SlurmJob, start: SlurmJob) -> bool:
    """Whether a wing asks for more memory per GPU, where the start has so many MB of each GPU."""
    if start.memory_per_gpu_mb is None or start.memory_by_node:
        return False
    # What its owner has set beside that is seen in what it has. Memory by CPU comes with whole cores.
    cpus_per_gpu = max(start.cpus_per_gpu or 1, 1)
    gpus = max(wing.allocation.num_gpus, sum(cpus for _, cpus in wing.cpus_by_node) / cpus_per_gpu)
    has_mb = sum(memory_mb for _, memory_mb in wing.memory_mb_by_node)
    asks_mb = wing.memory_per_gpu_mb or 0
    return wing.memory_by_node or asks_mb > start.memory_per_gpu_mb or has_mb > gpus * start.memory_per_gpu_mb


def _nodes_of(wing: SlurmJob) -> tuple[str, ...]:
    return wing.allocation.nodes or wing.required_nodes
