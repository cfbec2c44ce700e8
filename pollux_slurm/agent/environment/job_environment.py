"""What a training process reads from its environment: rank, nodes, checkpoint directory, token, settings.

`pollux run` sets these variables; `torchrun` sets the first ones. A plain `python train.py` has none of them:
it is one process on one node. Nothing is read at import.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pollux_slurm.agent.environment.layout import (
    ADDRESS_VARIABLE,
    JOINS_VARIABLE,
    MEMBER_VARIABLE,
    MEMBERSHIP_VARIABLE,
    RANK_VARIABLE,
    RENDEZVOUS_VARIABLE,
    SECRET_VARIABLE,
    STORE,
)
from pollux_slurm.agent.environment.token import read_token
from pollux_slurm.agent.membership.folder import FolderMembership
from pollux_slurm.agent.membership.generation import Membership
from pollux_slurm.agent.membership.store import StoreMembership
from pollux_slurm.config import Config, load_config
from pollux_slurm.errors import ConfigError, LaunchError
from pollux_slurm.store.contract.interface import AgentStore, MembershipStore
from pollux_slurm.whole_numbers import whole_number

# How many processes each of these has started.
_COUNTS = (("mpirun", "OMPI_COMM_WORLD_SIZE"), ("mpirun", "PMI_SIZE"), ("srun", "SLURM_STEP_NUM_TASKS"))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnvironment:
    """One training process's place in its job.

    `gpus_per_node` is in rank order and sums to `world_size`. `restart_count` is Slurm's. `token` is None
    where nothing is reported (no Slurm, or no store configured). With `strict`, a fault of the training
    ends it. `job_id` is Slurm's, None outside of Slurm. `open_store` replaces the store of the settings.
    `secret` is known to this run's processes only, None where `pollux run` did not start them.
    `rendezvous_file` is for the processes of a single node. `membership` is None where the processes are
    fixed. With `is_joining`, this process waits to join a training under way; rank and nodes are those that
    it is to have.
    """

    rank: int
    world_size: int
    local_rank: int
    gpus_per_node: tuple[int, ...]
    restart_count: int
    checkpoint_dir: Path | None
    token: str | None
    config: Config
    strict: bool
    job_id: str | None = None
    open_store: Callable[[], AgentStore] | None = None
    secret: str | None = None
    rendezvous_file: Path | None = None
    membership: Membership | None = None
    is_joining: bool = False
    accepts_changes: bool = False

    @property
    def num_nodes(self) -> int:
        return len(self.gpus_per_node)


def read_environment(environ: Mapping[str, str]) -> JobEnvironment:
    """Return the place that `environ` describes. Raises `ConfigError` for contradictory values."""
    # A batch script that calls torchrun itself has Slurm's variable only.
    restarts = "POLLUX_RESTART_COUNT" if environ.get("POLLUX_RESTART_COUNT") else "SLURM_RESTART_COUNT"
    world_size = _count(environ, "WORLD_SIZE", 1, low=1)
    rank = _count(environ, "RANK", 0, low=0)
    if rank >= world_size:
        raise ConfigError(f"RANK={rank} is not below WORLD_SIZE={world_size}: start it with `pollux run`")
    if environ.get(RANK_VARIABLE, str(rank)) != str(rank):
        raise ConfigError(
            f"rank {environ[RANK_VARIABLE]} of pollux run has become RANK={rank}: another launcher "
            "(torchrun, accelerate launch, ...) starts processes within those of pollux run; write "
            "`pollux run -- python train.py`, or `pollux run -- torchrun train.py`"
        )
    directory = environ.get("POLLUX_CHECKPOINT_DIR")
    # Trainings in directories of their own may be as many as they like.
    if directory and (refusal := refusal_of_processes(environ)) is not None:
        raise ConfigError(refusal)
    restart_count = _count(environ, restarts, 0, low=0)
    token, config = _token(environ), load_config(environ)
    membership = _membership(environ, token, config, restart_count=restart_count)
    return JobEnvironment(
        rank=rank,
        world_size=world_size,
        local_rank=_count(environ, "LOCAL_RANK", 0, low=0),
        gpus_per_node=_gpus_per_node(environ, world_size),
        restart_count=restart_count,
        checkpoint_dir=Path(directory) if directory else None,
        token=token,
        config=config,
        strict=_switch(environ, "POLLUX_STRICT"),
        accepts_changes=_switch(environ, "POLLUX_ACCEPT_CHANGES"),
        job_id=environ.get("POLLUX_JOB_ID") or environ.get("SLURM_JOB_ID") or None,
        secret=environ.get(SECRET_VARIABLE) or None,
        rendezvous_file=Path(environ[RENDEZVOUS_VARIABLE]) if environ.get(RENDEZVOUS_VARIABLE) else None,
        membership=membership,
        is_joining=membership is not None and membership.joins is not None,
    )


def refusal_of_processes(environ: Mapping[str, str]) -> str | None:
    """Return why this process cannot train: it is one of several that do not know each other. Else None."""
    if environ.get("RANK") or environ.get("WORLD_SIZE"):
        return None
    for name, variable in _COUNTS:
        count = whole_number(environ.get(variable, "")) or 1
        if count > 1:
            return (
                f"{name} has started {count} processes of this training ({variable}), and none of them knows "
                f"its rank: each would train alone, in the same checkpoint directory. In place of {name}, "
                "write: pollux run -- python train.py"
            )
    return None


def _membership(
    environ: Mapping[str, str], token: str | None, config: Config, *, restart_count: int
) -> Membership | None:
    place, member = environ.get(MEMBERSHIP_VARIABLE), environ.get(MEMBER_VARIABLE)
    if not place or not member:
        return None
    joins = _count(environ, JOINS_VARIABLE, 0, low=0) or None
    if place != STORE:
        return FolderMembership(Path(place), member, joins=joins)
    host, url = environ.get(ADDRESS_VARIABLE), config.store.url
    if not host or token is None or url is None:
        raise ConfigError(
            f"{MEMBERSHIP_VARIABLE}={STORE} needs {ADDRESS_VARIABLE}, a token and the URL of the store: only "
            "pollux daemon sets it"
        )

    def open_store() -> MembershipStore:
        # Imported in the membership's thread: no step waits for SQLAlchemy.
        from pollux_slurm.store import open_agent_store

        return open_agent_store(url, keep_connection=config.agent.keep_connection)

    return StoreMembership(
        open_store,
        token,
        member,
        host=host,
        joins=joins,
        restart_count=restart_count,
        poll_interval_s=config.agent.poll_interval_s,
    )


def _count(environ: Mapping[str, str], name: str, default: int, *, low: int) -> int:
    text = environ.get(name, "").strip()
    if not text:
        return default
    number = whole_number(text)
    if number is None or number < low:
        raise ConfigError(f"{name}={text!r} is not a whole number from {low}: start it with `pollux run`")
    return number


def _switch(environ: Mapping[str, str], name: str) -> bool:
    text = environ.get(name, "").strip()
    if text not in ("", "0", "1"):
        raise ConfigError(f"{name}={text!r} is neither 0 nor 1")
    return text == "1"


def _gpus_per_node(environ: Mapping[str, str], world_size: int) -> tuple[int, ...]:
    text = environ.get("POLLUX_GPUS_PER_NODE", "").strip()
    if text:
        counts = tuple(whole_number(part.strip()) or 0 for part in text.split(","))
        if all(counts) and sum(counts) == world_size:
            return counts
        raise ConfigError(f"POLLUX_GPUS_PER_NODE={text!r} does not add up to WORLD_SIZE={world_size}")
    # torchrun: the same number of processes on every node.
    local = _count(environ, "LOCAL_WORLD_SIZE", world_size, low=1)
    return (local,) * (world_size // local) if world_size % local == 0 else (world_size,)


def _token(environ: Mapping[str, str]) -> str | None:
    name = environ.get("POLLUX_TOKEN_FILE")
    if not name:
        return None
    try:
        return read_token(Path(name))
    except LaunchError as error:
        raise ConfigError(f"POLLUX_TOKEN_FILE: {error}") from None


def process_age_s() -> float:
    """Return the seconds since this process started, imports included, from /proc; 0 where unknown."""
    try:
        fields = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2]
        # Field 22 of proc(5), the start in clock ticks since boot; the text after ")" begins at field 3.
        started_s = int(fields.split()[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0
    return max(time.clock_gettime(time.CLOCK_BOOTTIME) - started_s, 0.0)
