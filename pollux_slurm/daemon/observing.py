"""The first stage of a round: what Slurm and the store show, read completely."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone

from pollux_slurm.config import DaemonConfig, KindsConfig, MovesConfig, PolicyConfig
from pollux_slurm.daemon.decide import unanswered_requests, unmanaged_jobs
from pollux_slurm.daemon.enact import admin_orders
from pollux_slurm.daemon.enact.maintenance import Maintenance
from pollux_slurm.daemon.observe import accounted_runs, cluster_picture
from pollux_slurm.daemon.observe.cluster_picture import Picture
from pollux_slurm.daemon.observe.events import WatchedState
from pollux_slurm.daemon.reason_log import ReasonLog
from pollux_slurm.daemon.recovery import failed_moves
from pollux_slurm.daemon.service.lease import Lease
from pollux_slurm.daemon.service.metrics import DaemonMetrics
from pollux_slurm.model import ClusterSnapshot, Decision, Problem, SlurmJob
from pollux_slurm.now import known_jobs
from pollux_slurm.slurm.client import SlurmClient
from pollux_slurm.store.contract.interface import (
    JobRecord,
    JobRegistration,
    Reallocation,
    Store,
    TrainingRun,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings that a reload may change in a running daemon."""

    config: DaemonConfig
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    moves: MovesConfig = field(default_factory=MovesConfig)
    kinds: KindsConfig = field(default_factory=KindsConfig)
    decide: Callable[[Problem], Decision]

    @property
    def longest_stop_s(self) -> float:
        """How long a move may keep a job without GPUs."""
        return self.config.requeue_timeout_s + self.config.start_timeout_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What one round has seen; all that it decides, records and enacts follows from it.

    - `only_user_id`: the only user whose jobs are served, None for all users
    - `adaptive`: the adaptive jobs that Slurm shows, registered or not
    - `records`, `picture`: the jobs that are served, as the store has them, and beside Slurm's view
    - `open_moves`: the reallocations that have not ended
    """

    settings: Settings
    now: datetime
    only_user_id: int | None
    adaptive: tuple[JobRegistration, ...]
    training_runs: frozenset[TrainingRun]
    records: tuple[JobRecord, ...]
    picture: Picture
    open_moves: tuple[Reallocation, ...]

    @property
    def snapshot(self) -> ClusterSnapshot:
        return self.picture.snapshot

    @property
    def is_shadow(self) -> bool:
        return self.settings.config.shadow

    def watched_state(self, open_moves: Sequence[Reallocation]) -> WatchedState:
        """Return what the watch for events compares with, while these moves are open."""
        return WatchedState.of(self.snapshot, self.adaptive, open_moves, self.training_runs)


class Observer:
    """Reads Slurm and the store for rounds, and records what Slurm shows. `read_s` is what Slurm took."""

    def __init__(
        self,
        *,
        slurm: SlurmClient,
        store: Store,
        clock: Callable[[], datetime],
        lease: Lease,
        metrics: DaemonMetrics,
        scope: Callable[[], int | None],
        past_runs: accounted_runs.PastRuns,
    ) -> None:
        self.read_s = 0.0
        self._slurm, self._store, self._clock, self._lease = slurm, store, clock, lease
        self._metrics, self._scope, self._past_runs = metrics, scope, past_runs
        self._vanished: frozenset[str] = frozenset()
        self._next_correction = datetime.min.replace(tzinfo=timezone.utc)
        self._reasons = ReasonLog()

    def read_watched_state(self, settings: Settings) -> WatchedState:
        """Read Slurm and the store for `events`; raises `SlurmError` and `StoreError`."""
        snapshot = self._slurm.refresh()
        adaptive = self._adaptive(snapshot, settings, self._scope())
        return WatchedState.of(snapshot, adaptive, self._store.journal.open_reallocations())

    def observe(self, settings: Settings) -> Round:
        """Read, register and record; raises `SlurmError`, `StoreError` and `LeaseLostError`."""
        self._lease.renew()
        for note in self._store.maintain():
            _log.warning("%s", note)
        snapshot = self._read_slurm()
        now, only_user_id = self._clock(), self._scope()
        adaptive = self._adaptive(snapshot, settings, only_user_id)
        refused = self._store.jobs.register(adaptive, at=now)
        # Read before the models, so that what comes in between triggers a round.
        training_runs = self._store.jobs.training_runs()
        active = self._store.jobs.active()
        self._reasons.warn(
            "job %s: not registered: %s", known_jobs.refused_registrations(snapshot, active, refused)
        )
        active = self._record(snapshot, active, settings, only_user_id, now)
        records = tuple(cluster_picture.records_of_user(snapshot, active, only_user_id))
        return Round(
            settings=settings,
            now=now,
            only_user_id=only_user_id,
            adaptive=adaptive,
            training_runs=training_runs,
            records=records,
            picture=_picture(snapshot, records, settings, now),
            open_moves=tuple(one.open_reallocation for one in records if one.open_reallocation is not None),
        )

    def _read_slurm(self) -> ClusterSnapshot:
        began_s = time.monotonic()
        with self._metrics.phase("read_slurm"):
            snapshot = self._slurm.snapshot()
        self.read_s = time.monotonic() - began_s
        return snapshot

    @staticmethod
    def _adaptive(
        snapshot: ClusterSnapshot, settings: Settings, only_user_id: int | None
    ) -> tuple[JobRegistration, ...]:
        """Return the adaptive jobs that are served, registered or not."""
        return cluster_picture.registrations(snapshot, settings.config.partitions, only_user_id=only_user_id)

    def _record(
        self,
        snapshot: ClusterSnapshot,
        active: tuple[JobRecord, ...],
        settings: Settings,
        only_user_id: int | None,
        now: datetime,
    ) -> tuple[JobRecord, ...]:
        """Record what Slurm shows of the active jobs, and return them with that."""
        records = cluster_picture.records_of_user(snapshot, active, only_user_id)
        seen, self._vanished = cluster_picture.observations(
            snapshot,
            records,
            vanished_before=self._vanished,
            not_over=self._journal_maintenance(snapshot, records, settings, now),
        )
        changed = self._store.jobs.observe(seen, at=now)
        if now >= self._next_correction:
            self._next_correction = now + accounted_runs.CORRECTED_EVERY
            accounted_runs.correct_estimates(self._store, self._past_runs, now=now)
        return self._with_changes(active, changed)

    def _journal_maintenance(
        self, snapshot: ClusterSnapshot, records: Sequence[JobRecord], settings: Settings, now: datetime
    ) -> Callable[[JobRecord, SlurmJob], bool]:
        """Journal moves that do not depend on the decision; return which failed jobs are not over."""
        if settings.config.shadow:
            return lambda _record, _job: False
        maintenance = Maintenance(
            store=self._store,
            guard=self._lease.check,
            config=settings.config,
            clock=self._clock,
            snapshot=snapshot,
            records=records,
        )
        return maintenance.journal(now)

    def _with_changes(self, active: tuple[JobRecord, ...], changed: frozenset[str]) -> tuple[JobRecord, ...]:
        """Return the active jobs with what this round has observed and journaled, read again if it has."""
        moves = {move.slurm_job_id: move for move in self._store.journal.open_reallocations()}
        is_current = not changed and all(
            record.open_reallocation == moves.get(record.slurm_job_id) for record in active
        )
        return active if is_current else self._store.jobs.active()


def _picture(
    snapshot: ClusterSnapshot, records: Sequence[JobRecord], settings: Settings, now: datetime
) -> Picture:
    timeout_s = settings.config.checkpoint_timeout_s
    picture = cluster_picture.build_picture(
        snapshot,
        records,
        settings.config.partitions,
        not_moved_because=lambda record: (
            admin_orders.paused_manually_because(record)
            or failed_moves.not_moved_because(record)
            or unanswered_requests.not_asked_because(record, now, timeout_s=timeout_s)
        ),
    )
    return unmanaged_jobs.wait_in_order(picture, settings.policy)
