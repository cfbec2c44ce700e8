"""Optimizers whose state is spread over the replicas, as those of distributed Muon and Shampoo."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss

import pollux_slurm.torch as pt
from pollux_slurm.errors import UsageError
from pollux_slurm.torch.session.current_session import current_session
from tests.torch.ranks import start
from tests.torch.scripts import Numbered
from tests.torch.single_replica import Slope, joined

pytestmark = pytest.mark.torch

NUM_EPOCHS, BATCH_SIZE = 3, 24


class Momentum(torch.optim.Optimizer):
    """SGD with momentum. Each parameter is stepped by its owner, which sends it to the others.

    `layout` says where the state is: "lazy", where it is used; "zeros", on all replicas and zero elsewhere;
    "nested", in blocks as Shampoo has them, with a count on each replica; "torn", partly on two replicas.
    """

    def __init__(self, parameters: Any, layout: str, lr: float = 0.05) -> None:
        self.layout = layout
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        (group,) = self.param_groups
        for index, parameter in enumerate(group["params"]):
            owner, state = index % size, self.state[parameter]
            if self.layout == "nested":
                state["step"] = state.get("step", 0) + 1
                state = state.setdefault("block_0", {})
            if rank == owner or self.layout == "zeros":
                state.setdefault("momentum", torch.zeros_like(parameter))
            if self.layout == "torn" and rank != (owner + 1) % size:
                state["momentum_of_two"] = parameter.grad + float(rank)
            if rank == owner:
                state["momentum"].mul_(0.9).add_(parameter.grad)
                parameter.add_(state["momentum"], alpha=-group["lr"])
            if size > 1:
                dist.broadcast(parameter, owner)


def make(layouts: list[str]) -> tuple[torch.nn.Module, list[Momentum]]:
    """Return a model, and for each of its layers an optimizer with its layout."""
    torch.manual_seed(1)
    layers = [torch.nn.Linear(4, 4) for _ in layouts]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(4, 1).requires_grad_(False))
    return model, [
        Momentum(layer.parameters(), layout) for layer, layout in zip(layers, layouts, strict=True)
    ]


def train(directory: str, layouts: list[str], stop_after: int | None) -> dict[str, Any]:
    """Train; after so many steps of this process each rank gets SIGTERM."""
    pt.init_process_group(checkpoint_dir=directory, checkpoint_interval_s=None, strict=True, in_place=True)
    model, optimizers = make(layouts)
    parallel = pt.AdaptiveDataParallel(model, optimizers)
    loader, num_steps = pt.AdaptiveDataLoader(Numbered(72), batch_size=BATCH_SIZE), 0
    for _ in pt.remaining_epochs_until(NUM_EPOCHS):
        for inputs, targets, _ in loader:
            parallel.zero_grad()
            mse_loss(parallel(inputs), targets).backward()
            for optimizer in optimizers:
                optimizer.step()
            num_steps += 1
            if num_steps == stop_after:
                os.kill(os.getpid(), signal.SIGTERM)
    return {"weights": model.state_dict(), "obstacle": current_session().regrouping.obstacles.known_reason}


def train_plainly(layouts: list[str]) -> dict[str, torch.Tensor]:
    """Train in one process, by plain PyTorch."""
    model, optimizers = make(layouts)
    for _ in range(NUM_EPOCHS):
        for inputs, targets, _ in torch.utils.data.DataLoader(Numbered(72), batch_size=BATCH_SIZE):
            model.zero_grad()
            mse_loss(model(inputs), targets).backward()
            for optimizer in optimizers:
                optimizer.step()
    return model.state_dict()


def test_that_a_state_on_one_replica_each_is_kept_over_moves(tmp_path: Path) -> None:
    """At the same number of replicas, where what each has loaded of the others grows old, and at another."""
    layouts = ["lazy", "zeros", "nested"]
    for num_ranks, stop_after in ((2, 2), (2, 3), (3, None)):
        run = start(tmp_path, num_ranks, train, str(tmp_path / "job"), layouts, stop_after)
        if stop_after is not None:
            assert run.wait() == [128 + signal.SIGTERM] * num_ranks, run.output()
    results = run.succeed()
    assert all("spread over the replicas" in one["obstacle"] for one in results)
    for name, weight in train_plainly(layouts).items():
        torch.testing.assert_close(results[0]["weights"][name], weight, rtol=1e-5, atol=1e-6)


def test_that_states_that_several_replicas_have_otherwise_are_refused_by_name(tmp_path: Path) -> None:
    run = start(tmp_path, 3, train, str(tmp_path / "job"), ["torn"], None)
    assert run.wait() == [1, 1, 1]
    assert run.output().count("UsageError: the optimizers' states are spread over the replicas") == 3
    assert "different '0.weight' (momentum_of_two), '0.bias' (momentum_of_two)" in run.output()


def differ(kind: str) -> None:
    """Train with states that differ, or with optimizers of other parameters on each replica."""
    pt.init_process_group(checkpoint_dir=os.environ["JOB"], checkpoint_interval_s=None, strict=True)
    torch.manual_seed(1)
    model, rank = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)), dist.get_rank()
    given = list(model.parameters())
    own = {"own": given[rank::2], "order": [*given[:2], *(given[2:] if rank == 0 else reversed(given[2:]))]}
    optimizer = torch.optim.Adam(own.get(kind, given), lr=0.01)
    parallel = pt.AdaptiveDataParallel(
        model, optimizer, exempt_from_comparison=["1"] if kind == "exempt" else []
    )
    for _ in pt.remaining_epochs_until(1):
        for inputs, targets, _ in pt.AdaptiveDataLoader(Numbered(24), batch_size=8):
            mse_loss(parallel(inputs), targets).backward()
            optimizer.step()
            parallel.zero_grad()
            if kind == "own":
                for index, parameter in enumerate(given):
                    dist.broadcast(parameter.data, index % 2)
            elif optimizer.state[given[0]]["step"] == 3:
                # No step follows: only the states differ, not the weights.
                optimizer.state[given[0]]["exp_avg"] *= 1.0 + 1e-6 * rank
                optimizer.state[given[2]]["exp_avg"] *= 1.0 + 0.1 * rank


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("noise", "TrainingError: the optimizers' states differ: '1.weight' (exp_avg) on replica 1 by 10 %"),
        ("own", "UsageError: replica 1 has given the optimizers other parameters than replica 0"),
        (
            "order",
            "UsageError: replica 1 has given the optimizers their parameters in another order than replica "
            "0, from '1.weight' on",
        ),
        ("exempt", None),
    ],
)
def test_that_states_are_compared_as_weights_are(tmp_path: Path, kind: str, error: str | None) -> None:
    run = start(tmp_path, 2, differ, kind, env={"JOB": str(tmp_path / "job")})
    assert run.wait() == ([0, 0] if error is None else [1, 1]), run.output()
    if error is not None:
        assert run.output().count(error) == 2
        assert kind != "own" or "'0.bias', '0.weight', '1.bias' and 1 more" in run.output()


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_that_an_optimizer_divided_over_the_present_ranks_is_refused_when_it_is_given() -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    with joined():
        model = Slope()
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.1)
        with pytest.raises(UsageError, match="ZeroRedundancyOptimizer divides the parameters"):
            pt.AdaptiveDataParallel(model, optimizer)
