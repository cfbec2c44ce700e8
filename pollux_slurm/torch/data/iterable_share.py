"""One replica's share of an iterable dataset, exact to the example.

An iterable dataset cannot be indexed. So every replica, and each of its worker processes, reads all examples
and keeps its own: example p belongs to the micro-batch of position p of a map-style epoch. All replicas agree
on this, and on the end of the data, without communication. Costly work such as decoding belongs into
`collate_fn`, which sees a replica's own examples only.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils import worker as torch_worker

from pollux_slurm.model import BatchChoice
from pollux_slurm.torch.data.example_digests import FieldDigests, field_digests
from pollux_slurm.torch.data.micro_batches import plan_step

# Of a micro-batch: its step's size, whether that is the last, the digests, the examples.
ShareItem = tuple[int, bool, FieldDigests | None, Any]


class IterableShare(IterableDataset[ShareItem]):
    """Yields each micro-batch of this replica.

    The first one has digests of the raw examples that every replica has read for its step, where there are
    several replicas.

    With W workers, worker w yields micro-batches w, w + W, ...: the order in which a `DataLoader` asks them.
    """

    def __init__(
        self,
        dataset: IterableDataset[Any],
        *,
        collate: Callable[[list[Any]], Any],
        drop_last: bool,
        is_shared: bool,
    ) -> None:
        self._dataset, self._collate = dataset, collate
        self._drop_last = drop_last
        # Epoch, start, M, m, s, whether to look ahead, number of replicas, rank, whether these need pairs. In
        # shared memory, because workers keep their copy of this object.
        self._place = torch.zeros(9, dtype=torch.int64)
        if is_shared:
            self._place.share_memory_()

    def set(
        self,
        *,
        epoch: int,
        start: int,
        choice: BatchChoice,
        num_replicas: int,
        rank: int,
        looks_ahead: bool = False,
        in_pairs: bool = False,
    ) -> None:
        """Set where the next iteration begins, and how its steps are split.

        With `looks_ahead` it reads a step's examples before it yields the step before, so that the last step
        is known as such even if it is a whole one.
        """
        numbers = [
            epoch,
            start,
            choice.global_batch_size,
            choice.atomic_batch_size,
            choice.accumulation_steps,
            int(looks_ahead),
            num_replicas,
            rank,
            int(in_pairs),
        ]
        self._place.copy_(torch.tensor(numbers, dtype=torch.int64))

    def rewind(self) -> None:
        """Let the next iteration begin at the first example."""
        self._place[1] = 0

    def __iter__(self) -> Iterator[ShareItem]:
        epoch, start, batch, atomic, accumulation, looks_ahead, *shares = self._place.tolist()
        num_replicas, rank, in_pairs = shares
        choice = BatchChoice(
            global_batch_size=batch, atomic_batch_size=atomic, accumulation_steps=accumulation
        )
        info = get_worker_info()
        index, count = (0, 1) if info is None else (info.id, info.num_workers)
        # Not a generator: `_place` is read now, before another iteration may set it.
        micro_batches = self._micro_batches(
            epoch,
            start,
            choice,
            num_replicas=num_replicas,
            rank=rank,
            looks_ahead=bool(looks_ahead),
            in_pairs=bool(in_pairs),
        )
        return map(self._finish, itertools.islice(micro_batches, index, None, count))

    def _finish(self, micro_batch: ShareItem) -> ShareItem:
        size, is_last, digests, examples = micro_batch
        return size, is_last, digests, self._collate(examples)

    def _micro_batches(
        self,
        epoch: int,
        start: int,
        choice: BatchChoice,
        *,
        num_replicas: int,
        rank: int,
        looks_ahead: bool,
        in_pairs: bool,
    ) -> Iterator[ShareItem]:
        source = self._open(epoch, start)
        position = start
        examples = self._read(source, choice)
        digests = field_digests(examples) if num_replicas > 1 else None
        while examples:
            step = plan_step(
                position,
                len(examples),
                choice,
                num_replicas=num_replicas,
                rank=rank,
                needs_pairs=lambda: in_pairs,
            )
            following = self._read(source, choice) if looks_ahead and step.is_full else []
            is_last = not step.is_full or (looks_ahead and not following)
            for plan in step.micro_batches:
                own = plan.positions()
                yield len(examples), is_last, digests, examples[own.start - position : own.stop - position]
                digests = None
            if is_last:
                return
            position = step.end
            examples = following or self._read(source, choice)

    def _read(self, source: Iterator[Any], choice: BatchChoice) -> list[Any]:
        """Return the examples of the next step; none at the end, nor (`drop_last`) if they are too few."""
        with _hidden_worker():
            examples = list(itertools.islice(source, choice.global_batch_size))
        return [] if self._drop_last and len(examples) < choice.global_batch_size else examples

    def _open(self, epoch: int, start: int) -> Iterator[Any]:
        """Begin to read the epoch at example `start`.

        A generator, because `iter` of a dataset that is its own iterator would begin it again.
        """
        dataset: Any = self._dataset
        with _hidden_worker():
            if epoch >= 0 and callable(getattr(dataset, "set_epoch", None)):
                dataset.set_epoch(epoch)
            if start > 0 and callable(getattr(dataset, "iterate_from", None)):
                return (example for example in dataset.iterate_from(start))
            source = (example for example in dataset)
            next(itertools.islice(source, start, start), None)
        return source


@contextmanager
def _hidden_worker() -> Iterator[None]:
    """Hide the worker from `get_worker_info`: a dataset must yield all examples, not one worker's share."""
    info = torch_worker._worker_info
    torch_worker._worker_info = None
    try:
        yield
    finally:
        torch_worker._worker_info = info
