"""`pollux simulate`: replay workloads through scheduling policies on a simulated cluster."""

from __future__ import annotations

import os
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from pollux_slurm.cli.shared.completion import choices, setting_choices
from pollux_slurm.cli.shared.progress_bar import ProgressBar
from pollux_slurm.cli.shared.settings_and_store import console, print_json, print_note
from pollux_slurm.cli.simulate.workloads import export, generate, import_sacct, import_trace
from pollux_slurm.errors import UsageError

if TYPE_CHECKING:
    from pollux_slurm.simulator.experiments.kept_runs import KeptRun

# Those of `simulator/policies`, which takes long to import.
_POLICIES = (
    "pollux",
    "genetic",
    "sia",
    "tiresias",
    "optimus",
    "slurm",
    "external",
    "gavel-las",
    "gavel-las-agnostic",
    "gavel-ftf",
    "gavel-ftf-agnostic",
    "gavel-makespan",
    "gavel-makespan-agnostic",
    "gavel-sum",
    "gavel-sum-agnostic",
    "themis",
    "elasticflow",
    "edf",
    "slaq",
    "shockwave",
    "gandiva",
    "antman",
)
# The plots of a page, and the tables of jobs and rounds, are of experiments with at most as many runs.
_MOST_DETAILED = 40
# Shorter experiments are run by one process: each other one takes a second to start.
_LEAST_PARALLEL_S = 20.0


