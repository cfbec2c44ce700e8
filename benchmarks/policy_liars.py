"""What jobs gain by declaring falsely under `price-rank`: a published workload in which every tenth job lies.

The liars say that a part of what is left for them is all that is left. Their claims are checked as the daemon
checks them, or not at all. POLLUX_TRACES names the artifact's folder of traces, the argument its workload.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
from collections.abc import Collection, Sequence
from datetime import datetime, timezone
from pathlib import Path

from pollux_slurm.daemon.declarations import doubt
from pollux_slurm.model import Objective, ProblemJob
from pollux_slurm.simulator.applications import read_applications
from pollux_slurm.simulator.clock import simulate
from pollux_slurm.simulator.cluster import Cluster
from pollux_slurm.simulator.job import SimulatedJob
from pollux_slurm.simulator.policies import PolluxPolicy
from pollux_slurm.simulator.workload import read_workload
from pollux_slurm.store.contract import Declaration

NEVER = datetime(2026, 1, 1, tzinfo=timezone.utc)


class WithLiars(PolluxPolicy):
    """`price-rank` where `liars` divide what is left for them by `factor`; `doubted` were found out."""

    def __init__(self, liars: Collection[str], factor: float, *, checked: bool) -> None:
        super().__init__(Objective(name="price-rank"), declared=True)
        self._liars, self._factor, self._checked = liars, factor, checked
        self._least: dict[str, float] = {}
        self.doubted: set[str] = set()

    def _problem_job(
        self, now_s: float, job: SimulatedJob, names: Sequence[str], *, several: bool
    ) -> ProblemJob:
        told = super()._problem_job(now_s, job, names, several=several)
        done, declared = told.epochs_done, told.epochs_declared
        if not done or declared is None or told.progress is None:
            return told
        if told.job_id in self._liars:
            declared = done + (declared - done) / self._factor
        if self._checked and done >= 1:
            least = min(told.progress * declared / done, self._least.get(told.job_id, float("inf")))
            self._least[told.job_id] = least
            claim = Declaration(total_epochs=1, at=NEVER, epoch=0, progress=0.0, least_total_progress=least)
            if doubt([claim], declared=1, epoch=0, progress=told.progress) is not None:
                self.doubted.add(told.job_id)
        if told.job_id in self.doubted:
            return dataclasses.replace(told, epochs_declared=None)
        return dataclasses.replace(told, epochs_declared=declared)


def main() -> None:
    """Print average completion times of liars and others, and how many of each were found out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", type=Path, help="such as workloads/workload-1.csv")
    arguments = parser.parse_args()
    applications = read_applications(Path(os.environ["POLLUX_TRACES"]))
    jobs = read_workload(arguments.workload, applications)
    liars = {job.name for index, job in enumerate(jobs) if index % 10 == 3}
    print("| what liars claim is left | checked | liars, s | others, s | liars found out | others doubted |")
    print("|---|---|---|---|---|---|")
    for factor, checked in ((1.0, True), (4.0, True), (1000.0, False), (1000.0, True)):
        policy = WithLiars(liars, factor, checked=checked)
        result = simulate(jobs, applications, policy, Cluster())
        times = {job.job.name: (job.finished_s or 0.0) - job.job.submitted_s for job in result.jobs}
        mean = [
            statistics.mean(time for name, time in times.items() if (name in liars) is lying)
            for lying in (True, False)
        ]
        found = len(policy.doubted & liars)
        print(
            f"| 1/{factor:g} of it | {checked} | {mean[0]:.0f} | {mean[1]:.0f} | {found} of {len(liars)} "
            f"| {len(policy.doubted) - found} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
