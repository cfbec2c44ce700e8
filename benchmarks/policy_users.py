"""The effect of `policy.between` and `share_half_life`: completion times and GPU hours by user.

`averages` assigns the jobs of published workloads to users. `splitting` adds a user who submits a training as
one job, or as ten or ninety jobs with an equal part of its epochs each, all at once. `memory` needs no
workloads: two users share 32 GPUs for two weeks. POLLUX_TRACES names the artifact's folder of traces, the
arguments workloads.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pollux_slurm.goodput.batch_choice import FloatArray
from pollux_slurm.model import GradientStatistics, Objective
from pollux_slurm.policy.participation.share_memory import shares_by_usage
from pollux_slurm.simulator.engine.cluster import Cluster
from pollux_slurm.simulator.engine.job import GpusByNode, SimulatedJob
from pollux_slurm.simulator.engine.simulation import simulate
from pollux_slurm.simulator.inputs.applications import Application, read_applications
from pollux_slurm.simulator.inputs.generate import with_users
from pollux_slurm.simulator.inputs.workload import WorkloadJob, read_workload
from pollux_slurm.simulator.policies import PolluxPolicy

NUM_USERS = 16
SPLIT_USER = "split"
# When the splitting user submits: in the busiest hour of the published workloads.
SPLIT_AT_S = 4 * 3600.0


class PartOfTraining:
    """The epochs from `first` up to `end` of an application: a part of a split training."""

    def __init__(self, whole: Application, first: int, end: int) -> None:
        self._whole, self._first = whole, first
        self.name, self.num_epochs = f"{whole.name}-{first}-{end}", end - first
        self._before = whole.epoch_end(first - 1) if first else 0.0

    def __getattr__(self, name: str) -> Any:
        """Return what does not depend on the epoch: batch sizes, limits, step times."""
        return getattr(self._whole, name)

    def statistics(self, batch_size: int, epoch: int) -> GradientStatistics:
        return self._whole.statistics(batch_size, self._first + epoch)

    def step_progress(self, batch_size: int, epoch: int) -> float:
        return self._whole.step_progress(batch_size, self._first + epoch)

    def step_progresses(self, batch_sizes: Sequence[int]) -> FloatArray:
        return self._whole.step_progresses(batch_sizes)[self._first : self._first + self.num_epochs]

    def useful_part(self, batch_size: int, epoch: int) -> float:
        return self._whole.useful_part(batch_size, self._first + epoch)

    def iterations(self, batch_size: int, epoch: int) -> float:
        before = self._whole.iterations(batch_size, self._first - 1) if self._first else 0.0
        return self._whole.iterations(batch_size, self._first + epoch) - before

    def epoch_end(self, epoch: int) -> float:
        return self._whole.epoch_end(self._first + epoch) - self._before


def split(whole: Application, parts: int) -> tuple[dict[str, Application], tuple[WorkloadJob, ...]]:
    """Return the parts of a training by name, and a job for each, all submitted at once by one user."""
    ends = [whole.num_epochs * number // parts for number in range(parts + 1)]
    applications: dict[str, Application] = {}
    for first, end in itertools.pairwise(ends):
        part = PartOfTraining(whole, first, end)
        applications[part.name] = part
    jobs = tuple(
        WorkloadJob(
            name=f"{SPLIT_USER}-{number}",
            submitted_s=SPLIT_AT_S,
            application=name,
            num_replicas=1,
            batch_size=whole.initial_batch_size,
            user=SPLIT_USER,
        )
        for number, name in enumerate(applications)
    )
    return applications, jobs


def completions(
    jobs: Sequence[WorkloadJob], applications: Mapping[str, Application], objective: str, between: str
) -> dict[str, float]:
    """Return the completion time of each job, in seconds."""
    policy = PolluxPolicy(Objective(name=objective, between=between), declared=objective == "price-rank")
    result = simulate(sorted(jobs, key=lambda job: job.submitted_s), applications, policy, Cluster())
    return {job.job.name: (job.finished_s or 0.0) - job.job.submitted_s for job in result.jobs}


def by_user(jobs: Sequence[WorkloadJob], times: Mapping[str, float]) -> dict[str, float]:
    """Return the average completion time of each user's jobs."""
    found: dict[str, list[float]] = {}
    for job in jobs:
        found.setdefault(job.user, []).append(times[job.name])
    return {user: statistics.mean(of_user) for user, of_user in found.items()}


