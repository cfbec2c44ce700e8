"""Read decisions about one job, the last or a round's, with their reasons; their columns, to and fro."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, func, select

from pollux_slurm.config import OTHER_SOLVER_NAMES
from pollux_slurm.errors import StoreError
from pollux_slurm.model import Allocation, Configuration, JobDecision
from pollux_slurm.store.access.sanitizing import clean_text
from pollux_slurm.store.access.statements import newest_job
from pollux_slurm.store.contract.interface import DecisionRecord
from pollux_slurm.store.jobs.latest import batch_of_row
from pollux_slurm.store.jobs.records import read_job
from pollux_slurm.store.schema import DecisionNodeRow, DecisionRow, GpuPriceRow, RoundRow


def explanation_columns(job: JobDecision, excluded_reason: str | None) -> dict[str, Any]:
    """Return the columns that explain a decision."""
    from pollux_slurm.policy.explain.wording import explanation

    batch = job.batch
    return {
        "cost": _number(job.cost),
        "gpu_type": _text(job.gpu_type),
        "runner_up_cost": _number(job.runner_up_cost),
        "runner_up_gpu_type": _text(job.runner_up_gpu_type),
        "global_batch_size": None if batch is None else batch.global_batch_size,
        "atomic_batch_size": None if batch is None else batch.atomic_batch_size,
        "accumulation_steps": None if batch is None else batch.accumulation_steps,
        "declared_gain": _number(job.declared_gain),
        "declaration_doubt": _text(job.declaration_doubt),
        "pinned_reason": _text(job.pinned_because),
        "excluded_reason": _text(excluded_reason),
        "explanation": clean_text(explanation(job, excluded_reason)),
    }


def read_decision(
    connection: Connection, slurm_job_id: str, round_id: int | None = None
) -> DecisionRecord | None:
    """Return the decision about a job in its last round, or in `round_id`: see `RoundRecords.decision`."""
    job_id = connection.execute(newest_job(slurm_job_id)).scalar()
    if job_id is None:
        read_job(connection, slurm_job_id)  # raises UnknownJobError
    wanted = select(DecisionRow, RoundRow).join(RoundRow, RoundRow.id == DecisionRow.round_id)
    if round_id is None:
        last = select(func.max(DecisionRow.round_id)).where(DecisionRow.job_id == job_id).scalar_subquery()
        wanted = wanted.where(DecisionRow.job_id == job_id, DecisionRow.round_id == last)
    else:
        wanted = wanted.where(DecisionRow.job_id == job_id, DecisionRow.round_id == round_id)
    columns = (
        *DecisionRow.__table__.columns,
        *(c for c in RoundRow.__table__.columns if c.name not in _TEXTS),
    )
    row = connection.execute(wanted.with_only_columns(*columns)).one_or_none()
    if row is None:
        if (
            round_id is not None
            and not connection.execute(select(RoundRow.id).where(RoundRow.id == round_id)).scalar()
        ):
            raise StoreError(f"there is no round {round_id}")
        return None
    nodes = connection.execute(
        select(DecisionNodeRow.node_name, DecisionNodeRow.num_gpus).where(
            DecisionNodeRow.job_id == job_id, DecisionNodeRow.round_id == row.round_id
        )
    )
    prices = connection.execute(
        select(GpuPriceRow.gpu_type, GpuPriceRow.price)
        .where(GpuPriceRow.round_id == row.round_id)
        .order_by(GpuPriceRow.gpu_type)
    )
    job = _decision_of_row(row, slurm_job_id, {node.node_name: node.num_gpus for node in nodes})
    return DecisionRecord(
        round_id=row.round_id,
        at=row.at,
        shadow=row.shadow,
        objective=row.objective,
        solver=OTHER_SOLVER_NAMES.get(row.solver, row.solver),
        fitness=row.fitness,
        upper_bound=row.upper_bound,
        gap=row.gap,
        timed_out=row.timed_out,
        gpu_prices=tuple((kind, price) for kind, price in prices),
        job=job,
        excluded_reason=row.excluded_reason,
        explanation=row.explanation,
    )


# These may be large, and explaining one job does not need them.
_TEXTS = frozenset({"problem", "decision"})


def _decision_of_row(row: Any, slurm_job_id: str, gpus_by_node: dict[str, int]) -> JobDecision:
    runner_up = None
    if row.runner_up_gpus is not None:
        runner_up = Configuration(num_nodes=row.runner_up_nodes, num_gpus=row.runner_up_gpus)
    return JobDecision(
        job_id=slurm_job_id,
        allocation=Allocation.of(gpus_by_node),
        speedup=row.speedup,
        goodput=row.goodput,
        penalty=row.penalty,
        batch=batch_of_row(row),
        bound_by=row.bound_by,
        runner_up=runner_up,
        runner_up_speedup=row.runner_up_speedup,
        runner_up_cost=row.runner_up_cost,
        cost=row.cost,
        gpu_type=row.gpu_type,
        runner_up_gpu_type=row.runner_up_gpu_type,
        declared_gain=row.declared_gain,
        declaration_doubt=row.declaration_doubt,
        pinned_because=row.pinned_reason,
    )


def _number(value: float | None) -> float | None:
    return None if value is None else float(value)


def _text(value: str | None) -> str | None:
    return None if value is None else clean_text(value)
