"""`pollux explain`: why a round gave a job its allocation."""

from __future__ import annotations

import contextlib
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pollux_slurm.cli.shared import clock
from pollux_slurm.cli.shared.completion import complete_jobs
from pollux_slurm.cli.shared.problem_files import read_problem
from pollux_slurm.cli.shared.settings_and_store import (
    ConfigOption,
    JsonOption,
    StoreOption,
    opened_store,
    print_json,
    print_line,
    settings,
)
from pollux_slurm.cli.shared.slurm_state import describe_unknown_job
from pollux_slurm.errors import StoreError, UnknownJobError, UsageError
from pollux_slurm.live.decision_text import ended, moment, move_text, moved_since, owners_lines
from pollux_slurm.live.failure_line import failure_of_job
from pollux_slurm.live.job_warnings import missing_reports, warnings_as_dicts
from pollux_slurm.live.present_state import present_state
from pollux_slurm.live.slurm_reading import read_slurm
from pollux_slurm.model import JobState
from pollux_slurm.text import number_text, plural

if TYPE_CHECKING:
    from pollux_slurm.config import Config
    from pollux_slurm.daemon.observe.live_status import CurrentJob
    from pollux_slurm.model import Decision, JobDecision, Problem
    from pollux_slurm.store.contract.interface import (
        DaemonStatus,
        DecisionRecord,
        Reallocation,
        Store,
    )


def explain(
    job: Annotated[str, typer.Argument(help="The Slurm job id.", autocompletion=complete_jobs)],
    round_id: Annotated[
        int | None, typer.Option("--round", min=1, help="A round other than the job's last.")
    ] = None,
    problem_file: Annotated[
        Path | None,
        typer.Option("--problem", metavar="FILE", help="Solve a saved problem, and explain one of its jobs."),
    ] = None,
    details: Annotated[
        bool, typer.Option("--details", help="Also the policy's terms: prices, fitness, batch sizes.")
    ] = False,
    as_json: JsonOption = False,
    config_file: ConfigOption = None,
    store_url: StoreOption = None,
) -> None:
    """Explain why a job has its GPUs, the predicted speed, and what would have to change for more GPUs.

    Example: pollux explain 1234
    """
    if problem_file is not None and round_id is not None:
        raise UsageError("--problem and --round exclude each other: a file is one round")
    if problem_file is not None:
        facts = explain_problem(read_problem(problem_file), job)
    else:
        facts = _facts_of_store(settings(config_file, store_url), job, round_id)
    if as_json:
        print_json(facts)
    else:
        for line in lines(facts, details=details):
            print_line(line)


def _facts_of_store(config: Config, job: str, round_id: int | None) -> dict[str, Any]:
    from pollux_slurm.daemon.observe.live_status import CurrentJob, current_jobs

    now = clock.now()
    with opened_store(config) as store:
        seen = store.daemon_status()
        try:
            found, record = store.decision(job, round_id), store.job(job)
        except UnknownJobError:
            text = (
                describe_unknown_job(config, job, store.active_jobs(), seen, now)
                if round_id is None
                else None
            )
            if text is None:
                raise
            if (failure := failure_of_job(config, job)) is not None:
                text = f"{failure}\n{text}"
            return {"job_id": job, "round": None, "explanation": text}
        shown = CurrentJob(record=record)
        if round_id is None and not record.state.is_over:
            # Its state may have changed since the daemon's last round.
            shown = current_jobs([record], read_slurm(config)[0])[0]
        facts = facts_of_job(store, shown, found, round_id, seen, now)
    if round_id is None and shown.record.state is JobState.FAILED:
        facts["failure"] = failure_of_job(config, job)
    return facts


