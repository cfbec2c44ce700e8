"""What jobs gain by lying: a published workload in which every tenth job does, under each objective.

Liars declare fewer epochs, report false models, or let their moves look dear. Claims are checked as the
daemon checks them, or not at all. POLLUX_TRACES names the artifact's folder of traces, the argument its
workload.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from pollux_slurm.daemon.decide import declared_epochs, model_checks
from pollux_slurm.goodput import best_batch
from pollux_slurm.model import (
    Configuration,
    GoodputModel,
    GradientStatistics,
    Objective,
    ProblemJob,
    ThroughputParameters,
)
from pollux_slurm.simulator.engine.cluster import Cluster
from pollux_slurm.simulator.engine.job import GpusByNode, SimulatedJob
from pollux_slurm.simulator.engine.simulation import simulate
from pollux_slurm.simulator.inputs.applications import read_applications
from pollux_slurm.simulator.inputs.workload import read_workload
from pollux_slurm.simulator.policies import PolluxPolicy
from pollux_slurm.store.contract.interface import MIN_RECENT_RUN_S, RECENT_RUNS, Declaration, RecentRun

NEVER = datetime(2026, 1, 1, tzinfo=timezone.utc)
OBJECTIVES = ("generalized-mean", "osdi21", "price-rank", "attained-work")
MOST_GPUS = 64

Lie = Callable[[ProblemJob, Configuration | None], ProblemJob]


def truth(told: ProblemJob, held: Configuration | None) -> ProblemJob:
    return told


def fewer_epochs(factor: float) -> Lie:
    """Claim that a part of what is left is all that is left."""

    def lie(told: ProblemJob, held: Configuration | None) -> ProblemJob:
        done, declared = told.epochs_done, told.epochs_declared
        if not done or declared is None or told.progress is None:
            return told
        return dataclasses.replace(told, epochs_declared=done + (declared - done) / factor)

    return lie


def costly_moves(delay_s: float, *, from_gpus: int = 1) -> Lie:
    """Let moves look as if they cost `delay_s`, as soon as the job holds `from_gpus`."""

    def lie(told: ProblemJob, held: Configuration | None) -> ProblemJob:
        if held is None or held.num_gpus < from_gpus:
            return told
        return dataclasses.replace(told, restart_delay_s=delay_s)

    return lie


def asks_for(least_gpus: int) -> Lie:
    """Ask for so many GPUs at least: no lie, but within what its owner may ask for."""
    return lambda told, held: dataclasses.replace(told, min_gpus=min(least_gpus, told.max_gpus or least_gpus))


def bad_predictions(told: ProblemJob, held: Configuration | None) -> ProblemJob:
    """Let the model look as bad as may be, so that the job is hardly taken anything away."""
    return dataclasses.replace(told, prediction_error=1.0)


def linear(told: ProblemJob, held: Configuration | None) -> ProblemJob:
    """Claim to be as fast as it is where it is, and anywhere else in proportion to the GPUs."""
    return _scaled(told, held, least_gpus=1)


def steep(told: ProblemJob, held: Configuration | None) -> ProblemJob:
    """The same, and claim to train on 16 GPUs and more only."""
    return _scaled(told, held, least_gpus=16)


def times_as_fast(factor: float) -> Lie:
    """Claim to be `factor` times as fast as it is, everywhere: what it has made looks like less work."""

    def lie(told: ProblemJob, held: Configuration | None) -> ProblemJob:
        model = told.model
        if model is None or model.throughput is None:
            return told
        theta = model.throughput
        times = {name: getattr(theta, name) / factor for name in _TIMES}
        return dataclasses.replace(
            told, model=dataclasses.replace(model, throughput=dataclasses.replace(theta, **times))
        )

    return lie


_TIMES = ("alpha_g", "beta_g", "alpha_n", "beta_n", "alpha_l", "beta_l")


def _scaled(told: ProblemJob, held: Configuration | None, *, least_gpus: int) -> ProblemJob:
    model = told.model
    if model is None or held is None:
        return told
    true = best_batch(model, held)
    if true is None:
        return told
    limits = model.limits
    if least_gpus > 1:
        most = max(limits.initial_batch_size // least_gpus, 1)
        limits = dataclasses.replace(limits, min_atomic=1, max_atomic=most, accumulation=False)
    else:
        limits = dataclasses.replace(limits, min_atomic=1)
    theta = ThroughputParameters(
        alpha_g=0.0, beta_g=held.num_gpus / true.goodput, alpha_n=0.0, beta_n=0.0, alpha_l=0.0, beta_l=0.0,
        gamma=1.0,
    )  # fmt: skip
    lying = GoodputModel(
        limits=limits,
        statistics=GradientStatistics(sqr=1e-12, var=1.0),
        throughput=theta,
        max_gpus_seen=MOST_GPUS,
        max_nodes_seen=MOST_GPUS,
    )
    return dataclasses.replace(told, model=lying)


@dataclass(slots=True)
class _Run:
    """A run of a job: on what, and when it had made how much at its first and last sample."""

    allocation: GpusByNode
    since_s: float
    before: float
    until_s: float
    made: float

    @property
    def pace(self) -> RecentRun:
        held = Configuration(
            num_nodes=len(self.allocation), num_gpus=sum(gpus for _, gpus in self.allocation)
        )
        return RecentRun(self.made - self.before, ((held, self.until_s - self.since_s),))


class WithLiars(PolluxPolicy):
    """The daemon's policy where `liars` tell what `lie` makes of the truth; `doubted` were found out."""

    def __init__(self, objective: str, liars: Collection[str], lie: Lie, *, checked: bool) -> None:
        super().__init__(Objective(name=objective), declared=True)
        self._liars, self._lie, self._checked = liars, lie, checked
        self._least: dict[str, float] = {}
        self._runs: defaultdict[str, list[_Run]] = defaultdict(list)
        self._false_epochs: set[str] = set()
        self.doubted: set[str] = set()

    def _problem_job(
        self, now_s: float, job: SimulatedJob, names: Sequence[str], *, several: bool
    ) -> ProblemJob:
        told = super()._problem_job(now_s, job, names, several=several)
        held = None
        if job.allocation:
            held = Configuration(num_nodes=len(job.allocation), num_gpus=job.num_gpus)
        if told.job_id in self._liars:
            told = self._lie(told, held)
        if not self._checked:
            return told
        return self._with_checked_model(now_s, job, self._with_checked_epochs(told))

    def _with_checked_epochs(self, told: ProblemJob) -> ProblemJob:
        done, declared = told.epochs_done, told.epochs_declared
        if not done or declared is None or told.progress is None:
            return told
        if done >= 1:
            least = min(told.progress * declared / done, self._least.get(told.job_id, float("inf")))
            self._least[told.job_id] = least
            claim = Declaration(total_epochs=1, at=NEVER, epoch=0, progress=0.0, least_total_progress=least)
            if (
                declared_epochs.declaration_doubt([claim], declared=1, epoch=0, progress=told.progress)
                is not None
            ):
                self._false_epochs.add(told.job_id)
        if told.job_id not in self._false_epochs:
            return told
        self.doubted.add(told.job_id)
        return dataclasses.replace(told, epochs_declared=None)

    def _with_checked_model(self, now_s: float, job: SimulatedJob, told: ProblemJob) -> ProblemJob:
        runs = self._runs[told.job_id]
        if job.allocation and not job.interruptions:
            if not runs or runs[-1].allocation != job.allocation or runs[-1].made > job.useful_progress:
                runs.append(_Run(job.allocation, now_s, job.useful_progress, now_s, job.useful_progress))
            runs[-1].until_s, runs[-1].made = now_s, job.useful_progress
        elif runs and runs[-1].allocation:
            runs.append(
                _Run((), now_s, job.useful_progress, now_s, job.useful_progress)
            )  # the next one begins anew
        recent_runs = [run.pace for run in reversed(runs) if run.until_s - run.since_s >= MIN_RECENT_RUN_S]
        if model_checks.model_doubt((told.model, told.models), recent_runs[:RECENT_RUNS]) is None:
            return told
        self.doubted.add(told.job_id)
        return dataclasses.replace(told, model=None)


