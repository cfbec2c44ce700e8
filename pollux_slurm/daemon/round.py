"""One round: read Slurm and the store, decide, and journal the moves.

`Rounds.run` is the only place that catches a round's errors.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import queue
import threading
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path

from pollux_slurm.config import DaemonConfig, KindsConfig, MovesConfig, PolicyConfig
from pollux_slurm.daemon.decide import (
    draining_nodes,
    in_place,
    policy_settings,
    problem_building,
    unanswered_requests,
    unmanaged_jobs,
)
from pollux_slurm.daemon.decide.kinds import Kinds, course_of_job
from pollux_slurm.daemon.decide.lent_gpus import keep_submitted_shapes, moves_given_up, without_moves
from pollux_slurm.daemon.decide.planned_moves import PlannedMove, planned_moves
from pollux_slurm.daemon.decide.promises import new_answers
from pollux_slurm.daemon.decide.saved_problems import save_problem
from pollux_slurm.daemon.enact import admin_orders, upkeep
from pollux_slurm.daemon.enact.maintenance import Maintenance
from pollux_slurm.daemon.lasting_reasons import LastingReasons
from pollux_slurm.daemon.observe import accounted_runs, association_limits, cluster_picture
from pollux_slurm.daemon.observe.association_limits import SiteLimits
from pollux_slurm.daemon.observe.cluster_picture import ManagedJob, Picture
from pollux_slurm.daemon.observe.configuration_watch import ConfigurationWatch
from pollux_slurm.daemon.observe.events import WatchedState
from pollux_slurm.daemon.observe.used_gpus import UsedGpusCounter
from pollux_slurm.daemon.obstacles import places
from pollux_slurm.daemon.obstacles.move_checks import MoveChecks
from pollux_slurm.daemon.obstacles.tried_allocations import Tried, decide_within
from pollux_slurm.daemon.recovery import failed_moves
from pollux_slurm.daemon.recovery.lost_places import lost_places, restores, stopped_jobs
from pollux_slurm.daemon.service import privileges
from pollux_slurm.daemon.service.lease import Lease
from pollux_slurm.daemon.service.metrics import DaemonMetrics, totals
from pollux_slurm.daemon.service.systemd_notify import Notifier
from pollux_slurm.errors import (
    DaemonStoppedError,
    LeaseLostError,
    PolluxError,
    SlurmError,
    StoreError,
)
from pollux_slurm.goodput import TableCache
from pollux_slurm.model import (
    Allocation,
    ClusterSnapshot,
    Decision,
    Problem,
    Promise,
    PromiseState,
    ReallocationWay,
    SlurmJob,
    TrainingCourse,
)
from pollux_slurm.now import known_jobs
from pollux_slurm.now.promises import promise_text
from pollux_slurm.policy.promises.admission import answer_promises, with_promised_gpus
from pollux_slurm.slurm.client import SlurmClient
from pollux_slurm.store.contract.interface import EarlierJob, JobRecord, JobRegistration, Reallocation, Store

_log = logging.getLogger(__name__)

_GIVES_WAY = "it gives way to jobs that wait"


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Search for garbage after a round: nearly all that thousands of jobs make in it is in use to its end."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """What one round did. `skipped` is the reason of a round that did nothing, else None."""

    round_id: int | None = None
    num_jobs: int = 0
    num_moves: int = 0
    skipped: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings that a reload may change in a running daemon."""

    config: DaemonConfig
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    moves: MovesConfig = field(default_factory=MovesConfig)
    kinds: KindsConfig = field(default_factory=KindsConfig)
    decide: Callable[[Problem], Decision]


