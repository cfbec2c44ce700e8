"""How a process joins its job's run: process group, run number, memory bounds of earlier runs, reporter."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist

from pollux_slurm.agent.checkpoints.checkpoint_interval import CheckpointInterval
from pollux_slurm.agent.checkpoints.folder_permissions import who_else_may_write
from pollux_slurm.agent.checkpoints.lineage import Lineage, claim_run, record_checkpoints_elsewhere
from pollux_slurm.agent.checkpoints.out_of_memory import MemoryBound, read_bounds
from pollux_slurm.agent.environment.job_environment import JobEnvironment
from pollux_slurm.agent.measure.report_builder import ReportBuilder
from pollux_slurm.agent.measure.reporter import Reporter, utc_now
from pollux_slurm.errors import CheckpointError, LaunchError, UsageError
from pollux_slurm.store.contract.interface import AgentStore
from pollux_slurm.torch.checkpoint.checkpoint_file import read_checkpoint
from pollux_slurm.torch.coordination.side_channel import SideChannel
from pollux_slurm.torch.failures.memory_bounds import MemoryBounds, device_bytes
from pollux_slurm.torch.regroup.joining_group import init_joining_group

_LOG = logging.getLogger(__name__)
# The key under which rank 0 stores a digest of its run's identity.
_RUN_KEY = "pollux/run"
# torch's own default for ranks that come late.
_MEETING_TIMEOUT = timedelta(minutes=30)
# By then all ranks have met; each sends a few bytes.
_PEERS_TIMEOUT = timedelta(minutes=2)


def join_group(environment: JobEnvironment, backend: str | None) -> bool:
    """Join the process group; return False where the script had done so itself.

    A process that joins a training under way gets a group in which it waits.
    """
    if dist.is_initialized():
        if environment.is_joining:
            raise UsageError(
                "a process that joins a training under way finds a process group: leave "
                "torch.distributed.init_process_group out, this package makes the group"
            )
        if dist.get_world_size() != environment.world_size:
            raise UsageError("the process group that exists has another size than WORLD_SIZE")
        if environment.world_size > 1 and dist.get_backend() == "gloo":
            verify_peers(environment, "gradients", None)
        return False
    if _has_gpu(environment):
        # Every process of a node sees all of its GPUs: `model.cuda()` must mean this one's.
        torch.cuda.set_device(environment.local_rank)
    if environment.is_joining:
        init_joining_group(rank=environment.rank, world_size=environment.world_size)
        return True
    backend = backend or default_backend(environment)
    if environment.world_size == 1:
        # Alone: no address, no port.
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=store, rank=0, world_size=1)
    else:
        rank, world_size = environment.rank, environment.world_size
        store = _meet(environment)
        verify_rank_0(store, environment)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world_size)
        if backend == "gloo":
            verify_peers(environment, "gradients", None)
    return True


def default_backend(environment: JobEnvironment) -> str:
    """Return the backend for gradients: NCCL where this process has a GPU."""
    return "nccl" if _has_gpu(environment) else "gloo"


def _has_gpu(environment: JobEnvironment) -> bool:
    return torch.cuda.is_available() and environment.local_rank < torch.cuda.device_count()


def side_channel_group(environment: JobEnvironment, *, generation: int = 0) -> dist.ProcessGroup | None:
    """Return a gloo group of all ranks for the side channel; None for a job of one rank."""
    if environment.world_size == 1 or environment.is_joining:
        return None
    group: dist.ProcessGroup = dist.new_group(backend="gloo")
    verify_peers(environment, f"control {generation}", group)
    return group


def _meet(environment: JobEnvironment) -> Any:
    """Return the store through which the ranks exchange their addresses."""
    if environment.rendezvous_file is not None:
        store = dist.FileStore(str(environment.rendezvous_file), environment.world_size)  # type: ignore[attr-defined]
        store.set_timeout(_MEETING_TIMEOUT)
        return store
    try:
        store = next(
            iter(dist.rendezvous("env://", rank=environment.rank, world_size=environment.world_size))  # type: ignore[attr-defined]
        )[0]
        # torchrun keeps one store over its restarts (torch 2.13): a rank would find another's former address.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT") or "0"
        return dist.PrefixStore(f"pollux/attempt-{attempt}", store)  # type: ignore[attr-defined]
    except RuntimeError as error:
        if "EADDRINUSE" not in str(error):
            raise
        raise LaunchError(
            f"port {os.environ.get('MASTER_PORT')} of {socket.gethostname()}, where the processes of "
            f"{job_name(environment)} were to meet, has been taken by another process since its start; start "
            "the job again (scontrol requeue)"
        ) from None


def meeting_store(environment: JobEnvironment) -> Any:
    """Return the store through which all ranks have met; None where they are one."""
    if environment.world_size == 1 or environment.is_joining:
        return None
    find = getattr(dist.distributed_c10d, "_get_default_store", None)
    return None if find is None else find()


def verify_rank_0(store: Any, environment: JobEnvironment, *, generation: int = 0) -> None:
    """Raise `LaunchError` where rank 0 at this address belongs to another run, or to another generation.

    Another process may have taken the port since the launcher reserved it.
    """
    parts = (
        environment.secret,
        environment.token,
        environment.checkpoint_dir,
        environment.restart_count,
        environment.gpus_per_node,
        generation,
    )
    # A digest, because whoever connects can read the store.
    run = hashlib.sha256(repr(parts).encode()).digest()
    if environment.rank == 0:
        store.set(_RUN_KEY, run)
    elif store.get(_RUN_KEY) != run:
        raise LaunchError(
            f"rank {environment.rank} met the processes of another job at the address of its own rank 0; "
            "start the job again (scontrol requeue)"
        )


def verify_peers(environment: JobEnvironment, name: str, group: dist.ProcessGroup | None) -> None:
    """Raise `LaunchError` where a connection of a gloo group leads to a process that is no rank of this run.

    Gloo identifies its connections by a number that is easy to guess. An untrusted process that connects to a
    rank sooner than another rank does would get the data for that one. So each rank proves to each other that
    it knows the secret, before anything else is sent; `name` is the group's, so that no proof serves twice.
    """
    secret = environment.secret or environment.token
    if secret is None:
        return
    rank, ranks = environment.rank, range(environment.world_size)

    def proof(sender: int, receiver: int) -> list[int]:
        text = f"{name} {environment.restart_count} {sender} {receiver}"
        return list(hmac.digest(secret.encode(), text.encode(), "sha256"))

    sent = torch.tensor([proof(rank, peer) for peer in ranks], dtype=torch.uint8)
    got = torch.empty_like(sent)
    try:
        dist.all_to_all_single(got, sent, group=group, async_op=True).wait(_PEERS_TIMEOUT)
    except RuntimeError as error:
        raise LaunchError(_wrong_peer(environment, str(error).splitlines()[0])) from None
    if got.tolist() != [proof(peer, rank) for peer in ranks]:
        raise LaunchError(_wrong_peer(environment, "it does not know the secret of this run"))


def _wrong_peer(environment: JobEnvironment, why: str) -> str:
    return (
        f"rank {environment.rank} is connected to a process that is not a rank of its run ({why}); start the "
        "job again (scontrol requeue)"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStart:
    """How a run starts: its number, and the states of the checkpoint that it goes on from.

    Finding and reading them took `restore_s`, None without a checkpoint. `lineage` is rank 0's alone.
    """

    run_number: int
    lineage: Lineage | None
    states: Mapping[str, Any]
    restore_s: float | None

    @property
    def is_resumed(self) -> bool:
        return self.restore_s is not None


def start_run(
    side_channel: SideChannel[Any], environment: JobEnvironment, directory: Path | None
) -> RunStart:
    """Claim the next run number on rank 0, for all, and read the checkpoint on each."""
    started = time.perf_counter()
    lineage, run_number, resume_path = claim_next_run(side_channel, environment, directory)
    states = {} if resume_path is None else read_checkpoint(resume_path)
    restore_s = None if resume_path is None else time.perf_counter() - started
    if lineage is not None and lineage.claim.resumed_from is not None:
        _LOG.info(
            "%s goes on from the checkpoint of its run %d, with %d replicas",
            *(job_name(environment), lineage.claim.resumed_from.run_number + 1, environment.world_size),
        )
    return RunStart(run_number=run_number, lineage=lineage, states=states, restore_s=restore_s)


def claim_next_run(
    side_channel: SideChannel[Any], environment: JobEnvironment, directory: Path | None
) -> tuple[Lineage | None, int, Path | None]:
    """Claim the next run number on rank 0, for all. Returns lineage (rank 0), run number, file to resume."""
    if directory is None or environment.is_joining:
        return None, environment.restart_count, None
    lineage: Lineage | None = None
    claimed: Any = None
    if environment.rank == 0:
        given = environment.checkpoint_dir
        if given is not None and given.absolute() != directory.absolute():
            record_checkpoints_elsewhere(given, restart_count=environment.restart_count)
        lineage = claim_here(environment, directory)
        others = who_else_may_write(directory) if lineage.claim.run_number == 0 else None
        if others is not None:
            _LOG.warning(
                "%s, and so can change what %s goes on from: checkpoints are safe where only you may write, "
                "in all folders above, too",
                *(others, job_name(environment)),
            )
        resume_from = lineage.resume_path
        claimed = [lineage.claim.run_number, None if resume_from is None else str(resume_from)]
    run_number, resume = side_channel.broadcast(claimed)
    resume_path = None if resume is None else Path(resume)
    if resume_path is not None and not resume_path.is_file():
        raise CheckpointError(
            f"{resume_path}: rank {environment.rank} on {socket.gethostname()} cannot see it; the checkpoint "
            "directory must be one that all nodes share"
        )
    return lineage, run_number, resume_path


def claim_here(environment: JobEnvironment, directory: Path, *, goes_on_from: int | None = None) -> Lineage:
    """Claim the next run number for this process: see `claim_run`."""
    return claim_run(
        directory,
        restart_count=environment.restart_count,
        host=socket.gethostname(),
        pid=os.getpid(),
        at=utc_now(),
        num_kept=environment.config.checkpoints.keep,
        goes_on_from=goes_on_from,
    )


def job_name(environment: JobEnvironment) -> str:
    """Return the job's name in its log."""
    return "the job" if environment.job_id is None else f"job {environment.job_id}"


