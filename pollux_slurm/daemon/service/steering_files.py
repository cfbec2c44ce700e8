"""Who else may change what a daemon obeys: its settings file, Slurm's commands, and its templates."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from pollux_slurm.agent.checkpoints.folder_permissions import who_else_may_change
from pollux_slurm.config import Config
from pollux_slurm.errors import ConfigError
from pollux_slurm.resources import resource_dir

_COMMANDS = ("sacct", "sacctmgr", "sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun")
CURE = "whoever may can command a daemon: give it to root or the daemon's user, and run chmod go-w on it"


def who_else_steers(config: Config) -> str | None:
    """Return which file others may change, and who; None where only this user and root may."""
    found = ((name, who_else_may_change(path)) for name, path in _steering_files(config))
    return next((f"{name}: {others}" for name, others in found if others is not None), None)


def refuse_others_for_root(config: Config) -> None:
    """Raise `ConfigError` where this is root, and others may change what root would obey."""
    others = who_else_steers(config) if os.geteuid() == 0 else None
    if others is not None:
        raise ConfigError(f"{others}; {CURE}")


def _steering_files(config: Config) -> Iterator[tuple[str, Path]]:
    if config.path is not None:
        yield "the settings", config.path
    if config.slurm.bin_dir is not None:
        folder = Path(config.slurm.bin_dir)
        yield from (("slurm.bin_dir", path) for path in (folder, *(folder / name for name in _COMMANDS)))
    if config.templates.dir is not None:
        folder, ours = Path(config.templates.dir), resource_dir("templates")
        names = (path.relative_to(ours) for path in ours.rglob("*"))
        yield from (("templates.dir", path) for path in (folder, *(folder / name for name in names)))