class Rounds:
    """The rounds of one daemon. `watched_state` is what `events` compares with; `read_s` what Slurm took.

    `while_deciding` is called repeatedly while the solver runs, until `stop` is set. `scope` returns the id
    of the only user whose jobs are served, or None for all users. `site_limits` returns Slurm's own limits,
    and `past_runs` asks Slurm's accounting database. `give_up` ends an open move, for a reason.
    """

    def __init__(
        self,
        *,
        slurm: SlurmClient,
        store: Store,
        settings: Settings,
        clock: Callable[[], datetime],
        lease: Lease,
        metrics: DaemonMetrics,
        notifier: Notifier,
        stop: threading.Event,
        while_deciding: Callable[[], object],
        scope: Callable[[], int | None] = privileges.all_users,
        site_limits: Callable[[], SiteLimits] = association_limits.no_limits,
        past_runs: accounted_runs.PastRuns = accounted_runs.no_past_runs,
        keeps_places: Callable[[], bool] = lambda: True,
        give_up: Callable[[Reallocation, str], bool] = lambda _move, _reason: False,
    ) -> None:
        self._keeps_places, self._give_up = keeps_places, give_up
        self._configuration = ConfigurationWatch(lambda: slurm.configuration())
        self.watched_state, self.read_s = WatchedState(), 0.0
        self.metrics = metrics
        self._slurm, self._store, self._clock, self._lease = slurm, store, clock, lease
        self._notifier, self._stop, self._while_deciding = notifier, stop, while_deciding
        self._scope, self._site_limits, self._past_runs = scope, site_limits, past_runs
        self._vanished: frozenset[str] = frozenset()
        self._next_correction = datetime.min.replace(tzinfo=timezone.utc)
        self._reasons = LastingReasons()
        self._used_gpus = UsedGpusCounter(store)
        self._promise_tables = TableCache()
        # A completed job's history is read once.
        self._course_of = functools.lru_cache(maxsize=1_000)(self._read_course)
        self.configure(settings)

    def configure(self, settings: Settings) -> None:
        """Use other settings from the next round on."""
        self._config, self._policy, self._decide = settings.config, settings.policy, settings.decide
        self._moves, self._kinds_config = settings.moves, settings.kinds

    def read_watched_state(self) -> WatchedState:
        """Read Slurm and the store for `events`; raises `SlurmError` and `StoreError`."""
        snapshot = self._slurm.refresh()
        return WatchedState.of(snapshot, self._adaptive(snapshot), self._store.open_reallocations())

    def _adaptive(self, snapshot: ClusterSnapshot) -> tuple[JobRegistration, ...]:
        """Return the adaptive jobs that are served, registered or not."""
        return cluster_picture.registrations(snapshot, self._config.partitions, only_user_id=self._scope())

    def run(self) -> RoundResult:
        """Observe, decide and journal the moves.

        After an incomplete read, or any error, nothing is done: the failure is counted and logged.
        """
        try:
            with (
                _no_garbage_collection(),
                self.metrics.measured_round(
                    interval_s=self._config.interval_s, decision_limit_s=self._policy.time_limit_s
                ),
            ):
                return self._run()
        except SlurmError as error:
            self.metrics.errors.labels("slurm").inc()
            return self.skip("slurm", error)
        except StoreError as error:
            self.metrics.errors.labels("store").inc()
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

    def _run(self) -> RoundResult:
        self._lease.renew()
        for note in self._store.maintain():
            _log.warning("%s", note)
        began_s = time.monotonic()
        with self.metrics.phase("read_slurm"):
            snapshot = self._slurm.snapshot()
        self.read_s = time.monotonic() - began_s
        now = self._clock()
        adaptive = self._adaptive(snapshot)
        refused = self._store.register_jobs(adaptive, at=now)
        # Read before the models, so that what comes in between triggers a round.
        training_runs = self._store.training_runs()
        active = self._store.active_jobs()
        self._reasons.warn(
            "job %s: not registered: %s", known_jobs.refused_registrations(snapshot, active, refused)
        )
        records = cluster_picture.records_of_user(snapshot, active, self._scope())
        seen, self._vanished = cluster_picture.observations(
            snapshot,
            records,
            vanished_before=self._vanished,
            not_over=self._journal_maintenance(snapshot, records, now),
        )
        changed = self._store.observe_jobs(seen, at=now)
        if now >= self._next_correction:
            self._next_correction = now + accounted_runs.CORRECTED_EVERY
            accounted_runs.correct_estimates(self._store, self._past_runs, now=now)
        records = cluster_picture.records_of_user(
            snapshot, self._with_changes(active, changed), self._scope()
        )
        open_moves = [record.open_reallocation for record in records if record.open_reallocation is not None]
        # Set already here, so that after a failed decision only a change triggers the next round.
        self.watched_state = WatchedState.of(snapshot, adaptive, open_moves, training_runs)
        picture = cluster_picture.build_picture(
            snapshot,
            records,
            self._config.partitions,
            not_moved_because=lambda record: (
                admin_orders.paused_manually_because(record)
                or failed_moves.not_moved_because(record)
                or unanswered_requests.not_asked_because(
                    record, now, timeout_s=self._config.checkpoint_timeout_s
                )
            ),
        )
        picture = unmanaged_jobs.wait_in_order(picture, self._policy)
        stopped = stopped_jobs(picture, self._store.reallocations, now)
        self._count_lost_places(stopped, now)
        problem = self._problem_of(picture, now)
        promises = {} if self._config.shadow else answer_promises(problem, self._promise_tables)
        tried = self._decided(problem, promises, picture, stopped, now)
        problem, decision = tried.problem, tried.decision
        self._note_left_out(picture, records, tried)
        self._reasons.warn(
            "job %s: its model does not count: %s",
            {job.job_id: job.model_doubt for job in problem.jobs if job.model_doubt is not None},
        )
        if decision.timed_out:
            limit = self._policy.time_limit_s
            _log.warning("the solver stopped at policy.time_limit_s = %g; see: pollux replay", limit)
        given_up = moves_given_up(picture, decision, now)
        moves = planned_moves(
            without_moves(picture, given_up),
            decision,
            max_in_flight=self._config.max_in_flight,
            pauses=problem.moving.pauses,
            may_not_answer=lambda record: unanswered_requests.may_not_answer(
                record, now, timeout_s=self._config.checkpoint_timeout_s
            ),
        )
        self._lease.check()
        with self.metrics.phase("record"):
            round_id = self._store.record_round(problem, decision, shadow=self._config.shadow, at=now)
        self._record_promises(records, promises, now)
        self._save_problem(round_id, problem)
        if not self._config.shadow:
            stay = {move.slurm_job_id for move in given_up if not self._give_up(move, _GIVES_WAY)}
            moves = tuple(move for move in moves if move.job.slurm.job_id not in stay)
            open_moves = [move for move in open_moves if move not in given_up or move.slurm_job_id in stay]
        open_moves += self._plan(moves, round_id, snapshot, problem)
        # Set again, with the targets of the moves that this round planned.
        self.watched_state = WatchedState.of(snapshot, adaptive, open_moves, training_runs)
        if not self._config.shadow:
            self._keep(picture, {move.job.slurm.job_id for move in moves}, now)
        _log.info(
            "round %d: %d jobs, fitness %.4g, %d to move",
            round_id,
            len(problem.jobs),
            decision.fitness,
            len(moves),
        )
        enacted = () if self._config.shadow else moves
        self.metrics.count_gpus(picture, {move.job.slurm.job_id for move in enacted})
        self.metrics.end_round(round_id, decision, tuple(job.record for job in picture.managed))
        self._notifier.status(f"round {round_id}: {len(problem.jobs)} jobs, {len(moves)} to move")
        return RoundResult(round_id=round_id, num_jobs=len(problem.jobs), num_moves=len(moves))

    def _problem_of(self, picture: Picture, now: datetime) -> Problem:
        """Return the problem of this round: the cluster as the policy sees it, within the site's limits."""
        problem = problem_building.build_problem(
            picture,
            now=now,
            kinds=self._kinds(picture, now),
            default_restart_delay_s=self._config.restart_delay_s,
            max_restart_delay_s=self._config.max_restart_delay_s,
            moves=self._moves,
            default_in_place_delay_s=self._config.in_place_delay_s,
            policy=self._policy,
            pause_ttl_s=self._config.pause_ttl_s,
            unmanaged=unmanaged_jobs.next_unmanaged_jobs(
                picture,
                problem_building.UsableNodes(picture.snapshot),
                self._policy,
                takes_part=problem_building.participants(
                    picture, now=now, pause_ttl_s=self._config.pause_ttl_s
                ),
            ),
            nodes=unmanaged_jobs.reserve_shares(picture.nodes, picture, self._policy.kept_shares),
        )
        half_life_s = policy_settings.share_half_life_s(self._policy)
        problem = self._used_gpus.with_shares(problem, half_life_s, now)
        return association_limits.apply_limits(problem, picture, self._site_limits())

    def _kinds(self, picture: Picture, now: datetime) -> Kinds:
        """Return what earlier jobs can teach those of this round."""
        shared_by = self._kinds_config.shared_by
        if shared_by == "nobody" or all(job.record.terms.kind is None for job in picture.managed):
            return Kinds()
        since = now - timedelta(seconds=self._kinds_config.expires_s)
        return Kinds(self._store.earlier_jobs(since=since), shared_by=shared_by, course_of=self._course_of)

    def _read_course(self, job: EarlierJob) -> TrainingCourse:
        """Return the course of a completed job."""
        models = self._store.model_history(job.slurm_job_id)
        return course_of_job(job, models, self._store.sample_history(job.slurm_job_id))

    def _decided(
        self,
        problem: Problem,
        promises: Mapping[str, Promise],
        picture: Picture,
        stopped: Mapping[str, Reallocation],
        now: datetime,
    ) -> Tried:
        """Decide so that no move is made that something stands against."""
        snapshot = picture.snapshot
        by_id = {job.slurm.job_id: job for job in picture.managed}
        submitted = {job.slurm.job_id: job.record.submitted_gpus for job in picture.managed}
        with self.metrics.phase("decide"):
            problem = with_promised_gpus(problem, promises, submitted)
            problem = keep_submitted_shapes(problem, self._decide_in_thread, submitted)
            checks = MoveChecks(
                snapshot=snapshot,
                waiting=places.waiting_jobs(snapshot),
                managed=by_id,
                asked={job.job_id: job for job in problem.jobs},
                now=now,
                way_to=lambda job, target: self._way_to(job, target, snapshot, problem)[0],
                keeps_places=self._keeps_places(),
                longest_stop_s=self._longest_stop_s,
                had={
                    job_id: move.source
                    for job_id, move in stopped.items()
                    if restores(move, move.source, now)
                },
                configured_at=self._configuration.changed_at([job.record for job in picture.managed], now),
            )
            return decide_within(
                problem,
                lambda problem: draining_nodes.leave_draining_nodes(
                    problem, self._decide_in_thread(problem), picture, now=now
                ),
                checks.not_tried,
            )

    def _note_left_out(self, picture: Picture, records: Sequence[JobRecord], tried: Tried) -> None:
        """Record, and log once, why jobs are left as they are."""
        decision, by_id = tried.decision, {job.slurm.job_id: job for job in picture.managed}
        reasons = {job.slurm.job_id: problem_building.not_moved_because(job) for job in picture.managed}
        left_out = {job_id: reason for job_id, reason in reasons.items() if reason is not None}
        decided = {job.job_id: job.allocation for job in decision.jobs}
        left_out |= {
            job_id: reason
            for job_id, reason in tried.not_tried.items()
            if decided[job_id] == by_id[job_id].slurm.allocation
        }
        if left_out != {job.slurm_job_id: job.not_moved_reason for job in records if job.not_moved_reason}:
            self._store.record_not_moved(left_out)
        self._reasons.warn("job %s: left as it is: %s", left_out | dict(decision.excluded))

    def _record_promises(
        self, records: Sequence[JobRecord], promises: Mapping[str, Promise], now: datetime
    ) -> None:
        """Record the answers to jobs with a moment that have changed, and log each change of state."""
        new = new_answers(records, promises, now)
        self._store.record_promises(new)
        for record in records:
            answer, by = new.get(record.slurm_job_id), record.terms.finish_by
            if answer is None or by is None or (record.promise and record.promise.state is answer.state):
                continue
            level = logging.WARNING if answer.state is PromiseState.ENDED else logging.INFO
            _log.log(level, "job %s: %s", record.slurm_job_id, promise_text(by, answer))

    def _plan(
        self, moves: Sequence[PlannedMove], round_id: int, snapshot: ClusterSnapshot, problem: Problem
    ) -> list[Reallocation]:
        """Journal the moves of a round, unless it is a shadow's; return what was journaled."""
        found = []
        verb = "would move" if self._config.shadow else "moves"
        for move in moves:
            _log.info(
                "round %d: %s job %s %s → %s", round_id, verb, move.job.slurm.job_id, move.source, move.target
            )
            if not self._config.shadow:
                way, because = self._way_to(move.job, move.target, snapshot, problem)
                planned = self._store.plan_reallocation(
                    move.job.slurm.job_id,
                    source=move.source,
                    target=move.target,
                    moves_running=move.moves_running,
                    from_restart_count=move.job.slurm.restart_count,
                    round_id=round_id,
                    at=self._clock(),
                    way=way,
                    reason=because,
                )
                found.append(planned)
        return found

    def _with_changes(self, active: tuple[JobRecord, ...], changed: frozenset[str]) -> tuple[JobRecord, ...]:
        """Return the active jobs with what this round has observed and journaled, read again if it has."""
        moves = {move.slurm_job_id: move for move in self._store.open_reallocations()}
        is_current = not changed and all(
            record.open_reallocation == moves.get(record.slurm_job_id) for record in active
        )
        return active if is_current else self._store.active_jobs()

    def _way_to(
        self, job: ManagedJob, target: Allocation, snapshot: ClusterSnapshot, problem: Problem
    ) -> tuple[ReallocationWay, str | None]:
        return in_place.way_of_move(
            job.slurm,
            job.record,
            target,
            snapshot,
            problem,
            several_wings=in_place.allows_several_wings(snapshot, self._moves),
            may_prioritise=self._scope() is None,
        )

    @property
    def _longest_stop_s(self) -> float:
        """How long a move may keep a job without GPUs."""
        return self._config.requeue_timeout_s + self._config.start_timeout_s

    def _count_lost_places(self, stopped: Mapping[str, Reallocation], now: datetime) -> None:
        found = lost_places(stopped, now, longest_stop_s=self._longest_stop_s)
        because = f"a move stopped it more than {self._longest_stop_s:g} s ago, and it has no GPUs"
        self._reasons.warn(
            "job %s: it has lost its place: %s; see: pollux explain JOB",
            dict.fromkeys(sorted(found), because),
        )
        self.metrics.count_lost_places(found)

    def _journal_maintenance(
        self, snapshot: ClusterSnapshot, records: Sequence[JobRecord], now: datetime
    ) -> Callable[[JobRecord, SlurmJob], bool]:
        """Journal moves that do not depend on the decision; return which failed jobs are not over."""
        if self._config.shadow:
            return lambda _record, _job: False
        maintenance = Maintenance(
            store=self._store,
            guard=self._lease.check,
            config=self._config,
            clock=self._clock,
            snapshot=snapshot,
            records=records,
        )
        return maintenance.journal(now)

    def _decide_in_thread(self, problem: Problem) -> Decision:
        """Run the solver in a thread, while this one advances moves and renews the lease.

        The solver's thread uses neither store nor Slurm. A daemon that is stopped does not wait for it.
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
                self._while_deciding()
                continue
            if isinstance(found, BaseException):
                raise found
            return found

    def _keep(self, picture: Picture, moved: Container[str], now: datetime) -> None:
        """Keep anchors in order, and jobs waiting that must wait."""
        slurm = self._slurm.guarded(self._lease.check)
        upkeep.cancel_orphans(picture.snapshot, slurm, now, only_user_id=self._scope())
        upkeep.requeue_waiting_anchors(picture.managed, slurm)
        upkeep.prolong_pauses(picture, slurm, moved, now, pause_ttl_s=self._config.pause_ttl_s)
        upkeep.delay_jobs_with_leftovers(picture, slurm, self._store, moved, now)

    def _save_problem(self, round_id: int, problem: Problem) -> None:
        """Save the problem as a file where `daemon.problems_dir` is set. The round goes on if that fails."""
        if self._config.problems_dir is None:
            return
        try:
            folder = Path(self._config.problems_dir)
            save_problem(folder, round_id, problem, keep=self._config.problems_kept)
        except OSError as error:
            _log.warning("round %d: its problem was not saved: %s", round_id, error)

    def skip(self, reason: str, error: Exception) -> RoundResult:
        """Count and log a round that does nothing."""
        self.metrics.skipped.labels(reason).inc()
        times = totals(self.metrics.skipped)[(reason,)]
        _log.warning("round skipped (%s, %d so far): %s", reason, times, error)
        return RoundResult(skipped=f"{reason}: {error}")
