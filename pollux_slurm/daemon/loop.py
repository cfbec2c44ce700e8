"""The daemon: observe, decide, enact, at an interval; and the one place where a failed round is survived."""

from __future__ import annotations

import logging
import queue
import threading
from collections import Counter
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from pollux_slurm.config import DaemonConfig, PolicyConfig
from pollux_slurm.daemon import neighbours, observe, orders, returning
from pollux_slurm.daemon.enact import Enactor
from pollux_slurm.daemon.lease import Lease
from pollux_slurm.daemon.notify import Notifier
from pollux_slurm.daemon.observe import Picture
from pollux_slurm.daemon.plan import planned_moves
from pollux_slurm.daemon.problems import save_problem
from pollux_slurm.daemon.telemetry import Telemetry
from pollux_slurm.errors import (
    LeaseLostError,
    PolluxError,
    SlurmCommandError,
    SlurmError,
    StoppedError,
    StoreError,
)
from pollux_slurm.model import ClusterSnapshot, Decision, Problem, SlurmJob
from pollux_slurm.policy import decide
from pollux_slurm.slurm.client import SlurmClient
from pollux_slurm.store.contract import JobRecord, Store

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """What one round did. `skipped` names the reason when it acted on nothing."""

    round_id: int | None = None
    num_jobs: int = 0
    num_moves: int = 0
    skipped: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a reload may change of a running daemon."""

    config: DaemonConfig
    policy: PolicyConfig
    decide: Callable[[Problem], Decision]


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
    ) -> None:
        self.telemetry = telemetry or Telemetry(monotonic=monotonic)
        self._notifier = notifier or Notifier({}, monotonic=monotonic)
        self._reload = reload
        self._reload_asked = reload_asked or threading.Event()
        self._known: frozenset[str] = frozenset()
        self._slurm = slurm
        self._store = store
        self._config = config
        self._clock = wall_clock
        self._monotonic = monotonic
        self._stop = stop
        self._decide = decide
        self._policy = PolicyConfig() if policy is None else policy
        self._vanished: frozenset[str] = frozenset()
        self._left_out: dict[str, str] = {}
        self._lease = Lease(store=store, owner=owner, config=config, clock=wall_clock, monotonic=monotonic)
        self._enactor = Enactor(
            slurm=slurm,
            store=store,
            config=config,
            clock=wall_clock,
            guard=self._lease.check,
            telemetry=self.telemetry,
        )

    @property
    def skipped_rounds(self) -> Counter[str]:
        """How many rounds were given up, by reason."""
        return self.telemetry.skipped

    # -------------------------------------------------------------------------------------------- one round

    def round(self) -> RoundResult:
        """Observe, decide and journal the moves; a picture that is not complete skips the round.

        Invariant 4: whatever cannot be read in full, or fails on the way, is counted and logged, and
        nothing is done.
        """
        self.telemetry.begin_round()
        try:
            with self.telemetry.phase("total"):
                return self._round()
        except SlurmError as error:
            self.telemetry.errors["slurm"] += 1
            return self._skip("slurm", error)
        except StoreError as error:
            self.telemetry.errors["store"] += 1
            return self._skip("store", error)
        except LeaseLostError as error:
            return self._skip("lease", error)
        except StoppedError as error:
            return self._skip("stopped", error)
        except PolluxError as error:
            return self._skip("policy", error)
        except Exception as error:
            _log.exception("round failed")
            return self._skip("bug", error)

    def _round(self) -> RoundResult:
        self._lease.renew()
        self._store.tend()
        with self.telemetry.phase("read_slurm"):
            snapshot = self._slurm.snapshot()
        self._known = frozenset(job.job_id for job in snapshot.jobs)
        now = self._clock()
        copies = self._store.register_jobs(observe.registrations(snapshot, self._config.partitions), at=now)
        for job_id in copies:
            _log.warning("job %s: not registered: its Comment carries the token of another job", job_id)
        records = self._store.active_jobs()
        if not self._config.shadow:
            self._bring_back(snapshot, records)
        seen, self._vanished = observe.observations(
            snapshot, records, vanished_before=self._vanished, unsettled=self._is_unsettled
        )
        self._store.observe_jobs(seen, at=now)
        picture = observe.picture(
            snapshot,
            self._store.active_jobs(),
            self._config.partitions,
            left_alone_because=lambda record: (
                orders.kept_by_hand(record) or returning.left_alone_because(record)
            ),
        )
        problem = observe.problem(
            picture,
            now=now,
            default_restart_delay_s=self._config.restart_delay_s,
            policy=self._policy,
            pause_ttl_s=self._config.pause_ttl_s,
            neighbours=neighbours.jobs_in_turn(picture, observe.UsableNodes(snapshot), self._policy),
            nodes=neighbours.keep_shares(picture.nodes, picture, self._policy.kept_shares),
        )
        with self.telemetry.phase("decide"):
            decision = self._decide_aside(problem)
        refused = {job.slurm.job_id: job.slurm.unschedulable_reason for job in picture.managed}
        left_out = {job_id: reason for job_id, reason in refused.items() if reason is not None}
        left_out |= dict(decision.excluded)
        for job_id, reason in left_out.items():
            if self._left_out.get(job_id) != reason:  # not again in every round
                _log.warning("job %s: left as it is: %s", job_id, reason)
        self._left_out = left_out
        if decision.timed_out:
            limit = self._policy.time_limit_s
            _log.warning("the search was cut short by policy.time_limit_s = %g; see: pollux replay", limit)
        moves = planned_moves(
            picture,
            decision,
            max_in_flight=self._config.max_in_flight,
            pauses=problem.moving.pauses,
        )
        self._lease.check()
        with self.telemetry.phase("record"):
            round_id = self._store.record_round(problem, decision, shadow=self._config.shadow, at=now)
        self._save_problem(round_id, problem)
        verb = "would move" if self._config.shadow else "moves"
        for move in moves:
            _log.info(
                "round %d: %s job %s %s → %s", round_id, verb, move.job.slurm.job_id, move.source, move.target
            )
            if not self._config.shadow:
                self._store.plan_reallocation(
                    move.job.slurm.job_id,
                    source=move.source,
                    target=move.target,
                    moves_running=move.moves_running,
                    from_restart_count=move.job.slurm.restart_count,
                    round_id=round_id,
                    at=self._clock(),
                )
        if not self._config.shadow:
            self._prolong_pauses(picture, {move.job.slurm.job_id for move in moves}, now)
        _log.info(
            "round %d: %d jobs, fitness %.4g, %d to move",
            round_id,
            len(problem.jobs),
            decision.fitness,
            len(moves),
        )
        self.telemetry.end_round(round_id, decision, tuple(job.record for job in picture.managed))
        self._notifier.status(f"round {round_id}: {len(problem.jobs)} jobs, {len(moves)} to move")
        return RoundResult(round_id=round_id, num_jobs=len(problem.jobs), num_moves=len(moves))

    def _is_unsettled(self, record: JobRecord, job: SlurmJob) -> bool:
        return not self._config.shadow and returning.is_unsettled(record, job)

    def _bring_back(self, snapshot: ClusterSnapshot, records: Sequence[JobRecord]) -> None:
        """Journal the way back of each job that failed where a reallocation had brought it."""
        for record, job in returning.fallen(snapshot, records):
            fall = record.last_reallocation
            assert fall is not None
            self._lease.check()
            self._store.plan_reallocation(
                job.job_id,
                source=fall.target,
                target=fall.source,
                moves_running=True,
                from_restart_count=job.restart_count,
                round_id=None,
                at=self._clock(),
                reason=returning.reason_of_return(fall),
            )

    def _decide_aside(self, problem: Problem) -> Decision:
        """Search for a decision in a thread of its own, while moves go on and the lease is renewed.

        The thread touches neither store nor Slurm. Stopped meanwhile, the daemon does not wait for it.
        """
        outcome: queue.SimpleQueue[Decision | BaseException] = queue.SimpleQueue()

        def search() -> None:
            try:
                outcome.put(self._decide(problem))
            except BaseException as error:
                outcome.put(error)

        threading.Thread(target=search, name="decide", daemon=True).start()
        while True:
            try:
                found = outcome.get(timeout=self._config.tick_s)
            except queue.Empty:
                if self._stop.is_set():
                    raise StoppedError("the daemon was stopped while it decided") from None
                self.tick()
                continue
            if isinstance(found, BaseException):
                raise found
            return found

    def _prolong_pauses(self, picture: Picture, leaving: Container[str], now: datetime) -> None:
        """Let paused jobs wait on whose begin time comes near: without this they start by themselves."""
        slurm = self._slurm.guarded(self._lease.check)
        soon = now + timedelta(seconds=self._config.pause_ttl_s / 2)
        for job in picture.managed:
            begins_at = job.slurm.begins_at
            if begins_at is None or begins_at > soon or not observe.is_parked(job, now):
                continue
            if job.slurm.job_id in leaving:
                continue
            try:
                slurm.park(job.slurm.job_id, for_s=self._config.pause_ttl_s)
            except SlurmCommandError as error:
                _log.info("job %s: its pause is not prolonged: %s", job.slurm.job_id, error)

    def _save_problem(self, round_id: int, problem: Problem) -> None:
        """Keep the problem as a file, if the admin wants that. A full disk costs the file, not the round."""
        if self._config.problems_dir is None:
            return
        try:
            folder = Path(self._config.problems_dir)
            save_problem(folder, round_id, problem, keep=self._config.problems_kept)
        except OSError as error:
            _log.warning("round %d: its problem was not saved: %s", round_id, error)

    def _skip(self, reason: str, error: Exception) -> RoundResult:
        self.telemetry.skipped[reason] += 1
        _log.warning("round skipped (%s, %d so far): %s", reason, self.skipped_rounds[reason], error)
        return RoundResult(skipped=f"{reason}: {error}")

    # ---------------------------------------------------------------------------------------------- the loop

    def run(self) -> None:
        """Hold rounds at the interval and drive reallocations between them until `stop` is set."""
        self._notifier.ready()
        try:
            while not self._stop.is_set():
                if not self._wait_for_lease():
                    break
                self._reload_if_asked()
                next_round = self._monotonic() + self._config.interval_s
                next_look = self._monotonic() + self._config.watch_s
                self.round()
                while not self._stop.is_set() and (left := next_round - self._monotonic()) > 0:
                    self.tick()
                    if self._lease.was_lost() or self._reload_asked.is_set():
                        break
                    if self._monotonic() >= next_look:
                        next_look = self._monotonic() + self._config.watch_s
                        if self._somebody_came():
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
            self._config, self._policy, self._decide = settings.config, settings.policy, settings.decide
            self._enactor.configure(settings.config)
            self._lease.configure(settings.config)
            _log.info("the settings were reloaded")
        self._notifier.ready()

    def _somebody_came(self) -> bool:
        """Whether an adaptive job waits that no round has seen: it need not wait for the next one."""
        try:
            snapshot = self._slurm.snapshot()
        except SlurmError as error:
            _log.info("cannot look for new jobs for now: %s", error)
            return False
        return any(
            registration.slurm_job_id not in self._known
            for registration in observe.registrations(snapshot, self._config.partitions)
        )

    def run_once(self) -> RoundResult:
        """Hold one round, and drive what is open to its end: every step of it has a time-out."""
        try:
            try:
                self._lease.check()
            except LeaseLostError as error:
                return self._skip("lease", error)
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
                return 0
            self._enactor.journal_late_commands()
            self.telemetry.open_moves = self._enactor.tick()
            return self.telemetry.open_moves
        except LeaseLostError as error:
            self.telemetry.is_leader = False
            _log.warning("cannot go on with reallocations for now: %s", error)
            self._tell_of_late_commands()
        except (SlurmError, StoreError) as error:
            self.telemetry.errors["slurm" if isinstance(error, SlurmError) else "store"] += 1
            _log.warning("cannot go on with reallocations for now: %s", error)
        except Exception:
            _log.exception("tick failed")
        return 1

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
                self._tell_of_late_commands()
                if not told:
                    _log.info("another daemon holds the lease; waiting")
                    told = True
            except StoreError as error:
                _log.warning("the store cannot be reached: %s", error)
            self._stop.wait(self._lease.patience_s)
        return False
