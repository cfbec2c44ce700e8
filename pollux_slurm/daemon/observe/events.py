"""Decide when a round is due before its interval ends, and name the event that a move may answer.

Slurm and the store are compared with the `WatchedState` of the last round. Events that come together trigger
one round, and rounds are at least `daemon.watch_s` apart. Only what a run reports may start one sooner: it is
rare, and read without Slurm.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pollux_slurm.config import DaemonConfig
from pollux_slurm.daemon.observe.waiting_jobs import MAX_UNMANAGED, head_of_queue
from pollux_slurm.errors import PolluxError
from pollux_slurm.model import ClusterSnapshot, JobState, ReallocationStep
from pollux_slurm.store.contract.interface import JobRegistration, Reallocation, TrainingRun

_log = logging.getLogger(__name__)

# The least pause after a read of Slurm, in times of what it took.
PAUSE_PER_READ = 4.0
# How often the store is asked for new training_runs: one small statement.
_STORE_INTERVAL_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedState:
    """What events are found by. Jobs are the served adaptive ones, by Slurm's job id.

    `waiting` are those that Slurm may start at any time, by a round's order or without, and `running` those
    that it started. `free` is the idle GPUs by node once the open moves have ended. `can_grow` is true if a
    running job may have more GPUs, `can_shrink` if one may have fewer. `starting` are those that a move has
    started in its target, where they have made no step yet. `unmanaged` are the first jobs of others that
    wait for resources.
    """

    jobs: frozenset[str] = frozenset()
    waiting: frozenset[str] = frozenset()
    running: frozenset[str] = frozenset()
    starting: frozenset[str] = frozenset()
    free: tuple[tuple[str, int], ...] = ()
    can_grow: bool = False
    can_shrink: bool = False
    unmanaged: frozenset[str] = frozenset()
    training_runs: frozenset[TrainingRun] = frozenset()

    @classmethod
    def of(
        cls,
        snapshot: ClusterSnapshot,
        served: Iterable[JobRegistration],
        moves: Iterable[Reallocation],
        training_runs: frozenset[TrainingRun] = frozenset(),
    ) -> WatchedState:
        """Return the state of the `served` jobs in a snapshot, with the open `moves`."""
        by_id = {job.job_id: job for job in snapshot.jobs}
        moves = tuple(moves)
        targets = {move.slurm_job_id: move.target for move in moves}
        placed = {move.slurm_job_id for move in moves if not move.moves_running}
        started = {move.slurm_job_id for move in moves if move.step is ReallocationStep.RUNNING}
        free = Counter(
            {node.name: node.num_gpus - node.used_gpus for node in snapshot.nodes if node.available}
        )
        for job_id, target in targets.items():
            owned = by_id[job_id].allocation.as_dict() if job_id in by_id else {}
            for node in free:
                free[node] += owned.get(node, 0) - target.as_dict().get(node, 0)
        jobs, waiting, running, starting = set(), set(), set(), set()
        can_grow, can_shrink = False, False
        served = tuple(served)
        for registration in served:
            job = by_id[registration.slurm_job_id]
            if job.state.is_over:
                continue
            jobs.add(job.job_id)
            if job.job_id in started:
                starting.add(job.job_id)
            # One that moves may give way.
            is_larger = job.allocation.num_gpus > registration.terms.min_gpus
            can_shrink |= is_larger and job.unschedulable_reason is None
            if job.job_id in placed and job.state is JobState.PENDING:
                waiting.add(job.job_id)
            if job.job_id in targets or job.unschedulable_reason is not None:
                continue
            if job.state is JobState.RUNNING:
                running.add(job.job_id)
            most = registration.terms.max_gpus
            can_grow |= job.state is JobState.RUNNING and (most is None or job.allocation.num_gpus < most)
            starts_later = job.begins_at is not None and job.begins_at > snapshot.read_at
            may_start = job.waits_for_placing or not starts_later
            if job.state is JobState.PENDING and not job.held and may_start:
                waiting.add(job.job_id)
        return cls(
            jobs=frozenset(jobs),
            waiting=frozenset(waiting),
            running=frozenset(running),
            starting=frozenset(starting),
            free=tuple(sorted((node, gpus) for node, gpus in free.items() if gpus > 0)),
            can_grow=can_grow,
            can_shrink=can_shrink,
            unmanaged=frozenset(
                job.job_id
                for job in head_of_queue(snapshot.jobs, {one.slurm_job_id for one in served})[:MAX_UNMANAGED]
            ),
            training_runs=training_runs,
        )

    @property
    def may_give_gpus(self) -> bool:
        """Whether a round might give GPUs to a job: one waits, or GPUs are idle that one could use."""
        return bool(self.waiting) or (self.can_grow and bool(self.free))

    @property
    def makes_room(self) -> bool:
        """Whether a round might take GPUs from a job for one of others that waits."""
        return self.can_shrink and bool(self.unmanaged)

    def slurm_event_since(self, before: WatchedState) -> str | None:
        """Return a text for what changed in Slurm since `before`, None when nothing needs a round."""
        for jobs, what in (
            (self.jobs - before.jobs, "came"),
            (before.jobs - self.jobs, "ended"),
            (self.waiting - before.waiting, "waits"),
            # The store accepts its reports once a round has seen it running.
            (self.running & before.waiting, "started"),
            # Adaptive jobs may make room for it; one that moved then could not, and may after its move.
            (self.unmanaged - before.unmanaged if self.can_shrink else frozenset(), "waits for resources"),
            (self.running - before.running if self.makes_room else frozenset(), "may make room now"),
            (self.starting - before.starting if self.makes_room else frozenset(), "may make room now"),
            # Jobs behind it in the queue may have their turn.
            (
                before.unmanaged - self.unmanaged if self.waiting else frozenset(),
                "no longer waits for resources",
            ),
        ):
            if jobs:
                return f"job {min(jobs, key=int)} {what}"
        were_free = dict(before.free)
        more = [(gpus - were_free.get(node, 0), node) for node, gpus in self.free]
        gpus, node = max(more, default=(0, ""))
        return f"{gpus} GPUs are free on {node}" if gpus > 0 and self.may_give_gpus else None

    def store_event_since(self, training_runs: frozenset[TrainingRun]) -> str | None:
        """Return a text for what a run has reported since, None when nothing needs a round."""
        reached = training_runs - self.training_runs
        return f"job {min(reached).slurm_job_id} reported" if reached and self.may_give_gpus else None


class EventWatch:
    """Returns when the next round is due. `monotonic` is in seconds.

    `read_state` reads Slurm in bulk, `read_training_runs` the store. While GPUs are idle or jobs wait, rounds
    stay `daemon.watch_s` apart for one interval after the last event: moving a young job costs more than it
    gains, and soon less.
    """

    def __init__(
        self,
        *,
        read_state: Callable[[], WatchedState],
        read_training_runs: Callable[[], frozenset[TrainingRun]],
        monotonic: Callable[[], float],
    ) -> None:
        self._read_state, self._read_training_runs = read_state, read_training_runs
        self._monotonic = monotonic
        self._last = WatchedState()
        self._short_interval_until = float("-inf")
        self._not_before = self._next_slurm_s = self._next_store_s = float("-inf")
        self._watch_s = 0.0

    def begin(self, state: WatchedState, config: DaemonConfig, *, read_s: float = 0.0) -> None:
        """Start to watch after a round that saw `state`, and whose read of Slurm took `read_s`."""
        now = self._monotonic()
        if state.slurm_event_since(self._last) or state.training_runs - self._last.training_runs:
            self._short_interval_until = now + config.interval_s
        self._last, self._watch_s = state, config.watch_s
        pause_s = PAUSE_PER_READ * read_s  # a round reads Slurm, too, whatever has started it
        self._not_before = self._next_slurm_s = now + max(config.watch_s, pause_s)
        self._next_store_s = now + max(_STORE_INTERVAL_S, pause_s)

    def is_due(self) -> bool:
        """Whether a round is due now. Reads Slurm and the store at their intervals; errors are not events."""
        now = self._monotonic()
        if self._not_before <= now < self._short_interval_until and self._last.may_give_gpus:
            return True
        try:
            event = self._event(now)
        except PolluxError as error:
            _log.info("cannot read Slurm or the store for events for now: %s", error)
            return False
        if event is not None:
            _log.info("the next round starts now: %s", event)
        return event is not None

    def _event(self, now: float) -> str | None:
        if now >= self._next_store_s:
            self._next_store_s = now + _STORE_INTERVAL_S
            if (event := self._last.store_event_since(self._read_training_runs())) is not None:
                return event
        if now >= self._next_slurm_s:
            try:
                shown = self._read_state()
            finally:  # a slurmctld that does not answer is left alone as well
                ended = self._monotonic()
                self._next_slurm_s = max(now + self._watch_s, ended + PAUSE_PER_READ * (ended - now))
            return shown.slurm_event_since(self._last)
        return None
