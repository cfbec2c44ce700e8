"""What a script may ask about the job it is part of; also before `init_process_group`.

The names are those of AdaptDL's `env`. Everything is read from the environment at each call.
"""

from __future__ import annotations

import os
from pathlib import Path

from pollux_slurm.agent.launch.environment import read_environment


def checkpoint_path() -> str | None:
    """Return the directory that `pollux run` gave for checkpoints; None without one."""
    return os.environ.get("POLLUX_CHECKPOINT_DIR") or None


def share_path() -> str | None:
    """Return a directory of the job that all replicas and all its runs share; None without checkpoints.

    It lies beside the checkpoints and is made by the first call.
    """
    directory = checkpoint_path()
    if directory is None:
        return None
    path = Path(directory) / "share"
    path.mkdir(parents=True, exist_ok=True)
    return str(path)


def job_id() -> str | None:
    """Return Slurm's id of the job; None outside of Slurm."""
    return os.environ.get("SLURM_JOB_ID") or None


def master_addr() -> str:
    """Return the address of rank 0."""
    return os.environ.get("MASTER_ADDR") or "127.0.0.1"


def master_port() -> int:
    """Return the port of rank 0, 0 where none is needed."""
    return int(os.environ.get("MASTER_PORT") or 0)


def replica_rank() -> int:
    """Return this replica's number, from 0."""
    return read_environment(os.environ).rank


def num_replicas() -> int:
    """Return how many replicas there are in this run."""
    return read_environment(os.environ).world_size


def num_nodes() -> int:
    """Return on how many nodes they are."""
    return read_environment(os.environ).num_nodes


def num_restarts() -> int:
    """Return how often Slurm has started the job again."""
    return read_environment(os.environ).restart_count
