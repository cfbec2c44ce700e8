"""`pollux simulate`: replay workloads through scheduling policies on a simulated cluster."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pollux_slurm.cli.shared.duration_options import seconds
from pollux_slurm.cli.shared.progress_bar import ProgressBar
from pollux_slurm.cli.shared.settings_and_store import print_json
from pollux_slurm.cli.simulate.options import (
    BetweenOption,
    DeclaredOption,
    DelaysOption,
    GpusOption,
    GroupOption,
    HalfLifeOption,
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
    options_given,
    refuse_unused,
    refuse_unused_settings,
    use_one_thread,
)
from pollux_slurm.cli.simulate.output import print_comparison
from pollux_slurm.cli.simulate.sweep import sweep
from pollux_slurm.cli.simulate.workloads import export, generate, import_sacct
from pollux_slurm.errors import UsageError

if TYPE_CHECKING:
    from pollux_slurm.simulator import Application
    from pollux_slurm.simulator.experiments.runs import RunSpec
    from pollux_slurm.simulator.experiments.sweep import SweepResult
    from pollux_slurm.simulator.results.summary import RunOutcome


app = typer.Typer(name="simulate", add_completion=False, invoke_without_command=True)


@app.callback()
def simulate(
    context: typer.Context,
    traces: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Folder with a folder of traces for each application, or a file of pollux simulate export; "
            "required.",
        ),
    ] = None,
    workload: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="CSV: name, time, application, num_replicas, batch_size; repeatable. Required, unless "
            "--traces is a file of pollux simulate export: then its jobs are submitted as they were.",
        ),
    ] = None,
    policy: PolicyOption = None,
    objective: ObjectiveOption = None,
    declared: DeclaredOption = False,
    kinds: KindsOption = False,
    between: BetweenOption = "users",
    share_half_life: HalfLifeOption = None,
    rules: RulesOption = "osdi21",
    nodes: NodesOption = 16,
    gpus_per_node: GpusOption = 4,
    node_group: GroupOption = None,
    interval: Annotated[
        float,
        typer.Option(parser=seconds(), metavar="TIME", help="Time between decisions: seconds, or 90s, 5m."),
    ] = 60.0,
    restart_delay: Annotated[
        float,
        typer.Option(
            parser=seconds(),
            metavar="TIME",
            help="Time without progress after a move: seconds or 90s; with rules slurm the estimate before a "
            "job's first move.",
        ),
    ] = 30.0,
    adaptive: Annotated[
        float, typer.Option(help="Share of the jobs that are adaptive; the others keep their GPUs.")
    ] = 1.0,
    plain_requeue: PlainRequeueOption = False,
    unmanaged: UnmanagedOption = 0.0,
    mtbf_hours: MtbfOption = None,
    delays: DelaysOption = None,
    interference: InterferenceOption = 0.0,
    measurement_noise: NoiseOption = 0.0,
    measurement_outliers: OutliersOption = 0.0,
    in_place: Annotated[
        bool,
        typer.Option("--in-place", help="Move jobs in place, without a restart, where that is possible."),
    ] = False,
    in_place_share: Annotated[
        float, typer.Option(help="With --in-place: share of the jobs that can be moved so.")
    ] = 1.0,
    several_wings: SeveralWingsOption = False,
    warm_up: WarmUpOption = 20.0,
    standstill: StandstillOption = 0.5,
    rules_seed: SeedOption = 0,
    autoscale: Annotated[
        str | None,
        typer.Option(
            metavar="LOW:HIGH",
            help="Change the number of nodes, up to --nodes, to keep the utility of GPUs in a range such as "
            "0.55:0.75.",
        ),
    ] = None,
    min_nodes: Annotated[
        int, typer.Option(min=1, help="With --autoscale: the least number of nodes, and the first.")
    ] = 1,
    boot_time: Annotated[
        float,
        typer.Option(
            parser=seconds(),
            metavar="TIME",
            help="With --autoscale: time to start a new node, seconds or 5m.",
        ),
    ] = 120.0,
    bound: Annotated[
        bool,
        typer.Option(
            "--bound",
            help="Also compute what no policy's average is below: up to a minute for each workload of 160 "
            "jobs. Rules osdi21, moves by requeue.",
        ),
    ] = False,
    num_processes: JobsOption = 1,
    output: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder for summary.json, summary.csv, jobs.csv and rounds.csv."),
    ] = None,
    report: ReportOption = None,
    swept: Annotated[
        Path | None,
        typer.Option(
            "--sweep",
            metavar="DIR",
            help="Include the results of pollux simulate sweep in this folder in the report.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object; with several runs, a list.")
    ] = False,
) -> None:
    """Replay workloads through scheduling policies and compare completion times.

    Example: pollux simulate --traces traces --workload workload-6.csv --policy pollux --policy tiresias
    """
    use_one_thread(os.environ)
    if context.invoked_subcommand is not None:
        _refuse_options(context)
        return
    if traces is not None and not (workload or traces.exists()):
        raise UsageError(f"{traces}: no such file or folder")
    if traces is None or not (workload or traces.is_file()):
        raise UsageError("--traces DIR and --workload FILE are needed (see: pollux simulate --help)")
    noise = (measurement_noise, measurement_outliers)
    refuse_unused(context, ("--in-place-share",), "it is of --in-place", where=not in_place)
    moved_in_place = find_in_place(
        in_place_share if in_place else 0.0,
        several_wings=several_wings,
        warm_up_s=warm_up,
        standstill_s=standstill,
    )
    refuse_unused_settings(
        context,
        rules=rules,
        groups=node_group,
        policies=policy,
        noise=noise,
        in_place_shares=(0.0 if moved_in_place is None else moved_in_place.share,),
    )
    if bound and (rules != "osdi21" or in_place):
        raise UsageError("--bound is of rules osdi21 and moves by requeue: it does not hold for others")
    scaling_options = ("--min-nodes", "--boot-time")
    refuse_unused(context, scaling_options, "it is of --autoscale LOW:HIGH", where=autoscale is None)
    from pollux_slurm.simulator import load_applications, read_queue
    from pollux_slurm.simulator.experiments.runs import RunSpec, run_all
    from pollux_slurm.simulator.experiments.settings import parse_scaling
    from pollux_slurm.simulator.inputs.workload import read_workloads
    from pollux_slurm.simulator.results.files import (
        check_writable,
        make_folder,
        summary_as_dict,
        write_results,
    )
    from pollux_slurm.simulator.site.measured_jobs import workload_of

    scaling = None
    if autoscale is not None:
        scaling = parse_scaling(autoscale, min_nodes=min_nodes, boot_s=boot_time)
    variants = make_settings(
        policies=policy,
        objectives=objective,
        declared=declared,
        kinds=kinds,
        between=between,
        share_half_life_s=share_half_life,
        rules=rules,
        num_nodes=nodes,
        gpus_per_node=gpus_per_node,
        groups=node_group,
        interval_s=interval,
        restart_delay_s=restart_delay,
        adaptive_share=adaptive,
        plain_requeue=plain_requeue,
        unmanaged_share=unmanaged,
        mtbf_hours=mtbf_hours,
        interference=interference,
        noise=noise,
        in_place=moved_in_place,
        scaling=scaling,
        delays=find_delays(rules, traces, delays),
        seed=rules_seed,
    )
    applications = load_applications(traces)
    workloads = read_workloads(workload or (), applications)
    if not workloads:
        workloads = {traces.stem: workload_of(read_queue(traces))}
    specs = [
        RunSpec(workload=name, jobs=jobs, settings=variant)
        for name, jobs in workloads.items()
        for variant in variants
    ]
    if report is not None:
        check_writable(report)
    elif swept is not None:
        raise UsageError("--sweep adds to a report: name its file with --report FILE.html")
    sweep_results = () if swept is None else _read_sweep(swept)
    if output is not None:
        make_folder(output)
    with ProgressBar(len(specs), f"{len(specs)} simulations") as progress:
        outcomes = run_all(specs, traces, applications, num_processes=num_processes, on_done=progress.update)
    if bound:
        outcomes = _with_bounds(outcomes, specs, applications)
    labels = [spec.settings.label for spec in specs]
    if output is not None:
        write_results(output, outcomes)
    if report is not None:
        from pollux_slurm.simulator.experiments.run_report import write_report

        write_report(report, outcomes, labels=labels, settings=variants[0], swept=sweep_results)
    if as_json:
        found = [summary_as_dict(one.summary) for one in outcomes]
        print_json(found[0] if len(found) == 1 else found)
    else:
        print_comparison([one.summary for one in outcomes], labels, node_hours=scaling is not None)


def _with_bounds(
    outcomes: Sequence[RunOutcome], specs: Sequence[RunSpec], applications: Mapping[str, Application]
) -> list[RunOutcome]:
    """Return the outcomes with the bounds of their workloads; settings have one cluster."""
    from pollux_slurm.simulator.bound.dual_bound import average_bound

    cluster = specs[0].settings.cluster()
    workloads = {spec.workload: spec.jobs for spec in specs}
    bounds: dict[str, float] = {}
    with ProgressBar(len(workloads), "bound") as progress:
        for name, jobs in workloads.items():

            def report(part: float, text: str) -> None:
                progress.update(len(bounds) + part, text)

            bounds[name] = average_bound(jobs, applications, cluster, on_done=report)
    return [
        replace(one, summary=replace(one.summary, bound_avg_jct_s=bounds[one.summary.workload]))
        for one in outcomes
    ]


def _read_sweep(folder: Path) -> Sequence[SweepResult]:
    # Imported here, because only some runs need it and it is slow to import.
    from pollux_slurm.simulator.experiments.sweep import read_sweep

    return read_sweep(folder)


def _refuse_options(context: typer.Context) -> None:
    """Raise `UsageError` for options before a subcommand, which would have no effect."""
    given = options_given(context)
    if given:
        raise UsageError(
            f"{given[0]} comes before {context.invoked_subcommand}; options of a subcommand come after it"
        )


app.command()(sweep)
app.command()(generate)
app.command()(import_sacct)
app.command()(export)
