"""The train DataLoader as an adaptive one: its data, order, batches and options; an epoch's length."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    SequentialSampler,
    WeightedRandomSampler,
)

from pollux_slurm.errors import UsageError
from tests.lightning import scripts
from tests.lightning.here import fit_here, stopped_here
from tests.lightning.same_fit import assert_same_fit
from tests.torch.scripts import NUM_EXAMPLES, Numbered

pytestmark = pytest.mark.torch


class Stream(IterableDataset[Any]):
    """The numbered examples in their order. Its length is not known."""

    def __init__(self, length: int) -> None:
        self.data = Numbered(length)

    def __iter__(self) -> Iterator[Any]:
        return (self.data[index] for index in range(len(self.data)))


class Given(scripts.Data):
    """A data module whose train loader the test makes."""

    loader: Any

    def train_dataloader(self) -> Any:
        return type(self).loader()


def given(make: Any) -> type[scripts.Data]:
    return type("Made", (Given,), {"loader": staticmethod(make)})


def used(result: dict[str, Any]) -> list[list[int]]:
    return [list(indices) for indices in result["steps"].values()]


IN_ORDER = [list(range(start, min(start + 16, NUM_EXAMPLES))) for start in range(0, NUM_EXAMPLES, 16)]


def test_that_a_loader_in_order_stays_so_and_one_that_shuffles_has_each_example_once() -> None:
    once = {"trainer": {"max_epochs": 1}}
    assert used(fit_here(data_kind=given(lambda: DataLoader(Numbered(), 16)), **once)) == IN_ORDER
    shuffled = used(fit_here(**once))
    assert sorted(index for batch in shuffled for index in batch) == list(range(NUM_EXAMPLES))
    assert shuffled != IN_ORDER
    generator = torch.Generator().manual_seed(3)
    seeded = given(lambda: DataLoader(Numbered(), 16, shuffle=True, generator=generator))
    assert used(fit_here(data_kind=seeded, **once)) not in (shuffled, IN_ORDER)


@pytest.mark.parametrize(
    "make",
    [
        lambda: DataLoader(Numbered(), 16, drop_last=True),
        lambda: DataLoader(Numbered(), 16, sampler=WeightedRandomSampler([1.0] * 70, 40)),
        lambda: DataLoader(Numbered(), batch_sampler=BatchSampler(SequentialSampler(range(70)), 12, False)),
        lambda: DataLoader(Numbered(), 16, num_workers=1, persistent_workers=True),
    ],
)
def test_that_samplers_batch_samplers_and_options_are_kept_over_a_stop(tmp_path: Any, make: Any) -> None:
    options: dict[str, Any] = {"data_kind": given(make)}
    reference = fit_here(**options)
    stopped_here(tmp_path, stop_after=4, **options)
    result = fit_here(tmp_path, **options)
    assert_same_fit(result, reference)
    assert reference["hooks"]["validation_end"] == result["hooks"]["validation_end"] == 3
    sizes = [len(indices) for indices in used(reference)]
    steps = len(sizes) // 3
    assert sizes[:steps] * 3 == sizes
    assert sum(sizes[:steps]) == {4: 64, 3: 40, 6: 70, 5: 70}[steps]


# 64 examples end with a whole batch, which is known as the last only by looking ahead.
@pytest.mark.parametrize("length", [64, 70])
def test_that_a_stream_is_validated_at_its_end_and_no_batch_is_fetched_early(
    tmp_path: Any, length: int
) -> None:
    def stream() -> Any:
        return DataLoader(Stream(length), 16)

    options: dict[str, Any] = {"data_kind": given(stream), "strategy": {"local_bsz_bounds": (None, 6)}}
    reference = fit_here(data_kind=given(stream))
    assert used(reference) == 3 * [
        batch[: length - 16 * index] for index, batch in enumerate(IN_ORDER[: -(-length // 16)])
    ]
    assert (reference["hooks"]["validation_end"], reference["hooks"]["epoch_end"]) == (3, 3)
    for stop in (2, 3):
        stopped_here(tmp_path, stop_after=stop, **options)
    assert_same_fit(fit_here(tmp_path, **options), reference)


@pytest.mark.parametrize(
    ("make", "cure"),
    [
        (lambda: [torch.zeros(2)], "return a DataLoader for training"),
        (lambda: DataLoader(Numbered(), None), "give the DataLoader a batch_size"),
        (
            lambda: [DataLoader(Numbered(), 4), DataLoader(Numbered(), 4)],
            "combine their datasets into one",
        ),
    ],
)
def test_that_loaders_whose_batches_cannot_be_divided_are_refused(make: Any, cure: str) -> None:
    with pytest.raises(UsageError, match=cure):
        fit_here(data_kind=given(make))
