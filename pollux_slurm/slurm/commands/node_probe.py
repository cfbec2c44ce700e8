"""Run one short command on each of several nodes through srun, with time limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pollux_slurm.errors import SlurmUnavailable
from pollux_slurm.model import SlurmNode
from pollux_slurm.slurm.commands.runner import CommandRunner

_ALLOCATION_LIMIT_S = 20
_TIME_LIMIT_MINUTES = 1
_SRUN_LIMIT_S = 120.0
_MAX_PARALLEL = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOutput:
    """What the command printed on a node, or in `error_text` why there is no output.

    It was printed between `asked_at` and `answered_at`, in seconds since 1970 by this host's clock.
    """

    node: str
    output: str
    error_text: str
    asked_at: float
    answered_at: float


def nodes_with_free_cpu(nodes: Sequence[SlurmNode], most: int) -> tuple[SlurmNode, ...]:
    """Return at most `most` nodes that have a free CPU, from each partition and GPU type in turn."""
    groups: dict[tuple[object, ...], list[SlurmNode]] = {}
    for node in nodes:
        if node.available and node.used_cpus < node.num_cpus and node.partitions:
            groups.setdefault((node.partitions, node.gpu_type), []).append(node)
    found: list[SlurmNode] = []
    while len(found) < most and any(groups.values()):
        for group in groups.values():
            if group and len(found) < most:
                found.append(group.pop(0))
    return tuple(found)


def run_on_nodes(
    runner: CommandRunner, nodes: Sequence[SlurmNode], command: Sequence[str], *, clock: Callable[[], float]
) -> tuple[NodeOutput, ...]:
    """Run `command` on each node, several in parallel; a node without a free CPU within 20 s is given up.

    Raises `SlurmUnavailable` where there is no srun.
    """
    runner.find("srun")

    def ask(node: SlurmNode) -> NodeOutput:
        asked_at = clock()
        output, error_text = "", ""
        try:
            done = runner.run(
                "srun", "--quiet", "--job-name=pollux-doctor", f"--partition={node.partitions[0]}",
                f"--nodelist={node.name}", "--nodes=1", "--ntasks=1", "--cpus-per-task=1",
                "--mem-per-cpu=100M", f"--time={_TIME_LIMIT_MINUTES}",
                f"--immediate={_ALLOCATION_LIMIT_S}", "--input=none", "--chdir=/", *command,
                timeout_s=_SRUN_LIMIT_S,
            )  # fmt: skip
        except SlurmUnavailable as error:
            error_text = str(error)
        else:
            output, error_text = done.stdout, "" if done.exit_code == 0 else done.error_text
        return NodeOutput(
            node=node.name, output=output, error_text=error_text, asked_at=asked_at, answered_at=clock()
        )

    with ThreadPoolExecutor(max_workers=_MAX_PARALLEL) as pool:
        return tuple(pool.map(ask, nodes))
