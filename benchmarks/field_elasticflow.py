"""Deadlines that policies meet on the generated trace of ElasticFlow (ASPLOS 2023), its figure of 100 jobs.

    python -m benchmarks.field_elasticflow throughputs_A100 [--policies elasticflow,edf] [--jobs 100]
        [--seed 1] [--mean-interval 1500] [--tightness 1.5] [--nodes 16]

The folder is that of the public repository pkusys/ElasticFlow. Nodes have 8 GPUs, rounds take 240 s, and
moves are free, as in its simulation.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from pollux_slurm.simulator import Cluster, NodeGroup, simulate
from pollux_slurm.simulator.inputs.elasticflow_trace import (
    GPU_TYPE,
    generate_elasticflow_workload,
    read_elasticflow_tables,
)
from pollux_slurm.simulator.policies import make_policy


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", type=Path)
    parser.add_argument("--policies", default="elasticflow,edf,gavel-ftf,themis")
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mean-interval", type=float, default=1500.0)
    parser.add_argument("--tightness", type=float, default=1.5)
    parser.add_argument("--nodes", type=int, default=16)
    options = parser.parse_args()
    applications = read_elasticflow_tables(options.tables)
    jobs = generate_elasticflow_workload(
        applications,
        num_jobs=options.jobs,
        mean_interval_s=options.mean_interval,
        seed=options.seed,
        tightness=options.tightness,
    )
    group = NodeGroup(num_nodes=options.nodes, gpus_per_node=8, gpu_type=GPU_TYPE)
    cluster = Cluster(groups=(group,), interval_s=240.0, restart_delay_s=0.0)
    for name in options.policies.split(","):
        began = time.perf_counter()
        result = simulate(
            jobs,
            dict(applications),
            make_policy(name, objective="generalized-mean", declared=False),
            cluster,
        )
        late_s = [(job.finished_s or 0.0) - (job.job.finish_by_s or 0.0) for job in result.jobs]
        hours = np.mean([(job.finished_s or 0.0) - job.job.submitted_s for job in result.jobs]) / 3600
        accepted = sum(job.accepted_s is not None for job in result.jobs)
        print(
            f"{name:12} {sum(late <= 0 for late in late_s)} of {len(jobs)} deadlines"
            f" ({accepted} promised), average {hours:.2f} h, {time.perf_counter() - began:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
