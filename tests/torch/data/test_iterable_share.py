"""Iterable datasets: each replica's share, exact to the example."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import IterableDataset, get_worker_info

import pollux_slurm.torch as pt
from pollux_slurm.model import BatchChoice
from pollux_slurm.torch.data.batch_sources import IterableSource
from pollux_slurm.torch.data.iterable_share import IterableShare
from pollux_slurm.torch.data.micro_batches import StepPlan
from tests.torch.single_replica import joined, propose

pytestmark = pytest.mark.torch

CHOICE = BatchChoice(global_batch_size=4, atomic_batch_size=4, accumulation_steps=0)


class Stream(IterableDataset[int]):
    """Numbers from 0, a tenth more of them in each epoch; divides itself where it sees workers."""

    def __init__(self, length: int = 20) -> None:
        self.length, self.epoch, self.num_read = length, 0, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for number in range(first, self.length + self.epoch, step):
            self.num_read += 1
            yield number


class SkippingStream(Stream):
    def iterate_from(self, position: int) -> Iterator[int]:
        return islice(range(self.length + self.epoch), position, None)


def flat(batches: Any) -> list[int]:
    return [index for batch in batches for index in batch.tolist()]


@pytest.mark.parametrize("kind", [Stream, SkippingStream])
def test_that_a_stopped_stream_goes_on_at_the_very_next_example(tmp_path: Path, kind: Any) -> None:
    seen: list[int] = []

    def stop_in_the_third_batch(batch_size: int) -> None:
        loader = pt.AdaptiveDataLoader(kind(), batch_size=batch_size)
        for _ in pt.remaining_epochs_until(2):
            for batch in loader:
                seen.extend(batch.tolist())
                if 25 < len(seen) < 30:
                    os.kill(os.getpid(), signal.SIGTERM)

    with joined(tmp_path), pytest.raises(pt.TrainingStopped):
        stop_in_the_third_batch(3)
    assert seen == [*range(20), *range(6)]
    with joined(tmp_path):
        # At another batch size, which the user may choose.
        stop_in_the_third_batch(7)
    assert seen == [*range(20), *range(21)]


class OwnIterator(IterableDataset[int]):
    """Its own iterator, which `iter` begins again, as litdata's `StreamingDataset` is."""

    def __iter__(self) -> OwnIterator:
        self.numbers = iter(range(20))
        return self

    def __next__(self) -> int:
        return next(self.numbers)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_that_a_dataset_that_is_its_own_iterator_is_read_to_its_end(tmp_path: Path, num_workers: int) -> None:
    seen: list[int] = []

    def train(*, stops: bool) -> None:
        options = {"multiprocessing_context": "fork"} if num_workers else {}
        loader = pt.AdaptiveDataLoader(OwnIterator(), batch_size=3, num_workers=num_workers, **options)
        for _ in pt.remaining_epochs_until(2):
            for batch in loader:
                seen.extend(batch.tolist())
                if stops and len(seen) > 25:
                    os.kill(os.getpid(), signal.SIGTERM)
                assert len(seen) <= 40

    with joined(tmp_path), pytest.raises(pt.TrainingStopped):
        train(stops=True)
    with joined(tmp_path):
        train(stops=False)
    assert seen == [*range(20), *range(20)]


def test_that_worker_processes_read_a_stream_whole_and_in_order() -> None:
    with joined():
        loader = pt.AdaptiveDataLoader(
            Stream(), batch_size=3, num_workers=2, persistent_workers=True, collate_fn=torch.tensor
        )
        for epoch in pt.remaining_epochs_until(2):
            batches = list(loader)
            assert [len(batch) for batch in batches] == [3] * 6 + [2 + epoch]
            assert flat(batches) == list(range(20 + epoch))
        dropping = pt.AdaptiveDataLoader(Stream(), batch_size=3, drop_last=True)
        assert flat(dropping) == list(range(18))
        with pytest.raises(TypeError):
            len(dropping)


def test_that_a_new_batch_size_goes_on_at_the_next_example_in_workers_that_stay() -> None:
    with joined() as session:
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        parallel = pt.AdaptiveDataParallel(model, optimizer)
        loader = pt.AdaptiveDataLoader(Stream(60), batch_size=3, num_workers=2, persistent_workers=True)
        loader.autoscale_batch_size(12, (1, 5), gradient_accumulation=True)
        batches: list[torch.Tensor] = []
        for batch in loader:
            parallel(batch.float().unsqueeze(1)).mean().backward()
            optimizer.step()
            batches.append(batch)
            if len(batches) == 3:
                propose(
                    session,
                    loader,
                    BatchChoice(global_batch_size=8, atomic_batch_size=4, accumulation_steps=1),
                )
    assert [len(batch) for batch in batches] == [3] * 3 + [4] * 12 + [3]
    assert flat(batches) == list(range(60))


@given(data=st.data(), length=st.integers(0, 60), workers=st.integers(1, 3), drop_last=st.booleans())
@settings(max_examples=60)
def test_that_an_iterable_dataset_is_divided_exactly_over_any_sequence_of_sizes(
    data: st.DataObject, length: int, workers: int, drop_last: bool
) -> None:
    """Each run takes a few steps on its own number of replicas; the last goes to the stream's end."""
    position, visited = 0, []
    for _ in range(data.draw(st.integers(1, 4))):
        replicas, batch, num_micro_batches = data.draw(
            st.tuples(st.integers(1, 5), st.integers(1, 12), st.integers(1, 3))
        )
        num_steps = data.draw(st.integers(0, 4))
        choice = BatchChoice(
            global_batch_size=batch,
            atomic_batch_size=-(-batch // (replicas * num_micro_batches)),
            accumulation_steps=num_micro_batches - 1,
        )
        ranks = [
            list(islice(stream_steps(length, replicas, rank, position, choice, drop_last), num_steps))
            for rank in range(replicas)
        ]
        for steps in zip(*ranks, strict=True):
            for step, batches in steps:
                assert step == replace(steps[0][0], micro_batches=step.micro_batches)
                for plan, got in zip(step.micro_batches, batches, strict=True):
                    visited += [] if plan.is_padding else got
            position = steps[0][0].end
    assert sorted(visited) == list(range(position))
    whole = [list(stream_steps(length, 1, 0, position, CHOICE, drop_last))]
    end = length - (length - position) % 4 if drop_last else length
    assert [number for steps in whole for _, (got,) in steps for number in got] == list(range(position, end))
    # What W workers yield in turn is what one would.
    share = stream_share(length, 2, 1, position, CHOICE, drop_last)
    shares = [list(islice(iter(share), worker, None, workers)) for worker in range(workers)]
    assert [cell for turn in zip_longest(*shares) for cell in turn if cell] == list(share)


def stream_share(
    length: int, replicas: int, rank: int, start: int, choice: BatchChoice, drop_last: bool
) -> IterableShare:
    share = IterableShare(
        Stream(length),
        collate=list,
        drop_last=drop_last,
        is_shared=False,
    )
    share.set(epoch=0, start=start, choice=choice, num_replicas=replicas, rank=rank)
    return share


def stream_steps(
    length: int, replicas: int, rank: int, start: int, choice: BatchChoice, drop_last: bool
) -> Iterator[tuple[StepPlan, list[list[int]]]]:
    feed = IterableSource(Stream(length), drop_last=drop_last, options={"collate_fn": list})
    for step, batches in feed.steps(0, start, choice, num_replicas=replicas, rank=rank):
        yield step, list(islice(batches, len(step.micro_batches)))