def print_averages(files: Sequence[Path], objectives: Sequence[str]) -> None:
    """Print averages over jobs and over users, and of the user with the most jobs, over all workloads."""
    applications = read_applications(Path(os.environ["POLLUX_TRACES"]))
    print("| objective | jobs of users | between | all jobs, s | mean of users, s | the busiest user, s |")
    print("|---|---|---|---|---|---|")
    for objective in objectives:
        for equal in (True, False):
            for between in ("jobs", "users"):
                rows = []
                for seed, file in enumerate(files):
                    jobs = with_users(read_workload(file, applications), NUM_USERS, seed=seed, equal=equal)
                    times = completions(jobs, applications, objective, between)
                    users = by_user(jobs, times)
                    count = {user: sum(job.user == user for job in jobs) for user in users}
                    busiest = max(users, key=lambda user: count[user])
                    rows.append(
                        (statistics.mean(times.values()), statistics.mean(users.values()), users[busiest])
                    )
                mean = [statistics.mean(column) for column in zip(*rows, strict=True)]
                shared = "equal" if equal else "Zipf"
                print(
                    f"| {objective} | {shared} | {between} | {mean[0]:.0f} | {mean[1]:.0f} | {mean[2]:.0f} |",
                    flush=True,
                )


def print_splitting(
    files: Sequence[Path], objectives: Sequence[str], name: str, parts: Sequence[int]
) -> None:
    """Print when all of a user's work is done, in one job or in several, and what others wait."""
    applications = read_applications(Path(os.environ["POLLUX_TRACES"]))
    print("| objective | between | jobs | all its work done after, s | average of others, s |")
    print("|---|---|---|---|---|")
    for objective in objectives:
        for between in ("jobs", "users"):
            for count in parts:
                rows = []
                for seed, file in enumerate(files):
                    others = with_users(read_workload(file, applications), NUM_USERS, seed=seed, equal=True)
                    made, own = split(applications[name], count)
                    times = completions((*others, *own), applications | made, objective, between)
                    rows.append(
                        (
                            max(times[job.name] for job in own),
                            statistics.mean(times[job.name] for job in others),
                        )
                    )
                done, waited = (statistics.mean(column) for column in zip(*rows, strict=True))
                print(f"| {objective} | {between} | {count} | {done:.0f} | {waited:.0f} |", flush=True)


DAY_S, WEEK_S = 86400.0, 7 * 86400.0
# Trainings of so many times the length: few jobs, and little to simulate.
WORK = 6.0
# So many jobs can use all GPUs.
SOME = 4
SHORT = ("deepspeech2", "yolov3", "bert")
MIXED = (*SHORT, "imagenet")
HALF_LIFE_S = WEEK_S


class TwoWeeksOverError(Exception):
    """The simulated time is over."""


