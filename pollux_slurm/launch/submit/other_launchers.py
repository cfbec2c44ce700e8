"""srun and mpirun where `pollux run` should be, or within it.

`pollux run` starts a process on each GPU, through srun. Within it, another srun waits for the GPUs that its
own step holds, until the job's time limit. Without it, the processes that srun or mpirun starts know nothing
of each other: each would train alone, in the same checkpoint directory.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import PurePath

_LAUNCHERS = frozenset(
    {"srun", "mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "jsrun", "aprun", "ibrun"}
)
_ENV_WITH_VALUE = frozenset({"-u", "-C"})
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_COMMAND = re.compile(r"[^\n;|&]+")
_RUN = re.compile(r"\b(?:pollux|pollux_slurm)[ \t]+run\b")
_COMMAND_OF_RUN = re.compile(r"[^#]*?[ \t]--[ \t]+(.+)", re.DOTALL)
_STARTED = re.compile(
    rf"^[ \t]*(?:\w+=\S*[ \t]+)*({'|'.join(re.escape(name) for name in sorted(_LAUNCHERS))})[ \t]([^\n]*)",
    re.MULTILINE,
)
_CURE = "write: pollux run -- python train.py"


def launcher_of(command: Sequence[str]) -> str | None:
    """Return which launcher a command starts, also through env; None for another command."""
    words = list(command)
    if words and PurePath(words[0]).name == "env":
        words = words[1:]
        while words and (words[0].startswith("-") or _ASSIGNMENT.fullmatch(words[0])):
            words = words[2 if words[0] in _ENV_WITH_VALUE else 1 :]
    name = PurePath(words[0]).name if words else ""
    return name if name in _LAUNCHERS else None


def refusal_within_run(command: Sequence[str]) -> str | None:
    """Return why a command cannot be that of `pollux run`; None where it can."""
    name = launcher_of(command)
    if name is None:
        return None
    return (
        f"pollux run -- {name}: pollux run itself starts a process on each GPU of the job, and {name} within "
        f"it would wait for GPUs that are taken; leave {name} and its options out, and {_CURE}"
    )


def refusal_of_script(body: str) -> str | None:
    """Return why the body of a batch script would wait for ever; None where it does not show that."""
    for command in _COMMAND.findall(_logical_lines(body)):
        run = _RUN.search(command)
        match = None if run is None else _COMMAND_OF_RUN.match(command, run.end())
        if match is None:
            continue
        try:
            refusal = refusal_within_run(shlex.split(match[1], comments=True))
        except ValueError:  # a quote that ends on another line
            continue
        if refusal is not None:
            return refusal
    return None


def launcher_without_run(body: str) -> str | None:
    """Return which launcher starts Python in the body of a script; None where none does."""
    for match in _STARTED.finditer(_logical_lines(body)):
        if re.search(r"\b(python[0-9.]*|torchrun|accelerate|deepspeed)\b|\.py\b", match[2]):
            return match[1]
    return None


def _logical_lines(body: str) -> str:
    """Return a script's commands: lines that a backslash joins as one, and no comments."""
    return re.sub(r"(?m)^[ \t]*#.*$", "", body.replace("\\\n", " "))
