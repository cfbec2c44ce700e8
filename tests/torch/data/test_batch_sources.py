"""Worker processes last for a loop, however often its steps are planned anew."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from pollux_slurm.model import BatchChoice
from pollux_slurm.torch.data.batch_sources import IterableSource, MapStyleSource, StepBatches
from pollux_slurm.torch.data.sampling_order import SamplingOrder

pytestmark = pytest.mark.torch
NUMBER = 40


class Numbers(Dataset[tuple[int, int]]):
    def __len__(self) -> int:
        return NUMBER

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, os.getpid()


class Stream(IterableDataset[tuple[int, int]]):
    def __iter__(self) -> Iterator[tuple[int, int]]:
        return ((index, os.getpid()) for index in range(NUMBER))


def choice(batch: int, replicas: int) -> BatchChoice:
    return BatchChoice(global_batch_size=batch, atomic_batch_size=-(-batch // replicas), accumulation_steps=0)


@pytest.mark.parametrize("keeps_workers", [False, True])
@pytest.mark.parametrize("is_stream", [False, True])
def test_that_workers_go_on_with_another_plan_and_end_with_the_loop(
    *, is_stream: bool, keeps_workers: bool
) -> None:
    options: dict[str, Any] = {"num_workers": 2, "collate_fn": list, "persistent_workers": keeps_workers}
    source: IterableSource | MapStyleSource
    if is_stream:
        source = IterableSource(Stream(), drop_last=False, options=options)
    else:
        source = MapStyleSource(Numbers(), drop_last=False, options=options)

    def steps(start: int, batch: int, replicas: int) -> StepBatches:
        """Return the steps of the last of some replicas."""
        rank = replicas - 1
        if isinstance(source, IterableSource):
            return source.steps(0, start, choice(batch, replicas), num_replicas=replicas, rank=rank)
        order = SamplingOrder(indices=torch.arange(NUMBER))
        return source.steps(
            order, start, choice(batch, replicas), largest=None, num_replicas=replicas, rank=rank
        )

    def read(some: StepBatches) -> tuple[list[int], set[int]]:
        examples = [example for _, batches in some for example in next(batches)]
        return [index for index, _ in examples], {pid for _, pid in examples}

    first, workers = read(islice(steps(0, 8, 1), 2))
    assert first == list(range(16))
    assert len(workers) == 2
    # Half of each batch of 12 that is left, to replica 1 of 2.
    second, same = read(steps(16, 12, 2))
    assert second == [*range(22, 28), *range(34, 40)]
    assert same == workers
    source.end_loop()
    _, following = read(steps(0, 8, 1))
    assert (following == workers) == keeps_workers
    source.end_loop()
