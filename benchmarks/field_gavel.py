"""Policies on Gavel's own traces (OSDI 2020), beside what its notebooks print.

    python -m benchmarks.field_gavel simulation_throughputs.json [--policies gavel-las,gavel-las-agnostic]
        [--jobs-per-hour 4.0,4.8] [--seeds 0,1,2] [--processes 2]
    python -m benchmarks.field_gavel simulation_throughputs.json --makespan [--jobs 100,200]

The file is that of the public repository stanford-futuredata/gavel. There are 36 GPUs of each of three types.
Rounds take 360 s, and moves are free. Jobs of one GPU arrive on and on, and the average completion time is of
the 4,000th to the 4,999th. With --makespan, jobs of one to eight GPUs are all there from the start.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from pollux_slurm.simulator import Cluster, NodeGroup, simulate
from pollux_slurm.simulator.engine.cluster import SchedulingPolicy
from pollux_slurm.simulator.engine.sharing import PairRates
from pollux_slurm.simulator.inputs.rate_tables import (
    generate_gavel_workload,
    read_pair_rates,
    read_rate_table,
)
from pollux_slurm.simulator.policies import AntManPolicy, GandivaPolicy, make_policy

FIRST, LAST = 4000, 5000
# So many more jobs keep the cluster as busy until the last counted job ends.
FOLLOWING = 800
# Hours, by jobs an hour and policy, from the output of its notebook continuous_jobs.ipynb.
PUBLISHED: dict[tuple[float, str], float] = {
    (4.0, "gavel-las"): 16.82,
    (4.0, "gavel-las-agnostic"): 23.49,
    (4.0, "gavel-ftf"): 17.57,
    (4.0, "gavel-ftf-agnostic"): 23.43,
    (4.8, "gavel-las"): 18.97,
    (4.8, "gavel-las-agnostic"): 35.79,
    (4.8, "gavel-ftf"): 20.43,
    (4.8, "gavel-ftf-agnostic"): 34.93,
    (4.0, "gandiva"): 18.88,
    (4.8, "gandiva"): 30.46,
}
# Makespans in hours, by jobs and policy, from the output of makespan.ipynb. Gandiva is missing: it gives jobs
# GPUs whose memory is too small.
PUBLISHED_MAKESPANS: dict[tuple[float, str], float] = {
    (100, "gavel-makespan"): 161.16,
    (200, "gavel-makespan"): 161.16,
    (300, "gavel-makespan"): 161.16,
    (400, "gavel-makespan"): 161.29,
    (500, "gavel-makespan"): 169.42,
    (600, "gavel-makespan"): 194.99,
    (700, "gavel-makespan"): 244.23,
}
MOST_GPUS = 8
CLUSTER = Cluster(
    groups=tuple(NodeGroup(num_nodes=9, gpus_per_node=4, gpu_type=kind) for kind in ("v100", "p100", "k80")),
    interval_s=360.0,
    restart_delay_s=0.0,
    longest_s=4000 * 86400.0,
)


def measure(table: Path, policy: str, rate: float, seed: int) -> tuple[float, float]:
    """Return the average completion time of the counted jobs in hours, and the seconds that it took."""
    applications = read_rate_table(table)
    jobs = generate_gavel_workload(applications, jobs_per_hour=rate, num_jobs=LAST + FOLLOWING, seed=seed)
    began = time.perf_counter()
    result = simulate(jobs, dict(applications), _made(table, policy), CLUSTER)
    counted = result.jobs[FIRST:LAST]
    late = sum((job.finished_s or 0.0) > jobs[-1].submitted_s for job in counted)
    hours = float(np.mean([(job.finished_s or 0.0) - job.job.submitted_s for job in counted])) / 3600
    print(f"  {policy}, seed {seed}: {hours:.2f} h; {late} counted jobs outlast the arrivals", flush=True)
    return hours, time.perf_counter() - began


def measure_makespan(table: Path, policy: str, num_jobs: float, seed: int) -> tuple[float, float]:
    """Return the end of the last job in hours, and the seconds that it took."""
    applications = read_rate_table(table, most_gpus=MOST_GPUS)
    jobs = generate_gavel_workload(applications, jobs_per_hour=math.inf, num_jobs=int(num_jobs), seed=seed)
    began = time.perf_counter()
    result = simulate(jobs, dict(applications), _made(table, policy), CLUSTER)
    hours = max(job.finished_s or 0.0 for job in result.jobs) / 3600
    return hours, time.perf_counter() - began


def _made(table: Path, policy: str) -> SchedulingPolicy:
    if policy in ("gandiva", "antman"):
        rates = PairRates(read_pair_rates(table))
        return GandivaPolicy(rates) if policy == "gandiva" else AntManPolicy(rates)
    return make_policy(policy, objective="generalized-mean", declared=False)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", type=Path)
    parser.add_argument("--makespan", action="store_true")
    parser.add_argument("--policies")
    parser.add_argument("--jobs-per-hour", default="4.0,4.8")
    parser.add_argument("--jobs", default="100,200,300,400,500,600,700")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    published_h = PUBLISHED_MAKESPANS if options.makespan else PUBLISHED
    loads = options.jobs if options.makespan else options.jobs_per_hour
    unit = "jobs" if options.makespan else "jobs/h"
    measured = measure_makespan if options.makespan else measure
    policies = options.policies.split(",") if options.policies else {policy for _, policy in published_h}
    seeds = [int(seed) for seed in options.seeds.split(",")]
    runs = list(itertools.product(map(float, loads.split(",")), sorted(policies), seeds))
    with ProcessPoolExecutor(options.processes) as pool:
        tried = [pool.submit(measured, options.table, policy, load, seed) for load, policy, seed in runs]
        for at in range(0, len(runs), len(seeds)):
            load, policy, _ = runs[at]
            found = [one.result() for one in tried[at : at + len(seeds)]]
            hours = [one for one, _ in found]
            published = published_h.get((load, policy))
            change = "" if published is None else f"{100 * (np.mean(hours) / published - 1):+.1f} %"
            print(
                f"{load:g} {unit} {policy:20} {np.mean(hours):6.2f} h {change:>8} "
                f"({', '.join(f'{one:.2f}' for one in hours)}; {sum(took for _, took in found):.0f} s)",
                flush=True,
            )


if __name__ == "__main__":
    main()
