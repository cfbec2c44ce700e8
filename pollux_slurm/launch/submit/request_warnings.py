"""What a user must know of a request before it is submitted: none of it is refused."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from pollux_slurm.launch.submit.never_moved import never_moved_because, one_node_because
from pollux_slurm.slurm.sbatch.request import SbatchRequest

_NO_AMOUNT = re.compile(r"0+[KMGT]?", re.IGNORECASE)
_WITH_CHECKPOINT = frozenset({"TERM", "15", "HUP", "1", "USR1", "10", "USR2", "12"})
# A batch script that does something with a signal, or is replaced by a program that does.
_HANDLES = re.compile(r"^[ \t]*(trap|exec)\s", re.MULTILINE)


def request_warnings(request: SbatchRequest) -> Iterator[str]:
    """Yield what the options mean for a job that is to be moved."""
    if (because := never_moved_because(request)) is not None:
        yield f"the job is never moved, and keeps the GPUs that it starts with: {because}"
    elif (because := one_node_because(request)) is not None:
        yield f"the job is given GPUs of one node only, once it is moved: {because}"
    if request.effective_name("mem", "mem-per-cpu", "mem-per-gpu") == "mem" and _NO_AMOUNT.fullmatch(
        request.value("mem") or ""
    ):
        yield (
            f"{request.source_of('mem')}=0 takes all memory of a node, so that no other job gets the node's "
            "other GPUs until the job is moved; request memory by GPU: --mem-per-gpu=..."
        )
    for name in ("container-image", "container-name", "container"):
        if request.given(name):
            yield (
                f"{request.source_of(name)}: the batch script itself will run in the container, with pollux "
                "run, which needs srun there; for the training alone, leave the option out and write in the "
                "script: "
                f"pollux run --srun-args {shlex.quote(f'--{name}={request.value(name)}')} -- python ..."
            )


def signal_warnings(request: SbatchRequest, body: str) -> list[str]:
    """Return what a user must know of a signal by which no process writes a last checkpoint.

    Without one, `pollux sbatch` asks for SIGTERM. `body` is that of the batch script.
    """
    given = request.value("signal")
    if given is None:
        return []
    flags, _, rest = given.rpartition(":")
    name = rest.partition("@")[0].strip().upper().removeprefix("SIG")
    if "B" in flags.upper():
        if _HANDLES.search(body):
            return []
        what = "reaches the batch script alone, which has no trap for it"
    elif name in _WITH_CHECKPOINT:
        return []
    else:
        what = "makes no training process write a checkpoint; TERM, HUP, USR1 and USR2 do"
    return [
        f"{request.source_of('signal')}={given} {what}: at the time limit, work since the last checkpoint is "
        "lost. Leave it out: pollux sbatch asks for SIGTERM in time"
    ]


def missing_log_folders(request: SbatchRequest, cwd: Path, *, made: Path) -> list[str]:
    """Return which folders of --output and --error do not exist: Slurm ends such a job without a log.

    Folders that depend on the job are not known.

    `made` is the folder that the submission makes.
    """
    found: dict[Path, str] = {}
    for name in ("output", "error"):
        parent = Path(request.value(name) or "").parent
        folder = cwd / (request.value("chdir") or "") / parent
        if parent == Path() or "%" in str(parent) or folder.is_relative_to(made):
            continue
        if not folder.is_dir():
            found.setdefault(folder, request.source_of(name))
    return [
        f"{source}: there is no folder {folder} here, and without it Slurm ends the job at its start, "
        f"without a log; make it: mkdir -p {shlex.quote(str(folder))}"
        for folder, source in found.items()
    ]
