"""Policies in the setting of Sia's tables (SOSP 2023): 16 nodes of 4 T4, 160 jobs a workload.

    python -m benchmarks.field_sia TRACES WORKLOAD.csv ... [--policies pollux,sia,shockwave]
        [--three-types] [--processes 1]

TRACES is the folder of traces of the Pollux artifact; with --three-types (6 nodes of 4 T4, 3 of 8 RTX 2080,
2 of 8 A100) sia-simulator/traces of the repository below. Workloads are those in the folder
sia-simulator/workloads/philly of the public repository siasosp23/artifacts, which has no licence: read them
from a clone. As there, steps take 1.8 times as long for cifar10 and 1.2 times for the others, and restarts
take 15 to 250 s by application. Rounds take 360 s for Gavel's policies and Shockwave, 60 s for the others.
`shockwave` plans as there. `pollux` has objective osdi21. `pollux-one-model` is Pollux as it ran there: it
takes all GPUs for one type, and fits one model of a job to what it measured on any. Pollux with another
objective is named so, with what jobs tell: `price-rank+declared+kinds`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import cast

from pollux_slurm.goodput import Observation
from pollux_slurm.model import BatchChoice, Objective
from pollux_slurm.policy.objectives.registry import OBJECTIVES
from pollux_slurm.simulator import (
    Application,
    Cluster,
    Delays,
    NodeGroup,
    read_application,
    read_workload,
    simulate,
    slurm_rules,
)
from pollux_slurm.simulator.engine.cluster import SchedulingPolicy
from pollux_slurm.simulator.engine.job import SimulatedJob
from pollux_slurm.simulator.engine.measurements import Situation
from pollux_slurm.simulator.inputs.step_times import Placement, StepTime
from pollux_slurm.simulator.policies import PolluxPolicy, ShockwavePolicy, make_policy
from pollux_slurm.simulator.results.summary import Summary, make_outcome

# Average hours that its tables have.
PUBLISHED = {"pollux": 2.0, "sia": 1.9, "gavel-sum": 4.3, "gavel-ftf": 5.4, "shockwave": 3.6}
PUBLISHED_ON_THREE_TYPES = {"pollux": 1.0, "pollux-one-model": 1.0, "sia": 0.6, "gavel-sum": 1.9}
# Types as its traces name them. The T4 are its plain nodes.
THREE_TYPES = (
    NodeGroup(num_nodes=6, gpus_per_node=4, gpu_type="t4"),
    NodeGroup(num_nodes=3, gpus_per_node=8, gpu_type="rtx"),
    NodeGroup(num_nodes=2, gpus_per_node=8, gpu_type="dgx-ext"),
)
SLOWDOWNS = {"cifar10": 1.8, "ncf": 1.5}
OTHER_SLOWDOWN = 1.2
RESTARTS_S = {"cifar10": 50, "deepspeech2": 25, "bert": 120, "yolov3": 80, "imagenet": 250, "ncf": 15}
RULES = slurm_rules(
    delays=Delays(
        notice_s=0.0,
        checkpoint_s=0.0,
        write_bytes_per_s=1e18,
        requeue_s=0.0,
        start_s=0.0,
        launch_s_by_application=RESTARTS_S,
        read_bytes_per_s=1e18,
        backfill_s=0.0,
    ),
    checkpoint_interval_s=None,
    slurm_starts=False,
)


class Slowed:
    """An application whose steps take longer."""

    def __init__(self, application: Application, factor: float) -> None:
        self._application, self._factor = application, factor

    def __getattr__(self, name: str) -> object:
        return getattr(self._application, name)

    def step_time(self, placement: Placement, atomic_batch_size: int, gpu_type: str = "") -> StepTime:
        """Return the time of a step, all of it slowed down."""
        found = self._application.step_time(placement, atomic_batch_size, gpu_type)
        return StepTime(step_s=found.step_s * self._factor, sync_s=found.sync_s * self._factor)


class OneModelPollux(PolluxPolicy):
    """Pollux with one model of a job for all GPU types."""

    def choose_batch(self, job: SimulatedJob) -> BatchChoice:
        """Choose as without types; what a new job measures on one counts for all."""
        if not job.measured.by_type:
            of_all: dict[Situation, Observation] = {}
            job.measured.by_type = {group.gpu_type: of_all for group in THREE_TYPES}
        return super().choose_batch(job)


def measure(traces: Path, workload: Path, policy: str, three_types: bool) -> tuple[Summary, float]:
    """Return the summary of one simulation, and the seconds that it took."""
    applications = {
        name: cast(Application, Slowed(read_application(traces / name), SLOWDOWNS.get(name, OTHER_SLOWDOWN)))
        for name in RESTARTS_S
    }
    jobs = read_workload(workload, applications)
    interval_s = 360.0 if policy == "shockwave" or policy.startswith("gavel") else 60.0
    cluster = Cluster(interval_s=interval_s, groups=THREE_TYPES if three_types else ())
    made: SchedulingPolicy
    if policy == "shockwave":
        made = ShockwavePolicy(as_in_sia=True)
    elif policy == "pollux-one-model":
        made = OneModelPollux(Objective(name="osdi21"))
    elif (name := policy.split("+")[0]) in OBJECTIVES:
        made = PolluxPolicy(Objective(name=name), declared="+declared" in policy, kinds="+kinds" in policy)
    else:
        made = make_policy(policy, objective="osdi21", declared=False)
    began = time.perf_counter()
    result = simulate(jobs, applications, made, cluster, rules=RULES)
    summary = make_outcome(result, policy=policy, objective=None, workload=workload.stem, wall_s=0.0).summary
    print(f"  {policy}, {workload.stem}: {summary.avg_jct_s / 3600:.2f} h", flush=True)
    return summary, time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("traces", type=Path)
    parser.add_argument("workloads", type=Path, nargs="+")
    parser.add_argument("--three-types", action="store_true")
    parser.add_argument("--policies")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    published_h = PUBLISHED_ON_THREE_TYPES if options.three_types else PUBLISHED
    policies = options.policies.split(",") if options.policies else list(published_h)
    with ProcessPoolExecutor(options.processes) as pool:
        runs = {
            policy: [
                pool.submit(measure, options.traces, workload, policy, options.three_types)
                for workload in options.workloads
            ]
            for policy in policies
        }
        for policy, submitted in runs.items():
            found = [one.result() for one in submitted]
            hours = [summary.avg_jct_s / 3600 for summary, _ in found]
            mean, published = statistics.mean(hours), published_h.get(policy)
            change = "" if published is None else f"({100 * (mean / published - 1):+.0f} % of {published})"
            print(
                f"{policy:12} {mean:.2f} h {change} by workload {', '.join(f'{one:.2f}' for one in hours)};"
                f" 99th percentile {statistics.mean(summary.p99_jct_s for summary, _ in found) / 3600:.1f} h,"
                f" makespan {statistics.mean(summary.makespan_s for summary, _ in found) / 3600:.1f} h,"
                f" restarts {statistics.mean(summary.restarts_per_job for summary, _ in found):.1f},"
                f" {sum(took for _, took in found):.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
