"""Parameter groups that a script gives to its optimizer in a later epoch, and moves before and after that."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import pollux_slurm.torch as pt
from pollux_slurm.errors import CheckpointError
from tests.torch.scripts import Numbered
from tests.torch.single_replica import Numbers, Slope, joined

pytestmark = pytest.mark.torch

OPTIMIZERS: dict[str, Any] = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}


def train(kind: str, stop_after: int | None, *, freezes: bool, is_named: bool = False) -> Any:
    """Train the last layer, from epoch 2 on the first one, too, with a rate of its own."""
    torch.manual_seed(2)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1))
    named = model[2].named_parameters() if is_named else model[2].parameters()
    optimizer = OPTIMIZERS[kind](named, lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    parallel = pt.AdaptiveDataParallel(model, optimizer, scheduler, find_unused_parameters=freezes)
    # After wrapping, as DistributedDataParallel requires.
    model[0].requires_grad_(not freezes)
    loader = pt.AdaptiveDataLoader(Numbered(), batch_size=24, shuffle=True)
    num_steps = 0
    for epoch in pt.remaining_epochs_until(5):
        if epoch == 2:
            model[0].requires_grad_(True)
            added = model[0].named_parameters() if is_named else model[0].parameters()
            optimizer.add_param_group({"params": added, "lr": 0.01})
        for inputs, targets, _ in loader:
            parallel.zero_grad()
            torch.nn.functional.mse_loss(parallel(inputs), targets).backward()
            optimizer.step()
            num_steps += 1
            if num_steps == stop_after:
                os.kill(os.getpid(), signal.SIGTERM)
        scheduler.step()
    return {name: value.clone() for name, value in model.state_dict().items()}, [
        group["lr"] for group in optimizer.param_groups
    ]


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize(("freezes", "is_named"), [(True, False), (False, False), (False, True)])
def test_that_a_group_added_in_a_later_epoch_is_there_after_every_move(
    tmp_path: Path, kind: str, freezes: bool, is_named: bool
) -> None:
    with joined():
        expected, rates = train(kind, None, freezes=freezes, is_named=is_named)
    assert len(rates) == 2
    # Of three steps an epoch: before the group is added, in the epoch in which it is, and in a later one.
    for stop_after in (5, 3, 5):
        with joined(tmp_path), pytest.raises(pt.TrainingStopped):
            train(kind, stop_after, freezes=freezes, is_named=is_named)
    with joined(tmp_path) as session:
        assert session.progress_state.finished_epochs == 4
        found, found_rates = train(kind, None, freezes=freezes, is_named=is_named)
    assert found_rates == rates
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value)


def test_that_a_group_may_be_added_twice_where_it_was_not_in_the_checkpoint() -> None:
    with joined():
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD([model.weight], lr=1.0)
        pt.AdaptiveDataParallel(model, optimizer)
        optimizer.add_param_group({"params": model.bias})
        with pytest.raises(ValueError, match="more than one parameter group"):
            optimizer.add_param_group({"params": [model.bias]})


def test_that_a_group_of_another_module_is_refused_with_what_to_do(tmp_path: Path) -> None:
    def run(*, adds: bool) -> None:
        model, other = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        pt.AdaptiveDataParallel(model, optimizer)
        if adds:
            optimizer.add_param_group({"params": other.parameters()})
        for _ in pt.remaining_epochs_until(1):
            for _ in pt.AdaptiveDataLoader(Numbers(4), batch_size=2):
                pass

    with joined(tmp_path):
        run(adds=True)
    with joined(tmp_path), pytest.raises(CheckpointError, match="give it to the optimizer before Adaptive"):
        run(adds=False)


class Around(torch.optim.Optimizer):
    """An optimizer around another, whose state and groups it has, as Lookahead."""

    def __init__(self, inner: torch.optim.Optimizer, *, loads_inner: bool) -> None:
        super().__init__(inner.param_groups, {})
        self.inner, self.loads_inner = inner, loads_inner
        self.state, self.param_groups = inner.state, inner.param_groups

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)

    def load_state_dict(self, state_dict: Any) -> None:
        if self.loads_inner:
            self.inner.load_state_dict(state_dict)
            self.state, self.param_groups = self.inner.state, self.inner.param_groups
        else:
            super().load_state_dict(state_dict)


@pytest.mark.parametrize("loads_inner", [False, True])
def test_that_an_optimizer_inside_of_another_keeps_its_momentum(tmp_path: Path, loads_inner: bool) -> None:
    weights = []
    for directory, num_epochs in [(None, 2), (tmp_path, 1), (tmp_path, 2)]:
        with joined(directory):
            model = Slope()
            inner = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
            optimizer = Around(inner, loads_inner=loads_inner)
            parallel = pt.AdaptiveDataParallel(model, optimizer)
            loader = pt.AdaptiveDataLoader(Numbers(4), batch_size=2)
            for _ in pt.remaining_epochs_until(num_epochs):
                for inputs, _ in loader:
                    optimizer.zero_grad()
                    parallel(inputs).mean().backward()
                    optimizer.step()
                inner.param_groups[0]["lr"] = 0.25
            weights.append(model.weight.item())
    assert weights[2] == pytest.approx(weights[0])
