"""The daemon: a round at each interval or when something happened, and between them its moves go on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import datetime

from pollux_slurm.config import DaemonConfig, PolicyConfig
from pollux_slurm.daemon.enact.state_machine import Enactor
from pollux_slurm.daemon.observe import accounted_runs, association_limits, returned_nodes
from pollux_slurm.daemon.observe.daemon_presence import held_by_journal
from pollux_slurm.daemon.observe.events import Watch
from pollux_slurm.daemon.round import RoundResult, Rounds, Settings
from pollux_slurm.daemon.service import privileges
from pollux_slurm.daemon.service.lease import Lease
from pollux_slurm.daemon.service.metrics import Telemetry
from pollux_slurm.daemon.service.systemd_notify import Notifier
from pollux_slurm.errors import LeaseLostError, PolluxError, SlurmError, StoreError
from pollux_slurm.model import Decision, Problem
from pollux_slurm.policy import decide
from pollux_slurm.slurm.client import SlurmClient
from pollux_slurm.store.contract.interface import Store

_log = logging.getLogger(__name__)


class Daemon:
    """One scheduling daemon. `wall_clock` gives aware UTC times for the store, `monotonic` seconds for waits.

    `stop` ends `run` at the next tick; what has begun is finished first, what has not is rolled back. When
    `reload_asked` is set, `reload` is called for new settings; what it refuses leaves the old ones in force.
    """

    def __init__(
        self,
        *,
        slurm: SlurmClient,
        store: Store,
        config: DaemonConfig,
        owner: str,
        wall_clock: Callable[[], datetime],
        monotonic: Callable[[], float],
        stop: threading.Event,
        decide: Callable[[Problem], Decision] = decide,
        policy: PolicyConfig | None = None,
        telemetry: Telemetry | None = None,
        notifier: Notifier | None = None,
        reload: Callable[[], Settings] | None = None,
        reload_asked: threading.Event | None = None,
        scope: Callable[[], int | None] = privileges.everybody,
        site_limits: Callable[[], association_limits.SiteLimits] = association_limits.no_limits,
        past_runs: accounted_runs.PastRuns = accounted_runs.no_past_runs,
    ) -> None:
        slurm = returned_nodes.remembering(slurm, store.active_jobs)
        self.telemetry = telemetry or Telemetry(monotonic=monotonic)
        self._notifier = notifier or Notifier({}, monotonic=monotonic)
        self._reload = reload
        self._reload_asked = reload_asked or threading.Event()
        self._store = store
        self._config = config
        self._clock = wall_clock
        self._monotonic = monotonic
        self._stop = stop
        self._lease = Lease(store=store, owner=owner, config=config, clock=wall_clock, monotonic=monotonic)
        self._enactor = Enactor(
            slurm=slurm,
            store=store,
            config=config,
            clock=wall_clock,
            guard=self._lease.check,
            telemetry=self.telemetry,
            predecessor_may_live=self._lease.predecessor_may_live,
        )
        self._rounds = Rounds(
            slurm=slurm,
            store=store,
            settings=Settings(config=config, policy=policy or PolicyConfig(), decide=decide),
            clock=wall_clock,
            lease=self._lease,
            telemetry=self.telemetry,
            notifier=self._notifier,
            stop=stop,
            meanwhile=self.tick,
            scope=scope,
            site_limits=site_limits,
            past_runs=past_runs,
        )
        self._watch = Watch(look=self._rounds.look, glance=store.training_runs, monotonic=monotonic)

    def round(self) -> RoundResult:
        """Hold one round; whatever goes wrong in it is counted, logged, and nothing is done."""
        return self._rounds.hold()

    # ---------------------------------------------------------------------------------------------- the loop

    def run(self) -> None:
        """Hold rounds at the interval and drive reallocations between them until `stop` is set."""
        self._notifier.ready()
        try:
            while not self._stop.is_set():
                if not self._wait_for_lease():
                    break
                self._reload_if_asked()
                self.round()
                # From its end: where rounds take longer than the interval, moves would otherwise stand still.
                next_round = self._monotonic() + self._config.interval_s
                self._watch.begin(self._rounds.sight, self._config)
                while not self._stop.is_set() and (left := next_round - self._monotonic()) > 0:
                    self.tick()
                    if self._lease.was_lost() or self._reload_asked.is_set():
                        break
                    if self._watch.is_due():
                        break
                    self._stop.wait(min(self._config.tick_s, left))
            self._notifier.stopping()
            self._settle_before_stop()
        finally:
            self._lease.give_back()

    def _reload_if_asked(self) -> None:
        if not self._reload_asked.is_set() or self._reload is None:
            return
        self._reload_asked.clear()
        self._notifier.reloading()
        try:
            settings = self._reload()
        except PolluxError as error:
            _log.error("the settings are not reloaded, the old ones hold: %s", error)
        else:
            self._config = settings.config
            self._rounds.configure(settings)
            self._enactor.configure(settings.config)
            self._lease.configure(settings.config)
            _log.info("the settings were reloaded")
        self._notifier.ready()

    def run_once(self) -> RoundResult:
        """Hold one round, and drive what is open to its end: every step of it has a time-out."""
        try:
            try:
                self._lease.check()
            except LeaseLostError as error:
                return self._rounds.skip("lease", error)
            result = self.round()
            deadline = self._monotonic() + self._longest_reallocation_s
            while not self._stop.is_set() and self._monotonic() < deadline and self.tick():
                self._stop.wait(self._config.tick_s)
            self._settle_before_stop()
            return result
        finally:
            self._lease.give_back()

    @property
    def _longest_reallocation_s(self) -> float:
        """Return the sum of the time-outs that one reallocation may run into."""
        config = self._config
        return (
            2 * config.checkpoint_timeout_s
            + config.requeue_timeout_s
            + 2 * config.start_timeout_s
            + config.first_report_timeout_s
        )

    def tick(self) -> int:
        """Advance what is in flight; return how many reallocations are open. A failure waits for the next."""
        self._notifier.alive()
        try:
            self._lease.renew()
            self.telemetry.is_leader = True
            if self._config.shadow:
                # Those of a daemon before it: one that only records does not go on with them.
                self.telemetry.held_jobs = held_by_journal(self._store.open_reallocations())
                return 0
            self._enactor.journal_late_commands()
            self.telemetry.open_moves = self._enactor.tick()
            moves = self._store.open_reallocations() if self.telemetry.open_moves else ()
            self.telemetry.held_jobs = held_by_journal(moves)
            return self.telemetry.open_moves
        except LeaseLostError as error:
            self.telemetry.is_leader = False
            _log.warning("cannot go on with reallocations for now: %s", error)
            self._tell_of_late_commands()
        except (SlurmError, StoreError) as error:
            self.telemetry.errors.labels("slurm" if isinstance(error, SlurmError) else "store").inc()
            _log.warning("cannot go on with reallocations for now: %s", error)
        except Exception:
            _log.exception("tick failed")
        return 1

    def _look_at_who_acts(self) -> None:
        """Note for `/health` who has the lease, and the jobs that are held meanwhile."""
        try:
            self.telemetry.lease = self._store.daemon_status()
            self.telemetry.held_jobs = held_by_journal(self._store.open_reallocations())
        except PolluxError as error:
            _log.info("cannot look for who has the lease for now: %s", error)

    def _tell_of_late_commands(self) -> None:
        try:
            self._enactor.journal_late_commands()
        except PolluxError as error:
            _log.warning("cannot journal a late command for now: %s", error)

    def _settle_before_stop(self) -> None:
        """Leave nothing half done: what has not begun is rolled back, a job that is held by us is let go."""
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
                    return  # the daemon that has it goes on with them
                self.tick()
                pause.wait(self._config.tick_s)
            if held:
                _log.error("stopped while these jobs are held; the next daemon lets them go: %s", held)
        except PolluxError as error:
            _log.warning("stopped with reallocations open; the next daemon goes on with them: %s", error)

    # ------------------------------------------------------------------------------------------------- lease

    def _wait_for_lease(self) -> bool:
        """Wait until this daemon holds the lease; False when it was stopped first."""
        told = False
        while not self._stop.is_set():
            self._notifier.alive()
            try:
                self._lease.renew()
                self.telemetry.is_leader = True
                return True
            except LeaseLostError:
                self.telemetry.is_leader = False
                self._look_at_who_acts()
                self._tell_of_late_commands()
                if not told:
                    _log.info("another daemon holds the lease; waiting")
                    told = True
            except StoreError as error:
                _log.warning("the store cannot be reached: %s", error)
            self._stop.wait(self._lease.patience_s)
        return False
