"""`pollux simulate`: replay workloads through policies, with a clock instead of a cluster."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pollux_slurm.errors import UsageError

if TYPE_CHECKING:
    from pollux_slurm.simulator.summary import Summary


def simulate(
    traces: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder with the traces of each application in a folder.")
    ],
    workload: Annotated[
        list[Path],
        typer.Option(
            metavar="FILE", help="CSV: name, time, application, num_replicas, batch_size; repeatable."
        ),
    ],
    policy: Annotated[
        list[str] | None,
        typer.Option(help="pollux, tiresias or optimus; repeatable.", show_default="pollux"),
    ] = None,
    objective: Annotated[
        str, typer.Option(help="What pollux maximises: generalized-mean, osdi21, price-rank, attained-work.")
    ] = "generalized-mean",
    declared: Annotated[
        bool, typer.Option("--declared", help="Jobs tell how many epochs they train.")
    ] = False,
    rules: Annotated[str, typer.Option(help="What is simulated: osdi21, the paper's artifact.")] = "osdi21",
    nodes: Annotated[int, typer.Option(min=1)] = 16,
    gpus_per_node: Annotated[int, typer.Option(min=1)] = 4,
    interval: Annotated[float, typer.Option(help="Seconds between decisions.")] = 60.0,
    restart_delay: Annotated[float, typer.Option(help="Seconds without progress after a move.")] = 30.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object; with several runs, a list.")
    ] = False,
) -> None:
    """Replay workloads through scheduling policies and compare completion times.

    Example: pollux simulate --traces traces --workload workload-6.csv --policy pollux --policy tiresias
    """
    from pollux_slurm.policy.scores import OBJECTIVES
    from pollux_slurm.simulator import Cluster, read_applications, read_workload
    from pollux_slurm.simulator import simulate as run
    from pollux_slurm.simulator.policies import POLICIES, make_policy
    from pollux_slurm.simulator.summary import summarize

    if rules != "osdi21":
        raise UsageError(f"unknown rules {rules!r}; there are osdi21")
    policies = policy or ["pollux"]
    for name in policies:
        if name not in POLICIES:
            raise UsageError(f"unknown policy {name!r}; there are {', '.join(POLICIES)}")
    if objective not in OBJECTIVES:
        raise UsageError(f"unknown objective {objective!r}; there are {', '.join(sorted(OBJECTIVES))}")
    cluster = Cluster(
        num_nodes=nodes, gpus_per_node=gpus_per_node, interval_s=interval, restart_delay_s=restart_delay
    )
    applications = read_applications(traces)
    read = {file: read_workload(file, applications) for file in workload}
    summaries = []
    for file, jobs in read.items():
        for name in policies:
            began = time.perf_counter()
            chosen = make_policy(name, objective=objective, declared=declared)
            result = run(jobs, applications, chosen, cluster)
            summaries.append(
                summarize(
                    result,
                    policy=name,
                    objective=objective if name == "pollux" else None,
                    workload=file.stem,
                    wall_s=time.perf_counter() - began,
                )
            )
    if as_json:
        found = [dataclasses.asdict(summary) for summary in summaries]
        json.dump(found[0] if len(found) == 1 else found, sys.stdout, indent=1)
        typer.echo()
    else:
        _print_table(summaries)


def _print_table(summaries: list[Summary]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold")
    table.add_column("workload", no_wrap=True)
    table.add_column("policy", no_wrap=True)
    for title in ("average", "median", "p90", "p99", "makespan", "GPU h", "restarts", "solve"):
        table.add_column(title, justify="right", no_wrap=True)
    for found in summaries:
        table.add_row(
            found.workload,
            found.policy if found.objective is None else found.objective,
            *(f"{value:,.0f}" for value in (found.avg_jct_s, found.p50_jct_s, found.p90_jct_s)),
            f"{found.p99_jct_s:,.0f}",
            f"{found.makespan_s:,.0f}",
            f"{found.gpu_hours:,.0f}",
            f"{found.restarts_per_job:.2f}",
            f"{1000 * found.solve_s['p95']:.1f}",
        )
    console = Console()
    if not console.is_terminal:
        console.width = 200  # in a pipe or a log there is no edge to fit into
    console.print(table)
    console.print(
        "Simulated. Completion times and makespan in seconds; restarts a job; solve: 95th percentile, ms.",
        style="dim",
    )
