"""Functions with which a script asks about its job, also before `init_process_group`.

The names are those of AdaptDL's `env`. Each call reads the environment.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path

from pollux_slurm.agent.environment.job_environment import read_environment


def checkpoint_path() -> str | None:
    """Return the job's checkpoint directory; None without one.

    Examples:
        >>> env.checkpoint_path() is None  # a plain `python train.py`
        True
    """
    return os.environ.get("POLLUX_CHECKPOINT_DIR") or None


def share_path() -> str | None:
    """Return a directory that all replicas and runs of the job share; None without checkpoints.

    It is in the checkpoint directory. The first call creates it.

    Examples:
        >>> env.share_path() is None  # a plain `python train.py`
        True
    """
    directory = checkpoint_path()
    if directory is None:
        return None
    path = Path(directory) / "share"
    path.mkdir(parents=True, exist_ok=True)
    return str(path)


def job_id() -> str | None:
    """Return the Slurm job id; None outside of Slurm.

    Examples:
        >>> env.job_id() or "not in Slurm"
        'not in Slurm'
    """
    return os.environ.get("SLURM_JOB_ID") or None


def master_addr() -> str:
    """Return the address of rank 0.

    Examples:
        >>> env.master_addr()
        '127.0.0.1'
    """
    return os.environ.get("MASTER_ADDR") or "127.0.0.1"


def master_port() -> int:
    """Return the port of rank 0; 0 where none is needed.

    Examples:
        >>> env.master_port()  # of a single process
        0
    """
    return int(os.environ.get("MASTER_PORT") or 0)


def replica_rank() -> int:
    """Return this replica's number, from 0.

    Examples:
        >>> if env.replica_rank() == 0:
        ...     print("only once")
        only once
    """
    return read_environment(os.environ).rank


def local_rank() -> int:
    """Return this replica's number on its node, from 0.

    Examples:
        >>> env.local_rank()
        0
    """
    return read_environment(os.environ).local_rank


def node_rank() -> int:
    """Return the number of this replica's node, from 0.

    Examples:
        >>> env.node_rank()
        0
    """
    place = read_environment(os.environ)
    ends = itertools.accumulate(place.gpus_per_node)
    return next(index for index, end in enumerate(ends) if place.rank < end)


def num_replicas() -> int:
    """Return the number of replicas in this run.

    Examples:
        >>> env.num_replicas()
        1
    """
    return read_environment(os.environ).world_size


def num_nodes() -> int:
    """Return the number of nodes of this run.

    Examples:
        >>> env.num_nodes()
        1
    """
    return read_environment(os.environ).num_nodes


def num_restarts() -> int:
    """Return how often Slurm has restarted the job.

    Examples:
        >>> env.num_restarts()
        0
    """
    return read_environment(os.environ).restart_count
