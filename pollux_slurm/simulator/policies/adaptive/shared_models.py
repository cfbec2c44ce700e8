"""What jobs of one kind tell each other in a simulation: here jobs of one application are of one kind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pollux_slurm.goodput import ExpectedProgress, agrees, expected_progress, taught_model, training_course
from pollux_slurm.model import GoodputModel, GradientStatistics, TrainingCourse
from pollux_slurm.store.contract.interface import NEWEST_OF_A_KIND


@dataclass(slots=True, kw_only=True, eq=False)
class _Known:
    """What is known of a job: its models by GPU type, its first statistics, and its length once it ended."""

    models: dict[str, GoodputModel] = field(default_factory=dict)
    early: GradientStatistics | None = None
    progress: float = 0.0
    is_over: bool = False

    def agrees(self, own: Mapping[str, GoodputModel]) -> bool:
        return all(agrees(own.get(gpu_type), model) for gpu_type, model in self.models.items())

    @property
    def seen(self) -> tuple[int, int]:
        models = self.models.values()
        return max(one.max_gpus_seen for one in models), max(one.max_nodes_seen for one in models)


class SharedModels:
    """The jobs that have measured steps, by kind; none at first, as in a new store."""

    def __init__(self) -> None:
        self._jobs: dict[str, _Known] = {}
        self._of_kind: defaultdict[str, list[str]] = defaultdict(list)
        self._courses: dict[str, TrainingCourse] = {}
        self._seen: defaultdict[str, list[tuple[float, GradientStatistics]]] = defaultdict(list)

    def watch(
        self, name: str, kind: str, progress: float, statistics: GradientStatistics | None, *, is_over: bool
    ) -> None:
        """Note how far a job is that was not over at the last call: its length, and its training's course."""
        if is_over and name in self._jobs:
            self._jobs[name].progress, self._jobs[name].is_over = progress, True
        if kind in self._courses:
            return
        if is_over:
            self._courses[kind] = training_course(progress, self._seen[name])
        elif statistics is not None:
            self._seen[name].append((progress, statistics))

    def teach(
        self, name: str, kind: str, own: Mapping[str, GoodputModel], progress: float
    ) -> tuple[dict[str, GoodputModel], ExpectedProgress | None]:
        """Return a job's models by GPU type with what others know beyond it, and its expected progress.

        The newest of its kind teach sizes, and the newest that are over a length, as in the daemon.
        """
        self._learn(name, kind, own)
        others = [self._jobs[one] for one in reversed(self._of_kind[kind]) if one != name]
        over = [one for one in others if one.is_over][:NEWEST_OF_A_KIND]
        known = [one for place, one in enumerate(others) if place < NEWEST_OF_A_KIND or one in over]
        agreeing = [one for one in known if one.agrees(own)]
        if not agreeing:
            return dict(own), None
        teacher, found = max(agreeing[:NEWEST_OF_A_KIND], key=lambda one: one.seen), dict(own)
        for gpu_type, model in teacher.models.items():
            taught = taught_model(own.get(gpu_type), replace(model, statistics=teacher.early))
            if taught is not None:
                found[gpu_type] = taught
        return found, expected_progress(progress, [one.progress for one in agreeing if one.is_over])

    def _learn(self, name: str, kind: str, own: Mapping[str, GoodputModel]) -> None:
        measured = {gpu_type: model for gpu_type, model in own.items() if model.throughput is not None}
        if not measured:
            return
        if name not in self._jobs:
            self._jobs[name] = _Known(early=next(iter(measured.values())).statistics)
            self._of_kind[kind].append(name)
        self._jobs[name].models = measured

    def course(self, kind: str) -> TrainingCourse | None:
        """Return the course of a whole training, None before one was completed."""
        return self._courses.get(kind)
