"""Builders of jobs, nodes and records with short arguments."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from pollux_slurm.model import (
    Allocation,
    BatchLimits,
    ClusterSnapshot,
    GoodputModel,
    GradientStatistics,
    JobState,
    JobTerms,
    ReallocationStep,
    SlurmJob,
    SlurmNode,
    ThroughputParameters,
)
from pollux_slurm.slurm.parsing.comment_terms import encode_comment
from pollux_slurm.store.contract.interface import JobRecord, Reallocation, RunPhase, RunRecord, Sample

NOON = datetime(2026, 1, 1, 12, 0, tzinfo=timezone.utc)

TERMS = JobTerms(token_sha256="0" * 64, user_id=1000, min_gpus=1, max_gpus=8)

MODEL = GoodputModel(
    limits=BatchLimits(initial_batch_size=64, max_batch_size=1024, max_atomic=256),
    statistics=GradientStatistics(sqr=1.0, var=20.0),
    throughput=ThroughputParameters(
        alpha_g=0.02, beta_g=0.001, alpha_n=0.02, beta_n=0.001, alpha_l=0.01, beta_l=0.001, gamma=1.5
    ),
    max_gpus_seen=4,
    max_nodes_seen=1,
)


def node(name: str, *, gpus: int = 4, used: int = 0, available: bool = True, **changes: Any) -> SlurmNode:
    fields: dict[str, Any] = {
        "name": name,
        "gpu_type": "t4",
        "num_gpus": gpus,
        "used_gpus": used,
        "num_cpus": 8,
        "used_cpus": used,
        "memory_mb": 8000,
        "used_memory_mb": 100 * used,
        "available": available,
        "state": "idle" if available else "drained",
        "partitions": ("main",),
    }
    return SlurmNode(**{**fields, **changes})


def job(
    job_id: str,
    state: JobState = JobState.RUNNING,
    *,
    on: dict[str, int] | None = None,
    **changes: Any,
) -> SlurmJob:
    allocation = Allocation.of(on or {})
    fields: dict[str, Any] = {
        "job_id": job_id,
        "name": f"job-{job_id}",
        "user_name": "ann",
        "user_id": 1000,
        "account": "physics",
        "partition": "main",
        "state": state,
        "held": False,
        "reason": "None",
        "comment": encode_comment("", TERMS),
        "allocation": allocation,
        "requested_gpus": allocation.num_gpus or 1,
        "num_cpus": allocation.num_gpus or 1,
        "cpus_per_gpu": 1,
        "memory_per_gpu_mb": 100,
        "cpus_by_node": allocation.gpus_by_node,
        "memory_mb_by_node": tuple((name, 100 * gpus) for name, gpus in allocation.gpus_by_node),
        "restart_count": 0,
        "submitted_at": NOON - timedelta(minutes=10),
        "started_at": NOON - timedelta(minutes=5) if allocation else None,
        "ended_at": None,
        "time_limit_s": None,
        "exit_code": None,
    }
    return SlurmJob(**{**fields, **changes})


def run(*, restart_count: int = 0, steps: int = 10, phase: RunPhase = RunPhase.TRAINING) -> RunRecord:
    return RunRecord(
        run_number=restart_count,
        restart_count=restart_count,
        phase=phase,
        gpus_per_node=(1,),
        first_report_at=NOON - timedelta(minutes=4),
        last_report_at=NOON - timedelta(seconds=10),
        first_step_s=5.0,
        restore_s=None,
        num_steps=steps,
    )


def sample(**changes: Any) -> Sample:
    fields: dict[str, Any] = {
        "at": NOON,
        "batch": None,
        "throughput": 100.0,
        "predicted_throughput": None,
        "efficiency": 0.5,
        "progress": 1.0,
        "epoch": 0,
        "total_epochs": None,
    }
    return Sample(**(fields | changes))


def record(job_id: str, **changes: Any) -> JobRecord:
    fields: dict[str, Any] = {
        "slurm_job_id": job_id,
        "terms": TERMS,
        "name": f"job-{job_id}",
        "user_name": "ann",
        "account": "physics",
        "partition": "main",
        "cpus_per_gpu": 1,
        "memory_per_gpu_mb": 100,
        "state": JobState.RUNNING,
        "submitted_at": NOON - timedelta(minutes=10),
        "started_at": NOON - timedelta(minutes=5),
        "finished_at": None,
        "allocation": Allocation(),
        "model": MODEL,
        "sample": None,
        "run": run(),
        "open_reallocation": None,
        "num_restarts": 0,
        "mean_restart_delay_s": None,
        "mean_standstill_s": None,
        "mean_warm_up_s": None,
        "last_decision": None,
        "last_decision_speedup": None,
        "last_decision_bound_by": None,
        "last_decision_at": None,
    }
    return JobRecord(**{**fields, **changes})


def reallocation(
    number: int,
    job_id: str,
    step: ReallocationStep,
    *,
    source: dict[str, int],
    target: dict[str, int],
    moves_running: bool | None = None,
) -> Reallocation:
    return Reallocation(
        id=number,
        slurm_job_id=job_id,
        step=step,
        source=Allocation.of(source),
        target=Allocation.of(target),
        moves_running=bool(source) if moves_running is None else moves_running,
        from_restart_count=0,
        times=((ReallocationStep.PLANNED, NOON), (step, NOON)),
    )


def snapshot(nodes: list[SlurmNode], jobs: list[SlurmJob]) -> ClusterSnapshot:
    return ClusterSnapshot(read_at=NOON, nodes=tuple(nodes), jobs=tuple(jobs))
