"""What a DataLoader was made with."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, SubsetRandomSampler

from pollux_slurm.torch.data.torch_loaders import (
    given_seed,
    has_own_batches,
    loader_options,
    order_arguments,
)

pytestmark = pytest.mark.torch
NUMBERS = list(range(10))


class Backwards(SequentialSampler):
    def __iter__(self):
        return iter(range(len(self.data_source) - 1, -1, -1))


def test_that_a_plain_shuffle_is_one_by_a_seed_and_other_samplers_are_followed() -> None:
    assert order_arguments(DataLoader(NUMBERS, 2), seed=3) == {}
    assert order_arguments(DataLoader(NUMBERS, 2, shuffle=True), seed=3) == {"shuffle": True, "seed": 3}
    for sampler in (
        Backwards(NUMBERS),
        SubsetRandomSampler(NUMBERS[:5]),
        RandomSampler(NUMBERS, num_samples=4),
        RandomSampler(NUMBERS, replacement=True),
    ):
        assert order_arguments(DataLoader(NUMBERS, 2, sampler=sampler), seed=3)["sampler"] is sampler


def test_that_the_seed_is_that_of_a_generator_which_the_script_gave() -> None:
    generator = torch.Generator().manual_seed(7)
    assert given_seed(DataLoader(NUMBERS, 2, shuffle=True)) is None
    assert given_seed(DataLoader(NUMBERS, 2, shuffle=True, generator=generator)) == 7
    assert given_seed(DataLoader(NUMBERS, 2, sampler=RandomSampler(NUMBERS, generator=generator))) == 7


def test_that_options_without_workers_name_nothing_of_workers() -> None:
    plain, batches = DataLoader(NUMBERS, 2), DataLoader(NUMBERS, batch_sampler=[[0, 1], [2]])
    assert (has_own_batches(plain), has_own_batches(batches)) == (False, True)
    assert "prefetch_factor" not in loader_options(plain)
    loaded = DataLoader(NUMBERS, 2, num_workers=1, prefetch_factor=3)
    assert loader_options(loaded)["prefetch_factor"] == 3
    assert [batch.tolist() for batch in DataLoader(NUMBERS, 5, **loader_options(plain))] == [
        NUMBERS[:5],
        NUMBERS[5:],
    ]
