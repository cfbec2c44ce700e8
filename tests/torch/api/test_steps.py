"""Training by steps: the same steps over stops, breaks and moves, and what is refused."""

from __future__ import annotations

import copy
import io
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

import pollux_slurm.torch as pt
from pollux_slurm.errors import UsageError
from tests.torch.scripts import Numbered, Seen, make_model
from tests.torch.ranks import run_ranks, start
from tests.torch.single_replica import Numbers, Trainee, joined

pytestmark = pytest.mark.torch

Steps = list[tuple[int, list[int]]]


def train(num_steps: int, *, largest: int = 4, leave: Callable[[int], object] = lambda step: None) -> Steps:
    """Train on 10 examples in batches of 4, so that a pass has 3 steps; return each step's examples."""
    trainee, made = Trainee(), []
    loader = pt.AdaptiveDataLoader(Numbers(10), batch_size=4, shuffle=True)
    loader.autoscale_batch_size(4, (1, largest), gradient_accumulation=True)
    for step, batches in pt.remaining_steps_until(num_steps, loader):
        assert step == pt.finished_steps()
        indices = []
        for inputs, places in batches:
            (trainee.parallel(inputs) / inputs).mean().backward()
            indices += places.tolist()
        assert list(batches) == []
        trainee.optimizer.step()
        trainee.optimizer.zero_grad()
        made.append((step, indices))
        assert (step + 1, -trainee.weight) == (pt.finished_steps(), pytest.approx(step + 1))
        if leave(step) == "break":
            break
    return made


def reference(num_steps: int) -> Steps:
    """The same steps by epochs."""
    made: Steps = []
    with joined():
        trainee = Trainee()
        loader = pt.AdaptiveDataLoader(Numbers(10), batch_size=4, shuffle=True)
        for _ in pt.remaining_epochs_until(-(-num_steps // 3)):
            for inputs, places in loader:
                trainee.count(inputs)
                made.append((len(made), places.tolist()))
    return made[:num_steps]


def stop_at(last: int) -> Callable[[int], object]:
    return lambda step: os.kill(os.getpid(), signal.SIGTERM) if step == last else None


@pytest.mark.parametrize("largest", [4, 1])
def test_that_steps_go_over_epochs_in_their_order_whole_or_split(largest: int) -> None:
    with joined():
        assert train(8, largest=largest) == reference_steps
        assert pt.current_epoch() is None
        assert pt.finished_epochs() == 2


reference_steps = [(0, [])]