def facts_of_job(
    store: Store,
    shown: CurrentJob,
    found: DecisionRecord | None,
    round_id: int | None,
    seen: DaemonStatus,
    now: datetime,
) -> dict[str, Any]:
    """Return what `pollux explain` says about a job, from the decision `found` and the job as it is now."""
    from pollux_slurm.daemon.observe.live_status import next_read_text
    from pollux_slurm.daemon.obstacles import refusals

    record = shown.record
    job = record.slurm_job_id
    silent, warnings = missing_reports(record, now), warnings_as_dicts(record)
    facts: dict[str, Any]
    is_over = record.state.is_over
    waits = round_id is None and not record.allocation and record.paused_at is None
    if waits and not is_over and record.not_moved_reason is not None:
        facts = _facts_of_left_out(job, record.not_moved_reason)
    elif found is None and round_id is None:
        none = f"no round decided about job {job}"
        if not is_over:
            none = f"no round has decided about job {job} yet: {next_read_text(seen, now)}"
        facts = {"job_id": job, "round": None, "explanation": none}
    else:
        decided = _recorded(found, job, round_id)
        facts = facts_of_record(decided)
        last = record.last_reallocation if round_id is None else None
        facts["moved_since"] = round_id is None and not is_over and moved_since(decided, record)
        # The problem of an old round may have been pruned, or written by another release.
        with contextlib.suppress(StoreError):
            if decided.excluded_reason is None:
                facts |= _outlook(store.round_problem(decided.round_id)[0], decided.job, last)
    if round_id is None:
        facts |= {"now": present_state(shown), "wings": _wings(shown)}
        facts |= {"max_gpus": record.terms.max_gpus, "num_gpus_now": record.allocation.num_gpus}
        facts |= {"refused": [] if is_over else refusals.in_force(record.refusals, now)}
        facts |= {"not_moved": None if is_over else record.not_moved_reason}
    return {**facts, **_present(shown, round_id), "warnings": warnings, "silent": silent}


def _wings(shown: CurrentJob) -> list[dict[str, Any]]:
    """Return the jobs that have the GPUs of a job that moves in place, or wait for them, by number."""
    return [
        {
            "job_id": wing.job_id,
            "state": wing.state.value,
            "reason": wing.reason,
            "nodes": list(wing.allocation.nodes),
            "num_gpus": wing.allocation.num_gpus,
        }
        for wing in (() if shown.job is None else shown.job.wings)
        if not wing.state.is_over
    ]


def _present(shown: CurrentJob, round_id: int | None) -> dict[str, Any]:
    """Return the job's present state; nothing of it where an earlier round was requested."""
    from pollux_slurm.live.promises import promise_as_dict

    record, sample = shown.record, shown.measured
    if round_id is not None:
        return {"paused_at": None, "paused_cause": None, "paused_because": None}
    finished_at = None if record.finished_at is None else record.finished_at.isoformat()
    move = record.open_reallocation
    paused_at, last = record.paused_at, record.last_reallocation
    measured = None
    if sample is not None and sample.throughput is not None and sample.batch is not None:
        measured = {
            "at": sample.at.isoformat(),
            "throughput": sample.throughput,
            "global_batch_size": sample.batch.global_batch_size,
        }
    return {
        "state": record.state.value,
        "promise": promise_as_dict(record),
        "finished_at": finished_at,
        "ended": ended(record.state, finished_at) if record.state.is_over else None,
        "moving": None if move is None or record.state.is_over else move_text(move, record.state),
        "moving_cause": None if move is None or record.state.is_over else move.cause.value,
        "moving_way": None if move is None or record.state.is_over else move.way.value,
        "paused_at": paused_at.isoformat() if paused_at is not None else None,
        "paused_cause": last.cause.value if paused_at is not None and last is not None else None,
        "paused_because": last.reason if paused_at is not None and last is not None else None,
        "measured": measured,
        "num_restarts": record.num_restarts,
        "mean_restart_delay_s": record.mean_restart_delay_s,
        "mean_standstill_s": record.mean_standstill_s,
        "mean_warm_up_s": record.mean_warm_up_s,
    }


