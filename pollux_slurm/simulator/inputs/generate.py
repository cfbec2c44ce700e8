"""Generate workloads as the Pollux paper (section 5.2) and its artifact do, at any load and length.

Jobs arrive as in eight hours of a day of the Philly trace (02:00 to 10:00). Each belongs to a class of GPU
time, and each class has applications that take about as long. The user's request is drawn from
`tuned_choices`.

Only `random.Random.random` is used, whose sequence Python guarantees for a seed: the same seed gives the same
workload on every machine and version.
"""

from __future__ import annotations

import dataclasses
import math
import random
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import MappingProxyType
from typing import TypeVar

from pollux_slurm.errors import TraceError, UsageError
from pollux_slurm.simulator.inputs.applications import Application
from pollux_slurm.simulator.inputs.batch_splits import packed_step_time_s
from pollux_slurm.simulator.inputs.workload import WorkloadJob, listed

# Share of a day's submissions in each of the eight hours.
HOURLY_SHARES = (0.113, 0.108, 0.072, 0.119, 0.165, 0.210, 0.112, 0.101)
# The paper's load 1.0: 160 jobs in eight hours for 64 GPUs.
_JOBS_PER_GPU = 160 / 64
# An upper limit, to refuse simulations that would not end in a lifetime.
_MOST_JOBS = 1_000_000

_REPLICAS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48)
# A user adds GPUs while each is used at least half as well as a single one.
_WORST_SCALING, _BEST_SCALING = 0.5, 0.8
_LONGEST_S = 12 * 3600.0

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobClass:
    """Jobs with less than `below_gpu_hours` of GPU time: their share, and the applications that they run."""

    below_gpu_hours: float
    share: float
    applications: tuple[str, ...]


