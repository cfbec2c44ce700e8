"""Weights that a script writes after they were wrapped, so that a move would overwrite what is restored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import pollux_slurm.torch as pt
from pollux_slurm.errors import UsageError
from tests.torch.single_replica import Numbers, Slope, Trainee, joined

pytestmark = pytest.mark.torch


def load(trainee: Trainee) -> None:
    trainee.model.load_state_dict(Slope().state_dict())


def load_into_the_wrapper(trainee: Trainee) -> None:
    trainee.parallel.load_state_dict({"module.weight": torch.ones(1)})


def initialize(trainee: Trainee) -> None:
    torch.nn.init.ones_(trainee.model.weight)


def pretrain(trainee: Trainee) -> None:
    trainee.step(torch.ones(4, 1))


def train(change: Callable[[Trainee], None] | None = None) -> float:
    trainee, loader = Trainee(lr=0.1), pt.AdaptiveDataLoader(Numbers(8), batch_size=4)
    if change is not None:
        change(trainee)
    for _ in pt.remaining_epochs_until(1):
        for inputs, _ in loader:
            trainee.step(inputs)
    return trainee.weight


@pytest.mark.parametrize("change", [load, load_into_the_wrapper, initialize, pretrain])
def test_that_weights_written_after_wrapping_are_refused_at_the_first_start(
    change: Callable[[Trainee], None],
) -> None:
    with joined(), pytest.raises(UsageError, match="'model-0' were changed after AdaptiveDataParallel"):
        train(change)


def test_that_they_may_be_written_after_the_training_also_in_a_start_with_nothing_left(
    tmp_path: Path,
) -> None:
    for _ in range(2):
        with joined(tmp_path):
            trainee = Trainee(lr=0.1)
            for _ in pt.remaining_epochs_until(1):
                for inputs, _ in pt.AdaptiveDataLoader(Numbers(8), batch_size=4):
                    trainee.step(inputs)
            load(trainee)


def test_that_a_module_may_be_wrapped_anew_for_another_training(tmp_path: Path) -> None:
    def train_twice() -> float:
        model, loader = Slope(), pt.AdaptiveDataLoader(Numbers(8), batch_size=4)
        for num_epochs in (1, 2):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            parallel = pt.AdaptiveDataParallel(model, optimizer)
            for _ in pt.remaining_epochs_until(num_epochs):
                for inputs, _ in loader:
                    optimizer.zero_grad()
                    parallel(inputs).mean().backward()
                    optimizer.step()
        return model.weight.item()

    with joined(tmp_path):
        trained = train_twice()
    with joined(tmp_path):
        assert train_twice() == trained


def test_that_a_restored_model_may_be_evaluated_before_it_trains_on(tmp_path: Path) -> None:
    def evaluate(trainee: Trainee) -> None:
        with torch.no_grad():
            trainee.parallel(torch.ones(4, 1))

    with joined(tmp_path):
        trained = train(evaluate)
    with joined(tmp_path):
        assert train(evaluate) == trained