def _outlook(problem: Problem, job: JobDecision, last: Reallocation | None = None) -> dict[str, Any]:
    """Return the predictions of the round for a job, relative to one GPU and to its former allocation.

    The former allocation is that in the round's problem. Where the job keeps this one, it is the source of
    the reallocation `last`.
    """
    from pollux_slurm.goodput import best_batch
    from pollux_slurm.model import Configuration
    from pollux_slurm.policy import expected_move

    job_of_problem = next((one for one in problem.jobs if one.job_id == job.job_id), None)
    if job_of_problem is None:
        return {}
    facts: dict[str, Any] = {
        "before": job_of_problem.current.as_dict(),
        "model_doubt": job_of_problem.model_doubt,
        "kind_note": job_of_problem.kind_note,
        "share": job_of_problem.share,
        "share_note": job_of_problem.share_note,
    }
    move = expected_move(problem, job_of_problem, job.allocation)
    if move is not None:
        facts |= {"way": move[0].value, "move_delay_s": move[1]}
    by_type = dict(job_of_problem.models)
    model = by_type.get(job.gpu_type or "") or job_of_problem.model or next(iter(by_type.values()), None)
    there = best_batch(model, job.allocation.configuration) if model is not None and job.allocation else None
    if model is None or there is None:
        return facts
    facts["predicted"] = {"throughput": there.throughput, "efficiency": there.efficiency}
    one_more = job.allocation.num_gpus + 1
    room = job.allocation.num_nodes * max((node.num_gpus for node in problem.nodes), default=0)
    larger = best_batch(
        model,
        Configuration(num_nodes=job.allocation.num_nodes + (one_more > room), num_gpus=one_more),
    )
    facts["one_gpu_more"] = {
        "num_gpus": one_more,
        "speedup": None if larger is None else larger.goodput / there.goodput,
    }
    single = best_batch(model, Configuration(num_nodes=1, num_gpus=1))
    if single is not None and job.allocation.num_gpus > 1:
        facts["speedup_over_one_gpu"] = there.goodput / single.goodput
    former = job_of_problem.current
    if former == job.allocation and last is not None and last.target == former:
        former = last.source
    formerly = best_batch(model, former.configuration) if former else None
    if formerly is not None and former.configuration != job.allocation.configuration:
        facts |= {"size_before": former.num_gpus, "speedup_over_before": there.goodput / formerly.goodput}
    return facts


def _facts_of_left_out(job: str, because: str) -> dict[str, Any]:
    """Return the facts about a waiting job that rounds leave out."""
    return {
        "job_id": job,
        "round": None,
        "at": None,
        "excluded_reason": because,
        "explanation": f"job {job} waits, and rounds leave it to Slurm: {because}",
    }


def _recorded(found: DecisionRecord | None, job: str, round_id: int | None) -> DecisionRecord:
    if found is not None:
        return found
    raise StoreError(f"round {round_id} decided nothing about job {job}; its last one: pollux explain {job}")


def explain_problem(problem: Problem, job_id: str) -> dict[str, Any]:
    """Solve `problem` and return the facts about one of its jobs; raises `UsageError` for an unknown one."""
    from pollux_slurm.policy import decide

    known = [job.job_id for job in problem.jobs]
    if job_id not in known:
        some = ", ".join(known[:10]) + (", ..." if len(known) > 10 else "")
        raise UsageError(f"the problem has no job {job_id!r}; it has {some or 'none'}")
    return facts_of_decision(problem, decide(problem), job_id)


def facts_of_record(record: DecisionRecord) -> dict[str, Any]:
    """Return a recorded decision as plain containers, the form of `--json`."""
    return {
        **_facts(record.job, record),
        "round": record.round_id,
        "at": record.at.isoformat(),
        "shadow": record.shadow,
        "objective": record.objective,
        "excluded_reason": record.excluded_reason,
        "explanation": record.explanation,
    }