CLASSES = (
    JobClass(below_gpu_hours=1.0, share=0.783, applications=("cifar10", "ncf")),
    JobClass(below_gpu_hours=10.0, share=0.152, applications=("deepspeech2", "bert")),
    JobClass(below_gpu_hours=100.0, share=0.046, applications=("yolov3",)),
    JobClass(below_gpu_hours=math.inf, share=0.019, applications=("imagenet",)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedChoice:
    """GPUs and global batch size that a user requests after manual tuning."""

    num_replicas: int
    batch_size: int


def _published(*choices: tuple[int, int]) -> tuple[TunedChoice, ...]:
    return tuple(TunedChoice(num_replicas=replicas, batch_size=size) for replicas, size in choices)


# The result of `tuned_choices` for the artifact's traces on nodes of four GPUs; a test compares the two.
PUBLISHED_CHOICES: Mapping[str, tuple[TunedChoice, ...]] = MappingProxyType(
    {
        "bert": _published((6, 384), (8, 384), (12, 384), (16, 384)),
        "cifar10": _published((6, 2048), (8, 2048), (12, 4096), (16, 4096)),
        "deepspeech2": _published((6, 320), (8, 320), (12, 640)),
        "imagenet": _published((24, 3200), (32, 6400), (48, 6400)),
        "ncf": _published((1, 32768)),
        "yolov3": _published((4, 64)),
    }
)


def tuned_choices(application: Application, *, gpus_per_node: int = 4) -> tuple[TunedChoice, ...]:
    """Return what users who know their application would request, by ascending GPUs.

    For each number of GPUs, packed on nodes of `gpus_per_node`, the batch size with the lowest true
    completion time is taken. Choices on several GPUs must scale to between 50 and 80 % of linear and end
    within 12 hours; if there are none, the only choice is one GPU. Raises `TraceError` for traces without a
    step time on one GPU.
    """
    best = {num_replicas: _fastest(application, num_replicas, gpus_per_node) for num_replicas in _REPLICAS}
    alone = best[1]
    if alone is None:
        raise TraceError(f"{application.name}: the traces have no step time on one GPU")
    alone_s, alone_size = alone
    chosen = []
    for num_replicas, found in best.items():
        if found is None or num_replicas == 1:
            continue
        time_s, size = found
        scaling = alone_s / time_s / num_replicas
        if _WORST_SCALING <= scaling <= _BEST_SCALING and time_s < _LONGEST_S:
            chosen.append(TunedChoice(num_replicas=num_replicas, batch_size=size))
    return tuple(chosen) or (TunedChoice(num_replicas=1, batch_size=alone_size),)


def fastest_batch_size(application: Application, num_replicas: int, *, gpus_per_node: int = 4) -> int | None:
    """Return the fastest batch size on `num_replicas` GPUs; None where none was measured."""
    found = _fastest(application, num_replicas, gpus_per_node)
    return None if found is None else found[1]


def generate_workload(
    *,
    seed: int,
    load: float = 1.0,
    hours: float = 8.0,
    num_gpus: int = 64,
    most_gpus: int | None = None,
    num_accounts: int = 0,
    choices: Mapping[str, Sequence[TunedChoice]] = PUBLISHED_CHOICES,
) -> tuple[WorkloadJob, ...]:
    """Return jobs in the order of their submission, in whole seconds from 0.

    `load` 1.0 is the paper's: 2.5 jobs per GPU in eight hours. A longer workload repeats the eight hours, a
    shorter one ends early. Jobs are drawn uniformly from `num_accounts` accounts (0: none); the number of
    accounts affects nothing else. No job requests more than `most_gpus`, or `num_gpus` without it.

    Raises `UsageError` for impossible numbers, `TraceError` for an application without choices.
    """
    num_jobs = _num_jobs(load, hours, num_gpus)
    if num_accounts < 0:
        raise UsageError(f"a workload cannot have {num_accounts} accounts")
    rng, account_rng = random.Random(seed), random.Random(f"accounts {seed}")
    most = num_gpus if most_gpus is None else most_gpus
    fitting = {name: _fitting(choices, name, most) for job in CLASSES for name in job.applications}
    starts = [*accumulate(_hourly_shares(hours), initial=0.0)]
    drawn = []
    for _ in range(num_jobs):
        submitted_s = _arrival_s(rng.random() * starts[-1], starts, hours)
        kind = _pick(rng, CLASSES, [job.share for job in CLASSES])
        application = _pick(rng, kind.applications)
        choice = _pick(rng, fitting[application])
        account = f"account{int(account_rng.random() * num_accounts)}" if num_accounts else ""
        drawn.append((submitted_s, application, choice, account))
    drawn.sort(key=lambda item: item[0])
    return tuple(
        WorkloadJob(
            name=f"{application}-{index}",
            submitted_s=float(submitted_s),
            application=application,
            num_replicas=choice.num_replicas,
            batch_size=choice.batch_size,
            account=account,
        )
        for index, (submitted_s, application, choice, account) in enumerate(drawn)
    )


def with_users(
    jobs: Sequence[WorkloadJob], num_users: int, *, seed: int, equal: bool = False
) -> tuple[WorkloadJob, ...]:
    """Return the jobs with users: on average, the k-th user has 1/k of the first one's jobs (Zipf).

    With `equal`, all users have equally many on average. Raises `UsageError` for fewer than one user.
    """
    if num_users < 1:
        raise UsageError(f"jobs cannot be shared among {num_users} users")
    rng = random.Random(f"users {seed}")
    users = [f"user{number}" for number in range(num_users)]
    shares = None if equal else [1.0 / (number + 1) for number in range(num_users)]
    return tuple(dataclasses.replace(job, user=_pick(rng, users, shares)) for job in jobs)


def class_of(gpu_hours: float) -> JobClass:
    """Return the class of a job with this GPU time."""
    return next(job for job in CLASSES if gpu_hours < job.below_gpu_hours or math.isinf(job.below_gpu_hours))


def _num_jobs(load: float, hours: float, num_gpus: int) -> int:
    for value, what in ((load, "load"), (hours, "length in hours")):
        if not (math.isfinite(value) and value > 0):
            raise UsageError(f"the {what} of a workload must be above 0, not {value:g}")
    if num_gpus < 1:
        raise UsageError(f"a cluster with {num_gpus} GPUs runs no workload")
    expected = load * num_gpus * _JOBS_PER_GPU * sum(HOURLY_SHARES) * hours / 8
    if expected > _MOST_JOBS:
        raise UsageError(
            f"load {load:g} for {hours:g} hours on {num_gpus} GPUs is {expected:.3g} jobs: too many"
        )
    return max(round(load * num_gpus * _JOBS_PER_GPU * sum(_hourly_shares(hours))), 1)


def _hourly_shares(hours: float) -> list[float]:
    """Return the share of each hour, cut at the end of the last one."""
    return [
        HOURLY_SHARES[hour % len(HOURLY_SHARES)] * min(hours - hour, 1.0) for hour in range(math.ceil(hours))
    ]


def _arrival_s(at: float, starts: Sequence[float], hours: float) -> int:
    """Return the second by which the share `at` of the cumulative `starts` arrived, uniformly in an hour."""
    hour = min(bisect_right(starts, at), len(starts) - 1) - 1
    part = (at - starts[hour]) / (starts[hour + 1] - starts[hour])
    return int(3600 * (hour + part * min(hours - hour, 1.0)))


def _pick(rng: random.Random, items: Sequence[_Item], shares: Sequence[float] | None = None) -> _Item:
    """Draw one of `items`, with probabilities `shares` or uniformly."""
    if shares is None:
        return items[int(rng.random() * len(items))]
    ends = list(accumulate(shares))
    return items[min(bisect_right(ends, rng.random() * ends[-1]), len(items) - 1)]


def _fitting(
    choices: Mapping[str, Sequence[TunedChoice]], name: str, num_gpus: int
) -> tuple[TunedChoice, ...]:
    if not choices.get(name):
        raise TraceError(
            f"a generated workload needs traces of application {name!r} (there are: {listed(choices)})"
        )
    fitting = tuple(choice for choice in choices[name] if choice.num_replicas <= num_gpus)
    if fitting:
        return fitting
    # The cluster is too small for any choice: its users request all of it.
    smallest = min(choices[name], key=lambda choice: choice.num_replicas)
    return (TunedChoice(num_replicas=num_gpus, batch_size=smallest.batch_size),)


def _fastest(application: Application, num_replicas: int, gpus_per_node: int) -> tuple[float, int] | None:
    """Return (true completion time in seconds, batch size) of the fastest measured batch size."""
    times = []
    for batch_size in application.batch_sizes:
        step_s = _step_s(application, batch_size, num_replicas, gpus_per_node)
        if step_s is not None:
            last = application.num_epochs - 1
            times.append((application.iterations(batch_size, last) * step_s, batch_size))
    return min(times, default=None)


def _step_s(application: Application, batch_size: int, num_replicas: int, gpus_per_node: int) -> float | None:
    """Return the time of a step in as few micro-batches as fit; None where it was not measured.

    Unlike in a simulation, one GPU may take a large batch in one micro-batch: no gradient noise is estimated.
    """
    local = -(-batch_size // num_replicas)
    micro_batches = -(-local // application.max_atomic)
    atomic = -(-local // micro_batches)
    if atomic < application.min_atomic:
        return None
    try:
        return packed_step_time_s(application, num_replicas, gpus_per_node, atomic, micro_batches - 1)
    except TraceError:
        return None
