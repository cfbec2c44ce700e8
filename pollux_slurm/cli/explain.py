"""`pollux explain`: why a job got what it got in a round."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pollux_slurm.cli.common import (
    ConfigOption,
    JsonOption,
    StoreOption,
    opened_store,
    print_json,
    print_text,
    settings,
)
from pollux_slurm.cli.problems import read_problem
from pollux_slurm.cli.status import warnings_as_dicts
from pollux_slurm.errors import StoreError, UsageError

if TYPE_CHECKING:
    from pollux_slurm.model import Decision, JobDecision, Problem
    from pollux_slurm.store.contract import DecisionRecord


def explain(
    job: Annotated[str, typer.Argument(help="The job's number.")],
    round_id: Annotated[
        int | None, typer.Option("--round", min=1, help="This round instead of the job's last.")
    ] = None,
    problem_file: Annotated[
        Path | None,
        typer.Option("--problem", metavar="FILE", help="Solve a saved problem, and explain a job of it."),
    ] = None,
    as_json: JsonOption = False,
    config_file: ConfigOption = None,
    store_url: StoreOption = None,
) -> None:
    """Say why a job has the GPUs it has: what bound it, what came next, and what that would have cost others.

    Example: pollux explain 1234
    """
    if problem_file is not None and round_id is not None:
        raise UsageError("--problem and --round exclude each other: a file is one round")
    if problem_file is not None:
        facts = explain_problem(read_problem(problem_file), job)
    else:
        with opened_store(settings(config_file, store_url)) as store:
            facts = facts_of_record(_recorded(store.decision(job, round_id), job, round_id))
            record = store.job(job)
            paused_at = record.paused_at if round_id is None else None
            facts["paused_at"] = paused_at.isoformat() if paused_at is not None else None
            last = record.last_reallocation
            facts["paused_because"] = last.reason if paused_at is not None and last is not None else None
            facts["warnings"] = warnings_as_dicts(record)
    if as_json:
        print_json(facts)
    else:
        print_text("\n".join(line.replace("\n", "\\n") for line in lines(facts)))


def _recorded(found: DecisionRecord | None, job: str, round_id: int | None) -> DecisionRecord:
    if found is not None:
        return found
    if round_id is not None:
        raise StoreError(
            f"round {round_id} decided nothing about job {job}; its last one: pollux explain {job}"
        )
    raise StoreError(
        f"no round has decided about job {job} yet: it is held, or the daemon is not running or has not come "
        "to it (see: pollux status; pollux daemon)"
    )


def explain_problem(problem: Problem, job_id: str) -> dict[str, Any]:
    """Solve `problem` and return what is to be said of one job of it; raises `UsageError` for another."""
    from pollux_slurm.policy import decide

    known = [job.job_id for job in problem.jobs]
    if job_id not in known:
        some = ", ".join(known[:10]) + (", ..." if len(known) > 10 else "")
        raise UsageError(f"the problem has no job {job_id!r}; it has {some or 'none'}")
    return facts_of_decision(problem, decide(problem), job_id)


def facts_of_record(record: DecisionRecord) -> dict[str, Any]:
    """Return what the store says of a decision as plain containers, the form of `--json`."""
    return {
        **_facts(record.job, record),
        "round": record.round_id,
        "at": record.at.isoformat(),
        "shadow": record.shadow,
        "objective": record.objective,
        "excluded": record.excluded,
        "explanation": record.explanation,
    }


def facts_of_decision(problem: Problem, decision: Decision, job_id: str) -> dict[str, Any]:
    """Return the same of a decision that was not recorded: it has no round and no time."""
    from pollux_slurm.policy import explanation

    job = next(one for one in decision.jobs if one.job_id == job_id)
    excluded = dict(decision.excluded).get(job_id)
    return {
        **_facts(job, decision),
        "round": None,
        "at": None,
        "shadow": None,
        "objective": problem.objective.name,
        "excluded": excluded,
        "explanation": explanation(job, excluded),
    }


def _facts(job: JobDecision, decided: Decision | DecisionRecord) -> dict[str, Any]:
    runner_up = None
    if job.runner_up is not None:
        runner_up = {
            "num_gpus": job.runner_up.num_gpus,
            "num_nodes": job.runner_up.num_nodes,
            "gpu_type": job.runner_up_gpu_type,
            "speedup": job.runner_up_speedup,
            "extra_cost_to_others": job.runner_up_cost,
        }
    return {
        "job_id": job.job_id,
        "solver": decided.solver,
        "fitness": decided.fitness,
        "upper_bound": decided.upper_bound,
        "gap": decided.gap,
        "timed_out": decided.timed_out,
        "allocation": job.allocation.as_dict(),
        "num_gpus": job.allocation.num_gpus,
        "num_nodes": job.allocation.num_nodes,
        "gpu_type": job.gpu_type,
        "goodput": job.goodput,
        "speedup": job.speedup,
        "penalty": job.penalty,
        "global_batch_size": job.batch.global_batch_size if job.batch else None,
        "atomic_batch_size": job.batch.atomic_batch_size if job.batch else None,
        "accumulation_steps": job.batch.accumulation_steps if job.batch else None,
        "bound_by": job.bound_by,
        "cost_to_others": job.cost,
        "runner_up": runner_up,
        "gpu_prices": dict(decided.gpu_prices),
        "declared_gain": job.declared_gain,
        "declaration_doubt": job.declaration_doubt,
        "pinned_because": job.pinned_because,
    }


def lines(facts: dict[str, Any]) -> list[str]:
    """Return what a person reads: the one line of the decision, then what it was made from."""
    found = [facts["explanation"]]
    if facts["round"] is not None:
        shadow = ", in shadow mode: not enacted" if facts["shadow"] else ""
        found.append(f"  round      {facts['round']} at {facts['at']}{shadow}")
    if facts.get("paused_at") is not None:
        why = facts.get("paused_because")
        rest = (
            f"{why}; it waits until: pollux resume {facts['job_id']}"
            if why
            else "its GPUs are worth more to others for now; a later round gives it GPUs again"
        )
        found.append(f"  paused     since {facts['paused_at']}: its checkpoint is written; {rest}")
    for one in facts.get("warnings", ()):
        since = f"since run {one['run_number']}, {one['first_seen_at']}"
        found.append(f"  warning    {one['meaning']} ({since}); cure: {one['cure']}")
    if facts["excluded"] is not None:
        return found
    if facts["global_batch_size"] is not None:
        passes = facts["accumulation_steps"] + 1
        split = f"{facts['atomic_batch_size']} per GPU and pass, {passes} pass{'es' if passes > 1 else ''}"
        found.append(f"  batch      {facts['global_batch_size']} examples a step: {split}")
    prices = ", ".join(f"{kind or 'GPU'} {price:.4g}" for kind, price in facts["gpu_prices"].items())
    if prices:
        cost = facts["cost_to_others"]
        own = "" if cost is None else f"; what it holds costs others {cost:.4g}"
        found.append(f"  prices     {prices} for one more GPU{own} (in the objective's sum)")
    gap = (
        "no bound"
        if facts["gap"] is None
        else f"at most {facts['upper_bound']:.4g} ({facts['gap']:.2%} away)"
    )
    late = "; the time limit cut the search short" if facts["timed_out"] else ""
    found.append(
        f"  objective  {facts['objective']}, solved by {facts['solver']}: fitness {facts['fitness']:.4g}, "
        f"{gap}{late}"
    )
    return found
