"""Where the checkpoint directory of a job is, how it is created, and what checkpoints will take there."""

from __future__ import annotations

import contextlib
import getpass
from pathlib import Path

from pollux_slurm.agent.checkpoints.disk_space import free_bytes, has_room
from pollux_slurm.agent.checkpoints.lineage import newest_size_bytes
from pollux_slurm.config import CheckpointsConfig
from pollux_slurm.errors import ConfigError, LaunchError
from pollux_slurm.text import bytes_text

_FOLDER = "pollux-checkpoints"


def checkpoints_folder(config: CheckpointsConfig, cwd: Path) -> Path:
    """Return the folder for the checkpoint directories of jobs that name none; `cwd` is the submission's."""
    if config.root is None:
        return cwd / _FOLDER
    named = config.root.replace("%u", getpass.getuser()) if "%u" in config.root else config.root
    try:
        return cwd / Path(named).expanduser()
    except RuntimeError:
        raise ConfigError(f"checkpoints.root {config.root}: there is no such home directory") from None


def make_private_dir(folder: Path) -> list[Path]:
    """Create `folder`, readable by its owner only, and its missing parents.

    Returns the created folders, the deepest first, so that a caller can remove them after a failure. An
    existing folder keeps its mode: its owner may share it with a group.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    created: list[Path] = []
    try:
        for path in reversed(missing):
            path.mkdir(mode=0o700 if path == folder else 0o777, exist_ok=True)
            created.insert(0, path)
    except OSError as error:
        remove_empty_dirs(created)
        raise LaunchError(
            f"checkpoint directory {folder} cannot be created: {error.strerror}; name another one with "
            "--checkpoint-dir, on a file system that all nodes see"
        ) from None
    if not folder.is_dir():
        raise LaunchError(f"checkpoint directory {folder} is not a directory; name another --checkpoint-dir")
    return created


def remove_empty_dirs(folders: list[Path]) -> None:
    """Remove the folders that `make_private_dir` created, as far as they are empty."""
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


def checkpoint_budget(directory: Path, *, num_kept: int) -> str:
    """Return a sentence on the space for a job's checkpoints in `directory`, which need not exist yet.

    Where it has checkpoints of an earlier job, they tell the size.
    """
    size_bytes = newest_size_bytes(directory)
    of_size = f"the size of one ({bytes_text(size_bytes)})" if size_bytes else "the size of one"
    sentence = f"checkpoints take up to {num_kept + 1} times {of_size} in {directory}"
    if size_bytes and not has_room(directory, size_bytes):
        return f"{sentence}, where there is no room for another one: without it the job cannot be moved"
    free = free_bytes(directory)
    return sentence if free is None else f"{sentence}, where {bytes_text(free)} are free"
