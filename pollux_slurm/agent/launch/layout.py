"""How the processes of one run are spread over its nodes, and what each of them is told."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pollux_slurm.errors import LaunchError

STEP_VARIABLE = "POLLUX_STEP"
"""Carries a layout from the batch script's `pollux run` to those in the step."""

SECRET_VARIABLE = "POLLUX_RUN_SECRET"
"""What the processes of a run know, and nobody else."""

RENDEZVOUS_VARIABLE = "POLLUX_RENDEZVOUS_FILE"
"""The file in which the processes of a run on a single node meet."""

JOB_VARIABLE = "POLLUX_JOB_ID"
"""The job that the others were set for: a job that is submitted from inside another inherits them all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What the caller of `pollux run` asks for.

    `num_processes` (on each node) is None for one for each GPU, or one where there is none. The bounds and
    `allow_unconfirmed` are for a job submitted with plain sbatch, None where not given. When a process
    fails, the others get SIGTERM, and `kill_after_s` later SIGKILL.
    """

    num_processes: int | None = None
    checkpoint_dir: Path | None = None
    min_gpus: int | None = None
    max_gpus: int | None = None
    allow_unconfirmed: bool = False
    master_addr: str | None = None
    kill_after_s: float = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLayout:
    """One run's processes. `nodes` holds (node name, processes) in rank order, each with at least one.

    `secret` is what tells its processes from those of strangers. `uses_gpus` tells that a process stands for
    a GPU. `exit_file` is where the first node that fails leaves its exit code, since srun's own is the
    greatest of all nodes'. For `kill_after_s` see `RunOptions`.
    """

    nodes: tuple[tuple[str, int], ...]
    master_addr: str
    master_port: int
    secret: str
    uses_gpus: bool = False
    job_id: str | None = None
    exit_file: Path | None = None
    kill_after_s: float = 15.0

    @property
    def world_size(self) -> int:
        return sum(count for _, count in self.nodes)

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
            },
            separators=(",", ":"),
        )

    @classmethod
    def decode(cls, text: str) -> RunLayout:
        """Read what `encode` wrote. Raises `LaunchError` for anything else."""
        try:
            data = json.loads(text)
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
            )
        except (ValueError, TypeError, KeyError) as error:
            raise LaunchError(
                f"{STEP_VARIABLE} is damaged ({error}): it is set by `pollux run` alone"
            ) from None
        if not layout.nodes or any(count < 1 for _, count in layout.nodes):
            raise LaunchError(f"{STEP_VARIABLE} is damaged (no processes): it is set by `pollux run` alone")
        return layout


def rank_environments(
    layout: RunLayout, node_index: int, environ: Mapping[str, str], *, rendezvous_file: Path | None = None
) -> list[dict[str, str]]:
    """Return the environment of each process of one node: what torch.distributed and the library read.

    `environ` is kept but for what it says of another run. POLLUX_GPUS_PER_NODE lists the processes of each
    node in rank order. `rendezvous_file` is where the processes of a single node meet.
    """
    first_rank = sum(count for _, count in layout.nodes[:node_index])
    local_world_size = layout.nodes[node_index][1]
    common = {key: value for key, value in environ.items() if key not in (STEP_VARIABLE, RENDEZVOUS_VARIABLE)}
    # One thread a process, as torchrun does: otherwise each of them takes all CPUs.
    common.setdefault("OMP_NUM_THREADS", "1")
    common |= {
        "WORLD_SIZE": str(layout.world_size),
        "LOCAL_WORLD_SIZE": str(local_world_size),
        "NODE_RANK": str(node_index),
        "GROUP_RANK": str(node_index),
        "GROUP_WORLD_SIZE": str(len(layout.nodes)),
        "MASTER_ADDR": layout.master_addr,
        "MASTER_PORT": str(layout.master_port),
        SECRET_VARIABLE: layout.secret,
        "POLLUX_GPUS_PER_NODE": ",".join(str(count) for _, count in layout.nodes),
        "POLLUX_RESTART_COUNT": environ.get("SLURM_RESTART_COUNT") or "0",
    }
    if rendezvous_file is not None:
        common[RENDEZVOUS_VARIABLE] = str(rendezvous_file)
    return [
        common | {"RANK": str(first_rank + local), "LOCAL_RANK": str(local)}
        for local in range(local_world_size)
    ]


def without_other_jobs_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` without the token and checkpoints of another job, from inside which this one came."""
    if environ.get(JOB_VARIABLE, environ.get("SLURM_JOB_ID")) == environ.get("SLURM_JOB_ID"):
        return dict(environ)
    foreign = (JOB_VARIABLE, "POLLUX_TOKEN_FILE", "POLLUX_CHECKPOINT_DIR")
    return {key: value for key, value in environ.items() if key not in foreign}
