"""What jobs of one kind tell each other in a simulation: here jobs of one application are of one kind."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pollux_slurm.goodput import taught_model, training_course
from pollux_slurm.model import GoodputModel, GradientStatistics, TrainingCourse
from pollux_slurm.simulator.engine.job import SimulatedJob


class SharedModels:
    """The model that has seen most, by application and GPU type; none at first, as in a new store."""

    def __init__(self) -> None:
        self._teachers: dict[tuple[str, str], GoodputModel] = {}
        self._early: dict[str, GradientStatistics | None] = {}
        self._courses: dict[str, TrainingCourse] = {}
        self._seen: dict[str, list[tuple[float, GradientStatistics]]] = {}

    def types(self, application: str) -> list[str]:
        """Return the GPU types on which jobs of an application were measured."""
        return [gpu_type for name, gpu_type in self._teachers if name == application]

    def teach(self, application: str, gpu_type: str, own: GoodputModel | None) -> GoodputModel | None:
        """Return a job's model on a GPU type, with what the others know beyond it, and learn from it."""
        key = (application, gpu_type)
        teacher = self._teachers.get(key)
        if own is not None and own.throughput is not None:
            early = self._early.setdefault(application, own.statistics)
            if teacher is None or _seen(own) >= _seen(teacher):
                self._teachers[key] = replace(own, statistics=early)
        return own if teacher is None else taught_model(own, teacher) or own

    def watch(self, jobs: Iterable[SimulatedJob]) -> None:
        """Learn the courses of trainings: `jobs` are those that were not over at the last call."""
        for job in jobs:
            name, examples = job.job.application, job.useful_progress * job.application.initial_batch_size
            if name in self._courses:
                continue
            seen = self._seen.setdefault(job.job.name, [])
            if job.finished_s is not None:
                self._courses[name] = training_course(examples, seen)
            elif job.statistics is not None:
                seen.append((examples, job.statistics))

    def course(self, application: str) -> TrainingCourse | None:
        """Return the course of a whole training, None before one was completed."""
        return self._courses.get(application)


def _seen(model: GoodputModel) -> tuple[int, int]:
    return model.max_gpus_seen, model.max_nodes_seen