class WatchedPolicy(PolluxPolicy):
    """The policy; `gpu_s` is what each user had, `wanted_gpu_s` that while both users had `SOME` jobs.

    `due_gpu_s` is what their shares were in that time.
    """

    def __init__(self, share_half_life_s: float | None) -> None:
        super().__init__(Objective(between="users"), share_half_life_s=share_half_life_s)
        self.gpu_s: Counter[str] = Counter()
        self.wanted_gpu_s: Counter[str] = Counter()
        self.due_gpu_s: Counter[str] = Counter()

    def allocate(
        self, now_s: float, jobs: Sequence[SimulatedJob], cluster: Cluster
    ) -> Mapping[str, GpusByNode]:
        if now_s >= 2 * WEEK_S:
            raise TwoWeeksOverError
        users = {job.job.user for job in jobs}
        found = super().allocate(now_s, jobs, cluster)
        usage = dict.fromkeys(users, 1.0) if self._memory is None else self._memory.usage_of(users)
        user_of = {job.job.name: job.job.user for job in jobs}
        count = Counter(user_of.values())
        both_want = len(count) > 1 and min(count.values()) >= SOME
        for name, gpus in found.items():
            gpu_s = sum(count for _, count in gpus) * cluster.interval_s
            self.gpu_s[user_of[name]] += gpu_s
            if both_want:
                self.wanted_gpu_s[user_of[name]] += gpu_s
        if both_want:
            total = cluster.num_gpus * cluster.interval_s / len(users)
            for user, share in shares_by_usage(usage).items():
                self.due_gpu_s[user] += total * share
        return found


def jobs_of(
    user: str, times_s: Sequence[float], names: Sequence[str], applications: Mapping[str, Application]
) -> list[WorkloadJob]:
    """Return a user's jobs, of each application of these names in turn."""
    return [
        WorkloadJob(
            name=f"{user}-{number}",
            submitted_s=at_s,
            application=name,
            num_replicas=1,
            batch_size=applications[name].initial_batch_size,
            user=user,
            work=WORK,
        )
        for number, (at_s, name) in enumerate(zip(times_s, itertools.cycle(names), strict=False))
    ]


def print_memory() -> None:
    """Print the GPU hours of two users in two weeks, with a memory of shares and without."""
    applications = read_applications(Path(os.environ["POLLUX_TRACES"]))
    # ada's few jobs alone keep all GPUs busy, and shrink for others.
    every_9_h = [3600.0 * hour for hour in range(0, 336, 9)]
    every_6_h = [3600.0 * hour for hour in range(0, 336, 6)]
    # From a Wednesday on. On Mondays, work for more than a day at once.
    mondays = [DAY_S * day for day in (5, 12) for _ in range(24)]
    cases = {
        "twice the jobs": (("ada", every_6_h, MIXED), ("bob", every_6_h[::2], MIXED)),
        "on Mondays": (("ada", every_9_h, MIXED), ("bob", mondays, SHORT)),
    }
    print("| bob | half-life | user | GPU h | GPU h while both want more | over the share |")
    print("|---|---|---|---|---|---|")
    for case, users in cases.items():
        jobs = [job for user, *rest in users for job in jobs_of(user, *rest, applications)]
        jobs.sort(key=lambda job: job.submitted_s)
        for half_life_s in (None, HALF_LIFE_S):
            policy = WatchedPolicy(half_life_s)
            with contextlib.suppress(TwoWeeksOverError):
                simulate(jobs, applications, policy, Cluster(num_nodes=8, interval_s=600.0))
            shown = "none" if half_life_s is None else f"{half_life_s / DAY_S:g} d"
            for user, *_ in users:
                hours, wanted = policy.gpu_s[user] / 3600, policy.wanted_gpu_s[user] / 3600
                part = policy.wanted_gpu_s[user] / policy.due_gpu_s[user]
                print(f"| {case} | {shown} | {user} | {hours:.0f} | {wanted:.0f} | {part:.3f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("averages", "splitting", "memory"))
    parser.add_argument("workloads", type=Path, nargs="*", help="such as workloads/workload-1.csv")
    parser.add_argument("--objective", action="append", help="repeatable; generalized-mean and price-rank")
    parser.add_argument("--application", default="imagenet", help="what the splitting user trains")
    parser.add_argument("--parts", type=int, nargs="+", default=(1, 10, 90))
    arguments = parser.parse_args()
    objectives = arguments.objective or ["generalized-mean", "price-rank"]
    if arguments.what == "memory":
        print_memory()
    elif arguments.what == "averages":
        print_averages(arguments.workloads, objectives)
    else:
        print_splitting(arguments.workloads, objectives, arguments.application, arguments.parts)


if __name__ == "__main__":
    main()
