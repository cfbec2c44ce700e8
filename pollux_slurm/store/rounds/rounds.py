"""Record rounds: problem and decision as JSON for replays, and a row per job for queries.

The JSON format is imported where it is used: `pollux_slurm.policy` imports scipy, which would cost every
command that opens a store a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import Connection, func, insert, select

from pollux_slurm.errors import InvalidProblemError, StoreError
from pollux_slurm.model import Decision, Problem
from pollux_slurm.store.access.sanitizing import clean_text, utc
from pollux_slurm.store.access.statements import inserted_id, is_one_of
from pollux_slurm.store.contract.interface import NodeRecord
from pollux_slurm.store.rounds.daily_sums import round_columns, sum_decisions, sum_nodes
from pollux_slurm.store.rounds.explanations import explanation_columns
from pollux_slurm.store.schema import DecisionNodeRow, DecisionRow, GpuPriceRow, JobRow, NodeRow, RoundRow


def round_texts(problem: Problem, decision: Decision) -> tuple[str, str]:
    """Return both as JSON. A large round takes a while: call it before the transaction begins."""
    from pollux_slurm.policy.problem.json_format import decision_to_json, problem_to_json

    return problem_to_json(problem), decision_to_json(decision)


def record_round(
    connection: Connection,
    problem: Problem,
    decision: Decision,
    *,
    texts: tuple[str, str],
    one_gpu: Mapping[str, float],
    shadow: bool,
    at: datetime,
) -> int:
    """Store a decision with its problem, their `round_texts` and `daily_sums.one_gpu_goodputs`.

    See `RoundRecords.record`.
    """
    at = utc(at)
    result = connection.execute(
        insert(RoundRow).values(
            at=at,
            shadow=shadow,
            objective=clean_text(problem.objective.name),
            solver=clean_text(decision.solver),
            fitness=float(decision.fitness),
            problem=texts[0],
            decision=texts[1],
            upper_bound=decision.upper_bound,
            gap=decision.gap,
            timed_out=decision.timed_out,
            **round_columns(problem, decision),
        )
    )
    round_id = inserted_id(result)
    sum_nodes(connection, problem, round_id=round_id, at=at)
    _insert_prices(connection, round_id, decision)
    if decision.jobs:
        _insert_decisions(connection, round_id, decision, one_gpu)
        sum_decisions(connection, round_id)
    return round_id


def _insert_prices(connection: Connection, round_id: int, decision: Decision) -> None:
    # Cleaning may make two names equal: a dict keeps one row of each.
    prices = {clean_text(kind): float(price) for kind, price in decision.gpu_prices}
    if prices:
        connection.execute(
            insert(GpuPriceRow),
            [{"round_id": round_id, "gpu_type": kind, "price": price} for kind, price in prices.items()],
        )


def _insert_decisions(
    connection: Connection, round_id: int, decision: Decision, one_gpu: Mapping[str, float]
) -> None:
    """Insert a row for each job that is registered, and one for each of its nodes."""
    numbers = [job.job_id for job in decision.jobs]
    rows = connection.execute(
        select(JobRow.slurm_job_id, func.max(JobRow.id).label("id"))
        .where(is_one_of(connection, JobRow.slurm_job_id, numbers))
        .group_by(JobRow.slurm_job_id)
    )
    ids: dict[str, int] = {row.slurm_job_id: row.id for row in rows}
    decided = {ids[job.job_id]: job for job in decision.jobs if job.job_id in ids}
    if decided:
        excluded = dict(decision.excluded)
        connection.execute(
            insert(DecisionRow),
            [
                {
                    **explanation_columns(job, excluded.get(job.job_id)),
                    "round_id": round_id,
                    "job_id": job_id,
                    "num_gpus": job.allocation.num_gpus,
                    "num_nodes": job.allocation.num_nodes,
                    "speedup": float(job.speedup),
                    "goodput": None if job.goodput is None else float(job.goodput),
                    "one_gpu_goodput": one_gpu.get(job.job_id),
                    "penalty": float(job.penalty),
                    "bound_by": clean_text(job.bound_by, max_length=32),
                    "runner_up_gpus": job.runner_up.num_gpus if job.runner_up else None,
                    "runner_up_nodes": job.runner_up.num_nodes if job.runner_up else None,
                    "runner_up_speedup": None
                    if job.runner_up_speedup is None
                    else float(job.runner_up_speedup),
                }
                for job_id, job in decided.items()
            ],
        )
    nodes = [
        {"round_id": round_id, "job_id": job_id, "node_name": clean_text(node), "num_gpus": gpus}
        for job_id, job in decided.items()
        for node, gpus in job.allocation.gpus_by_node
    ]
    if nodes:
        connection.execute(insert(DecisionNodeRow), nodes)


def read_round(connection: Connection, round_id: int | None = None) -> tuple[Problem, Decision]:
    """Return what `record_round` stored; raises `StoreError` where it is not there or cannot be read."""
    from pollux_slurm.policy.problem.json_format import decision_from_json, problem_from_json

    last = connection.execute(select(func.max(RoundRow.id))).scalar()
    row = connection.execute(
        select(RoundRow.problem, RoundRow.decision).where(
            RoundRow.id == (last if round_id is None else round_id)
        )
    ).one_or_none()
    if row is None:
        if round_id is None:
            raise StoreError("no round is recorded yet: is the daemon running? (pollux daemon)")
        raise StoreError(
            f"there is no round {round_id}; "
            + ("none is recorded yet" if last is None else f"the last one is {last}")
        )
    number = last if round_id is None else round_id
    if not row.problem:
        raise StoreError(
            f"round {number} is older than what is kept for replays: `pollux db prune` deleted its problem"
        )
    try:
        return problem_from_json(row.problem), decision_from_json(row.decision)
    except InvalidProblemError:
        raise StoreError(
            f"round {number} is kept without a problem that this release reads: "
            "another release wrote it, or the store has made-up rounds"
        ) from None


def read_nodes(connection: Connection) -> tuple[NodeRecord, ...]:
    """Return the nodes of the last round: see `RoundRecords.nodes`."""
    last = select(func.max(NodeRow.last_seen_at)).scalar_subquery()
    wanted = select(NodeRow.node_name, NodeRow.gpu_type, NodeRow.num_gpus)
    rows = connection.execute(wanted.where(NodeRow.last_seen_at == last).order_by(NodeRow.node_name))
    return tuple(NodeRecord(name=row.node_name, gpu_type=row.gpu_type, num_gpus=row.num_gpus) for row in rows)
