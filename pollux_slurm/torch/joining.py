"""How a process joins its job's run: process group, claim, what earlier runs have left, reporter."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist

from pollux_slurm.agent.environment import JobEnvironment
from pollux_slurm.agent.lineage import Lineage, claim_run, note_elsewhere
from pollux_slurm.agent.memory import MemoryBound, read_bounds
from pollux_slurm.agent.pacing import CheckpointPace
from pollux_slurm.agent.reporter import Reporter, utc_now
from pollux_slurm.agent.telemetry import Telemetry
from pollux_slurm.errors import CheckpointError, LaunchError, UsageError
from pollux_slurm.store.contract import AgentStore
from pollux_slurm.torch.control import Control
from pollux_slurm.torch.memory import MemoryBounds, device_bytes

# Where rank 0 says whose it is.
_RUN_KEY = "pollux/run"


def join_group(environment: JobEnvironment, backend: str | None) -> bool:
    """Join the process group; False where the script had done so itself."""
    if dist.is_initialized():
        if dist.get_world_size() != environment.world_size:
            raise UsageError("the process group that exists has another size than WORLD_SIZE says")
        return False
    has_gpu = torch.cuda.is_available() and environment.local_rank < torch.cuda.device_count()
    if has_gpu:
        # Every process of a node sees all of its GPUs: `model.cuda()` must mean this one's.
        torch.cuda.set_device(environment.local_rank)
    if backend is None:
        backend = "nccl" if has_gpu else "gloo"
    if environment.world_size == 1:
        # Alone: no address, no port.
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=store, rank=0, world_size=1)
    else:
        rank, world_size = environment.rank, environment.world_size
        store, _, _ = next(iter(dist.rendezvous("env://", rank=rank, world_size=world_size)))  # type: ignore[attr-defined]
        make_sure_of(store, environment)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world_size)
    return True


def make_sure_of(store: Any, environment: JobEnvironment) -> None:
    """Raise `LaunchError` where rank 0 at this address is another run's: its gradients are not ours.

    The port was free when the launcher looked; on a host of two clusters another job may have taken it since.
    """
    parts = (
        environment.token,
        environment.checkpoint_dir,
        environment.restart_count,
        environment.gpus_per_node,
    )
    # The token stays secret: whoever connects can read what is in the store.
    run = hashlib.sha256(repr(parts).encode()).digest()
    if environment.rank == 0:
        store.set(_RUN_KEY, run)
    elif store.get(_RUN_KEY) != run:
        raise LaunchError(
            f"rank {environment.rank} met the processes of another job at the address of its own rank 0; "
            "start the job again (scontrol requeue)"
        )


def claim(
    control: Control[Any], environment: JobEnvironment, directory: Path | None
) -> tuple[Lineage | None, int, Path | None]:
    """Claim the next run on rank 0 and tell the others. Returns lineage (rank 0), run, file to go on from."""
    if directory is None:
        return None, environment.restart_count, None
    lineage: Lineage | None = None
    told: Any = None
    if environment.rank == 0:
        given = environment.checkpoint_dir
        if given is not None and given.absolute() != directory.absolute():
            note_elsewhere(given, restart_count=environment.restart_count)
        lineage = claim_run(
            directory,
            restart_count=environment.restart_count,
            host=socket.gethostname(),
            pid=os.getpid(),
            at=utc_now(),
        )
        told = [lineage.claim.run_number, None if lineage.resume_path is None else str(lineage.resume_path)]
    run_number, resume = control.broadcast(told)
    resume_path = None if resume is None else Path(resume)
    if resume_path is not None and not resume_path.is_file():
        raise CheckpointError(
            f"{resume_path}: rank {environment.rank} on {socket.gethostname()} cannot see it; the checkpoint "
            "directory must be one that all nodes share"
        )
    return lineage, run_number, resume_path


def job_name(environment: JobEnvironment) -> str:
    """Return what the job is called in its log."""
    return "the job" if environment.job_id is None else f"job {environment.job_id}"


def make_reporter(
    environment: JobEnvironment, telemetry: Telemetry, run_number: int, where: Callable[[], str]
) -> Reporter:
    """Return the reporter of rank 0, to the store that the environment names."""
    url, agent = environment.config.store.url, environment.config.agent
    open_store = environment.open_store
    if open_store is None and url is not None and environment.token is not None:

        def open_store() -> AgentStore:
            # Imported in the reporter's thread: no step waits for SQLAlchemy.
            from pollux_slurm.store import open_agent_store

            return open_agent_store(url, keep_connection=agent.keep_connection)

    return Reporter(
        open_store=open_store,
        token=environment.token or "",
        run_number=run_number,
        compose=telemetry.compose,
        report_interval_s=agent.report_interval_s,
        poll_interval_s=agent.poll_interval_s,
        job_name=job_name(environment),
        where=where,
    )


def memory_bounds(control: Control[Any], directory: Path | None) -> MemoryBounds:
    """Return what earlier runs have found not to fit into memory, the same on every replica."""
    told: Any = None
    if control.rank == 0 and directory is not None:
        told = [dataclasses.asdict(bound) for bound in read_bounds(directory)]
    told = control.broadcast(told)
    return MemoryBounds(
        [MemoryBound(**bound) for bound in told or []], smallest_device=min(control.gather(device_bytes()))
    )


def pace_of(interval_s: float | Literal["auto"] | None, mtbf_s: float) -> CheckpointPace | None:
    """Return how often to write a checkpoint, None for never. Raises `UsageError` for no such thing."""
    if not mtbf_s > 0:
        raise UsageError(f"node_mtbf_s must be above 0, not {mtbf_s!r}")
    if interval_s is None:
        return None
    if interval_s == "auto":
        return CheckpointPace(mtbf_s=mtbf_s)
    if not isinstance(interval_s, (int, float)) or not interval_s >= 0:
        raise UsageError(f"checkpoint_interval_s must be seconds, None or 'auto', not {interval_s!r}")
    return CheckpointPace(mtbf_s=mtbf_s, fixed_s=float(interval_s))
