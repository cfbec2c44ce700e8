"""The options of `pollux run`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of `pollux run`.

    `num_processes` is per node; None stands for one on each GPU, or one where there is no GPU. `min_gpus`,
    `max_gpus`, `allow_unconfirmed`, `min_run_s`, `kind` and `finish_by` are for jobs submitted with plain
    sbatch. When a process fails, the others get SIGTERM, and SIGKILL `kill_after_s` later. `wrapper` comes
    before the command of each process, `srun_arguments` are further options of srun (`containers.py`). With
    `in_place`, processes may join and leave while the others train.
    """

    num_processes: int | None = None
    checkpoint_dir: Path | None = None
    min_gpus: int | None = None
    max_gpus: int | None = None
    allow_unconfirmed: bool = False
    min_run_s: float | None = None
    kind: str | None = None
    finish_by: datetime | None = None
    master_addr: str | None = None
    kill_after_s: float = 15.0
    wrapper: tuple[str, ...] = ()
    srun_arguments: tuple[str, ...] = ()
    in_place: bool = False
