"""How a process joins its job's run: process group, claim, what earlier runs have left, reporter."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import logging
import os
import socket
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist

from pollux_slurm.agent.checkpoints.checkpoint_interval import CheckpointInterval
from pollux_slurm.agent.checkpoints.folder_permissions import who_else_may_write
from pollux_slurm.agent.checkpoints.lineage import Lineage, claim_run, record_checkpoints_elsewhere
from pollux_slurm.agent.checkpoints.memory_bounds import MemoryBound, read_bounds
from pollux_slurm.agent.launch.environment import JobEnvironment
from pollux_slurm.agent.measure.report_builder import ReportBuilder
from pollux_slurm.agent.measure.reporter import Reporter, utc_now
from pollux_slurm.errors import CheckpointError, LaunchError, UsageError
from pollux_slurm.store.contract.interface import AgentStore
from pollux_slurm.torch.coordination.side_channel import Control
from pollux_slurm.torch.session.memory_bounds import MemoryBounds, device_bytes

_LOG = logging.getLogger(__name__)
# Where rank 0 says whose it is.
_RUN_KEY = "pollux/run"
# As long as torch itself waits for ranks that come late.
_MEETING_TIMEOUT = timedelta(minutes=30)
# All ranks have met by then, and send a few bytes.
_PEERS_TIMEOUT = timedelta(minutes=2)


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
        store = _meet(environment)
        make_sure_of(store, environment)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world_size)
        if backend == "gloo":
            make_sure_of_peers(environment, "gradients", None)
    return True


def control_group(environment: JobEnvironment) -> dist.ProcessGroup | None:
    """Return a gloo group of all ranks for what they tell each other; None for a rank that is alone."""
    if environment.world_size == 1:
        return None
    group: dist.ProcessGroup = dist.new_group(backend="gloo")
    make_sure_of_peers(environment, "control", group)
    return group


def _meet(environment: JobEnvironment) -> Any:
    """Return the store in which the ranks tell each other their addresses."""
    if environment.rendezvous_file is not None:
        store = dist.FileStore(str(environment.rendezvous_file), environment.world_size)  # type: ignore[attr-defined]
        store.set_timeout(_MEETING_TIMEOUT)
        return store
    try:
        return next(
            iter(dist.rendezvous("env://", rank=environment.rank, world_size=environment.world_size))  # type: ignore[attr-defined]
        )[0]
    except RuntimeError as error:
        if "EADDRINUSE" not in str(error):
            raise
        raise LaunchError(
            f"port {os.environ.get('MASTER_PORT')} of {socket.gethostname()}, where the processes of "
            f"{job_name(environment)} were to meet, has been taken by another process since its start; start "
            "the job again (scontrol requeue)"
        ) from None


def make_sure_of(store: Any, environment: JobEnvironment) -> None:
    """Raise `LaunchError` where rank 0 at this address is another run's: its gradients are not ours.

    What the launcher reserved, another process may have taken since.
    """
    parts = (
        environment.secret,
        environment.token,
        environment.checkpoint_dir,
        environment.restart_count,
        environment.gpus_per_node,
    )
    # The secrets stay secret: whoever connects can read what is in the store.
    run = hashlib.sha256(repr(parts).encode()).digest()
    if environment.rank == 0:
        store.set(_RUN_KEY, run)
    elif store.get(_RUN_KEY) != run:
        raise LaunchError(
            f"rank {environment.rank} met the processes of another job at the address of its own rank 0; "
            "start the job again (scontrol requeue)"
        )


def make_sure_of_peers(environment: JobEnvironment, name: str, group: dist.ProcessGroup | None) -> None:
    """Raise `LaunchError` where at the end of one of a gloo group's connections is no rank of this run.

    Gloo tells its connections apart by a number that is easy to guess: a stranger's process that connects to
    a rank sooner than another rank does would get what is meant for that one. So each rank shows each other
    that it knows the secret, before anything else is sent; `name` tells the groups of a run apart.
    """
    secret = environment.secret or environment.token
    if secret is None:
        return
    rank, everybody = environment.rank, range(environment.world_size)

    def shown(sender: int, receiver: int) -> list[int]:
        text = f"{name} {environment.restart_count} {sender} {receiver}"
        return list(hmac.digest(secret.encode(), text.encode(), "sha256"))

    sent = torch.tensor([shown(rank, peer) for peer in everybody], dtype=torch.uint8)
    got = torch.empty_like(sent)
    try:
        dist.all_to_all_single(got, sent, group=group, async_op=True).wait(_PEERS_TIMEOUT)
    except RuntimeError as error:
        raise LaunchError(_strangers(environment, str(error).splitlines()[0])) from None
    if got.tolist() != [shown(peer, rank) for peer in everybody]:
        raise LaunchError(_strangers(environment, "what it sent was not the secret of this run"))


def _strangers(environment: JobEnvironment, why: str) -> str:
    return (
        f"rank {environment.rank} is connected with a process that is none of its run's ({why}); start the "
        "job again (scontrol requeue)"
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
            record_checkpoints_elsewhere(given, restart_count=environment.restart_count)
        lineage = claim_run(
            directory,
            restart_count=environment.restart_count,
            host=socket.gethostname(),
            pid=os.getpid(),
            at=utc_now(),
        )
        others = who_else_may_write(directory) if lineage.claim.run_number == 0 else None
        if others is not None:
            _LOG.warning(
                "%s, and so can change what %s goes on from: checkpoints are safe where only you may write, "
                "in all folders above, too",
                *(others, job_name(environment)),
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


def memory_bounds(control: Control[Any], directory: Path | None) -> MemoryBounds:
    """Return what earlier runs have found not to fit into memory, the same on every replica."""
    told: Any = None
    if control.rank == 0 and directory is not None:
        told = [dataclasses.asdict(bound) for bound in read_bounds(directory)]
    told = control.broadcast(told)
    return MemoryBounds(
        [MemoryBound(**bound) for bound in told or []], smallest_device=min(control.gather(device_bytes()))
    )


def pace_of(interval_s: float | Literal["auto"] | None, mtbf_s: float) -> CheckpointInterval | None:
    """Return how often to write a checkpoint, None for never. Raises `UsageError` for no such thing."""
    if not mtbf_s > 0:
        raise UsageError(f"node_mtbf_s must be above 0, not {mtbf_s!r}")
    if interval_s is None:
        return None
    if interval_s == "auto":
        return CheckpointInterval(mtbf_s=mtbf_s)
    if not isinstance(interval_s, (int, float)) or not interval_s >= 0:
        raise UsageError(f"checkpoint_interval_s must be seconds, None or 'auto', not {interval_s!r}")
    return CheckpointInterval(mtbf_s=mtbf_s, fixed_s=float(interval_s))
