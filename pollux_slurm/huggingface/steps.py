"""A training loader as transformers' Trainer iterates over it: one item for each optimizer step.

Trainer counts what its loader yields, and fetches it only when the step before has ended. So each item stands
for a whole global batch, whose micro-batches are loaded one after the other within `training_step`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pollux_slurm.errors import UsageError
from pollux_slurm.huggingface.loaders import TrainingLoader


class StepBatch(dict[str, Any]):
    """The micro-batches of one step. To Trainer it is a batch without keys: it has no labels to count."""

    def __init__(self, loader: TrainingLoader, first: Any, rest: Iterator[Any]) -> None:
        super().__init__()
        self.loader, self._first, self._rest = loader, first, rest

    def micro_batches(self) -> Iterator[Any]:
        """Yield this replica's micro-batches; the next one is loaded when this one's gradient is computed."""
        # Trainer has set it for a whole step since the first one was loaded.
        self.loader.tell_whether_step_is_whole()
        yield self._first
        while not self.loader.is_stepping:
            yield next(self._rest, None)


class StepLoader:
    """Yields a `StepBatch` for each step of an epoch. `begin` and `end` are called around the loop.

    A step ends when the next one is asked for, or with `end_step`.
    """

    def __init__(self, loader: TrainingLoader) -> None:
        self.loader, self.dataset = loader, loader.dataset
        try:
            self._length: int | None = loader.num_initial_batches
        except TypeError:
            self._length = None
        self._steps: Iterator[StepBatch] = iter(())
        self._first: StepBatch | None = None
        self._micro_batches: Iterator[Any] = iter(())
        self.is_in_step = False

    def __len__(self) -> int:
        """Return the number of global batches of an epoch, at the initial batch size."""
        if self._length is None:
            raise TypeError("the dataset has no length")
        return self._length

    def begin(self) -> bool:
        """Begin the epoch's loop, or go on in it. False where it has ended already, before a restart."""
        self._steps = self._iterate()
        self._first = next(self._steps, None)
        return self._first is not None

    def __iter__(self) -> Iterator[StepBatch]:
        first, self._first = self._first, None
        if first is not None:
            yield first
            del first
            yield from self._steps

    def end_step(self) -> None:
        """End the step under way before the next one is asked for: an evaluation comes between the two."""
        self.is_in_step = False
        next(self._micro_batches, None)

    def end(self, *, is_left: bool) -> None:
        """End the loop: at the end of the data, or (`is_left`) before it."""
        if is_left:
            self.is_in_step = False
            self.loader.end_iteration("the epoch was left")
        elif next(self._steps, None) is not None:
            raise UsageError("the sampler yields more batches than its length says")

    def _iterate(self) -> Iterator[StepBatch]:
        self._micro_batches = self.loader.iterate_steps()
        for first in self._micro_batches:
            self.is_in_step = True
            yield StepBatch(self.loader, first, self._micro_batches)
            if self.is_in_step:
                self.end_step()
