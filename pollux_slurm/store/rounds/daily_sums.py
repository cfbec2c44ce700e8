"""What a round adds to the sums by day, for its jobs and for the nodes that it could use."""

from __future__ import annotations

import math
from datetime import datetime, timezone
from typing import Any

from sqlalchemy import Connection, func, select

from pollux_slurm.model import Decision, GoodputModel, Problem
from pollux_slurm.store.access.sanitizing import clean_text
from pollux_slurm.store.access.statements import upsert
from pollux_slurm.store.schema import NodeDayRow, NodeRow, RoundRow
from pollux_slurm.store.schema.dialects import rendered_sql

# After a longer gap between rounds it is unknown which GPUs were available.
_MAX_GAP_S = 3600.0


def one_gpu_goodputs(problem: Problem) -> dict[str, float]:
    """Return, per job with a fitted θ, its best predicted goodput on one GPU, in examples/s.

    Of several models by GPU type, the newest counts.
    """
    from pollux_slurm.goodput import goodput_table
    from pollux_slurm.model import Configuration

    models: list[GoodputModel | None] = [
        job.models[0][1] if job.models and job.models[0][1].throughput is not None else job.model
        for job in problem.jobs
    ]
    table = goodput_table(models, [Configuration(num_nodes=1, num_gpus=1)])
    return {
        job.job_id: float(goodput)
        for job, goodput in zip(problem.jobs, table.goodput[:, 0], strict=True)
        if goodput > 0
    }


def round_columns(problem: Problem, decision: Decision) -> dict[str, Any]:
    """Return the columns of `rounds` that sum up a round."""
    total = sum(node.num_gpus for node in problem.nodes)
    fair = problem.objective.fair_share_gpus or max(math.ceil(total / max(len(problem.jobs), 1)), 1)
    speedups = [float(job.speedup) for job in decision.jobs]
    return {
        "num_jobs": len(decision.jobs),
        "num_served": sum(1 for job in decision.jobs if job.allocation),
        "num_gpus": sum(job.allocation.num_gpus for job in decision.jobs),
        "total_gpus": total,
        "fair_share_gpus": fair,
        "mean_speedup": sum(speedups) / len(speedups) if speedups else None,
        "min_speedup": min(speedups, default=None),
        "solve_s": float(sum(seconds for _, seconds in decision.times_s)) if decision.times_s else None,
    }


def sum_decisions(connection: Connection, round_id: int | None = None) -> None:
    """Add one round's decisions, or those of all rounds, to the sums by job and day."""
    condition = "" if round_id is None else f"WHERE r.id = {int(round_id)}"
    connection.exec_driver_sql(
        rendered_sql("triggers/decisions.sql", connection.dialect.name, condition=condition)
    )


def sum_nodes(connection: Connection, problem: Problem, *, round_id: int, at: datetime) -> None:
    """Record the nodes that a round could use, and add them to their sums by day."""
    if not problem.nodes:
        return
    before = select(func.max(RoundRow.id)).where(RoundRow.id < round_id).scalar_subquery()
    last = connection.execute(select(RoundRow.at).where(RoundRow.id == before)).scalar()
    covered_s = 0.0 if last is None else min(max((at - last).total_seconds(), 0.0), _MAX_GAP_S)
    nodes = {clean_text(node.name): node for node in problem.nodes}
    known = upsert(connection, NodeRow)
    connection.execute(
        known.on_conflict_do_update(
            index_elements=[NodeRow.node_name],
            set_={
                "gpu_type": known.excluded.gpu_type,
                "num_gpus": known.excluded.num_gpus,
                "last_seen_at": known.excluded.last_seen_at,
            },
        ),
        [
            {
                "node_name": name,
                "gpu_type": clean_text(node.gpu_type or ""),
                "num_gpus": node.num_gpus,
                "first_seen_at": at,
                "last_seen_at": at,
            }
            for name, node in nodes.items()
        ],
    )
    days = upsert(connection, NodeDayRow)
    added = ("num_rounds", "gpus_sum", "available_gpu_s")
    connection.execute(
        days.on_conflict_do_update(
            index_elements=[NodeDayRow.node_name, NodeDayRow.day],
            set_={name: getattr(NodeDayRow, name) + getattr(days.excluded, name) for name in added},
        ),
        [
            {
                "node_name": name,
                "day": at.astimezone(timezone.utc).date(),
                "num_rounds": 1,
                "gpus_sum": float(node.num_gpus),
                "available_gpu_s": node.num_gpus * covered_s,
            }
            for name, node in nodes.items()
        ],
    )
