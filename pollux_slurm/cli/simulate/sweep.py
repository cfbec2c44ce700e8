"""`pollux simulate sweep`: one simulation for each combination of loads, seeds, delays and policies."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from pollux_slurm.cli.shared.progress_bar import ProgressBar
from pollux_slurm.cli.shared.settings_and_store import print_json, print_note
from pollux_slurm.cli.simulate.options import (
    DeclaredOption,
    DelaysOption,
    GpusOption,
    GroupOption,
    InterferenceOption,
    JobsOption,
    KindsOption,
    MtbfOption,
    NodesOption,
    NoiseOption,
    ObjectiveOption,
    OutliersOption,
    PlainRequeueOption,
    PolicyOption,
    ReportOption,
    RulesOption,
    SeedOption,
    SeveralWingsOption,
    StandstillOption,
    UnmanagedOption,
    WarmUpOption,
    find_delays,
    find_in_place,
    make_settings,
    refuse_unused,
    refuse_unused_settings,
)
from pollux_slurm.cli.simulate.output import Column, number_or_dash, print_table
from pollux_slurm.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

_Value = TypeVar("_Value")


def sweep(
    context: typer.Context,
    traces: Annotated[
        Path,
        typer.Option(
            metavar="PATH",
            help="Folder with a folder of traces for each application, or a file of pollux simulate export.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            metavar="DIR", help="Folder with a file for each run; runs with a file are not repeated."
        ),
    ],
    workload: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Read workloads instead of generating them; repeatable."),
    ] = None,
    loads: Annotated[str, typer.Option(help="Loads of the generated workloads, such as 0.5,1,2.")] = "1",
    seeds: Annotated[str, typer.Option(help="Seeds of the generated workloads, such as 1,2,3.")] = "0",
    hours: Annotated[float, typer.Option(help="Length of the generated workloads.")] = 8.0,
    policy: PolicyOption = None,
    objective: ObjectiveOption = None,
    declared: DeclaredOption = False,
    kinds: KindsOption = False,
    intervals: Annotated[str, typer.Option(help="Seconds between decisions, such as 15,30,60.")] = "60",
    restart_delays: Annotated[
        str, typer.Option(help="Seconds without progress after a move, such as 0,5,15,30,60,121.")
    ] = "30",
    exponents: Annotated[
        str | None,
        typer.Option("--p", help="Exponents of generalized-mean and powers of sia, such as -0.5,-1,-10."),
    ] = None,
    penalties: Annotated[
        str | None, typer.Option(help="Forms of the restart penalty: paper,amortised.")
    ] = None,
    adaptive: Annotated[
        str, typer.Option(help="Shares of the jobs that are adaptive, such as 0.2,1 (rules slurm).")
    ] = "1",
    in_place_share: Annotated[
        str, typer.Option(help="Shares of the jobs that can be moved in place, such as 0,0.5,1.")
    ] = "0",
    several_wings: SeveralWingsOption = False,
    warm_up: WarmUpOption = 20.0,
    standstill: StandstillOption = 0.5,
    rules: RulesOption = "osdi21",
    nodes: NodesOption = 16,
    gpus_per_node: GpusOption = 4,
    node_group: GroupOption = None,
    plain_requeue: PlainRequeueOption = False,
    unmanaged: UnmanagedOption = 0.0,
    mtbf_hours: MtbfOption = None,
    delays: DelaysOption = None,
    interference: InterferenceOption = 0.0,
    measurement_noise: NoiseOption = 0.0,
    measurement_outliers: OutliersOption = 0.0,
    rules_seed: SeedOption = 0,
    num_processes: JobsOption = 1,
    report: ReportOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False,
) -> None:
    """Simulate all combinations; continue an interrupted sweep in the same folder.

    Example: pollux simulate sweep --traces traces --loads 0.5,1,2 --policy tiresias --output sweep
    """
    from pollux_slurm.simulator import load_applications, read_queue
    from pollux_slurm.simulator.experiments.sweep import Grid, expand, run_rows, run_sweep, table_rows
    from pollux_slurm.simulator.experiments.sweep_report import write_sweep_report
    from pollux_slurm.simulator.inputs.workload import read_workloads
    from pollux_slurm.simulator.results.files import check_writable, csv_text, write_text
    from pollux_slurm.simulator.site.measured_jobs import workload_of

    noise = (measurement_noise, measurement_outliers)
    in_place_shares = _list("--in-place-share", in_place_share, float)
    refuse_unused_settings(
        context,
        rules=rules,
        groups=node_group,
        policies=policy,
        noise=noise,
        in_place_shares=in_place_shares,
    )
    generated = ("--loads", "--seeds", "--hours")
    refuse_unused(
        context, generated, "workloads are read, not generated", where=bool(workload) or traces.is_file()
    )
    measured = find_delays(rules, traces, delays)
    settings = make_settings(
        policies=policy,
        objectives=objective,
        declared=declared,
        kinds=kinds,
        rules=rules,
        num_nodes=nodes,
        gpus_per_node=gpus_per_node,
        groups=node_group,
        plain_requeue=plain_requeue,
        unmanaged_share=unmanaged,
        mtbf_hours=mtbf_hours,
        interference=interference,
        noise=noise,
        in_place=find_in_place(
            max(in_place_shares), several_wings=several_wings, warm_up_s=warm_up, standstill_s=standstill
        ),
        delays=measured,
        seed=rules_seed,
    )
    applications = load_applications(traces)
    files = read_workloads(workload or (), applications)
    if not files and traces.is_file():
        files = {traces.stem: workload_of(read_queue(traces))}
    grid = Grid(
        settings=settings,
        loads=_list("--loads", loads, float),
        seeds=_list("--seeds", seeds, int),
        hours=hours,
        files=files,
        intervals_s=_list("--intervals", intervals, float),
        restart_delays_s=_list("--restart-delays", restart_delays, float),
        exponents=(None,) if exponents is None else _list("--p", exponents, float),
        adaptive_shares=_list("--adaptive", adaptive, float),
        in_place_shares=in_place_shares,
        penalties=(None,) if penalties is None else _list("--penalties", penalties, str),
    )
    runs = expand(grid, applications)
    if report is not None:
        check_writable(report)
    shared = {"rules": rules, "cluster": settings[0].cluster_text, "hours": hours}
    if rules == "slurm":
        site = {"plain_requeue": plain_requeue, "unmanaged": unmanaged, "mtbf_hours": mtbf_hours}
        shared |= site | {"seed": rules_seed}
        shared |= {} if measured is None else {"delays": dataclasses.asdict(measured)}
    if any(in_place_shares):
        shared |= {"several_wings": several_wings, "warm_up": warm_up, "standstill": standstill}
        shared["seed"] = rules_seed
    if interference:
        shared["interference"] = interference
    if any(noise):
        shared |= {"measurement_noise": measurement_noise, "measurement_outliers": measurement_outliers}
        shared["seed"] = rules_seed
    try:
        with ProgressBar(len(runs), f"{len(runs)} simulations") as progress:
            results = run_sweep(
                runs,
                output,
                traces,
                applications,
                shared=shared,
                num_processes=num_processes,
                on_done=progress.update,
            )
    except KeyboardInterrupt:
        print_note(f"pollux: interrupted; the same command continues with the runs in {output}")
        raise
    rows = table_rows(results)
    write_text(output / "sweep.csv", csv_text(rows))
    write_text(output / "runs.csv", csv_text(run_rows(results)))
    if report is not None:
        shown = max((run.settings for run in runs), key=lambda one: one.in_place is not None)
        write_sweep_report(report, results, shown)
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
        raise UsageError(f"{option} has no value")
    return tuple(values)


def _print(rows: Sequence[dict[str, Any]]) -> None:
    from pollux_slurm.simulator.experiments.sweep import axis_text, varying_axes

    def column(title: str, rank: int, text: Callable[[dict[str, Any]], str]) -> Column:
        return Column(title=title, cells=tuple(text(row) for row in rows), rank=rank)

    regroups = any(row["regroups_per_job"] for row in rows)
    axes = [
        Column(title=title, cells=tuple(axis_text(row[name]) for row in rows))
        for name, title in varying_axes(rows).items()
    ]
    print_table(
        [
            *axes,
            Column(title="policy", cells=tuple(row["policy"] for row in rows), left=True),
            column("runs", 4, lambda row: str(row["num_runs"])),
            column("average", 0, lambda row: f"{row['avg_jct_s']:,.0f}"),
            column("ratio", 0, lambda row: f"{row['ratio']:.3f}"),
            column("lowest", 5, lambda row: f"{row['lowest_avg_jct_s']:,.0f}"),
            column("highest", 5, lambda row: f"{row['highest_avg_jct_s']:,.0f}"),
            column("p99", 3, lambda row: f"{row['p99_jct_s']:,.0f}"),
            column("makespan", 1, lambda row: f"{row['makespan_s']:,.0f}"),
            column("restarts", 1, lambda row: f"{row['restarts_per_job']:.2f}"),
            *([column("regroups", 1, lambda row: f"{row['regroups_per_job']:.2f}")] if regroups else []),
            column("lost", 2, lambda row: f"{100 * row['restart_share']:.1f} %"),
            column("worst ρ", 2, lambda row: number_or_dash(row["rho_worst"])),
        ],
        "Simulated. Means over the runs of a row, completion times in seconds; lowest, highest: of the runs' "
        "averages; worst ρ: the largest; ratio: mean of the runs' ratios to the first policy on the same "
        "workload.",
    )