def make_reporter(
    environment: JobEnvironment, report_builder: ReportBuilder, run_number: int, where: Callable[[], str]
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
        compose=report_builder.compose,
        report_interval_s=agent.report_interval_s,
        poll_interval_s=agent.poll_interval_s,
        job_name=job_name(environment),
        where=where,
    )


def memory_bounds(side_channel: SideChannel[Any], directory: Path | None) -> MemoryBounds:
    """Return the memory bounds that earlier runs have written, the same on every replica."""
    bounds: Any = None
    if side_channel.rank == 0 and directory is not None:
        bounds = [dataclasses.asdict(bound) for bound in read_bounds(directory)]
    bounds = side_channel.broadcast(bounds)
    return MemoryBounds(
        [MemoryBound(**bound) for bound in bounds or []],
        smallest_device=min(side_channel.gather(device_bytes())),
    )


def make_checkpoint_interval(
    interval_s: float | Literal["auto"] | None, mtbf_s: float
) -> CheckpointInterval | None:
    """Return how often to write a checkpoint, None for never. Raises `UsageError` for invalid settings."""
    if not mtbf_s > 0:
        raise UsageError(f"node_mtbf_s must be above 0, not {mtbf_s!r}")
    if interval_s is None:
        return None
    if interval_s == "auto":
        return CheckpointInterval(mtbf_s=mtbf_s)
    if not isinstance(interval_s, (int, float)) or not interval_s >= 0:
        raise UsageError(f"checkpoint_interval_s must be seconds, None or 'auto', not {interval_s!r}")
    return CheckpointInterval(mtbf_s=mtbf_s, fixed_s=float(interval_s))
