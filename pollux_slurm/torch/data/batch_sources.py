"""Load this replica's micro-batches, from a map-style dataset in a known order or from an iterable one.

A source turns a position in the epoch and a batch choice into steps, each with this replica's micro-batches.
Both kinds drive an ordinary `torch.utils.data.DataLoader` with the user's options.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, default_collate

from pollux_slurm.errors import UsageError
from pollux_slurm.model import BatchChoice
from pollux_slurm.torch.data.iterable_share import IterableShare
from pollux_slurm.torch.data.micro_batches import StepPlan, plan_batches, plan_epoch, plan_step
from pollux_slurm.torch.data.sampling_order import SamplingOrder
from pollux_slurm.torch.data.workers import sigterm_blocked

# A step, and the loaded examples of each of this replica's micro-batches.
StepBatches = Iterator[tuple[StepPlan, Iterator[Any]]]


class MapStyleSource:
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
        self._sampler = _MicroBatchSampler()
        self._inner: DataLoader[Any] = DataLoader(dataset, batch_sampler=self._sampler, **options)

    @property
    def order(self) -> SamplingOrder | None:
        """The order of the loop under way, or of the last."""
        return self._sampler.order

    def steps(
        self, order: SamplingOrder, start: int, choice: BatchChoice, *, largest: int | None
    ) -> StepBatches:
        """Yield the steps from position `start` of `order` on."""
        if order.ends is None:
            steps = plan_epoch(
                start,
                len(order),
                choice,
                num_replicas=self._num_replicas,
                rank=self._rank,
                drop_last=self._drop_last,
            )
        else:
            steps = plan_batches(
                start,
                order.ends.tolist(),
                typical=choice.global_batch_size,
                largest=choice.atomic_batch_size if choice.accumulation_steps > 0 else largest,
                num_replicas=self._num_replicas,
                rank=self._rank,
            )
        # The sampler is ahead of the loop by as many batches as workers load.
        steps, ahead = itertools.tee(steps)
        self._sampler.set(order, ahead)
        with sigterm_blocked():
            batches = iter(self._inner)
        for step in steps:
            yield step, batches


class IterableSource:
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
        self._share = IterableShare(
            dataset,
            collate=options.pop("collate_fn", None) or default_collate,
            num_replicas=num_replicas,
            rank=rank,
            drop_last=drop_last,
            is_shared=options.get("num_workers", 0) > 0,
        )
        self._inner: DataLoader[Any] = DataLoader(
            self._share, batch_size=None, collate_fn=_identity, **options
        )

    def steps(self, epoch: int, start: int, choice: BatchChoice, *, looks_ahead: bool = False) -> StepBatches:
        """Yield the steps from example `start` of the epoch's stream on.

        With `looks_ahead` the last of them is known as such.
        """
        self._share.set(epoch=epoch, start=start, choice=choice, looks_ahead=looks_ahead)
        with sigterm_blocked():
            batches = iter(self._inner)
        for size, is_last, first in batches:
            step = plan_step(start, size, choice, num_replicas=self._num_replicas, rank=self._rank)
            rest = (batch for *_, batch in itertools.islice(batches, len(step.micro_batches) - 1))
            yield replace(step, num_left=0 if is_last else None), itertools.chain([first], rest)
            start = step.end


def check_options(options: Mapping[str, Any]) -> None:
    """Raise `UsageError` for options that make positions inexact."""
    if options.get("in_order") is False:
        raise UsageError("in_order=False lets batches overtake each other: positions would not be exact")


class _MicroBatchSampler(Sampler[list[int]]):
    """Yields this replica's indices, one list for each micro-batch. Set anew before each iteration."""

    def __init__(self) -> None:
        self.order: SamplingOrder | None = None
        self._steps: Iterator[StepPlan] = iter(())

    def set(self, order: SamplingOrder, steps: Iterator[StepPlan]) -> None:
        self.order, self._steps = order, steps

    def __iter__(self) -> Iterator[list[int]]:
        assert self.order is not None
        indices = self.order.indices
        for step in self._steps:
            for plan in step.micro_batches:
                positions = plan.positions()
                yield indices[positions.start : positions.stop].tolist()


def _identity(value: Any) -> Any:
    return value
