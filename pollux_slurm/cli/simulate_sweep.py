"""`pollux simulate sweep`: one simulation for each combination of loads, seeds, delays and policies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from pollux_slurm.cli.common import print_json
from pollux_slurm.cli.simulate_output import Progress, wide_console
from pollux_slurm.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

_Value = TypeVar("_Value")


def sweep(
    traces: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder with the traces of each application in a folder.")
    ],
    output: Annotated[
        Path,
        typer.Option(
            metavar="DIR", help="A file for each run there; those that are there are not run again."
        ),
    ],
    workload: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Read workloads instead of making them; repeatable."),
    ] = None,
    loads: Annotated[str, typer.Option(help="Of the workloads that are made, such as 0.5,1,2.")] = "1",
    seeds: Annotated[str, typer.Option(help="Of the workloads that are made, such as 1,2,3.")] = "0",
    hours: Annotated[float, typer.Option(help="Length of the workloads that are made.")] = 8.0,
    policy: Annotated[
        list[str] | None,
        typer.Option(help="pollux, tiresias, optimus, ...; repeatable.", show_default="pollux"),
    ] = None,
    objective: Annotated[
        list[str] | None,
        typer.Option(help="What pollux maximises; repeatable.", show_default="generalized-mean"),
    ] = None,
    declared: Annotated[
        bool, typer.Option("--declared", help="Jobs tell how many epochs they train.")
    ] = False,
    intervals: Annotated[str, typer.Option(help="Seconds between decisions, such as 15,30,60.")] = "60",
    restart_delays: Annotated[
        str, typer.Option(help="Seconds without progress after a move, such as 0,5,15,30,60,121.")
    ] = "30",
    exponents: Annotated[
        str | None, typer.Option("--p", help="Exponents of generalized-mean, such as 1,-1,-10.")
    ] = None,
    penalties: Annotated[
        str | None, typer.Option(help="Forms of the price of a restart: paper,amortised.")
    ] = None,
    rules: Annotated[str, typer.Option(help="What is simulated: osdi21 or slurm.")] = "osdi21",
    nodes: Annotated[int, typer.Option(min=1)] = 16,
    gpus_per_node: Annotated[int, typer.Option(min=1)] = 4,
    num_processes: Annotated[
        int, typer.Option("--jobs", "-j", min=1, help="Simulations to run at the same time.")
    ] = 1,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Write one page with plots, for any browser.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False,
) -> None:
    """Simulate all combinations, and go on where an earlier sweep in the same folder was stopped.

    Example: pollux simulate sweep --traces traces --loads 0.5,1,2 --policy tiresias --output sweep
    """
    from pollux_slurm.simulator import read_applications, read_workload
    from pollux_slurm.simulator.output import check_writable, csv_text, write_text
    from pollux_slurm.simulator.runs import RunSettings
    from pollux_slurm.simulator.sweep import Grid, expand, run_rows, run_sweep, table_rows
    from pollux_slurm.simulator.sweep_report import write_sweep_report

    policies = tuple(
        RunSettings(
            policy=name,
            objective=goal,
            declared=declared,
            rules=rules,
            num_nodes=nodes,
            gpus_per_node=gpus_per_node,
        )
        for name in policy or ["pollux"]
        for goal in (objective or ["generalized-mean"])[: None if name == "pollux" else 1]
    )
    applications = read_applications(traces)
    grid = Grid(
        policies=policies,
        loads=_list("--loads", loads, float),
        seeds=_list("--seeds", seeds, int),
        hours=hours,
        files={file.stem: read_workload(file, applications) for file in workload or ()},
        intervals_s=_list("--intervals", intervals, float),
        restart_delays_s=_list("--restart-delays", restart_delays, float),
        exponents=(None,) if exponents is None else _list("--p", exponents, float),
        penalties=(None,) if penalties is None else _list("--penalties", penalties, str),
    )
    runs = expand(grid, applications)
    if report is not None:
        check_writable(report)
    shared = {"rules": rules, "nodes": nodes, "gpus_per_node": gpus_per_node, "hours": hours}
    with Progress(len(runs), "simulations") as progress:
        results = run_sweep(
            runs,
            output,
            traces,
            applications,
            shared=shared,
            num_processes=num_processes,
            on_done=progress.update,
        )
    rows = table_rows(results)
    write_text(output / "sweep.csv", csv_text(rows))
    write_text(output / "runs.csv", csv_text(run_rows(results)))
    if report is not None:
        write_sweep_report(report, results, shared)
    if as_json:
        print_json(rows)
    else:
        _print(rows)


def _list(option: str, text: str, kind: Callable[[str], _Value]) -> tuple[_Value, ...]:
    """Return the values between commas, each once."""
    try:
        values = dict.fromkeys(kind(word.strip()) for word in text.split(",") if word.strip())
    except ValueError:
        raise UsageError(f"{option} is {text!r}; expected values between commas, such as 1,2,3") from None
    if not values:
        raise UsageError(f"{option} names no value")
    return tuple(values)


def _print(rows: Sequence[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table(box=None, header_style="bold")
    axes = {
        "workload": "workload",
        "load": "load",
        "interval_s": "interval",
        "restart_delay_s": "delay",
        "exponent": "p",
        "penalty": "penalty",
    }
    shown = [name for name in axes if len({row[name] for row in rows}) > 1 or name == "load"]
    for name in shown:
        table.add_column(axes[name], justify="right", no_wrap=True)
    table.add_column("policy", no_wrap=True)
    for title in (
        "runs",
        "average",
        "ratio",
        "lowest",
        "highest",
        "p99",
        "makespan",
        "restarts",
        "lost",
        "worst ρ",
    ):
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            *(
                "-"
                if row[name] is None
                else f"{row[name]:g}"
                if isinstance(row[name], float)
                else str(row[name])
                for name in shown
            ),
            row["policy"],
            str(row["num_runs"]),
            f"{row['avg_jct_s']:,.0f}",
            f"{row['ratio']:.3f}",
            f"{row['lowest_avg_jct_s']:,.0f}",
            f"{row['highest_avg_jct_s']:,.0f}",
            f"{row['p99_jct_s']:,.0f}",
            f"{row['makespan_s']:,.0f}",
            f"{row['restarts_per_job']:.2f}",
            f"{100 * row['restart_share']:.1f} %",
            "-" if row["rho_worst"] is None else f"{row['rho_worst']:.2f}",
        )
    console = wide_console()
    console.print(table)
    console.print(
        "Simulated. Means over the runs of a row, completion times in seconds; lowest, highest: of the runs' "
        "averages; ratio: to the first policy on the same workload.",
        style="dim",
    )
