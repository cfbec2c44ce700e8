"""What a job's checkpoints will take on disk, told at its submission."""

from __future__ import annotations

from pathlib import Path

from pollux_slurm.agent.checkpoints.disk_space import free_bytes, has_room
from pollux_slurm.agent.checkpoints.lineage import newest_size_bytes
from pollux_slurm.text import bytes_text


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
