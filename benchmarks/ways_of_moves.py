"""What moves in place bring the published workloads, and what it brings to price each move by its way.

Completion times by requeue only, in place with the price of a requeue for every move, and in place with each
way's own price. POLLUX_TRACES names the artifact's folder of traces, the arguments its workloads; with
--loads, others are generated, and averaged over the seeds.

    POLLUX_TRACES=TRACES python -m benchmarks.ways_of_moves --loads 1,1.5,2 --jobs 2 workload-*.csv
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields, replace
from itertools import groupby
from pathlib import Path

from pollux_slurm.model import Objective, ProblemJob
from pollux_slurm.simulator.engine.cluster_rules import InPlace
from pollux_slurm.simulator.engine.job import SimulatedJob
from pollux_slurm.simulator.engine.simulation import simulate
from pollux_slurm.simulator.experiments.settings import RunSettings
from pollux_slurm.simulator.inputs.applications import Application, read_applications
from pollux_slurm.simulator.inputs.generate import generate_workload, tuned_choices
from pollux_slurm.simulator.inputs.workload import WorkloadJob, read_workload
from pollux_slurm.simulator.policies import PolluxPolicy

OBJECTIVES = ("osdi21", "generalized-mean", "attained-work", "price-rank")
# Whether moves are in place, whether nodes have several wings of a job, whether ways have their own prices.
WAYS = {
    "requeue": (False, False, False),
    "in place, one price": (True, False, False),
    "in place": (True, False, True),
    "in place, several wings, one price": (True, True, False),
    "in place, several wings": (True, True, True),
}


class OnePricePolicy(PolluxPolicy):
    """A policy that expects the delay of a requeue of every move."""

    def _problem_job(
        self, now_s: float, job: SimulatedJob, names: Sequence[str], *, several: bool
    ) -> ProblemJob:
        found = super()._problem_job(now_s, job, names, several=several)
        return replace(found, wings=(), in_place_delay_s=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One simulation; `way` is a key of WAYS, `column` the table's. `workload` is a file, or (load, seed)."""

    column: str
    workload: Path | tuple[float, int]
    rules: str
    objective: str
    way: str
    warm_up_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Mean completion time in seconds, moves a job, and the part of the GPU time without progress."""

    mean_s: float
    restarts: float
    regroups: float
    lost: float


def _workload(
    workload: Path | tuple[float, int], applications: Mapping[str, Application]
) -> Sequence[WorkloadJob]:
    if isinstance(workload, Path):
        return read_workload(workload, applications)
    choices = {name: tuned_choices(application) for name, application in applications.items()}
    load, seed = workload
    return generate_workload(seed=seed, load=load, choices=choices)


def run(case: Case) -> Found:
    applications = read_applications(Path(os.environ["POLLUX_TRACES"]))
    moved, several_wings, priced = WAYS[case.way]
    declared = case.objective == "price-rank"
    settings = RunSettings(
        objective=case.objective,
        declared=declared,
        rules=case.rules,
        in_place=InPlace(several_wings=several_wings, warm_up_s=case.warm_up_s) if moved else None,
    )
    policy = settings.make_policy()
    if moved and not priced:
        policy = OnePricePolicy(Objective(name=case.objective), declared=declared)
    jobs = _workload(case.workload, applications)
    done = simulate(jobs, applications, policy, settings.cluster(), rules=settings.make_rules()).jobs
    return Found(
        mean_s=statistics.fmean((job.finished_s or 0.0) - job.job.submitted_s for job in done),
        restarts=statistics.fmean(job.num_restarts or 0 for job in done),
        regroups=statistics.fmean(job.num_regroups for job in done),
        lost=sum(job.lost_gpu_seconds for job in done) / sum(job.gpu_seconds for job in done),
    )


def main() -> None:
    """Print a row for each objective and way: seconds by requeue, and else the change against them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*", type=Path, help="such as workloads/workload-6.csv")
    parser.add_argument("--loads", type=_numbers, default=[])
    parser.add_argument("--seeds", type=_numbers, default=[71.0, 72.0, 73.0, 74.0])
    parser.add_argument("--rules", default="osdi21")
    parser.add_argument("--objectives", default=",".join(OBJECTIVES))
    parser.add_argument("--warm-up", type=float, default=20.0, help="seconds, under rules osdi21")
    parser.add_argument("--jobs", type=int, default=1, help="simulations at the same time")
    given = parser.parse_args()
    columns: dict[str, list[Path | tuple[float, int]]] = {path.stem: [path] for path in given.workloads}
    columns |= {f"load {load:g}": [(load, int(seed)) for seed in given.seeds] for load in given.loads}
    cases = [
        Case(
            column=column,
            workload=workload,
            rules=given.rules,
            objective=objective,
            way=way,
            warm_up_s=given.warm_up,
        )
        for objective in given.objectives.split(",")
        for way in WAYS
        for column, workloads in columns.items()
        for workload in workloads
    ]
    heads = ("", "", *columns, "mean", "restarts", "regroups", "lost")
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}", flush=True)
    by_requeue: list[float] = []
    with ProcessPoolExecutor(max_workers=given.jobs) as pool:
        results = zip(cases, pool.map(run, cases), strict=True)
        for (objective, way), row in groupby(results, key=lambda one: (one[0].objective, one[0].way)):
            found = [_mean(results for _, results in column) for _, column in groupby(row, key=_column)]
            if way == "requeue":
                by_requeue = [one.mean_s for one in found]
                cells = [*(f"{one.mean_s:.0f}" for one in found), ""]
            else:
                changes = [one.mean_s / base - 1 for one, base in zip(found, by_requeue, strict=True)]
                cells = [_percent(change) for change in (*changes, statistics.fmean(changes))]
            mean = _mean(found)
            cells += [f"{mean.restarts:.2f}", f"{mean.regroups:.2f}", f"{100 * mean.lost:.1f} %"]
            print(f"| `{objective}` | {way} | {' | '.join(cells)} |", flush=True)


def _numbers(text: str) -> list[float]:
    return [float(number) for number in text.split(",")]


def _column(result: tuple[Case, Found]) -> str:
    return result[0].column


def _mean(results: Iterable[Found]) -> Found:
    known = list(results)
    return Found(**{one.name: statistics.fmean(getattr(f, one.name) for f in known) for one in fields(Found)})


def _percent(change: float) -> str:
    return f"{100 * change:+.1f} %".replace("-", "−")


if __name__ == "__main__":
    main()
