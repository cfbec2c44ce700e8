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
from pollux_slurm.torch.current import current_session, set_session
from pollux_slurm.torch.session import Session


@contextmanager
def joined(directory: Path | None = None, **options: Any) -> Iterator[Session]:
    """Be a job of one replica for a while; whatever was checkpointed is what the next one finds."""
    options.setdefault("checkpoint_interval_s", None)
    pt.init_process_group(checkpoint_dir=directory, environ={}, **options)
    session = current_session()
    try:
        yield session
    finally:
        set_session(None)
        session.close()


def propose(session: Session, loader: pt.AdaptiveDataLoader, choice: BatchChoice) -> None:
    """Let rank 0 have found that `choice` is the best batch for `loader`."""
    assert session._telemetry is not None
    session._telemetry._proposal = (loader.limits, choice)


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
