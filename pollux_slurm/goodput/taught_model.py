"""What a job's kind knows of sizes that the job itself has not measured.

A job's own measurements count where it has them. Beyond the largest size that it was measured on, the model
of an earlier run of its kind counts, scaled so that both agree on that size: nodes differ in speed. They are
compared with the largest batch there, since the first steps of a job have smaller ones than its later steps.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable

from pollux_slurm.goodput.throughput_model import iteration_time_s
from pollux_slurm.model import (
    BatchLimits,
    GoodputModel,
    GradientStatistics,
    ThroughputParameters,
    TrainingCourse,
)

# A kind whose model is off by more than this part, where both have measured, does not count for a job.
_MAX_KIND_ERROR = 0.3

# The most by which a kind's model is scaled to what a job has measured.
_MAX_SCALE = 2.0

COURSE_PARTS = 16
"""A course has at most so many statistics."""


def agrees(own: GoodputModel | None, teacher: GoodputModel) -> bool:
    """Return whether nothing that a job has measured itself contradicts `teacher`.

    What they train must be the same (`trains_the_same`). The times of a step with the initial batch may
    differ by `_MAX_KIND_ERROR`, either on one GPU or on the largest size that the job was measured on. Fits
    of the same training differ there by more: on many GPUs where they are of few sizes, on one where the job
    never was on one.
    """
    if own is None:
        return True
    if not trains_the_same(own, teacher):
        return False
    if own.throughput is None or teacher.throughput is None:
        return True
    initial = own.limits.initial_batch_size
    ratios = [_ratio(own, teacher.throughput, size, initial) for size in ((1, 1), _largest_size(own))]
    return any(1 / (1 + _MAX_KIND_ERROR) <= ratio <= 1 + _MAX_KIND_ERROR for ratio in ratios)


def trains_the_same(own: GoodputModel, teacher: GoodputModel) -> bool:
    """Return whether two jobs have as many parameters and the same precision, where both are known."""
    trained = (own.num_parameters, teacher.num_parameters), (own.precision, teacher.precision)
    return not any(None not in pair and pair[0] != pair[1] for pair in trained)


def taught_model(own: GoodputModel | None, teacher: GoodputModel) -> GoodputModel | None:
    """Return a job's model with what a `teacher` that agrees with it knows beyond it.

    `own` is None, or without θ, before the job's first measurement: limits and gradient statistics that it
    has not reported are the teacher's then. What it trains is its own to say. A teacher that would have to be
    scaled by more than `_MAX_SCALE` is of other nodes or another network, and knows nothing.
    """
    if teacher.throughput is None:
        return own
    if own is None or own.throughput is None:
        known = teacher if own is None else own
        return dataclasses.replace(
            teacher,
            limits=known.limits,
            statistics=known.statistics or teacher.statistics,
            num_parameters=None if own is None else own.num_parameters,
            precision=None if own is None else own.precision,
        )
    if own.max_gpus_seen >= teacher.max_gpus_seen and own.max_nodes_seen >= teacher.max_nodes_seen:
        return own
    batch = own.limits.max_batch_size or own.limits.initial_batch_size
    ratio = _ratio(own, teacher.throughput, _largest_size(own), batch)
    if not 1 / _MAX_SCALE <= ratio <= _MAX_SCALE:
        return own
    return dataclasses.replace(
        own,
        throughput=_scaled(teacher.throughput, ratio),
        max_gpus_seen=max(own.max_gpus_seen, teacher.max_gpus_seen),
        max_nodes_seen=max(own.max_nodes_seen, teacher.max_nodes_seen),
    )


def training_course(work: float, seen: Iterable[tuple[float, GradientStatistics]]) -> TrainingCourse:
    """Return the course of a training from the statistics seen in it, each with the useful examples done.

    It has a few of them, evenly spaced: of each part of the work those in its middle.
    """
    parts: dict[int, list[tuple[float, GradientStatistics]]] = {}
    for done, statistics in seen:
        if 0 <= done < work:
            parts.setdefault(int(COURSE_PARTS * done / work), []).append((done, statistics))
    course = []
    for part, of_part in sorted(parts.items()):
        middle = (part + 0.5) * work / COURSE_PARTS
        nearest = min(of_part, key=lambda one: abs(one[0] - middle))
        course.append((part * work / COURSE_PARTS, nearest[1]))
    return TrainingCourse(work=work, statistics=tuple(course))


def _largest_size(own: GoodputModel) -> tuple[int, int]:
    """Return the nodes and GPUs of the largest size that a job was measured on."""
    return max(own.max_nodes_seen, 1), max(own.max_gpus_seen, 1)


def _ratio(own: GoodputModel, teacher: ThroughputParameters, size: tuple[int, int], batch: int) -> float:
    """Return how many times as long as the teacher's a job's own step of a batch is, on (nodes, GPUs)."""
    assert own.throughput is not None
    atomic = _within_bounds(own.limits, batch // size[1])
    return _step_s(own.throughput, *size, atomic) / _step_s(teacher, *size, atomic)


# Jobs of a kind are compared with each other in each round, and their models seldom change.
@functools.lru_cache(maxsize=100_000)
def _step_s(theta: ThroughputParameters, nodes: int, gpus: int, atomic: int) -> float:
    return float(iteration_time_s(theta, nodes, gpus, atomic))


def _within_bounds(limits: BatchLimits, micro_batch: int) -> int:
    """Return the micro-batch nearest to the given one that fits on a GPU."""
    atomic = max(micro_batch, limits.min_atomic)
    return atomic if limits.max_atomic is None else min(atomic, limits.max_atomic)


def _scaled(theta: ThroughputParameters, ratio: float) -> ThroughputParameters:
    times = {name: value * ratio for name, value in dataclasses.asdict(theta).items() if name != "gamma"}
    return dataclasses.replace(theta, **times)
