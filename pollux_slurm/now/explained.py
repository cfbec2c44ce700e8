"""Why a job has its GPUs: a round's decision, the rates and the move's delay as predicted, the job now."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from pollux_slurm.errors import StoreError, UnknownJobError, UsageError
from pollux_slurm.model import Allocation, Configuration, JobState
from pollux_slurm.now.decision_text import moved_since
from pollux_slurm.now.failure_line import failure_of_job
from pollux_slurm.now.known_jobs import describe_unknown_job
from pollux_slurm.now.present_state import missing_reports
from pollux_slurm.now.slurm_reading import read_slurm
from pollux_slurm.store.contract.interface import DecidedJob, DecisionRecord
from pollux_slurm.text import some_of

if TYPE_CHECKING:
    from pollux_slurm.config import Config
    from pollux_slurm.model import JobDecision, Problem, ProblemJob, ReallocationWay
    from pollux_slurm.now.jobs import JobNow
    from pollux_slurm.store.contract.interface import DaemonStatus, Reallocation, Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What the models of a round predict for a job there.

    - `before`: the allocation in the round's problem
    - `way`, `move_delay_s`: how it is expected to move, and for how long; None where it stays
    - `throughput` (examples/s) and `efficiency` at the decided allocation; None for a job without a model
    - `num_gpus_more`, `speedup_more`: one GPU more, and its goodput relative to the decided one's
    - `left_low_s`, `left_high_s`: what is left of its training on one GPU, by the lengths of its kind
    - `over_one_gpu`, `over_before`: goodput relative to one GPU, and to the `size_before` that it had
    """

    before: Allocation
    model_doubt: str | None
    kind_note: str | None
    share: float
    share_note: str | None
    way: ReallocationWay | None = None
    move_delay_s: float | None = None
    throughput: float | None = None
    efficiency: float | None = None
    num_gpus_more: int | None = None
    speedup_more: float | None = None
    left_low_s: float | None = None
    left_high_s: float | None = None
    over_one_gpu: float | None = None
    size_before: int | None = None
    over_before: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """All that `pollux explain` says of a job.

    - `explanation`: the decision in the policy's terms, or why there is none
    - `excluded_reason`: why the decision, or each round, leaves the job out
    - `decided`: the decision, with what else it was part of
    - `job`: as the store and Slurm show it; None for one of a file, or that the store does not know
    - `is_last`: whether the decision is the last one, so that the present state belongs to it
    - `failure`: the line of a failed job's log that says why
    """

    job_id: str
    explanation: str
    excluded_reason: str | None = None
    decided: DecidedJob | None = None
    outlook: Outlook | None = None
    max_gpus: int | None = None
    was_moving: bool = False
    job: JobNow | None = None
    is_last: bool = False
    refused: tuple[str, ...] = ()
    silent: str | None = None
    failure: str | None = None

    @property
    def decision(self) -> JobDecision | None:
        return None if self.decided is None else self.decided.job

    @property
    def round(self) -> DecisionRecord | None:
        """The decision as a round's, None for one of a file."""
        return self.decided if isinstance(self.decided, DecisionRecord) else None

    @property
    def present(self) -> JobNow | None:
        """The job as it is now, None beside an earlier decision."""
        return self.job if self.is_last else None

    @property
    def is_over(self) -> bool:
        return self.present is not None and self.present.record.state.is_over

    @property
    def is_paused(self) -> bool:
        return self.present is not None and self.present.record.paused_at is not None


def read_explained(
    config: Config, store: Store, job_id: str, round_id: int | None, now: datetime
) -> Explained:
    """Explain a job of the store: its last decision and its present state, or the decision of a round.

    Raises `UnknownJobError` for one that neither the store nor Slurm knows, and what the store raises.
    """
    from pollux_slurm.now.jobs import JobNow, jobs_now

    seen, is_last = store.lease.daemon_status(), round_id is None
    try:
        found, job = store.rounds.decision(job_id, round_id), JobNow(record=store.jobs.get(job_id))
    except UnknownJobError:
        known = describe_unknown_job(config, job_id, store.jobs.active(), seen, now) if is_last else None
        if known is None:
            raise
        return Explained(job_id=job_id, explanation=known, failure=failure_of_job(config, job_id))
    if is_last and not job.record.state.is_over:
        # Its state may have changed since the daemon's last round.
        job = jobs_now([job.record], read_slurm(config)[0])[0]
    has_failed = is_last and job.record.state is JobState.FAILED
    failure = failure_of_job(config, job_id) if has_failed else None
    return explain_job(store, job, found, seen, now, round_id=round_id, failure=failure)


