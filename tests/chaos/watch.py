"""What must hold during a run, checked repeatedly from outside the daemon.

From Slurm: no node has too many GPUs in use. From the processes: no two jobs train on one GPU, and no job
trains in two of its runs at once. A node whose slurmd is lost counts again when it is clean: there steps
outlive their job, which is the injected fault.
"""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pollux_slurm.errors import SlurmError
from pollux_slurm.model import ClusterSnapshot, JobState
from pollux_slurm.slurm.client import SlurmClient
from pollux_slurm.system.process_control import ProcessRecord, is_running, processes_with_environ

_EVERY_S = 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One training process: of which job and start, and on which GPUs of which node.

    `slurm_id` is the job that has the GPUs: the job itself, or its wing. `is_newcomer` is what it began as.
    """

    process: ProcessRecord
    job_id: str
    run: str
    slurm_id: str
    node: str
    gpus: frozenset[str]
    rank: int = 0
    is_newcomer: bool = False
    member: str = ""


def replicas(slurm_conf: str) -> list[Replica]:
    """Return the training processes of a sandbox, found by the variables in their environment."""
    found = []
    for process in processes_with_environ(
        {"SLURM_CONF": slurm_conf}, present=("SLURM_JOB_ID", "SLURMD_NODENAME", "LOCAL_RANK")
    ):
        environ = environ_of(process)
        if environ:
            job_id, run = job_and_run(environ)
            found.append(
                Replica(
                    process=process,
                    job_id=job_id,
                    run=run,
                    slurm_id=environ["SLURM_JOB_ID"],
                    node=environ["SLURMD_NODENAME"],
                    rank=int(environ.get("RANK", "0")),
                    is_newcomer="POLLUX_JOINS" in environ,
                    member=environ.get("POLLUX_MEMBER", ""),
                    gpus=frozenset(filter(None, environ.get("CUDA_VISIBLE_DEVICES", "").split(","))),
                )
            )
    return found


def job_and_run(environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the job, of a wing its anchor, and the start that a process belongs to."""
    run = environ.get("POLLUX_RESTART_COUNT") or environ.get("SLURM_RESTART_COUNT") or "0"
    return environ.get("POLLUX_JOB_ID") or environ["SLURM_JOB_ID"], run


def environ_of(process: ProcessRecord) -> Mapping[str, str]:
    """Return the environment of a process of a job; nothing for any other."""
    try:
        text = Path(f"/proc/{process.pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return {}
    pairs = dict(pair.split("=", 1) for pair in text.split("\0") if "=" in pair)
    return pairs if "SLURM_JOB_ID" in pairs and "SLURMD_NODENAME" in pairs else {}


def oversold(snapshot: ClusterSnapshot) -> list[str]:
    """Return the nodes with more GPUs in use than they have."""
    given: defaultdict[str, int] = defaultdict(int)
    for job in snapshot.jobs:
        if job.state in (JobState.RUNNING, JobState.SUSPENDED):
            for node, gpus in job.allocation.gpus_by_node:
                given[node] += gpus
    return [
        f"{node.name}: {given[node.name]} of {node.num_gpus} GPUs are given to running jobs"
        for node in snapshot.nodes
        if given[node.name] > node.num_gpus
    ]


def overlaps(seen: list[Replica], *, lost_nodes: frozenset[str]) -> list[tuple[str, Replica, Replica]]:
    """Return the pairs of replicas that may not both run, each with the reason."""
    counted = [replica for replica in seen if replica.node not in lost_nodes]
    pairs = []
    for number, one in enumerate(counted):
        for other in counted[number + 1 :]:
            if one.job_id == other.job_id and one.run != other.run:
                pairs.append(
                    (f"job {one.job_id} trains in runs {one.run} and {other.run} at once", one, other)
                )
            elif one.slurm_id != other.slurm_id and one.node == other.node and one.gpus & other.gpus:
                shared = ",".join(sorted(one.gpus & other.gpus))
                both = f"jobs {one.slurm_id} and {other.slurm_id}"
                pairs.append((f"{both} train on GPU {shared} of {one.node} at once", one, other))
    return pairs


@dataclass(slots=True)
class Watch:
    """Checks in a thread between `start` and `stop`, and collects `violations`."""

    slurm: SlurmClient
    slurm_conf: str
    violations: set[str] = field(default_factory=set)
    looks: int = 0
    lost_nodes: frozenset[str] = frozenset()
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=60)

    def _run(self) -> None:
        while not self._stop.wait(_EVERY_S):
            self.look()

    def look(self) -> None:
        """Check once. Without slurmctld only processes are checked."""
        with contextlib.suppress(SlurmError):
            self.violations.update(oversold(self.slurm.snapshot()))
        # It must be seen twice: a node may just be failing, or a process ending.
        lost = self.lost_nodes
        for word, one, other in overlaps(replicas(self.slurm_conf), lost_nodes=lost):
            still = is_running(one.process) and is_running(other.process)
            if still and not {one.node, other.node} & self.lost_nodes:
                self.violations.add(word)
        self.looks += 1