class _FileOrCommand(TyperGroup):
    """A group whose first word may be a file: `pollux simulate FILE` beside `pollux simulate generate`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        is_command = bool(args) and args[0] in self.commands
        ctx.allow_interspersed_args = not is_command
        # The word that a command stands in for is empty.
        return super().parse_args(ctx, ["", *args] if is_command else args)


app = typer.Typer(name="simulate", add_completion=False, invoke_without_command=True, cls=_FileOrCommand)


@app.callback()
def simulate(
    context: typer.Context,
    experiment: Annotated[
        str, typer.Argument(metavar="[FILE.toml|FOLDER]", help="An experiment, or a folder of results.")
    ] = "",
    traces: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Folder with a folder of traces for each application, or a file of pollux simulate export.",
        ),
    ] = None,
    workload: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="CSV: name, time, application, num_replicas, batch_size; repeatable. Default: the jobs of "
            "an exported --traces, else generated.",
        ),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="pollux, genetic, sia, tiresias, optimus, slurm, or another of docs/benchmark.md; "
            "repeatable.",
            show_default="pollux",
            autocompletion=choices(*_POLICIES),
        ),
    ] = None,
    objective: Annotated[
        list[str] | None,
        typer.Option(
            help="What pollux maximises: generalized-mean, osdi21, price-rank, attained-work "
            "or your own; repeatable.",
            show_default="generalized-mean",
            autocompletion=setting_choices("policy", "objective"),
        ),
    ] = None,
    rules: Annotated[
        str | None,
        typer.Option(
            help="Rules of the simulated cluster: osdi21, as in the paper's artifact; slurm, as in Slurm.",
            show_default="osdi21",
            autocompletion=choices("osdi21", "slurm"),
        ),
    ] = None,
    nodes: Annotated[
        str | None,
        typer.Option(
            metavar="NODESxGPUS",
            help="The cluster: 2x4, or several types, such as '8x4:t4 + 4x8:a100=2.5'.",
            show_default="16x4",
        ),
    ] = None,
    bound: Annotated[
        bool,
        typer.Option(
            "--bound",
            help="Also compute a lower bound for any policy's average: up to a minute per workload of 160 "
            "jobs. Rules osdi21, moves by requeue.",
        ),
    ] = False,
    num_processes: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            "-j",
            min=1,
            help="Simulations at the same time.",
            show_default="all cores; 1 where they take seconds",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep the results in this folder; runs in it are not repeated."),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Write one page with plots, for any browser.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object; with several runs, a list.")
    ] = False,
) -> None:
    """Replay workloads through scheduling policies and compare completion times.

    An experiment's file has all settings; an option replaces the key of its name.

    Example: pollux simulate --traces traces --workload workload-6.csv --policy pollux --policy tiresias;
    pollux simulate experiment.toml --output results
    """
    use_one_thread(os.environ)
    if context.invoked_subcommand is not None:
        return
    from pollux_slurm.simulator.experiments.kept_runs import read_folder
    from pollux_slurm.simulator.results.files import check_writable

    if experiment in app_commands(context):
        raise UsageError(f"options come before {experiment}; options of a subcommand come after it")
    if report is not None:
        check_writable(report)
    options = {
        "traces": None if traces is None else str(traces),
        "workload": [str(file) for file in workload or ()],
        "policy": _policies(policy, objective),
        "rules": rules,
        "nodes": nodes,
        "bound": bound,
    }
    given = {key: value for key, value in options.items() if value or value == ""}
    place = Path(experiment)
    if experiment and place.is_dir():
        if given or output is not None:
            raise UsageError(f"{experiment} is a folder of results: only --report and --json are of it")
        results: Sequence[KeptRun] = read_folder(place)
    else:
        if experiment and not place.exists():
            raise UsageError(f"{experiment}: no such experiment or folder of results")
        results = _run(place if experiment else None, given, output, num_processes)
    _show(results, output, report, as_json=as_json)


def use_one_thread(environ: MutableMapping[str, str]) -> None:
    """Limit numpy to one thread, unless the user has set OMP_NUM_THREADS. Call it before numpy is imported.

    A simulation's matrices are tiny: two threads use more CPU for no gain (measured on two cores: 3.9 s for a
    run of 1.5 s), and concurrent simulations compete for the cores.
    """
    if "OMP_NUM_THREADS" not in environ:
        environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def app_commands(context: typer.Context) -> Sequence[str]:
    """Return the names of the subcommands."""
    return tuple(getattr(context.command, "commands", ()))


def _policies(policies: Sequence[str] | None, objectives: Sequence[str] | None) -> list[dict[str, Any]]:
    if not (policies or objectives):
        return []
    found: list[dict[str, Any]] = []
    for name in dict.fromkeys(policies or ["pollux"]):
        is_pollux = name == "pollux"
        found.append({"name": name, **({"objective": list(objectives)} if objectives and is_pollux else {})})
    if objectives and not any("objective" in one for one in found) and list(objectives) != ["osdi21"]:
        raise UsageError("--objective would do nothing: it is of --policy pollux")
    return found


def _run(
    file: Path | None, given: dict[str, Any], output: Path | None, num_processes: int | None
) -> Sequence[KeptRun]:
    """Run the experiment of a file and of options; tell first how long it will take."""
    from pollux_slurm.simulator import load_applications
    from pollux_slurm.simulator.experiments.experiment import expand, read_experiment
    from pollux_slurm.simulator.experiments.kept_runs import missing_runs, run_experiment
    from pollux_slurm.simulator.experiments.run_times import expected_s, expected_text

    made = read_experiment(file, given)
    applications = load_applications(made.traces)
    runs = expand(made, applications)
    missing = missing_runs(runs, output, made.traces)
    if num_processes is None:
        takes_long = expected_s(missing, 1) > _LEAST_PARALLEL_S
        num_processes = (os.cpu_count() or 1) if takes_long else 1
    expected = expected_text(missing, num_processes)
    if expected:
        print_note(f"pollux: {expected}")
    try:
        with ProgressBar(len(runs), f"{len(runs)} simulations") as progress:
            return run_experiment(
                runs,
                output,
                made.traces,
                applications,
                num_processes=num_processes,
                keeps_outcomes=len(runs) <= _MOST_DETAILED,
                on_done=progress.update,
            )
    except KeyboardInterrupt:
        if output is not None:
            print_note(f"pollux: interrupted; the same command continues with the runs in {output}")
        raise


def _show(results: Sequence[KeptRun], output: Path | None, report: Path | None, *, as_json: bool) -> None:
    from pollux_slurm.simulator.experiments.kept_runs import table_rows, varying_axes, write_tables

    if output is not None:
        write_tables(output, results)
    if report is not None:
        from pollux_slurm.simulator.experiments.run_report import write_report

        write_report(report, results)
    if as_json:
        found = [
            {**one.summary, "load": one.load, "seed": one.seed, "label": one.label}
            | {"place": dict(one.place)}
            for one in results
        ]
        print_json(found[0] if len(found) == 1 else found)
        return
    from pollux_slurm.document.forms.terminal import print_data
    from pollux_slurm.simulator.experiments.run_tables import comparison_table

    rows = table_rows(results)
    axes = varying_axes(rows)
    if len({row["workload"] for row in rows}) == 1 and rows[0]["workload"] is not None:
        axes = {"workload": "workload", **axes}
    table = comparison_table(rows, axes)
    out = console()
    print_data(table, out, most=len(rows))
    out.print(f"Simulated. {table.note}", style="dim")


app.command()(generate)
app.command()(import_sacct)
app.command()(import_trace)
app.command()(export)
