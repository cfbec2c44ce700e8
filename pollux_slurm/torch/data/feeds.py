"""Where a loader's micro-batches come from: a map-style dataset in a known order, or a stream.

A feed turns a place in the epoch and a batch choice into steps, each with this replica's batches, in order.
Both drive an ordinary `torch.utils.data.DataLoader`, whose options are the user's.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, default_collate

from pollux_slurm.errors import UsageError
from pollux_slurm.model import BatchChoice
from pollux_slurm.torch.data.iterable_share import StreamShare
from pollux_slurm.torch.data.micro_batches import StepPlan, plan_batches, plan_epoch, plan_step
from pollux_slurm.torch.data.sampling_order import Order
from pollux_slurm.torch.data.workers import sigterm_held_back

# A step, and this replica's batch for each of its passes.
Steps = Iterator[tuple[StepPlan, Iterator[Any]]]


class MapFeed:
    """Loads the examples that an order names."""

    def __init__(
        self,
        dataset: Dataset[Any],
        *,
        num_replicas: int,
        rank: int,
        drop_last: bool,
        options: Mapping[str, Any],
    ) -> None:
        self._num_replicas, self._rank, self._drop_last = num_replicas, rank, drop_last
        self._segment = _Segment()
        self._inner: DataLoader[Any] = DataLoader(dataset, batch_sampler=self._segment, **options)

    @property
    def order(self) -> Order | None:
        """The order of the loop under way, or of the last."""
        return self._segment.order

    def steps(self, order: Order, start: int, choice: BatchChoice, *, largest: int | None) -> Steps:
        """Yield the steps from position `start` of `order` on."""
        make: Callable[[], Iterator[StepPlan]]
        if order.ends is None:
            make = partial(
                plan_epoch,
                start,
                len(order),
                choice,
                num_replicas=self._num_replicas,
                rank=self._rank,
                drop_last=self._drop_last,
            )
        else:
            make = partial(
                plan_batches,
                start,
                order.ends.tolist(),
                typical=choice.global_batch_size,
                largest=choice.atomic_batch_size if choice.accumulation_steps > 0 else largest,
                num_replicas=self._num_replicas,
                rank=self._rank,
            )
        self._segment.set(order, make)
        with sigterm_held_back():
            batches = iter(self._inner)
        for step in make():
            yield step, batches


class StreamFeed:
    """Loads this replica's share of an iterable dataset."""

    def __init__(
        self,
        dataset: IterableDataset[Any],
        *,
        num_replicas: int,
        rank: int,
        drop_last: bool,
        options: Mapping[str, Any],
    ) -> None:
        options = dict(options)
        self._num_replicas, self._rank = num_replicas, rank
        self._share = StreamShare(
            dataset,
            collate=options.pop("collate_fn", None) or default_collate,
            num_replicas=num_replicas,
            rank=rank,
            drop_last=drop_last,
            is_shared=options.get("num_workers", 0) > 0,
        )
        self._inner: DataLoader[Any] = DataLoader(
            self._share, batch_size=None, collate_fn=_as_it_is, **options
        )

    def steps(self, epoch: int, start: int, choice: BatchChoice) -> Steps:
        """Yield the steps from example `start` of the epoch's stream on."""
        self._share.set(epoch=epoch, start=start, choice=choice)
        with sigterm_held_back():
            cells = iter(self._inner)
        for size, first in cells:
            step = plan_step(start, size, choice, num_replicas=self._num_replicas, rank=self._rank)
            rest = (batch for _, batch in itertools.islice(cells, len(step.passes) - 1))
            yield step, itertools.chain([first], rest)
            start = step.end


def check_options(options: Mapping[str, Any]) -> None:
    """Raise `UsageError` for options with which no position could be kept."""
    if options.get("in_order") is False:
        raise UsageError("in_order=False lets batches overtake each other: positions would not be exact")


class _Segment(Sampler[list[int]]):
    """Feeds the inner loader this replica's indices, pass by pass. Set anew before each iteration."""

    def __init__(self) -> None:
        self.order: Order | None = None
        self._steps: Callable[[], Iterator[StepPlan]] = partial(iter, ())

    def set(self, order: Order, steps: Callable[[], Iterator[StepPlan]]) -> None:
        self.order, self._steps = order, steps

    def __iter__(self) -> Iterator[list[int]]:
        assert self.order is not None
        indices = self.order.indices
        for step in self._steps():
            for plan in step.passes:
                positions = plan.positions()
                yield indices[positions.start : positions.stop].tolist()


def _as_it_is(value: Any) -> Any:
    return value
