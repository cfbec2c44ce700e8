"""What makes a training depend on the job's shape is named in the log; what does not is not."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.utils.parametrizations import spectral_norm

import pollux_slurm.torch as pt
from tests.torch.ranks import run_ranks
from tests.torch.single_replica import Numbers, Trainee, joined

pytestmark = pytest.mark.torch

Step = Callable[[torch.Tensor, Trainee, Trainee], None]


def discriminator_first(inputs: torch.Tensor, generator: Trainee, discriminator: Trainee) -> None:
    """As pix2pix: the generator is trained through the discriminator after that has stepped."""
    fake = generator.parallel(inputs)
    discriminator.model.requires_grad_(True)
    discriminator.step(fake.detach())
    discriminator.model.requires_grad_(False)
    generator.optimizer.zero_grad()
    discriminator.parallel(fake).mean().backward()
    generator.optimizer.step()


def generator_first(inputs: torch.Tensor, generator: Trainee, discriminator: Trainee) -> None:
    """As CycleGAN: both steps use weights of before either."""
    fake = generator.parallel(inputs)
    discriminator.model.requires_grad_(False)
    generator.optimizer.zero_grad()
    discriminator.parallel(fake).mean().backward()
    generator.optimizer.step()
    discriminator.model.requires_grad_(True)
    discriminator.step(fake.detach())


def measured_afterwards(inputs: torch.Tensor, generator: Trainee, discriminator: Trainee) -> None:
    """Forwards after the step that train nothing."""
    for trainee in (generator, discriminator):
        trainee.step(inputs)
        trainee.parallel(inputs).mean().item()
        with torch.no_grad():
            trainee.parallel(inputs)


@pytest.mark.parametrize(
    ("step", "size", "num_named"),
    [
        (discriminator_first, 2, 1),
        (discriminator_first, 8, 0),
        (generator_first, 2, 0),
        (measured_afterwards, 2, 0),
    ],
)
def test_that_a_model_trained_through_after_its_step_is_named_in_split_batches(
    step: Step, size: int, num_named: int, caplog: pytest.LogCaptureFixture
) -> None:
    with joined(strict=True):
        generator, discriminator = Trainee(), Trainee()
        loader = pt.AdaptiveDataLoader(Numbers(16), batch_size=8)
        loader.autoscale_batch_size(8, (1, size), gradient_accumulation=True)
        for inputs, _ in loader:
            step(inputs, generator, discriminator)
    named = [one.getMessage() for one in caplog.records if "trained through again" in one.getMessage()]
    assert len(named) == num_named
    assert all("'model-1' (Slope)" in one and "smaller batch_size" in one for one in named)


class Rotary(torch.nn.Module):
    """A cache that a forward makes for the longest input so far, and a count: neither is trained."""

    cache: torch.Tensor
    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(1), persistent=False)
        self.register_buffer("calls", torch.zeros(1, dtype=torch.long))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.cache = torch.full((1,), float(inputs.detach().max()))
        self.calls += 1
        return inputs


@pytest.mark.parametrize(
    ("layer", "num_named"),
    [
        (lambda: spectral_norm(torch.nn.Linear(3, 3)), 1),
        (lambda: torch.nn.BatchNorm1d(3), 0),
        (Rotary, 0),
        (lambda: torch.nn.Linear(3, 3), 0),
    ],
)
def test_that_buffers_that_a_forward_writes_are_named_in_split_batches(
    layer: Callable[[], torch.nn.Module], num_named: int, caplog: pytest.LogCaptureFixture
) -> None:
    with joined():
        model = torch.nn.Sequential(torch.nn.Linear(1, 3), layer())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        parallel = pt.AdaptiveDataParallel(model, optimizer)
        loader = pt.AdaptiveDataLoader(Numbers(16), batch_size=8)
        loader.autoscale_batch_size(8, (1, 2), gradient_accumulation=True)
        for inputs, _ in loader:
            optimizer.zero_grad()
            parallel(inputs).mean().backward()
            optimizer.step()
    assert sum("writes the buffer" in one.getMessage() for one in caplog.records) == num_named


class Codebook(torch.nn.Module):
    """Keeps the mean of its inputs, of this replica's or of all; replica 1 has another buffer, too."""

    entry: torch.Tensor

    def __init__(self, *, reduces: bool) -> None:
        super().__init__()
        self.reduces = reduces
        self.register_buffer("entry", torch.zeros(()))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        mean = inputs.detach().mean()
        if self.reduces:
            dist.all_reduce(mean)
        self.entry.copy_(mean)
        if dist.get_rank() == 1:
            self.register_buffer("late", mean)
        return inputs


def train_codebooks() -> list[str]:
    """Return what is logged."""
    logged: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("pollux_slurm").addHandler(handler)
    pt.init_process_group(checkpoint_interval_s=None)
    for reduces in (True, False):
        model = torch.nn.Sequential(torch.nn.Linear(1, 1), Codebook(reduces=reduces), torch.nn.BatchNorm1d(1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        parallel = pt.AdaptiveDataParallel(model, optimizer)
        for inputs, _ in pt.AdaptiveDataLoader(Numbers(12), batch_size=4):
            optimizer.zero_grad()
            parallel(inputs).mean().backward()
            optimizer.step()
    return [one for one in logged if "by each replica's own examples" in one]


def test_that_buffers_of_one_replicas_examples_are_named_once(tmp_path: Path) -> None:
    first, second = run_ranks(tmp_path, 2, train_codebooks)
    assert len(first) == 1
    assert "'model-1' (Sequential) writes the buffer 1.entry by" in first[0]
    assert second == []
