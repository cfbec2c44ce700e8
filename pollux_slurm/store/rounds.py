"""Rounds: the problem and the decision as JSON for replays, and a row per job for questions.

The JSON form is imported where it is used: `pollux_slurm.policy` brings scipy along, which would take every
command that opens a store a second.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, func, insert, select

from pollux_slurm.errors import StoreError
from pollux_slurm.model import Decision, Problem
from pollux_slurm.store.clean import clean_text, utc
from pollux_slurm.store.schema import DecisionNodeRow, DecisionRow, JobRow, RoundRow
from pollux_slurm.store.statements import inserted_id, is_one_of


def round_texts(problem: Problem, decision: Decision) -> tuple[str, str]:
    """Return both as JSON: made before a transaction begins, because a large round takes a while."""
    from pollux_slurm.policy.problem_json import decision_to_json, problem_to_json

    return problem_to_json(problem), decision_to_json(decision)


def record_round(
    connection: Connection,
    problem: Problem,
    decision: Decision,
    *,
    texts: tuple[str, str],
    shadow: bool,
    at: datetime,
) -> int:
    """Store a decision with its problem and their `round_texts`: see `Store.record_round`."""
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
        )
    )
    round_id = inserted_id(result)
    numbers = [job.job_id for job in decision.jobs]
    if not numbers:
        return round_id
    rows = connection.execute(
        select(JobRow.slurm_job_id, func.max(JobRow.id).label("id"))
        .where(is_one_of(connection, JobRow.slurm_job_id, numbers))
        .group_by(JobRow.slurm_job_id)
    )
    ids: dict[str, int] = {row.slurm_job_id: row.id for row in rows}
    decided = {ids[job.job_id]: job for job in decision.jobs if job.job_id in ids}
    if decided:
        connection.execute(
            insert(DecisionRow),
            [
                {
                    "round_id": round_id,
                    "job_id": job_id,
                    "num_gpus": job.allocation.num_gpus,
                    "num_nodes": job.allocation.num_nodes,
                    "speedup": float(job.speedup),
                    "goodput": None if job.goodput is None else float(job.goodput),
                    "penalty": float(job.penalty),
                    "bound_by": clean_text(job.bound_by, most=32),
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
    return round_id


def read_round(connection: Connection, round_id: int) -> tuple[Problem, Decision]:
    """Return what `record_round` stored; raises `StoreError` for a round that is not there."""
    from pollux_slurm.policy.problem_json import decision_from_json, problem_from_json

    row = connection.execute(
        select(RoundRow.problem, RoundRow.decision).where(RoundRow.id == round_id)
    ).one_or_none()
    if row is None:
        last = connection.execute(select(func.max(RoundRow.id))).scalar()
        raise StoreError(
            f"there is no round {round_id}; "
            + ("none is recorded yet" if last is None else f"the last one is {last}")
        )
    return problem_from_json(row.problem), decision_from_json(row.decision)
