"""Loaded by every Python that a job of the run starts: notes, as a file, by what exception a process ended.

A leftover's own output is lost: its srun was stopped when its node was given up.
"""

import os
import sys
import types
from pathlib import Path


def _note(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
    name = "-".join(os.environ.get(key, "0") for key in ("SLURM_JOB_ID", "SLURM_RESTART_COUNT", "LOCAL_RANK"))
    file = Path(os.environ["CHAOS_WITNESS"]) / f"{name}-{os.getpid()}.txt"
    file.write_text(f"{kind.__name__}: {error}\n", encoding="utf-8")
    sys.__excepthook__(kind, error, trace)


if "CHAOS_WITNESS" in os.environ and "LOCAL_RANK" in os.environ:
    sys.excepthook = _note
