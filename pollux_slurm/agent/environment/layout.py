"""How the processes of one run are distributed over its nodes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pollux_slurm.errors import LaunchError
from pollux_slurm.json_texts import parse_json

STEP_VARIABLE = "POLLUX_STEP"
"""Passes the layout from the batch script's `pollux run` to those in the step."""

SECRET_VARIABLE = "POLLUX_RUN_SECRET"
"""A secret that only the processes of one run know."""

RANK_VARIABLE = "POLLUX_RANK"
"""The rank of a process that `pollux run` has started; another launcher between the two changes RANK only."""

RENDEZVOUS_VARIABLE = "POLLUX_RENDEZVOUS_FILE"
"""The file of torch.distributed's rendezvous for a run on a single node."""

MEMBERSHIP_VARIABLE = "POLLUX_MEMBERSHIP"
"""The folder of the membership of a training that can regroup, or `STORE`."""

STORE = "store"
"""Its value for a training that the daemon plans."""

MEMBER_VARIABLE = "POLLUX_MEMBER"
"""This process's id in it."""

ADDRESS_VARIABLE = "POLLUX_ADDRESS"
"""The address by which other nodes reach this process's: members of a training in the store meet there."""

JOINS_VARIABLE = "POLLUX_JOINS"
"""The number of the generation that this process was started for."""

JOB_VARIABLE = "POLLUX_JOB_ID"
"""The job that the variables were set for: a job submitted from inside another job inherits them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMembership:
    """The generation that the processes of a run begin in, or join: one run of several jobs of Slurm.

    `members` has (id, node name) of all members in rank order, `own` the ids of those that this run starts,
    node by node. `addresses` are those of the run's nodes. `joins` is the generation's number for newcomers.
    """

    members: tuple[tuple[str, str], ...]
    own: tuple[str, ...]
    addresses: tuple[str, ...]
    joins: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLayout:
    """One run's processes. `nodes` has (node name, number of processes) in rank order, at least one each.

    With `uses_gpus`, there is one process for each GPU. The first node that fails writes its exit code to
    `exit_file`, since srun returns the greatest of all nodes'. When a process
    fails, the others get SIGTERM, and SIGKILL `kill_after_s` later.
    With `is_wrapped`, the command begins with a wrapper. With `starts_torchrun` it is torchrun, once on each
    node. `required_paths` must be visible on each node. `restart_count` is the training's where that is not
    Slurm's: in a wing. With a `membership`, processes may join and leave.
    """

    nodes: tuple[tuple[str, int], ...]
    master_addr: str
    master_port: int
    secret: str
    uses_gpus: bool = False
    job_id: str | None = None
    exit_file: Path | None = None
    kill_after_s: float = 15.0
    is_wrapped: bool = False
    starts_torchrun: bool = False
    required_paths: tuple[Path, ...] = ()
    restart_count: int | None = None
    membership: RunMembership | None = None

    @property
    def world_size(self) -> int:
        return sum(count for _, count in self.nodes)

    def end_file(self, node_index: int) -> Path | None:
        """Return the file that a wing's node makes once all its processes have ended with 0.

        srun also returns 0 where it is told that a node has failed, though the processes go on there (22.05).
        """
        if self.exit_file is None or self.restart_count is None:
            return None
        return self.exit_file.with_name(f"{self.exit_file.name}-{node_index}")

    def encode(self) -> str:
        """Return the layout as one line of JSON."""
        return json.dumps(
            {
                "nodes": self.nodes,
                "addr": self.master_addr,
                "port": self.master_port,
                "secret": self.secret,
                "gpus": self.uses_gpus,
                "job": self.job_id,
                "exit": None if self.exit_file is None else str(self.exit_file),
                "kill_after_s": self.kill_after_s,
                "wrapped": self.is_wrapped,
                "torchrun": self.starts_torchrun,
                "paths": [str(path) for path in self.required_paths],
                "restart": self.restart_count,
                "members": None if self.membership is None else asdict(self.membership),
            },
            separators=(",", ":"),
        )

    @classmethod
    def decode(cls, text: str) -> RunLayout:
        """Return the layout that `encode` wrote. Raises `LaunchError` for anything else."""
        try:
            data = parse_json(text)
            exit_file = data["exit"]
            layout = cls(
                nodes=tuple((str(name), int(count)) for name, count in data["nodes"]),
                master_addr=str(data["addr"]),
                master_port=int(data["port"]),
                secret=str(data["secret"]),
                uses_gpus=bool(data["gpus"]),
                job_id=None if data["job"] is None else str(data["job"]),
                exit_file=None if exit_file is None else Path(str(exit_file)),
                kill_after_s=float(data["kill_after_s"]),
                is_wrapped=bool(data["wrapped"]),
                starts_torchrun=bool(data["torchrun"]),
                required_paths=tuple(Path(str(path)) for path in data["paths"]),
                restart_count=None if data["restart"] is None else int(data["restart"]),
                membership=None if data["members"] is None else _membership(data["members"]),
            )
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            raise LaunchError(f"{STEP_VARIABLE} is malformed ({error}): only `pollux run` sets it") from None
        if not layout.nodes or any(count < 1 for _, count in layout.nodes):
            raise LaunchError(f"{STEP_VARIABLE} is malformed (no processes): only `pollux run` sets it")
        return layout


def _membership(data: dict[str, Any]) -> RunMembership:
    return RunMembership(
        members=tuple((str(name), str(node)) for name, node in data["members"]),
        own=tuple(str(name) for name in data["own"]),
        addresses=tuple(str(address) for address in data["addresses"]),
        joins=None if data["joins"] is None else int(data["joins"]),
    )
