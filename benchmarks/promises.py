"""Jobs that ask to be finished by a moment: how many are promised it, and what becomes of them and others.

    python -m benchmarks.promises TRACES [--loads 0.5,1,1.5,2] [--seeds 401,402,403,404] [--share 0.3]
        [--tightness 1:3] [--objective price-rank] [--users 1] [--in-place] [--processes 2]

TRACES is the artifact's folder of traces. Each generated workload is simulated twice, with and without its
moments. A part of its jobs (`--share`) asks for a moment: after its submission by the time that its user's
size and batch take, times a factor drawn from `--tightness` (ElasticFlow draws it from 0.5 to 1.5).

Refusals are compared with those of ElasticFlow's admission (ASPLOS 2023) on the same moments. That knows the
true speeds and lengths, has all GPUs to itself, and reserves slots of one round. The policy knows the kinds:
each application was trained once before.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
import random
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pollux_slurm.errors import TraceError
from pollux_slurm.simulator.engine.cluster_rules import InPlace
from pollux_slurm.simulator.engine.simulation import simulate
from pollux_slurm.simulator.experiments.settings import RunSettings
from pollux_slurm.simulator.inputs.applications import Application, read_applications
from pollux_slurm.simulator.inputs.batch_splits import packed_step_time_s, split_batch, user_training_time_s
from pollux_slurm.simulator.inputs.generate import generate_workload, with_users
from pollux_slurm.simulator.inputs.workload import WorkloadJob
from pollux_slurm.simulator.results.fairness import AloneTimes
from pollux_slurm.simulator.results.outcomes import JobOutcome, job_outcomes

NUM_GPUS, GPUS_PER_NODE = 64, 4
SLOT_S, START_S = 60.0, 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One workload.

    `later` is the mean completion time of jobs without a promise, over that of the run without moments.
    """

    asked: int
    accepted: int
    kept: int
    refused_by_elasticflow: int
    later: float
    all_later: float
    missed_by_s: tuple[float, ...]


def with_moments(
    jobs: Sequence[WorkloadJob],
    applications: Mapping[str, Application],
    *,
    seed: int,
    share: float,
    tightness: tuple[float, float],
) -> tuple[WorkloadJob, ...]:
    """Return the jobs, of which each asks for a moment with the probability `share`."""
    rng = random.Random(f"moments {seed}")
    low, high = tightness
    found = []
    for job in jobs:
        asks, factor = rng.random() < share, low + (high - low) * rng.random()
        usual_s = user_training_time_s(job, applications[job.application], GPUS_PER_NODE)
        by_s = float(round(job.submitted_s + factor * usual_s)) if asks else None
        found.append(dataclasses.replace(job, finish_by_s=by_s))
    return tuple(found)


def true_time_s(application: Application, num_gpus: int) -> float:
    """Return how long a training takes on packed GPUs, with the fastest batch size of each epoch."""
    steps: dict[int, float] = {}
    for size in application.batch_sizes:
        batch = split_batch(application, size, num_gpus)
        if batch.atomic_batch_size < application.min_atomic:
            continue
        try:
            steps[batch.global_batch_size] = packed_step_time_s(
                application, num_gpus, GPUS_PER_NODE, batch.atomic_batch_size, batch.accumulation_steps
            )
        except TraceError:
            continue
    total_s, begin = 0.0, 0.0
    for epoch in range(application.num_epochs):
        end = application.epoch_end(epoch)
        rate = max(
            (application.step_progress(size, epoch) / step_s for size, step_s in steps.items()), default=0.0
        )
        total_s, begin = total_s + ((end - begin) / rate if rate > 0 else math.inf), end
    return total_s


