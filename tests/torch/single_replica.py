"""One replica inside the test's own process: sessions that begin and end within a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

import pollux_slurm.torch as pt
from pollux_slurm.model import BatchChoice
from pollux_slurm.torch.session.current_session import current_session, set_session
from pollux_slurm.torch.session.session import Session


@contextmanager
def joined(directory: Path | None = None, **options: Any) -> Iterator[Session]:
    """Begin and end the session of a job of one replica; the next one resumes from its checkpoint."""
    options.setdefault("checkpoint_interval_s", None)
    pt.init_process_group(checkpoint_dir=directory, environ={}, **options)
    session = current_session()
    try:
        yield session
    finally:
        set_session(None)
        session.close()


def propose(session: Session, loader: pt.AdaptiveDataLoader, choice: BatchChoice) -> None:
    """Make `choice` the batch that rank 0 proposes for `loader`."""
    assert session.measurements.report_builder is not None
    session.measurements.report_builder._proposal = (loader.limits, choice)


class Numbers(Dataset[tuple[torch.Tensor, int]]):
    """Examples x = index + 1 and their index."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.tensor([float(index + 1)]), index


class Slope(torch.nn.Module):
    """y = w·x: the gradient of the mean output is the mean of the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.weight * inputs


class Trainee:
    """A `Slope` with its optimizer (SGD unless given), wrapped: one line to make, one to train."""

    def __init__(self, lr: float = 1.0, **options: Any) -> None:
        self.model = Slope()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr)
        self.parallel = pt.AdaptiveDataParallel(self.model, self.optimizer, **options)

    @property
    def weight(self) -> float:
        return self.model.weight.item()

    def step(self, inputs: torch.Tensor) -> None:
        """Train as a plain loop does: the gradient is the mean of the inputs."""
        self.optimizer.zero_grad()
        self.parallel(inputs).mean().backward()
        self.optimizer.step()

    def count(self, inputs: torch.Tensor) -> None:
        """Train with a gradient of 1: each whole step takes the learning rate off the weight."""
        self.optimizer.zero_grad()
        (self.parallel(inputs) / inputs).mean().backward()
        self.optimizer.step()
