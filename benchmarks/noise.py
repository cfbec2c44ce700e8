"""What noisy measurements cost the published workloads, with the guards against them and without.

The guards: predicted goodput on fewer GPUs is discounted by the prediction error
(`policy/objectives/job_values.py`), and measurements that contradict a job's model count once they are
confirmed (`goodput/fit.py`). POLLUX_TRACES names the artifact's folder of traces, the arguments its
workloads. A job is *short of GPUs* while it has fewer than half as many as it could use of the idle ones; by
true speeds, it can use a size on which a GPU does at least half of what it does at best.

    POLLUX_TRACES=TRACES python -m benchmarks.noise --noise 0.1,0.3 --jobs 2 workload-6.csv
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import os
import statistics
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from pollux_slurm.errors import TraceError
from pollux_slurm.model import Objective, ProblemJob, ThroughputParameters
from pollux_slurm.simulator.engine.cluster import Cluster
from pollux_slurm.simulator.engine.job import GpusByNode, SimulatedJob
from pollux_slurm.simulator.engine.measurements import MeasurementNoise
from pollux_slurm.simulator.engine.simulation import simulate
from pollux_slurm.simulator.experiments.settings import RunSettings
from pollux_slurm.simulator.inputs.applications import Application, read_applications
from pollux_slurm.simulator.inputs.batch_splits import packed_step_time_s, split_batch
from pollux_slurm.simulator.inputs.workload import read_workload
from pollux_slurm.simulator.policies import PolluxPolicy
from pollux_slurm.simulator.policies.adaptive.agents import Agents, _Fit

GPUS_PER_NODE = 4


@functools.cache
def usable_gpus(application: Application, most: int, epoch: int) -> int:
    """Return the largest size of at most so many GPUs that a job can use in an epoch, by true speeds."""
    per_gpu = [_true_rate(application, gpus, epoch) / gpus for gpus in range(1, most + 1)]
    return max((gpus for gpus, one in enumerate(per_gpu, 1) if one >= 0.5 * max(per_gpu)), default=0)


@functools.cache
def _true_rate(application: Application, gpus: int, epoch: int) -> float:
    """Return the progress a second on packed GPUs with the fastest batch, 0 where none was measured."""
    rates = [0.0]
    for size in application.batch_sizes:
        batch = split_batch(application, size, gpus)
        if batch.atomic_batch_size < application.min_atomic:
            continue
        with contextlib.suppress(TraceError):
            step_s = packed_step_time_s(
                application, gpus, GPUS_PER_NODE, batch.atomic_batch_size, batch.accumulation_steps
            )
            rates.append(application.step_progress(batch.global_batch_size, epoch) / step_s)
    return max(rates)


class WatchedPolicy(PolluxPolicy):
    """A policy that notes for how long a job is short of GPUs: `longest_s`."""

    def __init__(self, objective: Objective, *, declared: bool, agents: Agents | None = None) -> None:
        super().__init__(objective, declared=declared, agents=agents)
        self.longest_s = 0.0
        self._since_s: dict[str, float] = {}

    def allocate(
        self, now_s: float, jobs: Sequence[SimulatedJob], cluster: Cluster
    ) -> Mapping[str, GpusByNode]:
        idle = list(cluster.node_gpus)
        # Of each node, the job on it that has several nodes: no other such job can come.
        spread: dict[int, str] = {}
        for job in jobs:
            for node, gpus in job.allocation:
                idle[node] -= gpus
                if len(job.allocation) > 1:
                    spread[node] = job.job.name
        for job in jobs:
            name, epoch = job.job.name, min(job.epoch, job.application.num_epochs - 1)
            within_reach = sum(gpus for node, gpus in enumerate(idle) if spread.get(node, name) == name)
            most = min(job.application.most_gpus, job.num_gpus + within_reach)
            if 2 * job.num_gpus < usable_gpus(job.application, most, epoch) - job.num_gpus:
                self.longest_s = max(self.longest_s, now_s - self._since_s.setdefault(name, now_s))
            else:
                self._since_s.pop(name, None)
        return super().allocate(now_s, jobs, cluster)


class UnguardedAgents(Agents):
    """Agents for which every measurement is confirmed."""

    def _fit(self, job: SimulatedJob, gpu_type: str, previous: ThroughputParameters | None) -> _Fit:
        seen = job.measured.by_type[gpu_type]
        for situation, one in seen.items():
            seen[situation] = replace(one, confirmed=True)
        return super()._fit(job, gpu_type, previous)


class UnguardedPolicy(WatchedPolicy):
    """A policy that ignores prediction errors."""

    def _problem_job(
        self, now_s: float, job: SimulatedJob, names: Sequence[str], *, several: bool
    ) -> ProblemJob:
        return replace(super()._problem_job(now_s, job, names, several=several), prediction_error=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One simulation. `noise` and `outliers` are those of `MeasurementNoise`."""

    workload: Path
    noise: float
    outliers: float
    guarded: bool
    seed: int
    objective: str


