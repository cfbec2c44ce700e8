"""Run one short command on nodes through srun, each node for itself and within bounds of time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pollux_slurm.errors import SlurmUnavailable
from pollux_slurm.model import SlurmNode
from pollux_slurm.slurm.commands.runner import CommandRunner

# How long a node may take to have room, the command to run, and Slurm for the rest.
_ROOM_S = 20
_MINUTES = 1
_LIMIT_S = 120.0
_AT_ONCE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAnswer:
    """What a node said: `output`, or in `complaint` why it said nothing.

    It was said between `asked_at` and `answered_at`, in seconds since 1970 by this host's clock.
    """

    node: str
    output: str
    complaint: str
    asked_at: float
    answered_at: float


def nodes_with_room(nodes: Sequence[SlurmNode], most: int) -> tuple[SlurmNode, ...]:
    """Return at most `most` nodes that have a CPU to spare, of each partition and GPU type some."""
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


def ask_nodes(
    runner: CommandRunner, nodes: Sequence[SlurmNode], command: Sequence[str], *, clock: Callable[[], float]
) -> tuple[NodeAnswer, ...]:
    """Run `command` on each node, several at once; a node that has no room in 20 s is not waited for.

    Raises `SlurmUnavailable` where there is no srun.
    """
    runner.find("srun")

    def ask(node: SlurmNode) -> NodeAnswer:
        asked_at = clock()
        output, complaint = "", ""
        try:
            done = runner.run(
                "srun", "--quiet", "--job-name=pollux-doctor", f"--partition={node.partitions[0]}",
                f"--nodelist={node.name}", "--nodes=1", "--ntasks=1", "--cpus-per-task=1", "--mem=100M",
                f"--time={_MINUTES}", f"--immediate={_ROOM_S}", "--input=none", "--chdir=/", *command,
                timeout_s=_LIMIT_S,
            )  # fmt: skip
        except SlurmUnavailable as error:
            complaint = str(error)
        else:
            output, complaint = done.stdout, "" if done.exit_code == 0 else done.complaint
        return NodeAnswer(
            node=node.name, output=output, complaint=complaint, asked_at=asked_at, answered_at=clock()
        )

    with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
        return tuple(pool.map(ask, nodes))
