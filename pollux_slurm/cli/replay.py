"""`pollux replay`: solve a saved scheduling problem and show what comes out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pollux_slurm.cli.common import JsonOption, print_json
from pollux_slurm.errors import UsageError

if TYPE_CHECKING:
    from pollux_slurm.model import Decision, Problem


def replay(
    problem_file: Annotated[
        Path, typer.Argument(metavar="PROBLEM.json", help="A problem, as docs/problem.md has it.")
    ],
    solver: Annotated[str, typer.Option(help="exact, genetic or greedy.")] = "exact",
    objective: Annotated[str | None, typer.Option(help="Another objective than the problem's.")] = None,
    time_limit_s: Annotated[
        float | None, typer.Option(help="Watchdog; the answer says if it struck.")
    ] = None,
    compare: Annotated[bool, typer.Option("--compare", help="All solvers, one after the other.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Solve a saved round: allocations, fitness, upper bound, gap, and where the time went.

    Example: pollux replay problem.json --compare
    """
    from pollux_slurm.policy import SOLVERS, decide

    problem = _read(problem_file, objective)
    names = list(SOLVERS) if compare else [solver]
    decisions = [decide(problem, solver=name, time_limit_s=time_limit_s) for name in names]
    if as_json:
        found = [decision_as_dict(decision) for decision in decisions]
        print_json(found if compare else found[0])
    elif compare:
        for decision in decisions:
            typer.echo(summary(decision))
    else:
        _print(decisions[0])


def decision_as_dict(decision: Decision) -> dict[str, Any]:
    """Return a decision as plain containers, the form of `--json`."""
    return {
        "allocations": {job.job_id: job.allocation.as_dict() for job in decision.jobs},
        "fitness": decision.fitness,
        "upper_bound": decision.upper_bound,
        "gap": decision.gap,
        "solver": decision.solver,
        "times_s": dict(decision.times_s),
        "timed_out": decision.timed_out,
        "gpu_prices": dict(decision.gpu_prices),
        "excluded": dict(decision.excluded),
    }


def summary(decision: Decision) -> str:
    """Return fitness, bound and times on one line."""
    bound = "no bound" if decision.upper_bound is None else f"bound {decision.upper_bound:.6g}"
    gap = "" if decision.gap is None else f", gap {100 * decision.gap:.3f} %"
    times = ", ".join(f"{name} {1000 * seconds:.1f} ms" for name, seconds in decision.times_s)
    late = ", cut short by the time limit" if decision.timed_out else ""
    return f"{decision.solver}: fitness {decision.fitness:.6g}, {bound}{gap}; {times}{late}"


def _read(path: Path, objective: str | None) -> Problem:
    import dataclasses

    from pollux_slurm.policy.problem_json import problem_from_json

    try:
        text = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    problem = problem_from_json(text)
    if objective is None:
        return problem
    return dataclasses.replace(problem, objective=dataclasses.replace(problem.objective, name=objective))


def _print(decision: Decision) -> None:
    from pollux_slurm.policy import explanation

    for job in decision.jobs:
        typer.echo(explanation(job))
    for job_id, reason in decision.excluded:
        typer.echo(f"job {job_id} is left as it is: {reason}")
    typer.echo(summary(decision))
