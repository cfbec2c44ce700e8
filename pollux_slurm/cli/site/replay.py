"""`pollux replay`: solve a saved scheduling problem again and print the decision."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pollux_slurm.cli.shared.completion import setting_choices
from pollux_slurm.cli.shared.problem_files import read_problem, write_problem
from pollux_slurm.cli.shared.progress_bar import ProgressBar
from pollux_slurm.cli.shared.settings_and_store import (
    ConfigOption,
    JsonOption,
    StoreOption,
    opened_store,
    print_json,
    print_line,
    settings,
)
from pollux_slurm.errors import UsageError

if TYPE_CHECKING:
    from pollux_slurm.model import Decision, Problem


def replay(
    problem_file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[PROBLEM.json]",
            help="A problem file (docs/problem.md); default: the store's last round.",
        ),
    ] = None,
    round_id: Annotated[
        int | None, typer.Option("--round", min=1, help="A round of the store other than its last.")
    ] = None,
    solver: Annotated[
        str,
        typer.Option(help="search, genetic or greedy.", autocompletion=setting_choices("policy", "solver")),
    ] = "search",
    objective: Annotated[
        str | None,
        typer.Option(
            help="An objective other than the problem's.",
            autocompletion=setting_choices("policy", "objective"),
        ),
    ] = None,
    time_limit_s: Annotated[
        float | None,
        typer.Option(min=0.0, help="Time limit of the search; the output shows whether it was reached."),
    ] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Run all solvers and compare them.")] = False,
    save: Annotated[
        Path | None,
        typer.Option("--save", metavar="FILE", help="Write the problem to a file, and do not solve it."),
    ] = None,
    as_json: JsonOption = False,
    config_file: ConfigOption = None,
    store_url: StoreOption = None,
) -> None:
    """Solve a saved round again: print allocations, fitness, upper bound, gap and times.

    Example: pollux replay problem.json --compare
    """
    from pollux_slurm.config import OTHER_SOLVER_NAMES
    from pollux_slurm.policy import SOLVERS, decide

    if problem_file is not None and round_id is not None:
        raise UsageError("a file and --round exclude each other: a file is one round")
    if problem_file is not None:
        problem = read_problem(problem_file)
    else:
        with opened_store(settings(config_file, store_url)) as store:
            problem, _ = store.rounds.problem(round_id)
    problem = _with_objective(problem, objective)
    if save is not None:
        write_problem(save, problem)
        return
    names = list(SOLVERS) if compare else [OTHER_SOLVER_NAMES.get(solver, solver)]
    decisions = []
    with ProgressBar(len(names), "solvers") as bar:
        for name in names:
            decisions.append(decide(problem, solver=name, time_limit_s=time_limit_s))
            bar.update(len(decisions))
    if as_json:
        from pollux_slurm.now.json_forms import decision_as_dict

        found = [decision_as_dict(decision) for decision in decisions]
        print_json(found if compare else found[0])
    elif compare:
        for decision in decisions:
            print_line(summary(decision))
    else:
        _print(decisions[0])


def summary(decision: Decision) -> str:
    """Return fitness, bound and times on one line."""
    bound = "no bound" if decision.upper_bound is None else f"bound {decision.upper_bound:.6g}"
    gap = "" if decision.gap is None else f", gap {100 * decision.gap:.3f} %"
    times = ", ".join(f"{name} {1000 * seconds:.1f} ms" for name, seconds in decision.times_s)
    timeout = ", cut short by the time limit" if decision.timed_out else ""
    return f"{decision.solver}: fitness {decision.fitness:.6g}, {bound}{gap}; {times}{timeout}"


def _with_objective(problem: Problem, name: str | None) -> Problem:
    import dataclasses

    if name is None:
        return problem
    return dataclasses.replace(problem, objective=dataclasses.replace(problem.objective, name=name))


def _print(decision: Decision) -> None:
    from pollux_slurm.policy import explanation

    excluded = dict(decision.excluded)
    for job in decision.jobs:
        print_line(explanation(job, excluded.get(job.job_id)))
    print_line(summary(decision))
