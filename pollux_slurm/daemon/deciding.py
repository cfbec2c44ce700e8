"""The second stage of a round: the decision, and the moves that follow from it."""

from __future__ import annotations

import functools
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta

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
from pollux_slurm.daemon.decide.promises import counts_total_time
from pollux_slurm.daemon.observe import association_limits
from pollux_slurm.daemon.observe.association_limits import SiteLimits
from pollux_slurm.daemon.observe.cluster_picture import ManagedJob
from pollux_slurm.daemon.observe.configuration_watch import ConfigurationWatch
from pollux_slurm.daemon.observe.used_gpus import UsedGpusCounter
from pollux_slurm.daemon.observing import Round
from pollux_slurm.daemon.obstacles import places
from pollux_slurm.daemon.obstacles.move_checks import MoveChecks
from pollux_slurm.daemon.obstacles.tried_allocations import Tried, decide_within
from pollux_slurm.daemon.reason_log import ReasonLog
from pollux_slurm.daemon.recovery.lost_places import lost_places, restores, stopped_jobs
from pollux_slurm.daemon.service.metrics import DaemonMetrics
from pollux_slurm.errors import DaemonStoppedError
from pollux_slurm.goodput import TableCache
from pollux_slurm.model import (
    Allocation,
    Decision,
    Problem,
    Promise,
    ReallocationWay,
    TrainingCourse,
)
from pollux_slurm.policy.promises.admission import answer_promises, with_promised_gpus
from pollux_slurm.slurm.client import SlurmClient
from pollux_slurm.store.contract.interface import EarlierJob, Reallocation, Store


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidedRound:
    """What a round has decided, from the problem on.

    - `tried`: the decision with its problem, and why jobs did not get what they would have got
    - `promises`: the answers to jobs that ask to be finished by a moment, by id
    - `given_up`: the open moves that end for it
    - `moves`: what it moves, once those have ended
    """

    tried: Tried
    promises: Mapping[str, Promise]
    given_up: tuple[Reallocation, ...]
    moves: tuple[PlannedMove, ...]

    @property
    def problem(self) -> Problem:
        return self.tried.problem

    @property
    def decision(self) -> Decision:
        return self.tried.decision