class ElasticFlow:
    """ElasticFlow's admission: the least share with which a job fills slots backwards from its moment.

    A share is a power of two, and no more GPUs than the job can have.
    """

    def __init__(self, applications: Mapping[str, Application]) -> None:
        self._applications = applications
        self._used: dict[int, int] = {}
        self._time_s = functools.lru_cache(maxsize=None)(
            lambda name, gpus: true_time_s(self._applications[name], gpus)
        )

    def admit(self, job: WorkloadJob) -> bool:
        """Reserve what a job needs, and return True; False where it cannot be finished in time."""
        assert job.finish_by_s is not None
        first, end = math.ceil(job.submitted_s / SLOT_S), int(job.finish_by_s // SLOT_S)
        share, most = 1, min(NUM_GPUS, self._applications[job.application].most_gpus)
        while share <= most:
            need_s = START_S + self._time_s(job.application, share)
            free = [at for at in range(end - 1, first - 1, -1) if self._used.get(at, 0) + share <= NUM_GPUS]
            if need_s <= SLOT_S * len(free):
                for at in free[: math.ceil(need_s / SLOT_S)]:
                    self._used[at] = self._used.get(at, 0) + share
                return True
            share *= 2
        return False


def measure(options: argparse.Namespace, load: float, seed: int) -> Result:
    """Simulate one workload with its moments and without."""
    applications = _applications(options.traces)
    plain = generate_workload(seed=seed, load=load, num_gpus=NUM_GPUS)
    if options.users > 1:
        plain = with_users(plain, options.users, seed=seed)
    jobs = with_moments(plain, applications, seed=seed, share=options.share, tightness=options.tightness)
    settings = RunSettings(
        objective=options.objective,
        declared=True,
        kinds=True,
        in_place=InPlace() if options.in_place else None,
    )
    runs = {
        name: _outcomes(settings, applications, one) for name, one in (("with", jobs), ("without", plain))
    }
    asked = [job for job in jobs if job.finish_by_s is not None]
    promised = [one for one in runs["with"].values() if one.accepted_s is not None]
    names = {one.name for one in promised}
    others = [job.name for job in jobs if job.name not in names]
    elastic = ElasticFlow(applications)
    return Result(
        asked=len(asked),
        accepted=len(promised),
        kept=sum(one.is_kept for one in promised),
        refused_by_elasticflow=sum(not elastic.admit(job) for job in asked),
        later=_mean(runs["with"], others) / _mean(runs["without"], others),
        all_later=_mean(runs["with"], list(runs["with"])) / _mean(runs["without"], list(runs["with"])),
        missed_by_s=tuple(one.finished_s - (one.finish_by_s or 0.0) for one in promised if not one.is_kept),
    )


def _outcomes(
    settings: RunSettings, applications: Mapping[str, Application], jobs: Sequence[WorkloadJob]
) -> dict[str, JobOutcome]:
    """Simulate a workload on a cluster where each application was trained once before."""
    policy, rules = settings.make_policy(), settings.make_rules()
    before = [
        WorkloadJob(name=f"before-{name}", submitted_s=0.0, application=name, num_replicas=1, batch_size=1)
        for name in applications
    ]
    simulate(before, applications, policy, settings.cluster(), rules=rules)
    result = simulate(jobs, applications, policy, settings.cluster(), rules=rules)
    return {job.name: job for job in job_outcomes(result, AloneTimes(GPUS_PER_NODE))}


def _mean(jobs: Mapping[str, JobOutcome], names: Sequence[str]) -> float:
    return sum(jobs[name].completion_s for name in names) / max(len(names), 1)


@functools.lru_cache(maxsize=1)
def _applications(traces: Path) -> Mapping[str, Application]:
    return read_applications(traces)


def _range(text: str) -> tuple[float, float]:
    low, _, high = text.partition(":")
    return float(low), float(high or low)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("traces", type=Path)
    parser.add_argument("--loads", default="0.5,1,1.5,2")
    parser.add_argument("--seeds", default="401,402,403,404")
    parser.add_argument("--share", type=float, default=0.3)
    parser.add_argument("--tightness", type=_range, default=(1.0, 3.0))
    parser.add_argument("--objective", default="price-rank")
    parser.add_argument("--users", type=int, default=1)
    parser.add_argument("--in-place", action="store_true")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    loads = [float(load) for load in options.loads.split(",")]
    seeds = [int(seed) for seed in options.seeds.split(",")]
    print("load | asked | refused | by ElasticFlow | kept | others | all | missed by, s")
    with ProcessPoolExecutor(max_workers=options.processes) as pool:
        runs = {load: [pool.submit(measure, options, load, seed) for seed in seeds] for load in loads}
        everything: list[Result] = []
        for load in loads:
            results = [run.result() for run in runs[load]]
            everything += results
            print(f"{load:g} | {_line(results)}", flush=True)
    print(f"all | {_line(everything)}")


def _line(results: Sequence[Result]) -> str:
    asked, accepted, kept, elastic = (
        sum(getattr(one, name) for one in results)
        for name in ("asked", "accepted", "kept", "refused_by_elasticflow")
    )
    later = sum(one.later for one in results) / len(results) - 1
    all_later = sum(one.all_later for one in results) / len(results) - 1
    missed = sorted(round(by_s) for one in results for by_s in one.missed_by_s)
    return (
        f"{asked} | {asked - accepted} | {elastic} | {kept} of {accepted} ({kept / max(accepted, 1):.1%}) | "
        f"{later:+.1%} | {all_later:+.1%} | {missed}"
    )


if __name__ == "__main__":
    main()
