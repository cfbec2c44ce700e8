"""Several optimizers and schedulers on one model; several models with an optimizer each."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss
from torch.optim.lr_scheduler import LRScheduler, StepLR

import pollux_slurm.torch as pt
from pollux_slurm.errors import CheckpointError, UsageError
from pollux_slurm.torch.gradients.measured_steps import ProbeSchedule
from tests.torch.ranks import run_ranks
from tests.torch.scripts import Numbered
from tests.torch.single_replica import Numbers, Slope, joined

pytestmark = pytest.mark.torch

NUM_EPOCHS = 3
BatchIterator = Iterable[tuple[torch.Tensor, torch.Tensor, Any]]


def make() -> tuple[torch.nn.Sequential, list[torch.optim.Optimizer], list[LRScheduler]]:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.SGD(model[0].parameters(), lr=0.05, momentum=0.9),
        torch.optim.Adam(model[2].parameters(), lr=0.02),
    ]
    schedulers: list[LRScheduler] = [
        StepLR(optimizers[0], step_size=1, gamma=0.8),
        StepLR(optimizers[1], step_size=2, gamma=0.5),
    ]
    return model, optimizers, schedulers


def go_over(batches: BatchIterator, called: torch.nn.Module, optimizers: list[torch.optim.Optimizer]) -> None:
    for inputs, targets, _ in batches:
        for optimizer in optimizers:
            optimizer.zero_grad()
        mse_loss(called(inputs), targets).backward()
        for optimizer in optimizers:
            optimizer.step()


def result(model: torch.nn.Module, optimizers: list[torch.optim.Optimizer]) -> list[float]:
    rates = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    return [*rates, *torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()]


def plain() -> list[float]:
    model, optimizers, schedulers = make()
    for _ in range(NUM_EPOCHS):
        go_over(torch.utils.data.DataLoader(Numbered(), batch_size=8), model, optimizers)
        for scheduler in schedulers:
            scheduler.step()
    return result(model, optimizers)


def adaptive(largest: int, num_epochs: int = NUM_EPOCHS) -> list[float]:
    """Train in batches of 8 and micro-batches of at most `largest` examples."""
    model, optimizers, schedulers = make()
    parallel = pt.AdaptiveDataParallel(model, optimizers, schedulers)
    loader = pt.AdaptiveDataLoader(Numbered(), batch_size=8)
    loader.autoscale_batch_size(8, (1, largest), gradient_accumulation=True)
    for _ in pt.remaining_epochs_until(num_epochs):
        go_over(loader, parallel, optimizers)
        for scheduler in schedulers:
            scheduler.step()
    return result(model, optimizers)


def adaptive_rank(largest: int) -> list[float]:
    pt.init_process_group(strict=True)
    return adaptive(largest)


@pytest.mark.parametrize("largest", [8, 2])
def test_that_two_optimizers_train_as_in_plain_pytorch(tmp_path: Path, largest: int) -> None:
    for weights in run_ranks(tmp_path, 2, adaptive_rank, largest):
        assert weights == pytest.approx(plain(), rel=1e-4, abs=1e-6)


def test_that_all_optimizers_and_schedulers_are_in_the_checkpoint(tmp_path: Path) -> None:
    for num_epochs in (1, 2, NUM_EPOCHS):
        with joined(tmp_path) as session:
            weights = adaptive(3, num_epochs)
            # Steps of two optimizers are one step of the training.
            steps = num_epochs * -(-len(Numbered()) // 8)
            assert (session.progress_state.num_steps, session.progress_state.progress) == (
                steps,
                float(steps),
            )
    assert weights == pytest.approx(plain(), rel=1e-4, abs=1e-6)


def test_that_another_number_of_optimizers_does_not_fit_the_checkpoint(tmp_path: Path) -> None:
    with joined(tmp_path):
        adaptive(8, 1)
    with joined(tmp_path):
        model, _, schedulers = make()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(CheckpointError, match="does not fit this script"):
            pt.AdaptiveDataParallel(model, optimizer, schedulers)


def test_that_a_scheduler_made_later_goes_on_and_one_left_out_does_not_fit(tmp_path: Path) -> None:
    for num_epochs in (1, 2):
        with joined(tmp_path):
            model, optimizers, schedulers = make()
            parallel = pt.AdaptiveDataParallel(model, optimizers, schedulers[0])
            parallel.add_lr_scheduler(schedulers[1])
            for _ in pt.remaining_epochs_until(num_epochs):
                go_over(pt.AdaptiveDataLoader(Numbered(), batch_size=32), parallel, optimizers)
                for scheduler in schedulers:
                    scheduler.step()
            assert [scheduler.last_epoch for scheduler in schedulers] == [num_epochs] * 2
    with joined(tmp_path):
        model, optimizers, schedulers = make()
        pt.AdaptiveDataParallel(model, optimizers, schedulers[0])
        with pytest.raises(CheckpointError, match="1 more LR schedulers"):
            next(iter(pt.remaining_epochs_until(3)))


class Two(torch.nn.Module):
    """Two slopes, each for its own optimizer; the gradient of the second has no noise."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Slope(), Slope()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.first(inputs) + self.second(torch.ones_like(inputs))


Kind = type[torch.optim.SGD | torch.optim.Adam]


