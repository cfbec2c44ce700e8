"""What programs get of jobs and decisions: `--json` of `pollux status`, `explain` and `replay`."""

from __future__ import annotations

import enum
from datetime import datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from pollux_slurm.document.forms.exports import plain
from pollux_slurm.model import Allocation, PromiseState
from pollux_slurm.now.decision_text import ended, move_text
from pollux_slurm.now.present_state import missing_reports, present_state
from pollux_slurm.now.promises import outcome_text

if TYPE_CHECKING:
    from pollux_slurm.model import Decision
    from pollux_slurm.now.explained import Explained
    from pollux_slurm.now.jobs import JobNow
    from pollux_slurm.store.contract.interface import JobRecord

_BATCH = "global_batch_size atomic_batch_size accumulation_steps"
_COSTS = "restarts=num_restarts mean_restart_delay_s mean_standstill_s mean_warm_up_s"


def job_as_dict(shown: JobNow, now: datetime) -> dict[str, Any]:
    """Return one job as plain containers, the form of `pollux status --json`."""
    record, measured, move = shown.record, shown.measured, shown.record.open_reallocation
    return {
        **_of(record, "slurm_job_id name user_name account partition state"),
        **_of(record, "paused_at submitted_at started_at finished_at"),
        **_of(record.terms, "min_gpus max_gpus"),
        **_of(record, "num_gpus=allocation.num_gpus allocation"),
        **_of(measured and measured.batch, _BATCH),
        **_of(measured, "throughput predicted_throughput efficiency goodput"),
        **_of(record.sample, "epoch total_epochs"),
        **_of(record, _COSTS),
        **_of(record, "speedup=last_decision_speedup last_decision last_decision_at"),
        **_of(record, "bound_by=last_decision_bound_by checkpoint_bytes"),
        "warnings": _warnings(record),
        **_of(record.sample, "reported_at=at"),
        "silent": missing_reports(record, now),
        **_of(record, "excluded_reason=not_moved_reason"),
        "promise": _promise(record),
        "reallocation": None if move is None else _of(move, "step cause way source target"),
        "state_from": "slurm" if shown.is_now else "store",
        "held": shown.held,
    }


def explained_as_dict(known: Explained) -> dict[str, Any]:
    """Return all facts of a decision as plain containers, null where they are not known."""
    job, outlook, has_rate = known.decision, known.outlook, False
    if outlook is not None:
        has_rate = outlook.throughput is not None
    because = None if known.present is None or known.is_over else known.present.record.not_moved_reason
    return {
        **_of(known, "slurm_job_id=job_id explanation excluded_reason"),
        **_of(known.round, "round=round_id at shadow"),
        **_of(known.decided, "objective solver fitness upper_bound gap timed_out"),
        "gpu_prices": None if known.decided is None else dict(known.decided.gpu_prices),
        **_of(job, "allocation num_gpus=allocation.num_gpus num_nodes=allocation.num_nodes gpu_type goodput"),
        **_of(job, "speedup penalty"),
        **_of(job and job.batch, _BATCH),
        **_of(job, "bound_by cost_to_others=cost"),
        "runner_up": None
        if job is None or job.runner_up is None
        else _of(job, "num_gpus=runner_up.num_gpus num_nodes=runner_up.num_nodes gpu_type=runner_up_gpu_type")
        | _of(job, "speedup=runner_up_speedup extra_cost_to_others=runner_up_cost"),
        **_of(job, "declared_gain declaration_doubt pinned_because"),
        **_of(outlook, "before model_doubt kind_note share share_note way move_delay_s"),
        "predicted": _of(outlook, "throughput efficiency") if has_rate else None,
        **_of(outlook, "left_low_s left_high_s"),
        "one_gpu_more": _of(outlook, "num_gpus=num_gpus_more speedup=speedup_more") if has_rate else None,
        **_of(outlook, "speedup_over_one_gpu=over_one_gpu size_before speedup_over_before=over_before"),
        **_of(known, "max_gpus moved_since=was_moving"),
        "refused": list(known.refused),
        "not_moved": because,
        **_present(known.present),
        "warnings": [] if known.job is None else _warnings(known.job.record),
        **_of(known, "silent failure"),
    }


def decision_as_dict(decision: Decision) -> dict[str, Any]:
    """Return a decision as plain containers, the form of `pollux replay --json`."""
    return {
        "allocations": {job.job_id: job.allocation.as_dict() for job in decision.jobs},
        **_of(decision, "fitness upper_bound gap solver"),
        "times_s": dict(decision.times_s),
        **_of(decision, "timed_out"),
        "gpu_prices": dict(decision.gpu_prices),
        "excluded": dict(decision.excluded),
    }


def _present(job: JobNow | None) -> dict[str, Any]:
    """Return the job as it is now: all null beside an earlier decision."""
    record = None if job is None else job.record
    is_over = record is not None and record.state.is_over
    move = None if record is None or is_over else record.open_reallocation
    last = None if record is None or record.paused_at is None else record.last_reallocation
    sample = None if job is None else job.measured
    is_measured = sample is not None and sample.throughput is not None and sample.batch is not None
    wings = () if job is None or job.job is None else job.job.wings
    return {
        "now": job and present_state(job),
        "wings": [
            _of(wing, "slurm_job_id=job_id state reason nodes=allocation.nodes num_gpus=allocation.num_gpus")
            for wing in wings
            if not wing.state.is_over
        ],
        **_of(record, "num_gpus_now=allocation.num_gpus state"),
        "promise": record and _promise(record),
        **_of(record, "finished_at"),
        "ended": ended(record) if record is not None and is_over else None,
        "moving": None if move is None or record is None else move_text(move, record.state),
        **_of(move, "moving_cause=cause moving_way=way"),
        **_of(record, "paused_at"),
        **_of(last, "paused_cause=cause paused_because=reason"),
        "measured": _of(sample, "at throughput global_batch_size=batch.global_batch_size")
        if is_measured
        else None,
        **_of(record, _COSTS),
    }


def _promise(record: JobRecord) -> dict[str, Any] | None:
    """Return a job's moment and the last answer to it; None without a moment."""
    by, promise = record.terms.finish_by, record.promise
    if by is None:
        return None
    accepted = promise is not None and promise.state is PromiseState.ACCEPTED
    finish_at = promise.finish_at if promise is not None and accepted else None
    return {
        "finish_by": plain(by),
        **_of(promise, "state least_gpus finish_at"),
        "slack_s": None if finish_at is None else (by - finish_at).total_seconds(),
        **_of(promise, "reason"),
        "text": outcome_text(record),
    }


def _warnings(record: JobRecord) -> list[dict[str, Any]]:
    """Return a job's warnings, each with its meaning and its cure."""
    return [
        {**_of(one, "warning"), "run": one.run_number + 1}
        | _of(one, "first_seen_at meaning=warning.sentence cure=warning.cure")
        for one in record.warnings
    ]


def _of(one: object, names: str) -> dict[str, Any]:
    """Return some attributes as plain containers, by name or as `key=attribute`; null of nothing."""
    pairs = [(key or name, name) for key, _, name in (word.rpartition("=") for word in names.split())]
    return {key: None if one is None else _plain(attrgetter(name)(one)) for key, name in pairs}


def _plain(value: Any) -> Any:
    if isinstance(value, Allocation):
        return value.as_dict()
    if isinstance(value, enum.Enum):
        return value.value
    return list(value) if isinstance(value, tuple) else plain(value)
