"""`pollux run -- torchrun train.py`: one torchrun on each node, which starts a process for each of its GPUs.

torchrun is told by variables (PET_*) what the job has now: nodes, GPUs of this node, and where the nodes
meet. Its own options for that would contradict the next allocation, and are refused.

After SIGTERM torchrun ends with exit code 1, and kills its processes after 30 s, in the middle of a
checkpoint (torch 2.13). So the code becomes 143, and the time an hour: Slurm's own (KillWait) is shorter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath

from pollux_slurm.agent.exit_codes import STOPPED_BY_SIGTERM
from pollux_slurm.agent.launch.layout import RunLayout
from pollux_slurm.agent.launch.rank_environments import rank_environments
from pollux_slurm.errors import UsageError

_MODULES = ("torch.distributed.run", "torch.distributed.launch")
_DECIDED = (
    *("nnodes", "nproc-per-node", "node-rank", "master-addr", "master-port", "standalone"),
    *("rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf"),
)
_WITHOUT_VALUE = frozenset(
    {"standalone", "m", "module", "no-python", "run-path", "virtual-local-rank", "use-env", "h", "help"}
)
# torchrun sets them for its processes.
_OF_A_RANK = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
_SHUTDOWN_TIMEOUT_S = 3600


def starts_torchrun(command: Sequence[str]) -> bool:
    """Return whether `command` is torchrun. Raises `UsageError` for an option that `pollux run` decides."""
    words = _words_of_torchrun(command)
    if words is None:
        return False
    position = 0
    while position < len(words) and words[position].startswith("-"):
        written, has_value, _ = words[position].lstrip("-").replace("_", "-").partition("=")
        # argparse takes abbreviations.
        if len(written) > 1 and any(name.startswith(written) for name in _DECIDED):
            raise UsageError(
                f"torchrun's option {words[position].partition('=')[0]}: leave it out; pollux run tells "
                "torchrun which nodes and GPUs the job has now: pollux run -- torchrun train.py"
            )
        position += 1 if has_value or written in _WITHOUT_VALUE else 2
    return True


def _words_of_torchrun(command: Sequence[str]) -> Sequence[str] | None:
    """Return the words after torchrun; None for another command."""
    program = PurePath(command[0]).name
    if program == "torchrun":
        return command[1:]
    if not program.startswith("python"):
        return None
    place = next((place for place, word in enumerate(command) if place and not _is_flag(word)), len(command))
    is_module = command[place : place + 1] == ["-m"] and command[place + 1 : place + 2]
    return command[place + 2 :] if is_module and command[place + 1] in _MODULES else None


def _is_flag(word: str) -> bool:
    return word.startswith("-") and word not in ("-m", "-c", "-")


def torchrun_environment(layout: RunLayout, node_index: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the torchrun of one node; it extends `environ`."""
    of_rank = rank_environments(layout, node_index, environ)[0]
    common = {key: value for key, value in of_rank.items() if key not in _OF_A_RANK}
    common.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(_SHUTDOWN_TIMEOUT_S))
    return common | {
        "PET_NNODES": str(len(layout.nodes)),
        "PET_NPROC_PER_NODE": str(layout.nodes[node_index][1]),
        "PET_NODE_RANK": str(node_index),
        "PET_MASTER_ADDR": layout.master_addr,
        "PET_MASTER_PORT": str(layout.master_port),
        "PET_RDZV_BACKEND": "static",
    }


def torchrun_exit_code(code: int, *, was_stopped: bool) -> int:
    """Return the exit code of torchrun, or that of processes that were asked to stop."""
    return STOPPED_BY_SIGTERM if was_stopped and code != 0 else code
