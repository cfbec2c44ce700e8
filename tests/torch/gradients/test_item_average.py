"""Losses averaged over tokens: the step's gradient is the mean over the tokens of the global batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import pollux_slurm.torch as pt
from pollux_slurm.errors import UsageError
from tests.torch.ranks import run_ranks
from tests.torch.single_replica import Numbers, Trainee, joined

pytestmark = pytest.mark.torch


def tokens(index: int) -> int:
    """Examples 0 to 9 have 0, 3, 1, 4, 2, 0, 3, 1, 4, 2 tokens; example i's tokens are all i + 1."""
    return index * 3 % 5


def loss_of(trainee: Trainee, inputs: torch.Tensor, indices: list[int]) -> tuple[torch.Tensor, int]:
    """Return the mean over the tokens of these examples, and their number; NaN where it is 0."""
    counts = torch.tensor([float(tokens(index)) for index in indices])
    return (trainee.parallel(inputs).squeeze(1) * counts).sum() / counts.sum(), int(counts.sum())


def train(largest: int, batch_size: int = 10) -> list[Any]:
    pt.init_process_group()
    trainee, totals = Trainee(), []
    loader = pt.AdaptiveDataLoader(Numbers(10), batch_size=batch_size)
    loader.autoscale_batch_size(batch_size, (1, largest), gradient_accumulation=True)
    for inputs, indices in loader:
        loss, count = loss_of(trainee, inputs, indices.tolist())
        trainee.optimizer.zero_grad()
        totals.append(trainee.parallel.average_over(count))
        loss.backward()
        trainee.optimizer.step()
    return [trainee.weight, [total for total in totals if total is not None]]


@pytest.mark.parametrize(("num_ranks", "largest"), [(1, 10), (1, 3), (3, 4), (3, 2), (2, 5)])
def test_that_uneven_numbers_of_tokens_count_alike_however_they_are_split(
    tmp_path: Path, num_ranks: int, largest: int
) -> None:
    mean = sum(tokens(index) * (index + 1) for index in range(10)) / 20
    for weight, totals in run_ranks(tmp_path, num_ranks, train, largest):
        assert weight == pytest.approx(-mean, rel=1e-6)
        assert totals == [20]


def test_that_padding_and_examples_without_tokens_count_nothing(tmp_path: Path) -> None:
    # Batches of 2 on three replicas: one has padding always. The first example has no token.
    means = []
    for start in range(0, 10, 2):
        counts = [tokens(start), tokens(start + 1)]
        means.append((counts[0] * (start + 1) + counts[1] * (start + 2)) / sum(counts))
    for weight, totals in run_ranks(tmp_path, 3, train, 2, 2):
        assert weight == pytest.approx(-sum(means), rel=1e-6)
        assert totals == [3, 5, 2, 4, 6]


@pytest.mark.parametrize("wrong", ["first", "last", "twice"])
def test_that_every_micro_batch_of_a_step_gives_its_number_once(wrong: str) -> None:
    with joined():
        trainee = Trainee()
        loader = pt.AdaptiveDataLoader(Numbers(4), batch_size=4)
        loader.autoscale_batch_size(4, (1, 2), gradient_accumulation=True)

        def run() -> None:
            for index, (inputs, _) in enumerate(loader):
                for _ in range(2 if wrong == "twice" else index == ("first", "last").index(wrong)):
                    trainee.parallel.average_over(3)
                trainee.parallel(inputs).mean().backward()
                trainee.optimizer.step()

        with pytest.raises(UsageError, match="average_over"):
            run()
        with pytest.raises(UsageError, match="outside of a loop"):
            trainee.parallel.average_over(3)