@pytest.mark.parametrize(
    ("kind", "rate"),
    [
        # AdaScale: without noise a larger batch is worth no more.
        (torch.optim.SGD, 1.0),
        # The square root of the factor 4 by which the batch has grown.
        (torch.optim.Adam, 2.0),
    ],
)
def test_that_each_optimizer_has_the_rule_of_its_kind_and_the_noise_of_its_own_groups(
    kind: Kind, rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its thirty steps are too few for one of a hundred.
    monkeypatch.setattr(ProbeSchedule, "share", 0.3)
    with joined():
        model, rates = Two(), []
        optimizers = [
            torch.optim.SGD(model.first.parameters(), lr=1.0),
            kind(model.second.parameters(), lr=1.0),
        ]
        for optimizer in optimizers:
            optimizer.register_step_pre_hook(
                lambda optimizer, args, kwargs: rates.append(optimizer.param_groups[0]["lr"])
            )
        parallel = pt.AdaptiveDataParallel(model, optimizers)
        loader = pt.AdaptiveDataLoader(Numbers(240), batch_size=2, shuffle=True)
        loader.autoscale_batch_size(8, (8, 8))
        for inputs, _ in loader:
            for optimizer in optimizers:
                optimizer.zero_grad()
            parallel(inputs).mean().backward()
            for optimizer in optimizers:
                optimizer.step()
        assert len(parallel.group_statistics) == 2
        assert rates[1::2] == pytest.approx([rate] * 30)
        assert rates[0] == 1.0
        assert 1.0 < rates[-2] < 4.0


def test_that_an_optimizer_that_pauses_is_not_robbed_of_the_gradients_of_split_batches() -> None:
    with joined():
        model = Two()
        often, seldom = (torch.optim.SGD(part.parameters(), lr=1.0) for part in (model.first, model.second))
        parallel = pt.AdaptiveDataParallel(model, [often, seldom])
        loader = pt.AdaptiveDataLoader(Numbers(8), batch_size=4)
        loader.autoscale_batch_size(4, (1, 2), gradient_accumulation=True)
        batches = iter(loader)
        for _ in range(2):
            inputs, _ = next(batches, None)
            parallel(inputs).mean().backward()
            often.step()
        inputs, _ = next(batches, None)
        with pytest.raises(UsageError, match="neither stepped with nor zeroed"):
            parallel(inputs).mean().backward()


def test_that_optimizers_must_share_out_the_parameters() -> None:
    with joined():
        model = Slope()
        optimizers = [torch.optim.SGD(model.parameters(), lr=1.0) for _ in range(2)]
        with pytest.raises(UsageError, match="a parameter is in two optimizers"):
            pt.AdaptiveDataParallel(model, optimizers)
        with pytest.raises(UsageError, match="needs the optimizer"):
            pt.AdaptiveDataParallel(model, [])


# ---------------------------------------------------------------------------------- two models, one loop


def make_gan() -> tuple[list[torch.nn.Module], list[torch.optim.Optimizer]]:
    torch.manual_seed(2)
    models: list[torch.nn.Module] = [
        torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4)),
        torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)),
    ]
    return models, [torch.optim.Adam(model.parameters(), lr=0.01) for model in models]


def train_gan(
    batches: BatchIterator, called: list[torch.nn.Module], optimizers: list[torch.optim.Optimizer]
) -> None:
    (generator, critic), (generating, judging) = called, optimizers
    for real, noise, _ in batches:
        ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        judging.zero_grad()
        binary_cross_entropy_with_logits(critic(real), ones).backward()
        made = generator(noise)
        binary_cross_entropy_with_logits(critic(made.detach()), zeros).backward()
        judging.step()
        generating.zero_grad()
        binary_cross_entropy_with_logits(critic(made), ones).backward()
        generating.step()


def adaptive_gan() -> list[float]:
    pt.init_process_group(strict=True)
    models, optimizers = make_gan()
    called: list[torch.nn.Module] = [
        pt.AdaptiveDataParallel(model, optimizer) for model, optimizer in zip(models, optimizers, strict=True)
    ]
    train_gan(pt.AdaptiveDataLoader(Numbered(), batch_size=8), called, optimizers)
    return [value for model in models for value in result(model, optimizers)]


def test_that_two_models_with_an_optimizer_each_train_as_in_plain_pytorch(tmp_path: Path) -> None:
    models, optimizers = make_gan()
    train_gan(torch.utils.data.DataLoader(Numbered(), batch_size=8), models, optimizers)
    expected = [value for model in models for value in result(model, optimizers)]
    for weights in run_ranks(tmp_path, 2, adaptive_gan):
        assert weights == pytest.approx(expected, rel=1e-3, abs=1e-5)


def test_that_an_optimizer_of_two_wrapped_models_is_refused() -> None:
    with joined():
        models = [Slope(), Slope()]
        optimizer = torch.optim.SGD([p for model in models for p in model.parameters()], lr=0.1)
        pt.AdaptiveDataParallel(models[0], optimizer)
        with pytest.raises(UsageError, match="give each model an optimizer of its own"):
            pt.AdaptiveDataParallel(models[1], optimizer)


def test_that_an_optimizer_without_any_of_the_models_parameters_is_refused() -> None:
    stale = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.1)
    with joined(), pytest.raises(UsageError, match="none of the model's parameters"):
        pt.AdaptiveDataParallel(torch.nn.Linear(2, 1), stale)
