"""What programs get of a job: the keys of `pollux status --json` and of `pollux explain --json`."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from pollux_slurm.now.decision_text import ended, move_text
from pollux_slurm.now.present_state import missing_reports, present_state, warnings_as_dicts
from pollux_slurm.now.promises import promise_as_dict

if TYPE_CHECKING:
    from pollux_slurm.model import JobDecision
    from pollux_slurm.now.explained import Explained, Outlook, Solved
    from pollux_slurm.now.jobs import JobNow


def job_as_dict(shown: JobNow, now: datetime) -> dict[str, Any]:
    """Return one job as plain containers, the form of `pollux status --json`."""
    record, sample, measured = shown.record, shown.record.sample, shown.measured
    reallocation, batch = record.open_reallocation, measured.batch if measured else None
    return {
        "slurm_job_id": record.slurm_job_id,
        "name": record.name,
        "user_name": record.user_name,
        "account": record.account,
        "partition": record.partition,
        "state": record.state.value,
        "paused_at": _iso(record.paused_at),
        "submitted_at": _iso(record.submitted_at),
        "started_at": _iso(record.started_at),
        "finished_at": _iso(record.finished_at),
        "min_gpus": record.terms.min_gpus,
        "max_gpus": record.terms.max_gpus,
        "num_gpus": record.allocation.num_gpus,
        "allocation": record.allocation.as_dict(),
        "global_batch_size": batch.global_batch_size if batch else None,
        "atomic_batch_size": batch.atomic_batch_size if batch else None,
        "accumulation_steps": batch.accumulation_steps if batch else None,
        "throughput": measured.throughput if measured else None,
        "predicted_throughput": measured.predicted_throughput if measured else None,
        "efficiency": measured.efficiency if measured else None,
        "goodput": measured.goodput if measured else None,
        "epoch": sample.epoch if sample else None,
        "total_epochs": sample.total_epochs if sample else None,
        "restarts": record.num_restarts,
        "mean_restart_delay_s": record.mean_restart_delay_s,
        "mean_standstill_s": record.mean_standstill_s,
        "mean_warm_up_s": record.mean_warm_up_s,
        "speedup": record.last_decision_speedup,
        "last_decision": record.last_decision.as_dict() if record.last_decision else None,
        "last_decision_at": _iso(record.last_decision_at),
        "bound_by": record.last_decision_bound_by,
        "checkpoint_bytes": record.checkpoint_bytes,
        "warnings": warnings_as_dicts(record),
        "reported_at": _iso(sample.at if sample else None),
        "silent": missing_reports(record, now),
        "excluded_reason": record.not_moved_reason,
        "promise": promise_as_dict(record),
        "reallocation": None
        if reallocation is None
        else {
            "step": reallocation.step.value,
            "cause": reallocation.cause.value,
            "way": reallocation.way.value,
            "source": reallocation.source.as_dict(),
            "target": reallocation.target.as_dict(),
        },
        "state_from": "slurm" if shown.is_now else "store",
        "held": shown.held,
    }


def explained_as_dict(known: Explained) -> dict[str, Any]:
    """Return all facts of a decision as plain containers, null where they are not known."""
    present = known.present
    because = None if present is None or known.is_over else present.record.not_moved_reason
    return {
        "slurm_job_id": known.job_id,
        "explanation": known.explanation,
        "excluded_reason": known.excluded_reason,
        **_solved(known.solved),
        **_decision(known.decision),
        **_outlook(known.outlook),
        "max_gpus": known.max_gpus,
        "moved_since": known.was_moving,
        "refused": list(known.refused),
        "not_moved": because,
        **_present(present),
        "warnings": [] if known.job is None else warnings_as_dicts(known.job.record),
        "silent": known.silent,
        "failure": known.failure,
    }


def _solved(solved: Solved | None) -> dict[str, Any]:
    return {
        "round": solved and solved.round_id,
        "at": _iso(None if solved is None else solved.at),
        "shadow": solved and solved.shadow,
        "objective": solved and solved.objective,
        "solver": solved and solved.solver,
        "fitness": solved and solved.fitness,
        "upper_bound": solved and solved.upper_bound,
        "gap": solved and solved.gap,
        "timed_out": solved and solved.timed_out,
        "gpu_prices": solved and dict(solved.gpu_prices),
    }


def _decision(job: JobDecision | None) -> dict[str, Any]:
    batch = job and job.batch
    runner_up = None
    if job is not None and job.runner_up is not None:
        runner_up = {
            "num_gpus": job.runner_up.num_gpus,
            "num_nodes": job.runner_up.num_nodes,
            "gpu_type": job.runner_up_gpu_type,
            "speedup": job.runner_up_speedup,
            "extra_cost_to_others": job.runner_up_cost,
        }
    return {
        "allocation": job and job.allocation.as_dict(),
        "num_gpus": job and job.allocation.num_gpus,
        "num_nodes": job and job.allocation.num_nodes,
        "gpu_type": job and job.gpu_type,
        "goodput": job and job.goodput,
        "speedup": job and job.speedup,
        "penalty": job and job.penalty,
        "global_batch_size": batch and batch.global_batch_size,
        "atomic_batch_size": batch and batch.atomic_batch_size,
        "accumulation_steps": batch and batch.accumulation_steps,
        "bound_by": job and job.bound_by,
        "cost_to_others": job and job.cost,
        "runner_up": runner_up,
        "declared_gain": job and job.declared_gain,
        "declaration_doubt": job and job.declaration_doubt,
        "pinned_because": job and job.pinned_because,
    }


def _outlook(outlook: Outlook | None) -> dict[str, Any]:
    predicted = one_gpu_more = None
    if outlook is not None and outlook.throughput is not None:
        predicted = {"throughput": outlook.throughput, "efficiency": outlook.efficiency}
        one_gpu_more = {"num_gpus": outlook.num_gpus_more, "speedup": outlook.speedup_more}
    return {
        "before": outlook and outlook.before.as_dict(),
        "model_doubt": outlook and outlook.model_doubt,
        "kind_note": outlook and outlook.kind_note,
        "share": outlook and outlook.share,
        "share_note": outlook and outlook.share_note,
        "way": outlook and outlook.way and outlook.way.value,
        "move_delay_s": outlook and outlook.move_delay_s,
        "predicted": predicted,
        "one_gpu_more": one_gpu_more,
        "speedup_over_one_gpu": outlook and outlook.over_one_gpu,
        "size_before": outlook and outlook.size_before,
        "speedup_over_before": outlook and outlook.over_before,
    }


def _present(job: JobNow | None) -> dict[str, Any]:
    """Return the job as it is now: all null beside an earlier decision."""
    record = None if job is None else job.record
    move = None if record is None or record.state.is_over else record.open_reallocation
    last = None if record is None or record.paused_at is None else record.last_reallocation
    sample, measured = None if job is None else job.measured, None
    if sample is not None and sample.throughput is not None and sample.batch is not None:
        measured = {
            "at": sample.at.isoformat(),
            "throughput": sample.throughput,
            "global_batch_size": sample.batch.global_batch_size,
        }
    return {
        "now": job and present_state(job),
        "wings": [] if job is None else _wings(job),
        "num_gpus_now": record and record.allocation.num_gpus,
        "state": record and record.state.value,
        "promise": record and promise_as_dict(record),
        "finished_at": _iso(None if record is None else record.finished_at),
        "ended": ended(record) if record is not None and record.state.is_over else None,
        "moving": None if move is None or record is None else move_text(move, record.state),
        "moving_cause": move and move.cause.value,
        "moving_way": move and move.way.value,
        "paused_at": _iso(None if record is None else record.paused_at),
        "paused_cause": last and last.cause.value,
        "paused_because": last and last.reason,
        "measured": measured,
        "restarts": record and record.num_restarts,
        "mean_restart_delay_s": record and record.mean_restart_delay_s,
        "mean_standstill_s": record and record.mean_standstill_s,
        "mean_warm_up_s": record and record.mean_warm_up_s,
    }


def _wings(job: JobNow) -> list[dict[str, Any]]:
    """Return the jobs that have the GPUs of a job that moves in place, or wait for them, by number."""
    return [
        {
            "slurm_job_id": wing.job_id,
            "state": wing.state.value,
            "reason": wing.reason,
            "nodes": list(wing.allocation.nodes),
            "num_gpus": wing.allocation.num_gpus,
        }
        for wing in (() if job.job is None else job.job.wings)
        if not wing.state.is_over
    ]


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