@dataclass(frozen=True, slots=True)
class _Case:
    """One lie, whether it is checked, and the objectives under which it could pay."""

    name: str
    lie: Lie
    checked: bool = True
    objectives: tuple[str, ...] = OBJECTIVES


CASES = (
    _Case("the truth", truth),
    _Case("a quarter of its epochs is left", fewer_epochs(4.0), objectives=("price-rank",)),
    _Case("a thousandth is left", fewer_epochs(1000.0), checked=False, objectives=("price-rank",)),
    _Case("a thousandth is left", fewer_epochs(1000.0), objectives=("price-rank",)),
    _Case("it scales in proportion", linear),
    _Case("it needs 16 GPUs", steep),
    _Case("it is 3.9 times as fast", times_as_fast(3.9), objectives=OBJECTIVES[2:]),
    _Case("it is 9 times as fast", times_as_fast(9.0), objectives=OBJECTIVES[2:]),
    _Case("it is 90 times as fast", times_as_fast(90.0), objectives=OBJECTIVES[2:]),
    _Case("it is 1000 times as fast", times_as_fast(1e3), checked=False, objectives=OBJECTIVES[2:]),
    _Case("it is 1000 times as fast", times_as_fast(1e3), objectives=OBJECTIVES[2:]),
    _Case("its minimum is 16 GPUs", asks_for(16)),
    _Case("a move costs 1e7 s, from 8 GPUs on", costly_moves(1e7, from_gpus=8)),
    _Case("a move costs 300 s, from 8 GPUs on", costly_moves(300.0, from_gpus=8)),
    _Case("its predictions are bad", bad_predictions),
)


def main() -> None:
    """Print average completion times of liars and others, and how many of each were found out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", type=Path, help="such as workloads/workload-1.csv")
    parser.add_argument("--objective", action="append", choices=OBJECTIVES)
    arguments = parser.parse_args()
    applications = read_applications(Path(os.environ["POLLUX_TRACES"]))
    jobs = read_workload(arguments.workload, applications)
    liars = {job.name for index, job in enumerate(jobs) if index % 10 == 3}
    print(
        "| objective | what liars claim | checked | liars, s | others, s | liars found out | others doubted |"
    )
    print("|---|---|---|---|---|---|---|")
    for objective in arguments.objective or OBJECTIVES:
        for case in CASES:
            if objective not in case.objectives:
                continue
            policy = WithLiars(objective, liars, case.lie, checked=case.checked)
            result = simulate(jobs, applications, policy, Cluster())
            times = {job.job.name: (job.finished_s or 0.0) - job.job.submitted_s for job in result.jobs}
            mean = [
                statistics.mean(time for name, time in times.items() if (name in liars) is lying)
                for lying in (True, False)
            ]
            found = len(policy.doubted & liars)
            print(
                f"| {objective} | {case.name} | {case.checked} | {mean[0]:.0f} | {mean[1]:.0f} "
                f"| {found} of {len(liars)} | {len(policy.doubted) - found} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
