"""How long a whole round takes the daemon: a synthetic Slurm, a store in a file, everything but enacting.

python -m benchmarks.daemon_round --nodes 1000 --jobs 2000
"""

from __future__ import annotations

import argparse
import functools
import resource
import tempfile
import threading
import time
from collections.abc import Callable, Collection
from datetime import datetime, timedelta, timezone
from pathlib import Path

from pollux_slurm.config import DaemonConfig
from pollux_slurm.daemon.loop import Daemon
from pollux_slurm.daemon.round import Settings
from pollux_slurm.daemon.service.metrics import totals
from pollux_slurm.goodput import TableCache
from pollux_slurm.model import (
    Allocation,
    BatchLimits,
    ClusterSnapshot,
    GoodputModel,
    GradientStatistics,
    JobState,
    JobTerms,
    SlurmJob,
    SlurmNode,
    ThroughputParameters,
)
from pollux_slurm.policy import decide
from pollux_slurm.slurm.parsing.comment_terms import encode_comment
from pollux_slurm.store import open_store
from pollux_slurm.store.agent_api.token_hashes import hash_token
from pollux_slurm.store.contract.interface import Report, RunPhase

NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)


class StillSlurm:
    """A cluster that always looks the same, and takes no command."""

    def __init__(self, num_nodes: int, num_jobs: int) -> None:
        self._snapshot = ClusterSnapshot(
            read_at=NOON,
            nodes=tuple(_node(index) for index in range(num_nodes)),
            jobs=tuple(_job(number, num_nodes) for number in range(1, num_jobs + 1)),
        )

    def snapshot(self) -> ClusterSnapshot:
        return self._snapshot

    def refresh(self, _job_ids: Collection[str] | None = None) -> ClusterSnapshot:
        return self._snapshot

    def settings(self) -> dict[str, str]:
        return {}

    def configuration(self) -> str:
        return ""

    def guarded(self, _guard: Callable[[], None]) -> StillSlurm:
        return self


def _node(index: int) -> SlurmNode:
    return SlurmNode(
        name=f"n{index:05d}",
        gpu_type="t4",
        num_gpus=4,
        used_gpus=2,
        num_cpus=16,
        used_cpus=2,
        memory_mb=64000,
        used_memory_mb=200,
        available=True,
        state="mixed",
        partitions=("main",),
    )


def _token(number: int) -> str:
    return f"{1000 + number % 50}-token-{number}"


def _job(number: int, num_nodes: int) -> SlurmJob:
    where = f"n{(number - 1) // 2 % num_nodes:05d}"
    user_id = 1000 + number % 50
    terms = JobTerms(token_sha256=hash_token(_token(number)), user_id=user_id, min_gpus=1, max_gpus=16)
    return SlurmJob(
        job_id=str(number),
        name="train",
        user_name=f"user{number % 50}",
        user_id=user_id,
        account=f"account{number % 7}",
        partition="main",
        state=JobState.RUNNING,
        held=False,
        reason="None",
        comment=encode_comment("", terms),
        allocation=Allocation.of({where: 1}),
        requested_gpus=1,
        num_cpus=1,
        cpus_per_gpu=1,
        memory_per_gpu_mb=100,
        cpus_by_node=((where, 1),),
        memory_mb_by_node=((where, 100),),
        restart_count=0,
        submitted_at=NOON - timedelta(hours=1),
        started_at=NOON - timedelta(minutes=50),
        ended_at=None,
        time_limit_s=None,
        exit_code=None,
    )


def _report(number: int) -> Report:
    speed = 0.001 * (1 + number % 9 / 10)
    return Report(
        run_number=0,
        restart_count=0,
        sequence=1,
        phase=RunPhase.TRAINING,
        gpus_per_node=(1,),
        model=GoodputModel(
            limits=BatchLimits(initial_batch_size=64, max_batch_size=1024, max_atomic=256),
            statistics=GradientStatistics(sqr=1.0, var=5.0 + number % 40),
            throughput=ThroughputParameters(
                alpha_g=0.02, beta_g=speed, alpha_n=0.02, beta_n=0.001, alpha_l=0.01, beta_l=0.001, gamma=1.5
            ),
            max_gpus_seen=1 + number % 8,
            max_nodes_seen=1,
        ),
        throughput=100.0,
        efficiency=0.9,
        num_steps=5,
        first_step_s=3.0,
    )


def main() -> None:
    """Hold rounds on one cluster and print each one's time, by phase."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(f"sqlite:///{Path(folder)}/pollux.db", create=True)
        daemon = Daemon(
            slurm=StillSlurm(options.nodes, options.jobs),  # type: ignore[arg-type]
            store=store,
            settings=Settings(
                config=DaemonConfig(shadow=True), decide=functools.partial(decide, tables=TableCache())
            ),
            owner="benchmark",
            wall_clock=lambda: NOON,
            monotonic=time.monotonic,
            stop=threading.Event(),
        )
        daemon.round()  # registers the jobs
        for number in range(1, options.jobs + 1):
            store.agent.report(_token(number), _report(number), at=NOON)
        for _ in range(options.rounds):
            before = totals(daemon.metrics.phases)
            began_cpu = time.process_time()
            result = daemon.round()
            phases = {
                phase: seconds - before.get((phase,), 0.0)
                for (phase,), seconds in totals(daemon.metrics.phases).items()
            }
            shown = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in sorted(phases.items()))
            cpu_s = time.process_time() - began_cpu
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            print(f"{result.num_jobs} jobs, {result.num_moves} moved: {shown}; {cpu_s:.2f} s CPU, {peak} MiB")
        store.close()


if __name__ == "__main__":
    main()
