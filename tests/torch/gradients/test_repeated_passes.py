"""Several backward passes over one batch: the same training where it is split, or refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader

import pollux_slurm.torch as pt
from pollux_slurm.errors import UsageError
from tests.torch.ranks import run_ranks
from tests.torch.scripts import Numbered, make_model
from tests.torch.single_replica import joined

pytestmark = pytest.mark.torch

BATCH, LENGTH = 8, 22
Step = Callable[[torch.Tensor, torch.Tensor, torch.nn.Module, torch.optim.Optimizer], Any]


def two_losses(
    inputs: torch.Tensor, targets: torch.Tensor, model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """As deep supervision, or a GAN's discriminator on real and on made examples."""
    optimizer.zero_grad()
    mse_loss(model(inputs), targets).backward()
    mse_loss(model(-inputs), -targets).mul(0.5).backward()
    model(inputs).abs().mean().mul(0.1).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()


def at_times_two(
    inputs: torch.Tensor, targets: torch.Tensor, model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """A second loss on some examples only, such as those with labels: not in each micro-batch."""
    optimizer.zero_grad()
    mse_loss(model(inputs), targets).backward()
    chosen = (targets > 1.5).squeeze(1)
    if chosen.any():
        # A part of a mean over the batch's examples.
        (model(inputs[chosen]).abs().sum() / len(inputs)).backward()
    optimizer.step()


def trained_through_after(
    inputs: torch.Tensor, targets: torch.Tensor, model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """As a discriminator, whose gradients of a generator's pass are thrown away. Here it changes nothing."""
    optimizer.zero_grad()
    mse_loss(model(inputs), targets).backward()
    mse_loss(model(inputs) * 0.5, targets).backward()
    optimizer.step()
    model(inputs.clone().requires_grad_()).mean().backward()


def sam(
    inputs: torch.Tensor, targets: torch.Tensor, model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    before = [parameter.detach().clone() for parameter in model.parameters()]
    mse_loss(model(inputs), targets).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.add_(parameter.grad, alpha=0.01)
            parameter.grad = None
    mse_loss(model(inputs), targets).backward()
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), before, strict=True):
            parameter.copy_(value)
    optimizer.step()
    optimizer.zero_grad()


def lbfgs(
    inputs: torch.Tensor, targets: torch.Tensor, model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = mse_loss(model(inputs), targets)
        loss.backward()
        return loss

    optimizer.step(closure)  # type: ignore[arg-type]


def task_by_task(
    inputs: torch.Tensor, targets: torch.Tensor, model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """As PCGrad, which looks at each task's own gradient."""
    total = [torch.zeros_like(parameter) for parameter in model.parameters()]
    for sign in (1, -1):
        optimizer.zero_grad()
        mse_loss(model(inputs * sign), targets * sign).backward()
        for added, parameter in zip(total, model.parameters(), strict=True):
            added += parameter.grad.sign()  # type: ignore[union-attr]
    for added, parameter in zip(total, model.parameters(), strict=True):
        parameter.grad = added
    optimizer.step()


def two_steps(
    inputs: torch.Tensor, targets: torch.Tensor, model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """As a critic with several steps a batch."""
    for _ in range(2):
        optimizer.zero_grad()
        mse_loss(model(inputs), targets).backward()
        optimizer.step()


def _make(step: Step) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model, _ = make_model("sgd")
    if step is lbfgs:
        return model, torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    return model, torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)


def _train(step: Step, model: torch.nn.Module, optimizer: Any, loader: Iterable[Any]) -> None:
    for inputs, targets, _ in loader:
        step(inputs, targets, model, optimizer)


def plain(step: Step) -> list[torch.Tensor]:
    model, optimizer = _make(step)
    for _ in range(2):
        _train(step, model, optimizer, DataLoader(Numbered(LENGTH), BATCH))
    return [parameter.detach() for parameter in model.parameters()]


def adaptive(step: Step, largest: int, *, until: int = 2) -> list[torch.Tensor]:
    """Train with micro-batches of so many examples at most."""
    model, optimizer = _make(step)
    parallel = pt.AdaptiveDataParallel(model, optimizer)
    loader = pt.AdaptiveDataLoader(Numbered(LENGTH), batch_size=BATCH)
    loader.autoscale_batch_size(BATCH, (1, largest), gradient_accumulation=True)
    for _ in pt.remaining_epochs_until(until):
        _train(step, parallel, optimizer, loader)
    return [parameter.detach() for parameter in model.parameters()]


def adaptive_rank() -> list[list[torch.Tensor]]:
    pt.init_process_group(checkpoint_interval_s=None)
    return [adaptive(two_losses, 2), adaptive(trained_through_after, 2, until=4)]


def assert_same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("step", [two_losses, trained_through_after, at_times_two])
@pytest.mark.parametrize("largest", [BATCH, 3])
def test_that_passes_over_each_micro_batch_add_up(step: Step, largest: int) -> None:
    with joined():
        assert_same(adaptive(step, largest), plain(step))


def test_that_passes_add_up_over_replicas(tmp_path: Path) -> None:
    for two, through in run_ranks(tmp_path, 2, adaptive_rank):
        assert_same(two, plain(two_losses))
        assert_same(through, plain(trained_through_after))


@pytest.mark.parametrize("step", [sam, lbfgs, task_by_task, two_steps])
def test_that_passes_that_need_the_whole_batch_train_on_whole_ones_only(step: Step) -> None:
    with joined():
        assert_same(adaptive(step, BATCH), plain(step))
    with joined(), pytest.raises(UsageError, match="take a smaller batch_size or more GPUs"):
        adaptive(step, 3)
