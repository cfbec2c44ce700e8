"""A job that moves by requeue keeps its place, whatever waits in the queue.

A requeued job stands at the end of the queue, and what it leaves goes to others at once. So where
others wait:

- Before the requeue, its nodes are reserved: Slurm starts no other job there, nor on others that the first
  job which waits needs beside them. The reservation is deleted as soon as the job's begin time has come, and
  ends by itself after two minutes. Reservations that share a node are deleted together, within seconds: a job
  for which several others make room finds all of its nodes, and Slurm gives none to one behind it.
- With its release, it gets a priority above all that wait. When it runs, `scontrol release` gives it an
  ordinary one again. A job that has lost its place all the same gets it, for ten minutes, with each start on
  no more GPUs than it had.

The priority is journaled before it is given. Whatever else happens to the job or to the daemon, it is taken
off at the next tick: it counts only for the shape, partition, account and QOS that the daemon gave it, and
for no more CPUs, memory and time. Of a job in place it is a wing that has it, and loses it once it is not a
wing of that start. An owner's command may come between two ticks: then the job starts once where it should
not.

Only root, SlurmUser and operators may do so. Another daemon stops no running job while one waits that could
start on what the move frees (`pollux_slurm.daemon.obstacles.places`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from pollux_slurm.daemon.enact.move_actions import SETTLING_S, MoveActions
from pollux_slurm.daemon.enact.open_move import OpenMove, Step, has_target_shape
from pollux_slurm.daemon.observe.cluster_picture import ManagedJob
from pollux_slurm.daemon.observe.events import PAUSE_PER_READ
from pollux_slurm.daemon.obstacles import places
from pollux_slurm.daemon.recovery.lost_places import move_that_stopped, restores
from pollux_slurm.errors import SlurmCommandError, SlurmError
from pollux_slurm.model import ClusterSnapshot, JobState, SlurmJob
from pollux_slurm.now.refusals import request_of
from pollux_slurm.slurm.parsing.merged_wings import wings_of_start
from pollux_slurm.slurm.parsing.reservations import OWN_PREFIX
from pollux_slurm.store.contract.interface import JobRecord, Reallocation

_log = logging.getLogger(__name__)

_RESERVED_MIN = 2
# Steps at which a reservation may exist.
_RESERVING = (Step.CHECKPOINTED, Step.REQUEUED, Step.RESHAPED, Step.RELEASED)
# After Slurm has refused a reservation, none is asked for, and no job moves that needs one.
_REFUSED_FOR = timedelta(minutes=10)


@dataclass(slots=True, kw_only=True)
class _Reservation:
    """One of a move's nodes. `may_open_at`: since when its job could start, None while it cannot."""

    name: str
    nodes: frozenset[str]
    may_open_at: datetime | None = None


