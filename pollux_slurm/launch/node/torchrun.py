"""`pollux run -- torchrun train.py`: one torchrun on each node, which starts a process for each of its GPUs.

torchrun is told by variables (PET_*) what the job has now: nodes, GPUs of this node, and where the nodes
meet. Its own options for that would contradict the next allocation, and are refused.

After SIGTERM torchrun ends with exit code 1, and kills its processes after 30 s, in the middle of a
checkpoint (torch 2.13). So the code becomes 143, and the time an hour: Slurm's own (KillWait) is shorter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath

from pollux_slurm.agent.environment.layout import RANK_VARIABLE, RunLayout
from pollux_slurm.agent.environment.rank_environments import rank_environments
from pollux_slurm.agent.exit_codes import STOPPED_BY_SIGTERM
from pollux_slurm.errors import UsageError

_MODULES = ("torch.distributed.run", "torch.distributed.launch")
_DECIDED = (
    *("nnodes", "nproc-per-node", "node-rank", "master-addr", "master-port", "standalone"),
    *("rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf"),
)
_WITHOUT_VALUE = frozenset(
    {"standalone", "m", "module", "no-python", "run-path", "virtual-local-rank", "use-env", "h", "help"}
)
_PYTHON_MODULE = re.compile(r"-[a-zA-VY-Z]*?m(.*)")  # -m NAME, -mNAME, -um NAME; not -Wmessage
_PYTHON_OPTIONS_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
# torchrun sets them for its processes.
_OF_A_RANK = (
    RANK_VARIABLE,
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
)
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
        is_long = words[position].startswith("--")
        if is_long and any(name.startswith(written) for name in _DECIDED):
            raise UsageError(
                f"torchrun's option {words[position].partition('=')[0]}: leave it out; pollux run tells "
                "torchrun which nodes and GPUs the job has now: pollux run -- torchrun train.py"
            )
        is_joined = not is_long and len(written) > 1  # -r3
        position += 1 if has_value or is_joined or written in _WITHOUT_VALUE else 2
    return True


def _words_of_torchrun(command: Sequence[str]) -> Sequence[str] | None:
    """Return the words after torchrun; None for another command."""
    program = PurePath(command[0]).name
    if program == "torchrun":
        return command[1:]
    if not program.startswith("python"):
        return None
    place = 1
    while place < len(command) and command[place].startswith("-"):
        option = _PYTHON_MODULE.fullmatch(command[place])
        if option is not None:
            words = [option[1], *command[place + 1 :]] if option[1] else command[place + 1 :]
            return words[1:] if words and words[0] in _MODULES else None
        place += 2 if command[place] in _PYTHON_OPTIONS_WITH_VALUE else 1
    return None


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
