"""The third stage of a round: the store, the log and a file say what was decided, and why."""

from __future__ import annotations

import logging
from pathlib import Path

from pollux_slurm.daemon.decide import problem_building
from pollux_slurm.daemon.decide.kinds import fitting_atomic
from pollux_slurm.daemon.decide.promises import new_answers
from pollux_slurm.daemon.decide.saved_problems import save_problem
from pollux_slurm.daemon.deciding import DecidedRound
from pollux_slurm.daemon.observing import Round
from pollux_slurm.daemon.reason_log import ReasonLog
from pollux_slurm.daemon.service.lease import Lease
from pollux_slurm.daemon.service.metrics import DaemonMetrics
from pollux_slurm.model import PromiseState
from pollux_slurm.now.promises import promise_text
from pollux_slurm.store.contract.interface import Store

_log = logging.getLogger(__name__)


class Recorder:
    """Records decided rounds, as long as this daemon has the lease."""

    def __init__(self, *, store: Store, lease: Lease, metrics: DaemonMetrics) -> None:
        self._store, self._lease, self._metrics = store, lease, metrics
        self._reasons = ReasonLog()

    def record(self, seen: Round, decided: DecidedRound) -> int:
        """Return the round's number; raises `StoreError` and `LeaseLostError`."""
        self._record_left_out(seen, decided)
        doubts = {job.job_id: job.model_doubt for job in decided.problem.jobs if job.model_doubt is not None}
        self._reasons.warn("job %s: its model does not count: %s", doubts)
        if decided.decision.timed_out:
            limit = seen.settings.policy.time_limit_s
            _log.warning("the solver stopped at policy.time_limit_s = %g; see: pollux replay", limit)
        self._lease.check()
        with self._metrics.phase("record"):
            round_id = self._store.rounds.record(
                decided.problem, decided.decision, shadow=seen.is_shadow, at=seen.now
            )
        self._record_promises(seen, decided)
        self._record_fitting(seen, decided)
        self._save_problem(seen, decided, round_id)
        return round_id

    def _record_left_out(self, seen: Round, decided: DecidedRound) -> None:
        """Record, and log once, why jobs are left as they are."""
        managed = seen.picture.managed
        reasons = {job.slurm.job_id: problem_building.not_moved_because(job) for job in managed}
        left_out = {job_id: reason for job_id, reason in reasons.items() if reason is not None}
        has = {job.slurm.job_id: job.slurm.allocation for job in managed}
        gets = {job.job_id: job.allocation for job in decided.decision.jobs}
        left_out |= {
            job_id: reason
            for job_id, reason in decided.tried.not_tried.items()
            if gets[job_id] == has[job_id]
        }
        known = {job.slurm_job_id: job.not_moved_reason for job in seen.records if job.not_moved_reason}
        if left_out != known:
            self._store.jobs.record_not_moved(left_out)
        self._reasons.warn("job %s: left as it is: %s", left_out | dict(decided.decision.excluded))

    def _record_promises(self, seen: Round, decided: DecidedRound) -> None:
        """Record the answers to jobs with a moment that have changed, and log each change of state."""
        new = new_answers(seen.picture.managed, decided.promises, seen.now)
        if not new:
            return
        self._store.jobs.record_promises(new)
        for record in seen.records:
            answer, by = new.get(record.slurm_job_id), record.terms.finish_by
            if answer is None or by is None or (record.promise and record.promise.state is answer.state):
                continue
            level = logging.WARNING if answer.state is PromiseState.ENDED else logging.INFO
            _log.log(level, "job %s: %s", record.slurm_job_id, promise_text(by, answer))

    def _record_fitting(self, seen: Round, decided: DecidedRound) -> None:
        """Record where it has changed what fits into memory by a job's kind, for the nodes that it has."""
        asked = {job.job_id: job for job in decided.problem.jobs}
        types = {node.name: node.gpu_type for node in decided.problem.nodes}
        new = {}
        for job in seen.picture.managed:
            if (of_round := asked.get(job.slurm.job_id)) is not None:
                has = {types[node] for node, _ in job.slurm.allocation.gpus_by_node if node in types}
                known = fitting_atomic(job.record, of_round, has)
                if known != job.record.fitting_atomic:
                    new[job.slurm.job_id] = known
        if new:
            self._store.jobs.record_fitting(new)

    def _save_problem(self, seen: Round, decided: DecidedRound, round_id: int) -> None:
        """Save the problem as a file where `daemon.problems_dir` is set. The round goes on if that fails."""
        config = seen.settings.config
        if config.problems_dir is None:
            return
        try:
            save_problem(Path(config.problems_dir), round_id, decided.problem, keep=config.problems_kept)
        except OSError as error:
            _log.warning("round %d: its problem was not saved: %s", round_id, error)