class KeptPlaces:
    """Reservations and priorities of moving jobs. `may_prioritise`: whether this user may give them."""

    def __init__(self, actions: MoveActions, *, may_prioritise: Callable[[], bool], is_on: bool) -> None:
        self._actions, self._may_prioritise = actions, may_prioritise
        self.is_on = is_on
        # None: another daemon may have given some.
        self._may_last: bool | None = None
        # As the job was when it got its priority.
        self._given: dict[int, SlurmJob] = {}
        self._taken: set[int] = set()
        # Of a job in place, it is a wing that got it.
        self._wings: dict[int, str] = {}
        # Of starts of jobs that wait: whether a move has stopped these.
        self._restoring: dict[int, bool] = {}
        self._reserved: dict[int, _Reservation] = {}
        self._opened_at: dict[int, datetime] = {}
        self._refused_at: datetime | None = None
        # All jobs, as they were read last, and until when that is new enough.
        self._queue: ClusterSnapshot | None = None
        self._queue_until: datetime | None = None
        self._has_adopted = False

    def can_keep(self) -> bool:
        """Whether a job that moves by requeue keeps its place, whatever waits."""
        now = self._actions.clock()
        is_refused = self._refused_at is not None and now - self._refused_at < _REFUSED_FOR
        return self.is_on and not is_refused and self._may_prioritise()

    def has_to_check(self) -> bool:
        """Whether a reservation or a priority may last that is to be ended, also without an open move."""
        if self._may_last is None:
            self._may_last = bool(self._actions.store.journal.prioritised())
        return self._may_last or bool(self._reserved)

    def jobs_to_check(self) -> frozenset[str]:
        """Return the jobs that may still have a priority of ours."""
        if not self.has_to_check():
            return frozenset()
        given = self._actions.store.journal.prioritised()
        return frozenset((*(one.slurm_job_id for one in given), *self._wings.values()))

    # -------------------------------------------------------------------------------------- reservations

    def adopt(self, snapshot: ClusterSnapshot, moves: Sequence[OpenMove]) -> bool:
        """Take over, once, the places that an earlier daemon may have reserved; return whether there are any.

        Slurm shows their nodes as reserved: read them again afterwards.
        """
        if self._has_adopted:
            return False
        for move in moves:
            if move.reallocation.step in _RESERVING and move.reallocation.moves_running:
                self.reserve(move, snapshot, may_exist=True)
        self._has_adopted = True
        return bool(self._reserved)

    def reserve(self, move: OpenMove, snapshot: ClusterSnapshot, *, may_exist: bool = False) -> str | None:
        """Reserve a job's nodes before its requeue, if others wait for them; return why it is not kept there.

        Slurm may refuse it; or a job has come since the round that waits for a limit which counts this one.
        """
        reallocation = move.reallocation
        wanted = {*reallocation.source.nodes, *reallocation.target.nodes}
        nodes = [
            node
            for node in snapshot.nodes
            if node.name in wanted and (node.available or (may_exist and "reserved" in node.state))
        ]
        if not nodes or not reallocation.target or reallocation.id in self._reserved:
            return None
        if may_exist and not self.can_keep():
            return None
        queue = self._waiting()
        if not may_exist and move.job is not None:
            waiting, because = places.waiting_jobs(queue), None
            if _may_wait(reallocation):
                because = places.frees_slot_because(move.job, waiting)
            if because is None and not self.can_keep():
                because = places.loses_place_because(move.job, waiting, queue)
            if because is not None:
                return because
        if not self.can_keep():
            return None
        reserved = places.nodes_to_reserve(move.job_id, nodes, queue)
        if not reserved:
            return None
        name = f"{OWN_PREFIX}{move.job_id}_{reallocation.id}"
        names = [node.name for node in reserved]
        self._reserved[reallocation.id] = _Reservation(name=name, nodes=frozenset(names))
        try:
            self._actions.slurm.create_reservation(name, names, minutes=_RESERVED_MIN)
        except SlurmCommandError as error:
            if may_exist:
                return None
            self.end_reservation(reallocation.id)
            self._refused_at = self._actions.clock()
            _log.warning("job %s: its place cannot be kept: %s", move.job_id, error)
            return str(error)
        except SlurmError:
            del self._reserved[reallocation.id]  # so that it is asked for again
            raise
        return None

    def _waiting(self) -> ClusterSnapshot:
        """Return all jobs: a tick has read the moving ones alone.

        They are read once a tick. Where thousands wait, and a read takes seconds, the next ticks go on with
        it.
        """
        if self._queue is None:
            began = self._actions.clock()
            self._queue = self._actions.slurm.refresh()
            now = self._actions.clock()
            self._queue_until = now + PAUSE_PER_READ * (now - began)
        return self._queue

    def open_reservation(self, number: int) -> None:
        """End the reservation of a job that may start, at once with others that share a node with it.

        After some seconds it waits no more for these.
        """
        mine = self._reserved.get(number)
        if mine is None:
            return
        now = self._actions.clock()
        if mine.may_open_at is None:
            mine.may_open_at = now
        sharing = {key: one for key, one in self._reserved.items() if one.nodes & mine.nodes}
        may_open = [key for key, one in sharing.items() if one.may_open_at is not None]
        if len(may_open) == len(sharing) or (now - mine.may_open_at).total_seconds() > SETTLING_S:
            for key in may_open:
                self.end_reservation(key)

    def open_for_s(self, number: int) -> float:
        """Return for how long a reallocation has had no reservation any more, in seconds."""
        if number in self._reserved:
            return 0.0
        opened_at = self._opened_at.get(number)
        return math.inf if opened_at is None else (self._actions.clock() - opened_at).total_seconds()

    def end_reservation(self, number: int) -> None:
        """Let other jobs start on the nodes of a reallocation again."""
        ended = self._reserved.get(number)
        if ended is None:
            return
        try:
            self._actions.slurm.delete_reservation(ended.name)
        except SlurmCommandError as error:
            _log.info("reservation %s: %s", ended.name, error)  # it may have ended by itself
        del self._reserved[number]
        self._opened_at[number] = self._actions.clock()

    # ---------------------------------------------------------------------------------------- priorities

    def prioritise(self, move: OpenMove, *, reshaped: bool) -> None:
        """Put a job that was released in its target before all that wait for nodes of its partitions.

        Unless it was just `reshaped`, it must show that shape. What lost its priority gets none again.
        """
        reallocation, job, record = move.reallocation, move.job, move.record
        if job is None or record is None or not (self.is_on and self._may_prioritise()):
            return
        if reallocation.id in self._given or reallocation.id in self._taken:
            return
        if job.blocked_because is not None or not (reshaped or has_target_shape(job, reallocation)):
            return
        if job.account != record.account or not self._restores(move):
            return
        queue = self._waiting()
        own = {job.job_id, *(wing.job_id for wing in job.wings)}
        waiting = [
            priority for number, priority in places.priorities_beside(job, queue).items() if number not in own
        ]
        if not waiting:
            return
        # As it was released just now.
        present = self._actions.slurm.refresh({job.job_id}).job(job.job_id)
        if present is not None and not _asks_for_cpus_of(present, record):
            return
        # What waits may all be held, or stand behind this one anyway: it is not to lose by it.
        priority = max(*waiting, (present.priority if present is not None else None) or 0) + 1
        self._actions.guard()
        self._actions.store.journal.record_priority(reallocation.id, priority)
        self._may_last = True
        self._given[reallocation.id] = present or job
        wings = wings_of_start(present.wings if present is not None else ())
        if (wing := next((one for one in wings if one.state is JobState.PENDING), None)) is not None:
            self._wings[reallocation.id] = wing.job_id
        try:
            self._actions.slurm.set_priority(job.job_id, priority)
        except SlurmCommandError as error:
            _log.info("job %s gets no priority: %s", job.job_id, error)

    def forget_priority(self, number: int) -> None:
        """Let a job that gets another target be prioritised again: Slurm's hold of its shape took it off."""
        self._given.pop(number, None)
        self._wings.pop(number, None)
        self._taken.discard(number)

    def _restores(self, move: OpenMove) -> bool:
        """Whether a move gives a job a place that it had: it runs, or a move has stopped it lately."""
        reallocation, job, record = move.reallocation, move.job, move.record
        if reallocation.moves_running:
            return True
        if reallocation.id not in self._restoring:
            assert job is not None
            assert record is not None
            waiting = ManagedJob(slurm=job, record=record)
            stopping = move_that_stopped(waiting, self._actions.store.journal.reallocations)
            self._restoring[reallocation.id] = stopping is not None and restores(
                stopping, reallocation.target, self._actions.clock()
            )
        return self._restoring[reallocation.id]

    def check(self, snapshot: ClusterSnapshot, moves: Sequence[OpenMove]) -> None:
        """Take the priority off each job that runs, and off each that is not as the daemon made it.

        A tick begins with this.
        """
        if self._queue_until is None or self._actions.clock() >= self._queue_until:
            self._queue = None
        open_moves = {move.reallocation.id: move for move in moves}
        for number in self._reserved.keys() - open_moves.keys():
            self.end_reservation(number)
        self._taken &= open_moves.keys()
        self._opened_at = {key: at for key, at in self._opened_at.items() if key in open_moves}
        self._restoring = {key: found for key, found in self._restoring.items() if key in open_moves}
        if not self.has_to_check():
            return
        given = self._actions.store.journal.prioritised()
        self._may_last = bool(given)
        # An owner can make a wing of a job, and another job of a wing.
        jobs = {one.job_id: one for job in snapshot.jobs for one in (*job.wings, job)}
        ended = []
        for reallocation in given:
            job, move = jobs.get(reallocation.slurm_job_id), open_moves.get(reallocation.id)
            if not self._has_restored_stray(reallocation.id, job, jobs):
                continue
            because = self._lost_because(move) if move is not None else "it waits outside of its move"
            if because is None:
                continue
            if job is not None and job.state is JobState.COMPLETING:
                continue  # it is being requeued: nothing can be changed now
            # A hold has taken it off, and whoever ends the hold gives an ordinary one.
            if job is not None and not job.state.is_over and not job.held:
                try:
                    self._actions.slurm.restore_priority(job.job_id)
                except SlurmCommandError as error:
                    _log.info("job %s keeps its priority for now: %s", job.job_id, error)
                    continue
                if job.state is JobState.PENDING:
                    _log.warning("job %s: %s, and lost its priority", job.job_id, because)
            ended.append(reallocation.id)
            self._wings.pop(reallocation.id, None)
            if self._given.pop(reallocation.id, None) is not None:
                self._taken.add(reallocation.id)
        if ended:
            self._actions.guard()
            self._actions.store.journal.record_priority_ended(ended, at=self._actions.clock())

    def _has_restored_stray(self, number: int, job: SlurmJob | None, jobs: Mapping[str, SlurmJob]) -> bool:
        """Take the priority off a wing that got it, and is not of its job's start now; False to try again."""
        wing = jobs.get(self._wings.get(number, ""))
        if wing is None or wing.state.is_over or wing.held:
            return True
        if job is not None and any(one.job_id == wing.job_id for one in wings_of_start(job.wings)):
            return True
        try:
            self._actions.slurm.restore_priority(wing.job_id)
        except SlurmCommandError as error:
            _log.info("wing %s keeps its priority for now: %s", wing.job_id, error)
            return False
        _log.warning("wing %s: it was changed after it had got priority, and lost that", wing.job_id)
        del self._wings[number]
        return True

    def _lost_because(self, move: OpenMove) -> str | None:
        """Return why a job keeps no priority; None: it waits as it was when it got it."""
        reallocation, job, given = move.reallocation, move.job, self._given.get(move.reallocation.id)
        if reallocation.step is not Step.RELEASED or job is None or not move.is_ours:
            return "it waits outside of its move"
        if given is None:
            return "an earlier daemon gave it"
        if job.state is not JobState.PENDING or job.held:
            return "it does not wait"
        if job.restart_count != reallocation.from_restart_count + reallocation.moves_running:
            return f"it was requeued once more (restart {job.restart_count})"
        if not has_target_shape(job, reallocation):
            return f"its shape is not {reallocation.target}"
        if request_of(given) != request_of(job):
            return "its request was changed"
        if not _asks_for_cpus_of(job, move.record):
            return f"it asks for {job.num_cpus} CPUs"
        return _more_than(job, given)


