"""One round: read Slurm and the store, decide, journal the moves; and the one place where it may fail."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from pollux_slurm.config import DaemonConfig, PolicyConfig
from pollux_slurm.daemon.decide import problem_building, unanswered_requests, unmanaged_jobs
from pollux_slurm.daemon.decide.planned_moves import planned_moves
from pollux_slurm.daemon.decide.saved_problems import save_problem
from pollux_slurm.daemon.enact import admin_orders
from pollux_slurm.daemon.enact.maintenance import Care
from pollux_slurm.daemon.observe import accounted_runs, association_limits, cluster_picture, returned_nodes
from pollux_slurm.daemon.observe.association_limits import SiteLimits
from pollux_slurm.daemon.observe.cluster_picture import Picture
from pollux_slurm.daemon.observe.events import Sight
from pollux_slurm.daemon.recovery import failed_moves
from pollux_slurm.daemon.service import privileges
from pollux_slurm.daemon.service.lease import Lease
from pollux_slurm.daemon.service.metrics import Telemetry, totals
from pollux_slurm.daemon.service.systemd_notify import Notifier
from pollux_slurm.errors import (
    DaemonStoppedError,
    LeaseLostError,
    PolluxError,
    SlurmCommandError,
    SlurmError,
    StoreError,
)
from pollux_slurm.model import ClusterSnapshot, Decision, Problem, SlurmJob
from pollux_slurm.slurm.client import SlurmClient
from pollux_slurm.store.contract.interface import JobRecord, JobRegistration, Store

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


class Rounds:
    """The rounds of one daemon. `sight` is what the last one saw that another could answer.

    `meanwhile` is called again and again while a decision is searched for, until `stop` is set. `scope` tells
    whose jobs are served: one user's, by number, or everybody's (None). `site_limits` are Slurm's own.
    `past_runs` asks its accounting database.
    """

    def __init__(
        self,
        *,
        slurm: SlurmClient,
        store: Store,
        settings: Settings,
        clock: Callable[[], datetime],
        lease: Lease,
        telemetry: Telemetry,
        notifier: Notifier,
        stop: threading.Event,
        meanwhile: Callable[[], object],
        scope: Callable[[], int | None] = privileges.everybody,
        site_limits: Callable[[], SiteLimits] = association_limits.no_limits,
        past_runs: accounted_runs.PastRuns = accounted_runs.no_past_runs,
    ) -> None:
        self.sight = Sight()
        self.telemetry = telemetry
        self._slurm, self._store, self._clock, self._lease = slurm, store, clock, lease
        self._notifier, self._stop, self._meanwhile = notifier, stop, meanwhile
        self._scope, self._site_limits, self._past_runs = scope, site_limits, past_runs
        self._vanished: frozenset[str] = frozenset()
        self._next_settling = datetime.min.replace(tzinfo=timezone.utc)
        self._left_out: dict[str, str] = {}
        self._refused: dict[str, str] = {}
        self._doubted: frozenset[str] = frozenset()
        self.configure(settings)

    def configure(self, settings: Settings) -> None:
        """Go by other settings from now on."""
        self._config, self._policy, self._decide = settings.config, settings.policy, settings.decide

    def look(self) -> Sight:
        """Return what Slurm shows now; raises `SlurmError` and `StoreError`."""
        snapshot = self._slurm.snapshot()
        return Sight.of(snapshot, self._adaptive(snapshot), self._store.open_reallocations())

    def _adaptive(self, snapshot: ClusterSnapshot) -> tuple[JobRegistration, ...]:
        """Return the adaptive jobs that are served, known or not."""
        return cluster_picture.registrations(snapshot, self._config.partitions, only_user_id=self._scope())

    def hold(self) -> RoundResult:
        """Observe, decide and journal the moves; a picture that is not complete skips the round.

        Invariant 4: whatever cannot be read in full, or fails on the way, is counted and logged, and
        nothing is done.
        """
        try:
            with self.telemetry.round_under_way(
                interval_s=self._config.interval_s, decision_limit_s=self._policy.time_limit_s
            ):
                return self._hold()
        except SlurmError as error:
            self.telemetry.errors.labels("slurm").inc()
            return self.skip("slurm", error)
        except StoreError as error:
            self.telemetry.errors.labels("store").inc()
            return self.skip("store", error)
        except LeaseLostError as error:
            return self.skip("lease", error)
        except DaemonStoppedError as error:
            return self.skip("stopped", error)
        except PolluxError as error:
            return self.skip("policy", error)
        except Exception as error:
            _log.exception("round failed")
            return self.skip("bug", error)

    def _hold(self) -> RoundResult:
        self._lease.renew()
        for note in self._store.maintain():
            _log.warning("%s", note)
        with self.telemetry.phase("read_slurm"):
            snapshot = self._slurm.snapshot()
        now = self._clock()
        adaptive = self._adaptive(snapshot)
        left_out = self._store.register_jobs(adaptive, at=now)
        active = self._store.active_jobs()
        self._warn_of_refusals(cluster_picture.refusals(snapshot, active, left_out))
        records = cluster_picture.served(snapshot, active, self._scope())
        seen, self._vanished = cluster_picture.observations(
            snapshot,
            records,
            vanished_before=self._vanished,
            unsettled=self._care_for(snapshot, records, now),
        )
        self._store.observe_jobs(seen, at=now)
        if now >= self._next_settling:
            self._next_settling = now + accounted_runs.SETTLED_EVERY
            accounted_runs.settle(self._store, self._past_runs, now=now)
        training_runs = self._store.training_runs()  # before the models are read: what comes between is news
        records = cluster_picture.served(snapshot, self._store.active_jobs(), self._scope())
        under_way = [record.open_reallocation for record in records if record.open_reallocation is not None]
        self.sight = Sight.of(snapshot, adaptive, under_way, training_runs)
        picture = cluster_picture.picture(
            snapshot,
            records,
            self._config.partitions,
            left_alone_because=lambda record: (
                admin_orders.kept_by_hand(record)
                or failed_moves.left_alone_because(record)
                or unanswered_requests.left_alone_because(
                    record, now, timeout_s=self._config.checkpoint_timeout_s
                )
            ),
        )
        problem = problem_building.problem(
            picture,
            now=now,
            default_restart_delay_s=self._config.restart_delay_s,
            max_restart_delay_s=self._config.max_restart_delay_s,
            policy=self._policy,
            pause_ttl_s=self._config.pause_ttl_s,
            neighbours=unmanaged_jobs.jobs_in_turn(
                picture, problem_building.UsableNodes(snapshot), self._policy
            ),
            nodes=unmanaged_jobs.keep_shares(picture.nodes, picture, self._policy.kept_shares),
        )
        problem = association_limits.applied(problem, picture, self._site_limits())
        with self.telemetry.phase("decide"):
            decision = self._decide_aside(problem)
        refused = {job.slurm.job_id: problem_building.excluded_reason(job) for job in picture.managed}
        kept = {job_id: reason for job_id, reason in refused.items() if reason is not None}
        if kept != {job.slurm_job_id: job.excluded_reason for job in records if job.excluded_reason}:
            self._store.record_excluded(kept)
        kept |= dict(decision.excluded)
        for job_id, reason in kept.items():
            if self._left_out.get(job_id) != reason:  # not again in every round
                _log.warning("job %s: left as it is: %s", job_id, reason)
        self._left_out = kept
        self._warn_of_doubts(problem)
        if decision.timed_out:
            limit = self._policy.time_limit_s
            _log.warning("the search was cut short by policy.time_limit_s = %g; see: pollux replay", limit)
        moves = planned_moves(
            picture,
            decision,
            max_in_flight=self._config.max_in_flight,
            pauses=problem.moving.pauses,
            is_doubtful=lambda record: unanswered_requests.is_doubtful(
                record, now, timeout_s=self._config.checkpoint_timeout_s
            ),
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
                planned = self._store.plan_reallocation(
                    move.job.slurm.job_id,
                    source=move.source,
                    target=move.target,
                    moves_running=move.moves_running,
                    from_restart_count=move.job.slurm.restart_count,
                    round_id=round_id,
                    at=self._clock(),
                )
                under_way.append(planned)
        self.sight = Sight.of(snapshot, adaptive, under_way, training_runs)
        if not self._config.shadow:
            leaving = {move.job.slurm.job_id for move in moves}
            self._prolong_pauses(picture, leaving, now)
            self._keep_from_leftovers(picture, leaving, now)
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

    def _warn_of_refusals(self, refused: dict[str, str]) -> None:
        """Say, once each, which jobs are not adaptive though their Comment says so."""
        for job_id, because in refused.items():
            if self._refused.get(job_id) != because:
                _log.warning("job %s: not registered: %s", job_id, because)
        self._refused = refused

    def _warn_of_doubts(self, problem: Problem) -> None:
        doubts = {job.job_id: job.model_doubt for job in problem.jobs if job.model_doubt is not None}
        for job_id in sorted(doubts.keys() - self._doubted):
            _log.warning("job %s: its model does not count: %s", job_id, doubts[job_id])
        self._doubted = frozenset(doubts)

    def _care_for(
        self, snapshot: ClusterSnapshot, records: Sequence[JobRecord], now: datetime
    ) -> Callable[[JobRecord, SlurmJob], bool]:
        """Journal what jobs need whatever is decided; return which of those that failed are not over."""
        if self._config.shadow:
            return lambda _record, _job: False
        care = Care(
            store=self._store,
            guard=self._lease.check,
            config=self._config,
            clock=self._clock,
            snapshot=snapshot,
            records=records,
        )
        return care.journal(now)

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
                    raise DaemonStoppedError("the daemon was stopped while it decided") from None
                self._meanwhile()
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
            if begins_at is None or begins_at > soon or not problem_building.is_parked(job, now):
                continue
            if job.slurm.job_id in leaving:
                continue
            try:
                slurm.set_begin_time(job.slurm.job_id, ahead_s=self._config.pause_ttl_s)
            except SlurmCommandError as error:
                _log.info("job %s: its pause is not prolonged: %s", job.slurm.job_id, error)

    def _keep_from_leftovers(self, picture: Picture, leaving: Container[str], now: datetime) -> None:
        """Let jobs wait on that Slurm requeued off a lost node: it may start them there beside a leftover."""
        unsettled = returned_nodes.unsettled_nodes(picture.snapshot)
        slurm = self._slurm.guarded(self._lease.check)
        for job in picture.managed if unsettled else ():
            shown = job.slurm
            may_start = not (shown.held or job.in_flight or shown.job_id in leaving)
            if not (may_start and shown.restart_count and returned_nodes.is_to_wait(shown, now)):
                continue
            if problem_building.excluded_reason(job) is not None:
                continue
            ran_on = returned_nodes.last_place(self._store.allocation_history(shown.job_id))
            if not returned_nodes.may_have_leftover(ran_on, unsettled):
                continue
            _log.info("job %s: waits, since it may still run on %s", shown.job_id, ran_on)
            try:
                slurm.set_begin_time(shown.job_id, ahead_s=returned_nodes.WAIT_S)
            except SlurmCommandError as error:
                _log.info("job %s: is not kept waiting: %s", shown.job_id, error)

    def _save_problem(self, round_id: int, problem: Problem) -> None:
        """Keep the problem as a file, if the admin wants that. A full disk costs the file, not the round."""
        if self._config.problems_dir is None:
            return
        try:
            folder = Path(self._config.problems_dir)
            save_problem(folder, round_id, problem, keep=self._config.problems_kept)
        except OSError as error:
            _log.warning("round %d: its problem was not saved: %s", round_id, error)

    def skip(self, reason: str, error: Exception) -> RoundResult:
        """Count and tell a round that acts on nothing."""
        self.telemetry.skipped.labels(reason).inc()
        times = totals(self.telemetry.skipped)[(reason,)]
        _log.warning("round skipped (%s, %d so far): %s", reason, times, error)
        return RoundResult(skipped=f"{reason}: {error}")