def explain_job(
    store: Store,
    job: JobNow,
    found: DecisionRecord | None,
    seen: DaemonStatus,
    now: datetime,
    *,
    round_id: int | None = None,
    failure: str | None = None,
) -> Explained:
    """Explain the decision `found` about a job: that of a round, or the last one.

    Raises `StoreError` for a round that decided nothing about it, and what the store raises.
    """
    from pollux_slurm.now import refusals
    from pollux_slurm.now.daemon_text import next_read_text

    record, is_last = job.record, round_id is None
    job_id, is_over = record.slurm_job_id, record.state.is_over
    if found is None and not is_last:
        raise StoreError(
            f"round {round_id} decided nothing about job {job_id}; its last one: pollux explain {job_id}"
        )
    waits = is_last and not record.allocation and record.paused_at is None and not is_over
    left_out = record.not_moved_reason if waits else None
    if left_out is not None:
        found, explanation = None, f"job {job_id} waits, and rounds leave it to Slurm: {left_out}"
    elif found is not None:
        explanation = found.explanation
    elif is_over:
        explanation = f"no round decided about job {job_id}"
    else:
        explanation = f"no round has decided about job {job_id} yet: {next_read_text(seen, now)}"
    return Explained(
        job_id=job_id,
        explanation=explanation,
        excluded_reason=left_out if found is None else found.excluded_reason,
        decided=found,
        outlook=None if found is None else _recorded_outlook(store, found, job, is_last=is_last),
        max_gpus=record.terms.max_gpus if is_last else None,
        was_moving=is_last and not is_over and found is not None and moved_since(found, record),
        job=job,
        is_last=is_last,
        refused=() if is_over or not is_last else tuple(refusals.in_force(record.refusals, now)),
        silent=missing_reports(record, now),
        failure=failure,
    )


def explain_problem(problem: Problem, job_id: str) -> Explained:
    """Solve `problem` and explain one of its jobs; raises `UsageError` for an unknown one."""
    from pollux_slurm.policy import decide, explanation

    asked = next((job for job in problem.jobs if job.job_id == job_id), None)
    if asked is None:
        known = some_of([job.job_id for job in problem.jobs], 10)
        raise UsageError(f"the problem has no job {job_id!r}; it has {known}")
    decision = decide(problem)
    job = next(one for one in decision.jobs if one.job_id == job_id)
    excluded = dict(decision.excluded).get(job_id)
    decided = DecidedJob(
        objective=problem.objective.name,
        solver=decision.solver,
        fitness=decision.fitness,
        upper_bound=decision.upper_bound,
        gap=decision.gap,
        timed_out=decision.timed_out,
        gpu_prices=decision.gpu_prices,
        job=job,
        excluded_reason=excluded,
        explanation=explanation(job, excluded),
    )
    return Explained(
        job_id=job_id,
        explanation=decided.explanation,
        excluded_reason=excluded,
        decided=decided,
        outlook=_outlook(problem, asked, job) if excluded is None else None,
        max_gpus=asked.max_gpus,
    )


def _recorded_outlook(store: Store, found: DecisionRecord, job: JobNow, *, is_last: bool) -> Outlook | None:
    """Return the predictions of a recorded round; None where its problem cannot be read any more."""
    # The problem of an old round may have been pruned, or written by another release.
    with contextlib.suppress(StoreError):
        if found.excluded_reason is None:
            problem = store.rounds.problem(found.round_id)[0]
            asked = next((one for one in problem.jobs if one.job_id == found.job.job_id), None)
            last = job.record.last_reallocation if is_last else None
            return None if asked is None else _outlook(problem, asked, found.job, last)
    return None


def _outlook(
    problem: Problem, asked: ProblemJob, job: JobDecision, last: Reallocation | None = None
) -> Outlook:
    """Return the predictions for a job, relative to one GPU and to its former allocation.

    The former allocation is that in the problem. Where the job keeps this one, it is the source of the
    reallocation `last`.
    """
    from pollux_slurm.goodput import best_batch
    from pollux_slurm.policy import expected_move, remaining_by_kind_s

    move = expected_move(problem, asked, job.allocation) or (None, None)
    known = Outlook(
        before=asked.current,
        model_doubt=asked.model_doubt,
        kind_note=asked.kind_note,
        share=asked.share,
        share_note=asked.share_note,
        way=move[0],
        move_delay_s=move[1],
    )
    by_type = dict(asked.models)
    model = by_type.get(job.gpu_type or "") or asked.model or next(iter(by_type.values()), None)
    there = best_batch(model, job.allocation.configuration) if model is not None and job.allocation else None
    if model is None or there is None:
        return known
    one_more, num_nodes = job.allocation.num_gpus + 1, job.allocation.num_nodes
    room = num_nodes * max((node.num_gpus for node in problem.nodes), default=0)
    larger = best_batch(model, Configuration(num_nodes=num_nodes + (one_more > room), num_gpus=one_more))
    single = best_batch(model, Configuration(num_nodes=1, num_gpus=1))
    left = None if single is None else remaining_by_kind_s(asked, single.goodput)
    is_on_one = job.allocation.num_gpus == 1
    former = asked.current
    if former == job.allocation and last is not None and last.target == former:
        former = last.source
    formerly = None
    if former and former.configuration != job.allocation.configuration:
        formerly = best_batch(model, former.configuration)
    return replace(
        known,
        throughput=there.throughput,
        efficiency=there.efficiency,
        num_gpus_more=one_more,
        speedup_more=None if larger is None else larger.goodput / there.goodput,
        left_low_s=None if left is None else left[0],
        left_high_s=None if left is None else left[1],
        over_one_gpu=None if single is None or is_on_one else there.goodput / single.goodput,
        size_before=None if formerly is None else former.num_gpus,
        over_before=None if formerly is None else there.goodput / formerly.goodput,
    )
