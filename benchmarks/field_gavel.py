"""Policies on Gavel's own trace (OSDI 2020): average completion times beside those that its notebook prints.

    python -m benchmarks.field_gavel simulation_throughputs.json [--policies gavel-las,gavel-las-agnostic]
        [--jobs-per-hour 4.0,4.8] [--seeds 0,1,2] [--processes 2]

The file is that of the public repository stanford-futuredata/gavel. There are 36 GPUs of each of three types;
jobs of one GPU arrive on and on, and those from the 4,000th to the 4,999th are counted. Rounds take 360 s,
and moves are free.
"""

from __future__ import annotations

import argparse
import itertools
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
from pollux_slurm.simulator.policies import GandivaPolicy, make_policy

FIRST, LAST = 4000, 5000
# So many more jobs keep the cluster as busy until the last counted job ends.
FOLLOWING = 800
# Hours, by jobs an hour and policy, from the output of its notebook continuous_jobs.ipynb.
PUBLISHED = {
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
    made: SchedulingPolicy = (
        GandivaPolicy(PairRates(read_pair_rates(table)))
        if policy == "gandiva"
        else make_policy(policy, objective="generalized-mean", declared=False)
    )
    began = time.perf_counter()
    result = simulate(jobs, dict(applications), made, CLUSTER)
    counted = result.jobs[FIRST:LAST]
    ended_s = max(job.finished_s or 0.0 for job in counted)
    if ended_s > jobs[-1].submitted_s:
        print(f"{policy} {rate} {seed}: counted jobs outlast the arrivals", flush=True)
    hours = float(np.mean([(job.finished_s or 0.0) - job.job.submitted_s for job in counted])) / 3600
    print(f"  {policy}, seed {seed}: {hours:.2f} h", flush=True)
    return hours, time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", type=Path)
    parser.add_argument("--policies", default=",".join(dict.fromkeys(policy for _, policy in PUBLISHED)))
    parser.add_argument("--jobs-per-hour", default="4.0,4.8")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    rates = [float(rate) for rate in options.jobs_per_hour.split(",")]
    seeds = [int(seed) for seed in options.seeds.split(",")]
    runs = list(itertools.product(rates, options.policies.split(","), seeds))
    with ProcessPoolExecutor(options.processes) as pool:
        tried = [pool.submit(measure, options.table, policy, rate, seed) for rate, policy, seed in runs]
        for at in range(0, len(runs), len(seeds)):
            rate, policy, _ = runs[at]
            found = [one.result() for one in tried[at : at + len(seeds)]]
            hours = [one for one, _ in found]
            published = PUBLISHED.get((rate, policy))
            change = "" if published is None else f"{100 * (np.mean(hours) / published - 1):+.1f} %"
            print(
                f"{rate:g} jobs/h {policy:20} {np.mean(hours):6.2f} h {change:>8} "
                f"({', '.join(f'{one:.2f}' for one in hours)}; {sum(took for _, took in found):.0f} s)",
                flush=True,
            )


if __name__ == "__main__":
    main()