class Decider:
    """Decides rounds. `while_deciding` is called repeatedly while the solver runs, until `stop` is set."""

    def __init__(
        self,
        *,
        slurm: SlurmClient,
        store: Store,
        metrics: DaemonMetrics,
        stop: threading.Event,
        while_deciding: Callable[[], object],
        site_limits: Callable[[], SiteLimits],
        keeps_places: Callable[[], bool],
    ) -> None:
        self._store, self._metrics = store, metrics
        self._stop, self._while_deciding = stop, while_deciding
        self._site_limits, self._keeps_places = site_limits, keeps_places
        self._configuration = ConfigurationWatch(lambda: slurm.configuration())
        self._reasons = ReasonLog()
        self._used_gpus = UsedGpusCounter(store)
        self._promise_tables = TableCache()
        # A completed job's history is read once.
        self._course_of = functools.lru_cache(maxsize=1_000)(self._read_course)

    def decide(self, seen: Round) -> DecidedRound:
        """Decide, and plan moves; raises `StoreError`, `PolluxError` and `DaemonStoppedError`."""
        picture, now = seen.picture, seen.now
        stopped = stopped_jobs(picture, self._store.journal.reallocations, now)
        self._count_lost_places(seen, stopped)
        problem = self._problem_of(seen)
        promises = {} if seen.is_shadow else answer_promises(problem, self._promise_tables)
        tried = self._tried(seen, problem, promises, stopped)
        given_up = moves_given_up(picture, tried.decision, now)
        timeout_s = seen.settings.config.checkpoint_timeout_s
        moves = planned_moves(
            without_moves(picture, given_up),
            tried.decision,
            max_in_flight=seen.settings.config.max_in_flight,
            pauses=tried.problem.moving.pauses,
            may_not_answer=lambda record: unanswered_requests.may_not_answer(
                record, now, timeout_s=timeout_s
            ),
        )
        return DecidedRound(tried=tried, promises=promises, given_up=given_up, moves=tuple(moves))

    def _count_lost_places(self, seen: Round, stopped: Mapping[str, Reallocation]) -> None:
        longest_s = seen.settings.longest_stop_s
        found = lost_places(stopped, seen.now, longest_stop_s=longest_s)
        because = f"a move stopped it more than {longest_s:g} s ago, and it has no GPUs"
        self._reasons.warn(
            "job %s: it has lost its place: %s; see: pollux explain JOB",
            dict.fromkeys(sorted(found), because),
        )
        self._metrics.count_lost_places(found)

    def _problem_of(self, seen: Round) -> Problem:
        """Return the problem of this round: the cluster as the policy sees it, within the site's limits."""
        picture, settings, now = seen.picture, seen.settings, seen.now
        config, policy = settings.config, settings.policy
        problem = problem_building.build_problem(
            picture,
            now=now,
            kinds=self._kinds(seen),
            histories={
                job.slurm.job_id: self._store.history.allocations(job.slurm.job_id)
                for job in picture.managed
                if counts_total_time(job)
            },
            default_restart_delay_s=config.restart_delay_s,
            max_restart_delay_s=config.max_restart_delay_s,
            moves=settings.moves,
            default_in_place_delay_s=config.in_place_delay_s,
            policy=policy,
            pause_ttl_s=config.pause_ttl_s,
            unmanaged=unmanaged_jobs.next_unmanaged_jobs(
                picture,
                problem_building.UsableNodes(picture.snapshot),
                policy,
                takes_part=problem_building.participants(picture, now=now, pause_ttl_s=config.pause_ttl_s),
            ),
            nodes=unmanaged_jobs.reserve_shares(picture.nodes, picture, policy.kept_shares),
        )
        half_life_s = policy_settings.share_half_life_s(policy)
        problem = self._used_gpus.with_shares(problem, half_life_s, now)
        return association_limits.apply_limits(problem, picture, self._site_limits())

    def _kinds(self, seen: Round) -> Kinds:
        """Return what earlier jobs can teach those of this round."""
        config = seen.settings.kinds
        if config.shared_by == "nobody" or all(job.record.terms.kind is None for job in seen.picture.managed):
            return Kinds()
        earlier = self._store.kinds.earlier_jobs(since=seen.now - timedelta(seconds=config.expires_s))
        return Kinds(earlier, shared_by=config.shared_by, course_of=self._course_of)

    def _read_course(self, job: EarlierJob) -> TrainingCourse:
        """Return the course of a completed job."""
        history = self._store.history
        return course_of_job(job, history.models(job.slurm_job_id), history.samples(job.slurm_job_id))

    def _tried(
        self,
        seen: Round,
        problem: Problem,
        promises: Mapping[str, Promise],
        stopped: Mapping[str, Reallocation],
    ) -> Tried:
        """Decide so that no move is made that something stands against."""
        picture, now = seen.picture, seen.now
        search = functools.partial(self._search, seen)
        submitted = {job.slurm.job_id: job.record.submitted_gpus for job in picture.managed}
        with self._metrics.phase("decide"):
            problem = with_promised_gpus(problem, promises, submitted)
            problem = keep_submitted_shapes(problem, search, submitted)
            checks = MoveChecks(
                snapshot=seen.snapshot,
                waiting=places.waiting_jobs(seen.snapshot),
                managed={job.slurm.job_id: job for job in picture.managed},
                asked={job.job_id: job for job in problem.jobs},
                now=now,
                way_to=lambda job, target: way_to(seen, problem, job, target)[0],
                keeps_places=self._keeps_places(),
                longest_stop_s=seen.settings.longest_stop_s,
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
                    problem, search(problem), picture, now=now
                ),
                checks.not_tried,
            )

    def _search(self, seen: Round, problem: Problem) -> Decision:
        """Run the solver in a thread, while this one advances moves and renews the lease.

        The solver's thread uses neither store nor Slurm. A daemon that is stopped does not wait for it.
        """
        outcome: queue.SimpleQueue[Decision | BaseException] = queue.SimpleQueue()

        def search() -> None:
            try:
                outcome.put(seen.settings.decide(problem))
            except BaseException as error:
                outcome.put(error)

        threading.Thread(target=search, name="decide", daemon=True).start()
        while True:
            try:
                found = outcome.get(timeout=seen.settings.config.tick_s)
            except queue.Empty:
                if self._stop.is_set():
                    raise DaemonStoppedError("the daemon was stopped while it decided") from None
                self._while_deciding()
                continue
            if isinstance(found, BaseException):
                raise found
            return found


def way_to(
    seen: Round, problem: Problem, job: ManagedJob, target: Allocation
) -> tuple[ReallocationWay, str | None]:
    """Return how a job goes to an allocation, and why not in place where it asks for that."""
    return in_place.way_of_move(
        job.slurm,
        job.record,
        target,
        seen.snapshot,
        problem,
        several_wings=in_place.allows_several_wings(seen.snapshot, seen.settings.moves),
        may_prioritise=seen.only_user_id is None,
    )
