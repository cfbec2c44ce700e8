"""Parameters that a step does not use: no optimizer moves them, however its batch is split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import pollux_slurm.torch as pt
from pollux_slurm.errors import UsageError
from pollux_slurm.torch.session.current_session import current_session
from tests.torch.ranks import run_ranks
from tests.torch.single_replica import joined

pytestmark = pytest.mark.torch

OPTIMIZERS = {
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.05, weight_decay=0.1),
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.1),
}


class Heads(torch.nn.Module):
    """A backbone, two heads in turn, experts chosen by each example, and a layer that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.backbone, self.unused = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.heads = torch.nn.ModuleList(torch.nn.Linear(4, 1) for _ in range(2))
        self.experts = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))

    def forward(self, inputs: torch.Tensor, head: int) -> torch.Tensor:
        hidden = torch.tanh(self.backbone(inputs))
        chosen = inputs[:, 0].gt(0).long() + inputs[:, 0].gt(1).long()
        mixed = hidden.clone()
        for number in chosen.unique().tolist():
            rows = chosen == number
            mixed[rows] = self.experts[number](hidden[rows])
        return self.heads[head](mixed)


def examples() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(48, 4, generator=generator).sort(dim=0).values  # an expert rests for whole batches
    return TensorDataset(inputs, torch.randn(48, 1, generator=generator))


def train(
    model: Any, network: Heads, optimizer: torch.optim.Optimizer, loader: Any, epochs: Any, *, to_none: bool
) -> torch.Tensor:
    """Train heads in turn, with the backbone frozen from the third epoch on; return all weights."""
    for epoch in epochs:
        if epoch == 2:
            network.backbone.requires_grad_(False)
        for inputs, targets in loader:
            optimizer.zero_grad(set_to_none=to_none)
            (model(inputs, epoch % 2) - targets).square().mean().backward()
            optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in network.parameters()])


def plain(kind: str, *, to_none: bool) -> torch.Tensor:
    network = Heads()
    optimizer = OPTIMIZERS[kind](network.parameters())
    return train(network, network, optimizer, DataLoader(examples(), 8), range(4), to_none=to_none)


def adaptive(kind: str, largest: int, *, to_none: bool) -> torch.Tensor:
    network = Heads()
    optimizer = OPTIMIZERS[kind](network.parameters())
    parallel = pt.AdaptiveDataParallel(network, optimizer, find_unused_parameters=True)
    loader = pt.AdaptiveDataLoader(examples(), batch_size=8)
    loader.autoscale_batch_size(8, (1, largest), gradient_accumulation=True)
    return train(parallel, network, optimizer, loader, pt.remaining_epochs_until(4), to_none=to_none)


@pytest.mark.parametrize("kind", sorted(OPTIMIZERS))
@pytest.mark.parametrize("to_none", [True, False])
def test_that_unused_parameters_stay_as_plain_pytorch_leaves_them(kind: str, to_none: bool) -> None:
    wanted = plain(kind, to_none=to_none)
    for largest in (8, 3):  # whole batches, and three micro-batches each
        with joined():
            torch.testing.assert_close(adaptive(kind, largest, to_none=to_none), wanted, rtol=1e-5, atol=1e-6)


def on_a_replica(kind: str, largest: int) -> list[float]:
    pt.init_process_group(checkpoint_interval_s=None)
    weights = adaptive(kind, largest, to_none=True)
    current_session().close()
    return [float(one) for one in weights]


def test_that_a_parameter_that_one_replica_uses_is_trained_and_one_that_none_does_is_not(
    tmp_path: Path,
) -> None:
    wanted = plain("AdamW", to_none=True)
    for found in run_ranks(tmp_path, 2, on_a_replica, "AdamW", 2):
        torch.testing.assert_close(torch.tensor(found), wanted, rtol=1e-5, atol=1e-6)


def test_that_a_gradient_scaler_unscales_what_only_an_earlier_micro_batch_has_used() -> None:
    """And clipping sees it: gradients are complete when the backward pass ends."""
    with joined():
        network = Heads()
        optimizer = torch.optim.SGD(network.parameters(), lr=1.0)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        parallel = pt.AdaptiveDataParallel(network, optimizer, mp_scaler=scaler, find_unused_parameters=True)
        loader = pt.AdaptiveDataLoader(examples(), batch_size=8)
        loader.autoscale_batch_size(8, (1, 4), gradient_accumulation=True)
        inputs = examples().tensors[0][:8]
        for number, (part, _) in enumerate(loader):
            optimizer.zero_grad()
            scaler.scale(parallel(part, number).mean()).backward()
            scaler.unscale_(optimizer)
            if number == 1:
                break
            scaler.step(optimizer)  # takes effect in the last micro-batch
        grads = [head.weight.grad for head in network.heads]
    # By hand: each head saw half of the batch.
    fresh = Heads()
    ((fresh(inputs[:4], 0).sum() + fresh(inputs[4:], 1).sum()) / 8).backward()
    for found, head in zip(grads, fresh.heads, strict=True):
        torch.testing.assert_close(found, head.weight.grad)


def test_that_a_script_that_sets_the_synchronization_itself_accumulates_exactly() -> None:
    """As nanoGPT does, in whole batches; where the loader may split them it is refused."""

    def steps(parallel: Any, optimizer: torch.optim.Optimizer, loader: Any) -> None:
        for number, (inputs, targets) in enumerate(loader):
            parallel.require_backward_grad_sync = number % 3 == 2
            ((parallel(inputs, 0) - targets).square().mean() / 3).backward()
            if number % 3 < 2:
                assert parallel._pollux.reducer.is_pending, "a stop here would lose gradients"
            else:
                optimizer.step()
                optimizer.zero_grad()

    def wrapped() -> tuple[Heads, Any, torch.optim.Optimizer]:
        network = Heads()
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        return network, pt.AdaptiveDataParallel(network, optimizer, find_unused_parameters=True), optimizer

    reference = Heads()
    own = torch.optim.SGD(reference.parameters(), lr=0.1)
    for number, (inputs, targets) in enumerate(DataLoader(examples(), 8)):
        ((reference(inputs, 0) - targets).square().mean() / 3).backward()
        if number % 3 == 2:
            own.step()
            own.zero_grad()
    with joined():
        network, parallel, optimizer = wrapped()
        steps(parallel, optimizer, pt.AdaptiveDataLoader(examples(), batch_size=8))
        for found, wanted in zip(network.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(found, wanted)
    for largest in (4, 8):
        with joined():
            network, parallel, optimizer = wrapped()
            loader = pt.AdaptiveDataLoader(examples(), batch_size=8)
            loader.autoscale_batch_size(8, (1, largest), gradient_accumulation=True)
            with pytest.raises(UsageError, match="Leave accumulation to the loader"):
                steps(parallel, optimizer, loader)
