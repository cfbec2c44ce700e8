"""`AdaptiveDataLoader`: batches of one global size over any number of replicas, exact to the sample."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from pollux_slurm.errors import UsageError
from pollux_slurm.model import BatchChoice, BatchLimits
from pollux_slurm.torch.batching import PassPlan, StepPlan, first_choice, plan_epoch
from pollux_slurm.torch.current import current_session
from pollux_slurm.torch.workers import ShieldedWorker, sigterm_held_back

_NOT_SUPPORTED = ("sampler", "batch_sampler")


class AdaptiveDataLoader:
    """Hand each replica its part of every global batch of `batch_size` examples.

    Each epoch visits every index of the map-style `dataset` exactly once (but for the examples that
    `drop_last` drops), over any sequence of replicas, batch sizes and restarts; the order depends on `seed`,
    the epoch and nothing else. `options` are those of `torch.utils.data.DataLoader`.

    A training loop over it yields micro-batches; the optimizer steps at the end of each global batch (see
    `AdaptiveDataParallel`). Where a global batch has fewer examples than there are replicas, a replica
    without any gets a stand-in, whose gradient does not count; `is_padding` tells.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int = 1,
        shuffle: bool = False,
        *,
        drop_last: bool = False,
        seed: int = 0,
        name: str | None = None,
        **options: Any,
    ) -> None:
        if isinstance(dataset, IterableDataset):
            raise UsageError("an IterableDataset has no positions to share out: use a map-style dataset")
        for option in _NOT_SUPPORTED:
            if options.get(option) is not None:
                raise UsageError(f"AdaptiveDataLoader makes its own batches: {option}= cannot be given")
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise UsageError(f"batch_size must be a whole number from 1, not {batch_size!r}")
        self._session = current_session()
        self._length = len(dataset)  # type: ignore[arg-type]
        self._shuffle, self._drop_last, self._seed = shuffle, drop_last, seed
        self._segment = _Segment()
        options["worker_init_fn"] = ShieldedWorker(owner=os.getpid(), init=options.get("worker_init_fn"))
        self._inner: DataLoader[Any] = DataLoader(dataset, batch_sampler=self._segment, **options)
        self.dataset, self.batch_size = dataset, batch_size
        self.limits = BatchLimits(initial_batch_size=batch_size)
        self._choice: BatchChoice | None = None
        self._plan: PassPlan | None = None
        self._position = _Position(name or self._session.next_name("loader"), self._length)
        self._session.register(self._position)

    def autoscale_batch_size(
        self,
        max_batch_size: int,
        local_bsz_bounds: tuple[int | None, int | None] | None = None,
        gradient_accumulation: bool = False,
    ) -> None:
        """Let the global batch size vary between `batch_size` and `max_batch_size`.

        `local_bsz_bounds` bounds the examples of one replica in one pass; `gradient_accumulation` allows
        several passes a step. Without this call the global batch size is `batch_size`, always.
        """
        low, high = local_bsz_bounds or (None, None)
        low = 1 if low is None else low
        if not self.batch_size <= max_batch_size:
            raise UsageError(f"max_batch_size={max_batch_size} is below batch_size={self.batch_size}")
        if low < 1 or low > max_batch_size or (high is not None and high < low):
            raise UsageError(f"local_bsz_bounds={local_bsz_bounds} leave no size from 1 to {max_batch_size}")
        self.limits = BatchLimits(
            initial_batch_size=self.batch_size,
            max_batch_size=max_batch_size,
            min_atomic=low,
            max_atomic=high,
            accumulation=gradient_accumulation,
        )
        self._choice = None

    @property
    def choice(self) -> BatchChoice:
        """The batch in use."""
        if self._choice is None:
            self._choice = first_choice(
                self.limits, self._session.world_size, wanted=self._position.global_batch_size
            )
        return self._choice

    @property
    def current_batch_size(self) -> int:
        """The global batch size in use."""
        return self.choice.global_batch_size

    @property
    def current_local_bsz(self) -> int:
        """The atomic batch size in use: examples of one replica in one pass."""
        return self.choice.atomic_batch_size

    @property
    def accumulation_steps(self) -> int:
        """How many passes come before the one that steps."""
        return self.choice.accumulation_steps

    @property
    def is_padding(self) -> bool:
        """True while this replica's batch is a stand-in that belongs to no example of its own."""
        return self._plan is not None and self._plan.is_padding

    def __len__(self) -> int:
        """Return how many batches an epoch has for each replica at the present batch size."""
        full, rest = divmod(self._length, self.choice.global_batch_size)
        passes = full * (self.choice.accumulation_steps + 1)
        if rest and not self._drop_last:
            last = next(
                plan_epoch(
                    0, rest, self.choice, num_replicas=self._session.world_size, rank=0, drop_last=False
                )
            )
            passes += len(last.passes)
        return passes

    def __iter__(self) -> Iterator[Any]:
        loop = self._position.begin_loop(self._session.epoch_key)
        if loop is None:
            # This loop had run to its end before the restart.
            return
        order = self._order(loop.number)
        with self._session.loop(self):
            try:
                while not (yield from self._run(loop, order)):
                    pass
            except GeneratorExit:
                self._position.leave_loop(loop, has_stepped=self._session.has_open_step)
                raise
            finally:
                self._plan = None
            self._position.end_loop(loop)
            self._session.end_loop(self)

    def _run(self, loop: _Loop, order: torch.Tensor) -> Generator[Any, None, bool]:
        """Yield batches to the end of the order (True), or until the batch size changes (False)."""
        session, position = self._session, self._position
        position.global_batch_size = self.choice.global_batch_size
        steps = partial(
            plan_epoch,
            loop.start,
            self._length,
            self.choice,
            num_replicas=session.world_size,
            rank=session.rank,
            drop_last=self._drop_last,
        )
        self._segment.set(order, steps)
        with sigterm_held_back():
            batches = iter(self._inner)
        for step in steps():
            for plan in step.passes:
                session.begin_pass(self, plan)
                batch = next(batches)
                self._plan = plan
                yield batch
                session.end_pass(self)
            position.advance(loop, step.end)
            chosen = session.end_step(self, step)
            if chosen is not None and self.choose(chosen):
                return False
        return True

    def choose(self, choice: BatchChoice) -> bool:
        """Use `choice` from the next step on; False where it is the one in use, or the batch is fixed."""
        if self.limits.max_batch_size is None or choice == self.choice:
            return False
        self._choice = choice
        return True

    def _order(self, loop: int) -> torch.Tensor:
        """Return the epoch's order of indices: a function of seed, epoch and loop alone."""
        if not self._shuffle:
            return torch.arange(self._length)
        text = f"{self._seed}:{self._session.epoch_key}:{loop}".encode()
        generator = torch.Generator()
        generator.manual_seed(int.from_bytes(hashlib.sha256(text).digest()[:7], "big"))
        return torch.randperm(self._length, generator=generator)


