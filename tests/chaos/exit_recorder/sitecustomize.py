"""Loaded by every Python process of a job: writes the exception that ended the process into a file.

A leftover's own output is lost, since its srun was stopped when its node was marked DOWN.
"""

import os
import sys
import types
from pathlib import Path


def _record(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
    name = "-".join(os.environ.get(key, "0") for key in ("SLURM_JOB_ID", "SLURM_RESTART_COUNT", "LOCAL_RANK"))
    file = Path(os.environ["CHAOS_EXIT_RECORDS"]) / f"{name}-{os.getpid()}.txt"
    file.write_text(f"{kind.__name__}: {error}\n", encoding="utf-8")
    sys.__excepthook__(kind, error, trace)


if "CHAOS_EXIT_RECORDS" in os.environ and "LOCAL_RANK" in os.environ:
    sys.excepthook = _record
