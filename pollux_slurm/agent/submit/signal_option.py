"""`sbatch --signal`: whether the training processes write a checkpoint on the signal that a user asks for."""

from __future__ import annotations

import re

from pollux_slurm.slurm.sbatch.request import SbatchRequest

_WITH_CHECKPOINT = frozenset({"TERM", "15", "HUP", "1", "USR1", "10", "USR2", "12"})
# A batch script that does something with a signal, or is replaced by a program that does.
_HANDLES = re.compile(r"^[ \t]*(trap|exec)\s", re.MULTILINE)


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