class _Segment(Sampler[list[int]]):
    """Feeds the inner loader this replica's indices, pass by pass. Set anew before each iteration."""

    def __init__(self) -> None:
        self._order = torch.empty(0, dtype=torch.int64)
        self._steps: Callable[[], Iterator[StepPlan]] = partial(iter, ())

    def set(self, order: torch.Tensor, steps: Callable[[], Iterator[StepPlan]]) -> None:
        self._order, self._steps = order, steps

    def __iter__(self) -> Iterator[list[int]]:
        for step in self._steps():
            for plan in step.passes:
                positions = plan.positions()
                yield self._order[positions.start : positions.stop].tolist()


@dataclass(slots=True)
class _Loop:
    """One loop over the loader: its number within the epoch, and where its next step begins.

    `is_replay` marks one that had been looked into before a restart, and is again: it counts no more.
    """

    number: int
    start: int
    is_replay: bool


class _Position:
    """Where one loader stands, as its checkpointed state.

    `_ended` tells of each loop that ended within `_epoch` whether it took a step (else the script had only
    looked at a batch); `_start` is the place of the next step in the loop after those. What a checkpoint said
    is taken up when its epoch comes.
    """

    def __init__(self, name: str, length: int) -> None:
        self.name, self._length = name, length
        self._epoch: int | None = None
        self._ended: list[bool] = []
        self._num_begun, self._start = 0, 0
        self._restored: dict[str, Any] | None = None
        self.global_batch_size: int | None = None

    def begin_loop(self, epoch: int) -> _Loop | None:
        """Return the loop that begins within `epoch`; None if it was done before a restart."""
        if self._restored is not None and self._restored["epoch"] == epoch:
            self._ended, self._start = list(self._restored["ended"]), self._restored["start"]
            self._epoch, self._num_begun, self._restored = epoch, 0, None
        elif epoch != self._epoch:
            self._epoch, self._ended, self._num_begun, self._start = epoch, [], 0, 0
        number = self._num_begun
        self._num_begun += 1
        if number < len(self._ended):
            return None if self._ended[number] else _Loop(number, 0, is_replay=True)
        return _Loop(number, self._start, is_replay=False)

    def advance(self, loop: _Loop, position: int) -> None:
        """Put the loop at `position`: a step was taken."""
        loop.start = position
        if not loop.is_replay:
            self._start = position

    def end_loop(self, loop: _Loop) -> None:
        """Count the loop as done."""
        if not loop.is_replay:
            self._ended.append(True)
            self._start = 0

    def leave_loop(self, loop: _Loop, *, has_stepped: bool) -> None:
        """The script left the loop with break: it is done, unless it took no step."""
        if not loop.is_replay:
            self._ended.append(has_stepped or loop.start > 0)
            self._start = 0

    def sync(self) -> None:
        """Nothing to do: every replica stands at the same place."""

    def state_dict(self) -> dict[str, Any]:
        if self._restored is not None:
            return self._restored
        return {
            "length": self._length,
            "epoch": self._epoch,
            "ended": list(self._ended),
            "start": self._start,
            "global_batch_size": self.global_batch_size,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state["length"] != self._length:
            raise ValueError(f"the dataset had {state['length']} examples and now has {self._length}")
        self._restored = dict(state)
        self.global_batch_size = state["global_batch_size"]
