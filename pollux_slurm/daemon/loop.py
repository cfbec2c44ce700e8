"""The daemon's loop: a round at each interval or event, and a tick of the open moves in between."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import datetime

from pollux_slurm.config import DaemonConfig
from pollux_slurm.daemon.enact.state_machine import Enactor
from pollux_slurm.daemon.observe import accounted_runs, association_limits, returned_nodes
from pollux_slurm.daemon.observe.events import EventWatch
from pollux_slurm.daemon.round import RoundResult, Rounds, Settings
from pollux_slurm.daemon.service import privileges
from pollux_slurm.daemon.service.lease import Lease
from pollux_slurm.daemon.service.metrics import DaemonMetrics
from pollux_slurm.daemon.service.systemd_notify import Notifier
from pollux_slurm.errors import LeaseLostError, PolluxError, SchemaVersionError, SlurmError, StoreError
from pollux_slurm.now.jobs import jobs_held_by_journal
from pollux_slurm.slurm.client import SlurmClient
from pollux_slurm.slurm.own_reservations import OwnReservations
from pollux_slurm.store.contract.interface import Store

_log = logging.getLogger(__name__)

# A move's standstill is a few seconds. A job that does not start must not delay rounds for long.
_ROUND_WAITS_S = 10.0


def mode_text(config: DaemonConfig) -> str:
    """Return in a few words what a daemon does with its decisions, and in which partitions."""
    where = f" in {', '.join(config.partitions)}" if config.partitions else ""
    return f"in shadow mode, it moves nothing{where}" if config.shadow else f"it moves jobs{where}"


class Daemon:
    """One scheduling daemon. `wall_clock` gives aware UTC times for the store, `monotonic` seconds for waits.

    `stop` ends `run` at the next tick. Moves that have begun are finished first, the others are rolled back.
    When `reload_requested` is set, `reload` is called for new settings; if it raises, the old ones stay.
    """

    def __init__(
        self,
        *,
        slurm: SlurmClient,
        store: Store,
        settings: Settings,
        owner: str,
        wall_clock: Callable[[], datetime],
        monotonic: Callable[[], float],
        stop: threading.Event,
        metrics: DaemonMetrics | None = None,
        notifier: Notifier | None = None,
        reload: Callable[[], Settings] | None = None,
        reload_requested: threading.Event | None = None,
        scope: Callable[[], int | None] = privileges.all_users,
        site_limits: Callable[[], association_limits.SiteLimits] = association_limits.no_limits,
        past_runs: accounted_runs.PastRuns = accounted_runs.no_past_runs,
    ) -> None:
        slurm = returned_nodes.track_returned_nodes(OwnReservations(slurm), store.jobs.active)
        self.metrics = metrics or DaemonMetrics(monotonic=monotonic)
        self._notifier = notifier or Notifier({}, monotonic=monotonic)
        self._reload = reload
        self._reload_asked = reload_requested or threading.Event()
        self._store = store
        self._config = config = settings.config
        self._clock = wall_clock
        self._monotonic = monotonic
        self._stop = stop
        self.metrics.is_shadow = config.shadow
        self._lease = Lease(store=store, owner=owner, config=config, clock=wall_clock, monotonic=monotonic)
        self._enactor = Enactor(
            slurm=slurm,
            store=store,
            config=config,
            clock=wall_clock,
            guard=self._lease.check,
            metrics=self.metrics,
            predecessor_may_live=self._lease.predecessor_may_live,
            moves=settings.moves,
            may_prioritise=privileges.MayPrioritise(scope, slurm.settings),
            monotonic=monotonic,
        )
        self._rounds = Rounds(
            slurm=slurm,
            store=store,
            settings=settings,
            clock=wall_clock,
            lease=self._lease,
            metrics=self.metrics,
            notifier=self._notifier,
            stop=stop,
            while_deciding=self.tick,
            scope=scope,
            site_limits=site_limits,
            past_runs=past_runs,
            keeps_places=self._enactor.places.can_keep,
            give_up=self._enactor.give_up,
        )
        self._watch = EventWatch(
            read_state=self._rounds.read_watched_state,
            read_training_runs=store.jobs.training_runs,
            monotonic=monotonic,
        )

    def round(self) -> RoundResult:
        """Run one round; an error in it is counted and logged, and nothing is done."""
        result = self._rounds.run()
        self._enactor.note_round()
        return result

    # ---------------------------------------------------------------------------------------------- the loop

    def run(self) -> None:
        """Run rounds at the interval and advance moves between them until `stop` is set."""
        self._notifier.ready()
        try:
            while not self._stop.is_set():
                if not self._wait_for_lease():
                    break
                self._reload_if_asked()
                self.round()
                # Counted from the round's end: rounds longer than the interval must leave time for ticks.
                next_round = self._monotonic() + self._config.interval_s
                self._watch.begin(self._rounds.watched_state, self._config, read_s=self._rounds.read_s)
                due_since: float | None = None
                while not self._stop.is_set():
                    self.tick()
                    if self._lease.was_lost() or self._reload_asked.is_set():
                        break
                    left = next_round - self._monotonic()
                    if due_since is None and (left <= 0 or self._watch.is_due()):
                        due_since = self._monotonic()
                    if due_since is not None and not self._must_wait(due_since):
                        break
                    self._stop.wait(self._config.tick_s if left <= 0 else min(self._config.tick_s, left))
            self._notifier.stopping()
            self._finish_before_stop()
        finally:
            self._lease.release()

    def _must_wait(self, due_since: float) -> bool:
        """Whether a round that is due waits, a short while, for jobs that a move has stopped.

        It reads the whole queue, and no tick starts them meanwhile.
        """
        try:
            return self._monotonic() - due_since < _ROUND_WAITS_S and bool(self._enactor.stopped_jobs())
        except StoreError:
            return False  # the round says so

    def _reload_if_asked(self) -> None:
        if not self._reload_asked.is_set() or self._reload is None:
            return
        self._reload_asked.clear()
        self._notifier.reloading()
        try:
            settings = self._reload()
        except PolluxError as error:
            _log.error("the settings are not reloaded, the old ones stay in force: %s", error)
        else:
            self._config = settings.config
            self._rounds.configure(settings)
            self._enactor.configure(settings.config, settings.moves)
            self._lease.configure(settings.config)
            self.metrics.is_shadow = settings.config.shadow
            _log.info("the settings were reloaded: %s", mode_text(settings.config))
        self._notifier.ready()

    def run_once(self) -> RoundResult:
        """Run one round and advance its moves until they end; each step has a time-out."""
        try:
            try:
                self._lease.check()
            except LeaseLostError as error:
                return self._rounds.skip("lease", error)
            result = self.round()
            deadline = self._monotonic() + self._longest_reallocation_s
            while not self._stop.is_set() and self._monotonic() < deadline and self.tick():
                self._stop.wait(self._config.tick_s)
            self._finish_before_stop()
            return result
        finally:
            self._lease.release()

    @property
    def _longest_reallocation_s(self) -> float:
        """Return the sum of the time-outs of one reallocation's steps."""
        config = self._config
        return (
            2 * config.checkpoint_timeout_s
            + config.requeue_timeout_s
            + 2 * config.start_timeout_s
            + config.first_report_timeout_s
        )

    def tick(self) -> int:
        """Advance the open reallocations; return how many there are. The next tick retries after an error.

        Raises `SchemaVersionError` where another release has upgraded the store.
        """
        self._notifier.alive()
        try:
            self._lease.renew()
            self.metrics.is_leader = True
            if self._config.shadow:
                # In shadow mode, reallocations of an earlier daemon are only looked at.
                self.metrics.held_jobs = jobs_held_by_journal(self._store.journal.open_reallocations())
                return 0
            self._enactor.journal_late_commands()
            self.metrics.open_moves = self._enactor.tick()
            moves = self._store.journal.open_reallocations() if self.metrics.open_moves else ()
            self.metrics.held_jobs = jobs_held_by_journal(moves)
            return self.metrics.open_moves
        except LeaseLostError as error:
            self.metrics.is_leader = False
            _log.warning("cannot advance reallocations for now: %s", error)
            self._journal_late_commands()
        except SchemaVersionError:
            raise  # an upgrade: the release that is installed now continues the open moves
        except (SlurmError, StoreError) as error:
            self.metrics.errors.labels("slurm" if isinstance(error, SlurmError) else "store").inc()
            _log.warning("cannot advance reallocations for now: %s", error)
        except Exception:
            _log.exception("tick failed")
        return 1

    def _read_lease_holder(self) -> None:
        """Read for `/health` which daemon has the lease, and which jobs are held."""
        try:
            self.metrics.lease = self._store.lease.daemon_status()
            self.metrics.held_jobs = jobs_held_by_journal(self._store.journal.open_reallocations())
        except PolluxError as error:
            _log.info("cannot read which daemon has the lease for now: %s", error)

    def _journal_late_commands(self) -> None:
        try:
            self._enactor.journal_late_commands()
        except PolluxError as error:
            _log.warning("cannot journal a late command for now: %s", error)

    def _finish_before_stop(self) -> None:
        """Roll back moves that have not begun, and wait until no job is held by this daemon."""
        if self._config.shadow:
            return
        try:
            if not self._lease.is_held():
                return
            self._enactor.roll_back_what_has_not_begun("the daemon was stopped")
            deadline = self._monotonic() + self._config.requeue_timeout_s
            pause = threading.Event()
            while (held := self._enactor.held_jobs()) and self._monotonic() < deadline:
                if not self._lease.is_held():
                    return  # the daemon that has the lease continues them
                self.tick()
                pause.wait(self._config.tick_s)
            if held:
                _log.error("stopped while these jobs are held; the next daemon releases them: %s", held)
        except PolluxError as error:
            _log.warning("stopped with reallocations open; the next daemon continues them: %s", error)

    # ------------------------------------------------------------------------------------------------- lease

    def _wait_for_lease(self) -> bool:
        """Wait until this daemon has the lease; False when it was stopped first."""
        logged = False
        while not self._stop.is_set():
            self._notifier.alive()
            try:
                self._lease.renew()
                self.metrics.is_leader = True
                return True
            except LeaseLostError:
                self.metrics.is_leader = False
                self._read_lease_holder()
                self._journal_late_commands()
                if not logged:
                    _log.info("another daemon has the lease; waiting")
                    logged = True
            except SchemaVersionError:
                raise
            except StoreError as error:
                self.metrics.errors.labels("store").inc()
                _log.warning("the store cannot be reached: %s", error)
            self._stop.wait(self._lease.retry_interval_s)
        return False
