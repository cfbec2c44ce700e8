"""What noisy measurements cost the published workloads, with the guards against them and without.

The guards: predicted goodput on fewer GPUs is discounted by the prediction error
(`policy/objectives/job_values.py`), and measurements that contradict a job's model count once they are
confirmed (`goodput/fit.py`). POLLUX_TRACES names the artifact's folder of traces, the arguments its
workloads.

    POLLUX_TRACES=TRACES python -m benchmarks.noise --noise 0.1,0.3 --jobs 2 workload-6.csv
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from pollux_slurm.model import Objective, ProblemJob, ThroughputParameters
from pollux_slurm.simulator.engine.job import SimulatedJob
from pollux_slurm.simulator.engine.measurement_noise import MeasurementNoise
from pollux_slurm.simulator.engine.simulation import simulate
from pollux_slurm.simulator.experiments.settings import RunSettings
from pollux_slurm.simulator.inputs.applications import read_applications
from pollux_slurm.simulator.inputs.workload import read_workload
from pollux_slurm.simulator.policies import PolluxPolicy
from pollux_slurm.simulator.policies.adaptive.agents import Agents, _Fit


class UnguardedAgents(Agents):
    """Agents for which every measurement is confirmed."""

    def _fit(self, job: SimulatedJob, gpu_type: str, previous: ThroughputParameters | None) -> _Fit:
        seen = job.measurements[gpu_type]
        for situation, one in seen.items():
            seen[situation] = replace(one, confirmed=True)
        return super()._fit(job, gpu_type, previous)


class UnguardedPolicy(PolluxPolicy):
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


def run(case: Case) -> tuple[float, float]:
    """Return the average completion time in seconds, and the restarts per job."""
    applications = read_applications(Path(os.environ["POLLUX_TRACES"]))
    declared = case.objective == "price-rank"
    settings = RunSettings(
        objective=case.objective,
        declared=declared,
        noise=MeasurementNoise(spread=case.noise, outliers=case.outliers),
        seed=case.seed,
    )
    policy = settings.make_policy()
    if not case.guarded and settings.noise:
        policy = UnguardedPolicy(Objective(name=case.objective), declared=declared, agents=UnguardedAgents())
    jobs = read_workload(case.workload, applications)
    done = simulate(jobs, applications, policy, settings.cluster(), rules=settings.make_rules()).jobs
    completion_s = [(job.finished_s or 0.0) - job.job.submitted_s for job in done]
    return statistics.fmean(completion_s), statistics.fmean(job.num_restarts or 0 for job in done)


def main() -> None:
    """Print a line for each level of noise: medians over the seeds, and their range."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="+", type=Path, help="such as workloads/workload-6.csv")
    parser.add_argument("--noise", default="0,0.05,0.1,0.3")
    parser.add_argument("--outliers", default="0,0.05")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--objective", default="generalized-mean")
    parser.add_argument("--jobs", type=int, default=1, help="simulations at the same time")
    given = parser.parse_args()
    noise, outliers = ([float(one) for one in text.split(",")] for text in (given.noise, given.outliers))
    places = list(itertools.product(noise, outliers, given.workloads, (False, True)))
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
    heads = [f"{path.stem}, {what}" for path in given.workloads for what in ("without", "with")]
    print(f"| noise | outliers | {' | '.join(heads)} |\n|{'---|' * (len(heads) + 2)}")
    for (spread, share), row in itertools.groupby(places, key=lambda place: place[:2]):
        cells = []
        for place in row:
            of_place = [
                found[case]
                for case in cases
                if (case.noise, case.outliers, case.workload, case.guarded) == place
            ]
            seconds, restarts = zip(*of_place, strict=True)
            cells.append(
                f"{statistics.median(seconds):.0f} ({min(seconds):.0f}–{max(seconds):.0f}), "
                f"{statistics.median(restarts):.2f}"
            )
        print(f"| {spread:g} | {share:g} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
