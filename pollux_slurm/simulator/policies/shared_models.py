"""What jobs of one kind tell each other in a simulation: here jobs of one application are of one kind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from pollux_slurm.goodput import expected_progress, taught_model
from pollux_slurm.model import GoodputModel, GradientStatistics


class SharedModels:
    """The model that has seen most, by kind and GPU type; none at first, as in a new store."""

    def __init__(self) -> None:
        self._teachers: dict[tuple[str, str], GoodputModel] = {}
        self._early: dict[str, GradientStatistics | None] = {}
        self._present: dict[str, tuple[str, float]] = {}
        self._lengths: defaultdict[str, list[float]] = defaultdict(list)

    def see(self, progress: Mapping[str, tuple[str, float]]) -> None:
        """Note the jobs that are not over, as (kind, progress) by name: the others have completed."""
        for name in self._present.keys() - progress.keys():
            kind, length = self._present[name]
            self._lengths[kind].append(length)
        self._present = dict(progress)

    def length(self, kind: str, progress: float) -> float | None:
        """Return the progress at which a job is expected to end."""
        return expected_progress(progress, self._lengths[kind])

    def types(self, kind: str) -> list[str]:
        """Return the GPU types on which jobs of a kind were measured."""
        return [gpu_type for name, gpu_type in self._teachers if name == kind]

    def teach(self, kind: str, gpu_type: str, own: GoodputModel | None) -> GoodputModel | None:
        """Return a job's model on a GPU type with what the others know beyond it, and learn from it.

        It is None where nothing is known, or where the job's own model contradicts its kind.
        """
        key = (kind, gpu_type)
        teacher = self._teachers.get(key)
        if own is not None and own.throughput is not None:
            early = self._early.setdefault(kind, own.statistics)
            if teacher is None or _seen(own) >= _seen(teacher):
                self._teachers[key] = replace(own, statistics=early)
        return own if teacher is None else taught_model(own, teacher)


def _seen(model: GoodputModel) -> tuple[int, int]:
    return model.max_gpus_seen, model.max_nodes_seen