def run(case: Case) -> tuple[float, float, float]:
    """Return the average completion time in s, restarts per job, and for how many s one was short of GPUs."""
    applications = read_applications(Path(os.environ["POLLUX_TRACES"]))
    declared = case.objective == "price-rank"
    settings = RunSettings(
        objective=case.objective,
        declared=declared,
        noise=MeasurementNoise(spread=case.noise, outliers=case.outliers),
        seed=case.seed,
    )
    objective = Objective(name=case.objective)
    policy = WatchedPolicy(objective, declared=declared)
    if not case.guarded and settings.noise:
        policy = UnguardedPolicy(objective, declared=declared, agents=UnguardedAgents())
    jobs = read_workload(case.workload, applications)
    done = simulate(jobs, applications, policy, settings.cluster(), rules=settings.make_rules()).jobs
    completion_s = [(job.finished_s or 0.0) - job.job.submitted_s for job in done]
    restarts = statistics.fmean(job.num_restarts or 0 for job in done)
    return statistics.fmean(completion_s), restarts, policy.longest_s


def main() -> None:
    """Print a line for each level of noise: medians over the seeds, their range, and the longest shortage."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="+", type=Path, help="such as workloads/workload-6.csv")
    parser.add_argument("--noise", default="0,0.05,0.1,0.3")
    parser.add_argument("--outliers", default="0,0.05")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--guarded", action="store_true", help="only with the guards")
    parser.add_argument("--objective", default="generalized-mean")
    parser.add_argument("--jobs", type=int, default=1, help="simulations at the same time")
    given = parser.parse_args()
    noise, outliers = ([float(one) for one in text.split(",")] for text in (given.noise, given.outliers))
    guards = (True,) if given.guarded else (False, True)
    places = list(itertools.product(noise, outliers, given.workloads, guards))
    cases = [
        Case(
            workload=workload,
            noise=spread,
            outliers=share,
            guarded=guarded,
            seed=seed,
            objective=given.objective,
        )
        for spread, share, workload, guarded in places
        for seed in map(int, given.seeds.split(","))
    ]
    with ProcessPoolExecutor(max_workers=given.jobs) as pool:
        found = dict(zip(cases, pool.map(run, cases), strict=True))
    heads = [
        f"{path.stem}, {what}" for path in given.workloads for what in ["without", "with"][-len(guards) :]
    ]
    print(f"| noise | outliers | {' | '.join(heads)} |\n|{'---|' * (len(heads) + 2)}")
    for (spread, share), row in itertools.groupby(places, key=lambda place: place[:2]):
        cells = []
        for place in row:
            of_place = [
                found[case]
                for case in cases
                if (case.noise, case.outliers, case.workload, case.guarded) == place
            ]
            seconds, restarts, short_s = zip(*of_place, strict=True)
            cells.append(
                f"{statistics.median(seconds):.0f} ({min(seconds):.0f}–{max(seconds):.0f}), "
                f"{statistics.median(restarts):.2f}, {max(short_s):.0f} s short"
            )
        print(f"| {spread:g} | {share:g} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