def _asks_for_cpus_of(job: SlurmJob, record: JobRecord | None) -> bool:
    """Whether a job asks for no more CPUs than its GPUs have. An owner may change that while it waits."""
    return record is not None and job.num_cpus <= job.requested_gpus * record.cpus_per_gpu


def _more_than(job: SlurmJob, given: SlurmJob) -> str | None:
    """Return what of memory or time a job asks for beyond what it did when it got its priority."""
    if job.least_memory_mb > given.least_memory_mb:
        return f"it asks for {job.least_memory_mb} MB, after {given.least_memory_mb}"
    # 0 is all memory of a node, for which it would keep others out. While Slurm tries to start a job with
    # memory by GPU, it shows 0, too, and the memory in all as it was (22.05).
    if job.least_memory_mb == 0 and job.memory_in_all_mb > given.memory_in_all_mb:
        return f"it asks for {job.memory_in_all_mb} MB in all, after {given.memory_in_all_mb}"
    limits = [math.inf if one.time_limit_s is None else one.time_limit_s for one in (job, given)]
    return f"it asks for {limits[0]:.0f} s, after {limits[1]:.0f}" if limits[0] > limits[1] else None


def _may_wait(reallocation: Reallocation) -> bool:
    """Whether a move is not owed to others: it gives the job other GPUs, and no fewer."""
    source, target = reallocation.source, reallocation.target
    return target != source and target.num_gpus >= source.num_gpus