def facts_of_decision(problem: Problem, decision: Decision, job_id: str) -> dict[str, Any]:
    """Return a decision that was not recorded in the same form, without a round and a time."""
    from pollux_slurm.policy import explanation

    job = next(one for one in decision.jobs if one.job_id == job_id)
    excluded = dict(decision.excluded).get(job_id)
    return {
        **_facts(job, decision),
        "max_gpus": next(one.max_gpus for one in problem.jobs if one.job_id == job_id),
        **(_outlook(problem, job) if excluded is None else {}),
        "round": None,
        "at": None,
        "shadow": None,
        "objective": problem.objective.name,
        "excluded_reason": excluded,
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
        # The owner's, and what the job has now.
        "max_gpus": None,
        "num_gpus_now": None,
        # From the round's problem, where that is stored.
        "before": None,
        "predicted": None,
        "one_gpu_more": None,
        "speedup_over_one_gpu": None,
        "size_before": None,
        "speedup_over_before": None,
        "way": None,
        "move_delay_s": None,
    }


def lines(facts: dict[str, Any], *, details: bool = False) -> list[str]:
    """Return the text for people: the decision in the owner's terms, and with `details` in the policy's."""
    found = owners_lines(facts)
    if facts["round"] is not None and facts.get("ended") is None:
        shadow = ", in shadow mode: not enacted" if facts["shadow"] else ""
        found.append(f"  round      {facts['round']}, {moment(facts['at'])}{shadow}")
    if facts.get("paused_at") is not None:
        is_by_command = facts["paused_cause"] != "decision"
        rest = (
            f"{facts['paused_because']}; it waits until: pollux resume {facts['job_id']}"
            if is_by_command
            else "other jobs gain more from its GPUs now; a later round gives it GPUs again"
        )
        found.append(f"  paused     since {moment(facts['paused_at'])}: its checkpoint is written; {rest}")
    for one in facts.get("warnings", ()):
        since = f"since run {one['run']}, {moment(one['first_seen_at'])}"
        found.append(f"  warning    {one['meaning']} ({since}); cure: {one['cure']}")
    told = facts.get("refused", ())
    found += [f"  refused    {one}" for one in told]
    if facts.get("not_moved") not in (None, facts.get("excluded_reason"), *told):
        found.append(f"  not moved  {facts['not_moved']}")
    if facts.get("silent") is not None:
        found.append(f"  silent     {facts['silent']}")
    if facts.get("allocation") is None:
        return found
    if not details:
        return [*found, "  (the policy's own terms: --details)"]
    return [*found, *_details(facts)]


def _details(facts: dict[str, Any]) -> list[str]:
    found = [f"  policy     {facts['explanation']}"]
    if facts["excluded_reason"] is not None:
        return found
    if facts["global_batch_size"] is not None:
        num_micro = facts["accumulation_steps"] + 1
        micro_batches = plural(num_micro, "micro-batch", "micro-batches")
        split = f"{micro_batches} of {number_text(facts['atomic_batch_size'])} per GPU"
        found.append(f"  batch      {number_text(facts['global_batch_size'])} examples a step: {split}")
    prices = ", ".join(f"{kind or 'GPU'} {price:.4g}" for kind, price in facts["gpu_prices"].items())
    if prices:
        cost = facts["cost_to_others"]
        cost_text = "" if cost is None else f"; its GPUs cost other jobs {cost:.4g}"
        found.append(f"  prices     {prices} for one more GPU{cost_text} (in the objective's sum)")
    gap = (
        "no bound"
        if facts["gap"] is None
        else f"at most {facts['upper_bound']:.4g} ({facts['gap']:.2%} away)"
    )
    timeout = "; the time limit cut the search short" if facts["timed_out"] else ""
    found.append(
        f"  objective  {facts['objective']}, solved by {facts['solver']}: fitness {facts['fitness']:.4g}, "
        f"{gap}{timeout}"
    )
    return found
