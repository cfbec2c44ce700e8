"""Load this replica's micro-batches, from a map-style dataset in a known order or from an iterable one.

A source turns a position in the epoch, a batch choice and the replicas into steps, each with this replica's
micro-batches. Both kinds drive an ordinary `torch.utils.data.DataLoader` with the user's options. Its worker
processes last for a loop, also where the steps are planned anew within it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, default_collate

from pollux_slurm.errors import UsageError
from pollux_slurm.model import BatchChoice
from pollux_slurm.torch.data.example_digests import FieldDigests
from pollux_slurm.torch.data.iterable_share import IterableShare
from pollux_slurm.torch.data.micro_batches import StepPlan, plan_batches, plan_epoch, plan_step
from pollux_slurm.torch.data.sampling_order import SamplingOrder
from pollux_slurm.torch.data.workers import sigterm_blocked

# A step, and the loaded examples of each of this replica's micro-batches.
StepBatches = Iterator[tuple[StepPlan, Iterator[Any]]]


class _Source:
    """A `DataLoader` whose workers last for a loop, or longer where the user wants that."""

    def __init__(self, dataset: Dataset[Any], options: Mapping[str, Any], **own: Any) -> None:
        self._keeps_workers = bool(options.get("persistent_workers"))
        has_workers = options.get("num_workers", 0) > 0
        self._inner: DataLoader[Any] = DataLoader(
            dataset, **{**options, **own, "persistent_workers": has_workers}
        )

    @property
    def has_workers(self) -> bool:
        """Whether worker processes load the data."""
        return self._inner.num_workers > 0

    def _begin(self) -> Iterator[Any]:
        with sigterm_blocked():
            return iter(self._inner)

    def end_loop(self) -> None:
        """End the workers, unless the user wants to keep them for the next loop."""
        if not self._keeps_workers:
            self._inner._iterator = None


class MapStyleSource(_Source):
    """Loads the examples that an order names."""

    def __init__(self, dataset: Dataset[Any], *, drop_last: bool, options: Mapping[str, Any]) -> None:
        self._drop_last = drop_last
        self._sampler = _MicroBatchSampler()
        super().__init__(dataset, options, batch_sampler=self._sampler)

    @property
    def order(self) -> SamplingOrder | None:
        """The order of the loop under way, or of the last."""
        return self._sampler.order

    def steps(
        self,
        order: SamplingOrder,
        start: int,
        choice: BatchChoice,
        *,
        largest: int | None,
        num_replicas: int,
        rank: int,
        probes: Callable[[], bool] = bool,
        needs_pairs: Callable[[], bool] = bool,
    ) -> StepBatches:
        """Yield the steps from position `start` of `order` on. The last two are those of `plan_epoch`."""
        if order.ends is None:
            steps = plan_epoch(
                start,
                len(order),
                choice,
                num_replicas=num_replicas,
                rank=rank,
                drop_last=self._drop_last,
                probes=probes,
                needs_pairs=needs_pairs,
            )
        else:
            steps = plan_batches(
                start,
                order.ends.tolist(),
                typical=choice.global_batch_size,
                largest=choice.atomic_batch_size if choice.accumulation_steps > 0 else largest,
                num_replicas=num_replicas,
                rank=rank,
                needs_pairs=needs_pairs,
            )
        # The sampler is ahead of the loop by as many batches as workers load.
        steps, ahead = itertools.tee(steps)
        self._sampler.set(order, ahead)
        batches = self._begin()
        for step in steps:
            yield step, batches


class IterableSource(_Source):
    """Loads this replica's share of an iterable dataset.

    `digests` are those of the raw examples where it was last opened; None with one replica.
    """

    def __init__(self, dataset: IterableDataset[Any], *, drop_last: bool, options: Mapping[str, Any]) -> None:
        options = dict(options)
        self._share = IterableShare(
            dataset,
            collate=options.pop("collate_fn", None) or default_collate,
            drop_last=drop_last,
            is_shared=options.get("num_workers", 0) > 0,
        )
        self.digests: FieldDigests | None = None
        super().__init__(self._share, options, batch_size=None, collate_fn=_identity)

    def read_first(self) -> FieldDigests:
        """Open the stream at its beginning; return its digests."""
        self._share.rewind()
        return self.read_again()

    def read_again(self) -> FieldDigests:
        """Open the stream again where it was last opened; return its digests. The steps under way end."""
        first: Any = next(self._begin(), None)
        return {} if first is None else first[2]

    def steps(
        self,
        epoch: int,
        start: int,
        choice: BatchChoice,
        *,
        num_replicas: int,
        rank: int,
        looks_ahead: bool = False,
        in_pairs: bool = False,
    ) -> StepBatches:
        """Yield the steps from example `start` of the epoch's stream on.

        With `looks_ahead` the last of them is known as such. With `in_pairs` replicas need pairs of examples.
        """
        self._share.set(
            epoch=epoch,
            start=start,
            choice=choice,
            num_replicas=num_replicas,
            rank=rank,
            looks_ahead=looks_ahead,
            in_pairs=in_pairs,
        )
        batches = self._begin()
        for size, is_last, digests, first in batches:
            self.digests = digests or self.digests
            step = plan_step(
                start,
                size,
                choice,
                num_replicas=num_replicas,
                rank=rank,
                needs_pairs=lambda: in_pairs,
            )
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
