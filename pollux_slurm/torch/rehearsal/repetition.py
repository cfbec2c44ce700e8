"""Let a run draw the same random numbers as another, and add up a batch's examples in another order.

So what a move changes can be told from chance, and from rounding. In a job random numbers differ after a
move, as with another seed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from pollux_slurm.agent.rehearsal_protocol import EventLog, RunPlan
from pollux_slurm.json_texts import parse_json
from pollux_slurm.torch.data.batch_sources import IterableSource
from pollux_slurm.torch.regroup.user_frames import user_frames
from pollux_slurm.torch.rehearsal.random_states import Root, read_states, set_states
from pollux_slurm.torch.rehearsal.repeatable_workers import WORKERS_DREW, RepeatableWorker
from pollux_slurm.torch.session.loader_protocol import Loader
from pollux_slurm.torch.wrapped_model.patching import patch

# Of the workers, in each loop of each run: those that last for several epochs would keep the first one's.
_WORKERS_SEED = 41


@dataclass(frozen=True, slots=True, kw_only=True)
class ReversedExamples:
    """A `collate_fn` that gives the loader's own one the examples in the reverse order."""

    collate: Callable[[Any], Any]

    def __call__(self, examples: Any) -> Any:
        return self.collate(examples[::-1] if isinstance(examples, list) else examples)


class Repetition:
    """Prepares each loader of a run, and keeps the random states of its last checkpoint within a loop.

    Where the plan says which run to repeat, the loop that goes on from its checkpoint begins with those.
    """

    def __init__(self, plan: RunPlan, rank: int, events: EventLog) -> None:
        self._plan, self._rank, self._events = plan, rank, events
        self._loader: Loader | None = None
        self._prepared: set[int] = set()
        self._reports_workers = True
        self._kept: dict[str, Any] | None = None
        if plan.repeats is not None:
            file = plan.repeats / _states_file(rank)
            self._kept = parse_json(file.read_text(encoding="utf-8")) if file.exists() else None

    def roots(self) -> Iterator[Root]:
        """Yield what may have generators: the dataset of the loop under way, and the script's variables."""
        if self._loader is not None:
            yield "dataset", cast("Any", self._loader).dataset
        for frame in user_frames():
            yield from list(frame.f_locals.items())

    def begin_loop(self, loader: Loader, place: Callable[[], list[Any]]) -> None:
        """Prepare a loader, whose outermost loop begins at `place`."""
        self._loader = loader
        source = cast("Any", loader)._source
        if id(source) in self._prepared:
            return
        self._prepared.add(id(source))
        inner = source._inner
        if inner.num_workers:
            inner.worker_init_fn = RepeatableWorker(folder=self._plan.folder, init=inner.worker_init_fn)
        if self._plan.reverses:
            if isinstance(source, IterableSource):
                share = cast("Any", source._share)
                share._collate = ReversedExamples(collate=share._collate)
            else:
                inner.collate_fn = ReversedExamples(collate=inner.collate_fn)

        def begin(original: Callable[[], Any]) -> Any:
            generators = [torch.default_generator, *([inner.generator] if inner.generator else [])]
            before = [generator.get_state() for generator in generators]
            for generator in generators:
                generator.manual_seed(_WORKERS_SEED)
            try:
                return original()
            finally:
                for generator, state in zip(generators, before, strict=True):
                    generator.set_state(state)
                self._restore(place())

        patch(source, "_begin", begin)

    def _restore(self, place: list[Any]) -> None:
        """Go on with the random numbers of the run before, in the loop that its checkpoint is of."""
        if self._kept is not None and self._kept["place"] == place:
            set_states(self._kept["states"], self.roots())
            self._kept = None
            self._events.write("random_restored")

    def note_checkpoint(self, place: list[Any]) -> None:
        """Keep the random states of a checkpoint in a loop."""
        kept = {"place": place, "states": read_states(self.roots())}
        (self._plan.folder / _states_file(self._rank)).write_text(json.dumps(kept), encoding="utf-8")

    def note_workers(self) -> None:
        """Log, once, that the loaders' workers draw random numbers."""
        if self._reports_workers and (self._plan.folder / WORKERS_DREW).exists():
            self._reports_workers = False
            self._events.write("drew", who="workers", generators=[])


def _states_file(rank: int) -> Path:
    return Path(f"random-states-{rank}.json")
