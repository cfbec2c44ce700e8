"""`pollux sandbox`: a private Slurm cluster on this machine, for trials and tests."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pollux_slurm.cli.shared.duration_options import seconds
from pollux_slurm.cli.shared.settings_and_store import JsonOption, print_json, print_line

if TYPE_CHECKING:
    from pollux_slurm.sandbox.cluster import Sandbox

app = typer.Typer(
    name="sandbox",
    add_completion=False,
    help="Start and end a private Slurm cluster with fake GPUs on this machine.",
    no_args_is_help=True,
    epilog='Examples: pollux sandbox up --nodes 4 · eval "$(pollux sandbox env)" · pollux sandbox down',
)
DirOption = Annotated[
    Path | None,
    typer.Option("--dir", help="Folder of the sandbox (default: ~/.local/state/pollux/sandbox)."),
]


def sandbox_folder(given: Path | None) -> Path:
    """Return the folder of a sandbox: the given one, or the user's."""
    from pollux_slurm.config import own_state_dir

    return own_state_dir(os.environ) / "sandbox" if given is None else given


@app.command()
def up(
    directory: DirOption = None,
    nodes: Annotated[int | None, typer.Option(help="How many nodes (default: 4).")] = None,
    gpus_per_node: Annotated[int | None, typer.Option(help="GPUs of each node (default: 4).")] = None,
    gpu_type: Annotated[str | None, typer.Option(help="Type of the GPUs (default: t4).")] = None,
    node_group: Annotated[
        list[str] | None,
        typer.Option(help="NODES:TYPE:GPUS such as 2:a100:8, instead of the three above; repeatable."),
    ] = None,
    cpus_per_node: Annotated[int | None, typer.Option(help="CPUs of each node (default: 2 per GPU).")] = None,
    memory_mb_per_node: Annotated[
        int | None, typer.Option(help="Memory of each node in MB (default: 2048 per GPU).")
    ] = None,
    threads_per_core: Annotated[
        int | None, typer.Option(help="CPUs that are one core: 2 with hyper-threads (default: 1).")
    ] = None,
    kill_wait: Annotated[int, typer.Option(min=1, help="Slurm's KillWait, in seconds.")] = 10,
    timeout: Annotated[
        float,
        typer.Option(
            parser=seconds(least=1),
            metavar="TIME",
            help="How long to wait until all nodes are idle: seconds, or 90s, 5m.",
        ),
    ] = 60.0,
) -> None:
    """Start a cluster and wait until its nodes are idle.

    Example: pollux sandbox up --dir /tmp/box --node-group 2:t4:4 --node-group 2:a100:8
    """
    from pollux_slurm.sandbox.cluster import Sandbox
    from pollux_slurm.sandbox.files import NodeGroup, parse_group

    given = (nodes, gpus_per_node, gpu_type, cpus_per_node, memory_mb_per_node, threads_per_core)
    groups: list[NodeGroup] | None = [
        parse_group(
            text,
            cpus_per_node=cpus_per_node,
            memory_mb_per_node=memory_mb_per_node,
            threads_per_core=threads_per_core or 1,
        )
        for text in node_group or ()
    ] or [
        NodeGroup(
            num_nodes=4 if nodes is None else nodes,
            gpu_type="t4" if gpu_type is None else gpu_type,
            gpus_per_node=4 if gpus_per_node is None else gpus_per_node,
            cpus_per_node=cpus_per_node,
            memory_mb_per_node=memory_mb_per_node,
            threads_per_core=threads_per_core or 1,
        )
    ]
    if not node_group and all(value is None for value in given):
        groups = None  # any running cluster will do
    sandbox = Sandbox.up(sandbox_folder(directory), groups, kill_wait_s=kill_wait, timeout_s=timeout)
    print_line(f"{_summary(sandbox)} {'is up' if sandbox.started_now else 'was already up; nothing changed'}")
    print_line(
        f'point a shell at it: eval "$(pollux sandbox env --dir {shlex.quote(str(sandbox.layout.dir))})"'
    )


@app.command()
def down(directory: DirOption = None) -> None:
    """Cancel the cluster's jobs and end the processes that `up` started, and no others.

    Example: pollux sandbox down --dir /tmp/box
    """
    from pollux_slurm.sandbox.cluster import Sandbox

    sandbox = Sandbox.find(sandbox_folder(directory))
    done = sandbox.down()
    if not done.stopped:
        print_line(f"the sandbox in {sandbox.layout.dir} was not running")
    else:
        gone = f"; already gone: {', '.join(done.already_gone)}" if done.already_gone else ""
        print_line(f"stopped {', '.join(done.stopped)}{gone}; {done.cancelled_jobs} jobs cancelled")
    if done.killed_processes:
        print_line(f"killed {done.killed_processes} processes that jobs had left")


@app.command()
def status(directory: DirOption = None, as_json: JsonOption = False) -> None:
    """Show daemons and nodes. Exit code 3 unless every daemon runs.

    Example: pollux sandbox status --dir /tmp/box
    """
    from pollux_slurm.sandbox.cluster import Sandbox

    sandbox = Sandbox.find(sandbox_folder(directory))
    daemons, states = sandbox.daemons(), sandbox.node_states()
    running = all(daemons.values())
    if as_json:
        print_json(
            {
                "dir": str(sandbox.layout.dir),
                "running": running,
                "slurm_conf": str(sandbox.layout.slurm_conf),
                "controller_port": sandbox.controller_port,
                "daemons": [
                    {
                        "name": name,
                        "running": alive,
                        "pid": next((r.pid for r in sandbox.processes if alive and r.name == name), None),
                    }
                    for name, alive in daemons.items()
                ],
                "nodes": [
                    {
                        "name": node.name,
                        "state": states[node.name],
                        "gpu_type": node.gpu_type if node.num_gpus else None,
                        "num_gpus": node.num_gpus,
                        "num_cpus": node.num_cpus,
                        "memory_mb": node.memory_mb,
                    }
                    for node in sandbox.nodes
                ],
            }
        )
    else:
        print_line(f"{_summary(sandbox)} {'is up' if running else 'is down'}")
        for name, alive in daemons.items():
            state = f", {states[name]}" if name in states else ""
            print_line(f"  {name:<10} {'running' if alive else 'ended'}{state}")
    if not running:
        raise typer.Exit(3)


@app.command()
def env(directory: DirOption = None) -> None:
    """Print shell commands that set the environment for the cluster: eval "$(pollux sandbox env)".

    Example: eval "$(pollux sandbox env --dir /tmp/box)"
    """
    from pollux_slurm.sandbox.cluster import Sandbox

    sandbox = Sandbox.find(sandbox_folder(directory))
    for key, value in sandbox.env.items():
        typer.echo(f"export {key}={shlex.quote(value)}")


def _summary(sandbox: Sandbox) -> str:
    gpus = sum(node.num_gpus for node in sandbox.nodes)
    return f"sandbox in {sandbox.layout.dir}: {len(sandbox.nodes)} nodes, {gpus} GPUs,"
