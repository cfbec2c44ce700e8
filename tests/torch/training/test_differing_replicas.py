"""Replicas whose weights would differ: refused at the cause, or detected by comparing the weights."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import mse_loss

import pollux_slurm.torch as pt
from pollux_slurm.errors import UsageError
from pollux_slurm.torch.coordination.replica_comparison import bit_sums, is_time_to_compare
from pollux_slurm.torch.session.current_session import current_session
from tests.torch.ranks import run_ranks, start
from tests.torch.scripts import Numbered
from tests.torch.single_replica import Numbers, Slope, Trainee, joined

pytestmark = pytest.mark.torch


class Net(torch.nn.Module):
    """Two layers, the second on top of the first, and one that counts batches for itself."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.body = torch.nn.Linear(4, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.head = torch.nn.Linear(8, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.norm(self.body(inputs))))


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def add_up_twice(parallel: pt.AdaptiveDataParallel, inputs: torch.Tensor, targets: torch.Tensor) -> None:
    loss = mse_loss(parallel(inputs), targets)
    loss.backward(retain_graph=True)
    loss.backward()


def go_inside(parallel: pt.AdaptiveDataParallel, inputs: torch.Tensor, targets: torch.Tensor) -> None:
    mse_loss(parallel.module(inputs), targets).backward()


def add_one_inside(parallel: pt.AdaptiveDataParallel, inputs: torch.Tensor, targets: torch.Tensor) -> None:
    mse_loss(parallel(inputs), targets).backward()
    parallel.module.head(parallel.module.body(inputs)).mean().backward()


def train_by(kind: str, largest: int) -> Any:
    """Train with this kind of backward pass; batches of 8 in micro-batches of at most `largest`."""
    pt.init_process_group()
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parallel = pt.AdaptiveDataParallel(model, optimizer)
    loader = pt.AdaptiveDataLoader(Numbered(), batch_size=8)
    loader.autoscale_batch_size(8, (1, largest), gradient_accumulation=True)
    for inputs, targets, _ in loader:
        optimizer.zero_grad()
        BACKWARDS[kind](parallel, inputs, targets)
        optimizer.step()
    return weights(model)


BACKWARDS: dict[str, Callable[..., None]] = {
    "twice": add_up_twice,
    "inside": go_inside,
    "one inside": add_one_inside,
}


@pytest.mark.parametrize(("num_ranks", "largest"), [(2, 8), (1, 2)])
@pytest.mark.parametrize("kind", list(BACKWARDS))
def test_that_gradients_that_are_not_summed_are_refused_at_the_step(
    tmp_path: Path, kind: str, num_ranks: int, largest: int
) -> None:
    run = start(tmp_path, num_ranks, train_by, kind, largest)
    assert run.wait() == [1] * num_ranks
    assert "UsageError: a backward pass has left gradients that are not summed" in run.output()


def test_that_what_touches_no_gradient_may_go_inside() -> None:
    with joined():
        trainee = Trainee()
        for inputs, _ in pt.AdaptiveDataLoader(Numbers(4), batch_size=2):
            inside = trainee.parallel.module(inputs).sum()
            torch.autograd.grad(inside, list(trainee.model.parameters()))
            # Such as an attack on the inputs, whose gradients the script drops.
            trainee.parallel.module(inputs).sum().backward()
            trainee.step(inputs)
            with torch.no_grad():
                trainee.parallel.module(inputs)
        assert trainee.weight == -(1.5 + 3.5)


def test_that_a_step_by_gradients_of_no_sync_alone_is_refused() -> None:
    with joined():
        trainee = Trainee()
        inputs, _ = next(iter(pt.AdaptiveDataLoader(Numbers(4), batch_size=2)))
        with trainee.parallel.no_sync():
            trainee.parallel(inputs).mean().backward()
        with pytest.raises(UsageError, match=re.escape("leave no_sync()")):
            trainee.optimizer.step()


def unfreeze(*, when_wrapped: bool) -> Any:
    """Train the second layer for an epoch, then both; the first is frozen before or after wrapping."""
    pt.init_process_group()
    model = Net()
    model.body.requires_grad_(when_wrapped)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parallel = pt.AdaptiveDataParallel(model, optimizer, find_unused_parameters=when_wrapped)
    loader = pt.AdaptiveDataLoader(Numbered(), batch_size=6, shuffle=True)
    seen = []
    for epoch in pt.remaining_epochs_until(2):
        model.body.requires_grad_(epoch == 1)
        for inputs, targets, _ in loader:
            optimizer.zero_grad()
            mse_loss(parallel(inputs), targets).backward()
            optimizer.step()
        seen.append(weights(model))
    return seen


def test_that_a_layer_unfrozen_after_wrapping_is_refused_with_a_cure_that_works(tmp_path: Path) -> None:
    run = start(tmp_path, 2, frozen_when_wrapped)
    assert run.wait() == [1, 1]
    assert "UsageError: 'body.weight' can be trained, but could not when" in run.output()
    first, second = run_ranks(tmp_path, 2, frozen_after_wrapping)
    start_weights = weights(Net())
    for epoch in range(2):
        for name, value in first[epoch].items():
            assert torch.equal(value, second[epoch][name]), name
        is_trained = not torch.equal(first[epoch]["body.weight"], start_weights["body.weight"])
        assert is_trained == (epoch == 1)


def frozen_when_wrapped() -> Any:
    return unfreeze(when_wrapped=False)


def frozen_after_wrapping() -> Any:
    return unfreeze(when_wrapped=True)


def test_that_parameters_that_ddp_leaves_out_are_left_alone() -> None:
    with joined():
        model = Net()
        torch.nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
            model, ["body.weight", "body.bias"]
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        parallel = pt.AdaptiveDataParallel(model, optimizer)
        for inputs, targets, _ in pt.AdaptiveDataLoader(Numbered(), batch_size=8):
            optimizer.zero_grad()
            mse_loss(parallel(inputs), targets).backward()
            optimizer.step()
        assert not torch.equal(model.body.weight, Net().body.weight)


def test_that_a_layer_put_in_after_wrapping_is_refused() -> None:
    with joined():
        trainee = Trainee()
        trainee.model.weight = torch.nn.Parameter(torch.ones(1))
        with pytest.raises(UsageError, match="'weight' can be trained, but could not"):
            next(iter(pt.AdaptiveDataLoader(Numbers(4), batch_size=2)))
        trainee.model.weight = torch.nn.Parameter(torch.ones(1), requires_grad=False)
        with pytest.raises(UsageError, match="do not belong to the model"):
            next(iter(pt.AdaptiveDataLoader(Numbers(4), batch_size=2)))


# ------------------------------------------------------------------------------ unwrapped optimizers


def step_another(num_ranks_pass: int) -> Any:
    """Train two layers with an optimizer each, of which one was given."""
    pt.init_process_group()
    model = Net()
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in (model.body, model.head)]
    parallel = pt.AdaptiveDataParallel(model, optimizers[0])
    loader = pt.AdaptiveDataLoader(Numbered(), batch_size=8)
    loader.autoscale_batch_size(8, (1, num_ranks_pass), gradient_accumulation=True)
    for inputs, targets, _ in loader:
        for optimizer in optimizers:
            optimizer.zero_grad()
        mse_loss(parallel(inputs), targets).backward()
        for optimizer in optimizers:
            optimizer.step()
    return weights(model)


@pytest.mark.parametrize(("num_ranks", "largest"), [(2, 2), (1, 8)])
def test_that_an_optimizer_that_was_not_given_is_refused_at_its_first_step(
    tmp_path: Path, num_ranks: int, largest: int
) -> None:
    run = start(tmp_path, num_ranks, step_another, largest)
    assert run.wait() == [1] * num_ranks
    assert "UsageError: SGD.step: the optimizer has parameters of a wrapped model" in run.output()
    assert "AdaptiveDataParallel(model, [first, second])" in run.output()


class Slow(torch.optim.Optimizer):
    """An optimizer that calls another one's `step`, as Lookahead does."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        super().__init__([p for group in inner.param_groups for p in group["params"]], {"lr": 1.0})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.inner.step()


def test_that_an_optimizer_may_step_by_another_and_one_of_another_model_is_left_alone() -> None:
    with joined():
        model, other = Slope(), Slope()
        inner = torch.optim.SGD(model.parameters(), lr=1.0)
        optimizer, free = Slow(inner), torch.optim.SGD(other.parameters(), lr=1.0)
        parallel = pt.AdaptiveDataParallel(model, optimizer)
        for inputs, _ in pt.AdaptiveDataLoader(Numbers(4), batch_size=2):
            optimizer.zero_grad()
            (parallel(inputs) + other(inputs)).mean().backward()
            optimizer.step()
            free.step()
        assert model.weight.item() == -(1.5 + 3.5)
        with pytest.raises(UsageError, match="not given"):
            inner.step()
    inner.step()


# -------------------------------------------------------------------------------- what the comparison detects


def drift(kind: str, strict: bool, exempt: list[str], directory: str | None) -> list[float]:
    """Train with something that differs between replicas."""
    pt.init_process_group(checkpoint_dir=directory, checkpoint_interval_s=None, strict=strict)
    session, rank = current_session(), torch.distributed.get_rank()
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parallel = pt.AdaptiveDataParallel(model, optimizer, exempt_from_comparison=exempt)
    loader = pt.AdaptiveDataLoader(Numbered(), batch_size=8)
    for _ in pt.remaining_epochs_until(2):
        for inputs, targets, _ in loader:
            optimizer.zero_grad()
            mse_loss(parallel(inputs), targets).backward()
            if kind == "noise":
                assert model.head.weight.grad is not None
                model.head.weight.grad += 0.1 * rank
            optimizer.step()
            with torch.no_grad():
                if kind == "rounding":
                    model.head.weight *= 1.0 + 1e-6 * rank
                if kind == "nan" and rank == 1:
                    model.head.weight[0, 0] = float("nan")
        if kind == "late":
            model.head.weight.data += rank * (session.progress_state.epoch_key == 1)
    return model.head.weight.flatten().tolist()


def test_that_weights_that_differ_are_an_error_in_the_log_once(tmp_path: Path) -> None:
    run = start(tmp_path, 2, drift, "noise", False, [], str(tmp_path / "job"))
    first, second = run.succeed()
    assert first != second
    assert run.output().count("the replicas' weights differ: 'head.weight' on replica 1 by") == 1
    assert "Likely causes: weights that" in run.output()


@pytest.mark.parametrize("kind", ["noise", "nan"])
def test_that_weights_that_differ_end_strict_training_on_every_replica(tmp_path: Path, kind: str) -> None:
    run = start(tmp_path, 2, drift, kind, True, [], None)
    assert run.wait() == [1, 1]
    assert run.output().count("TrainingError: the replicas' weights differ: 'head.weight' on replica 1") == 2


def test_that_weights_are_compared_before_they_are_kept(tmp_path: Path) -> None:
    # Changed after the last batch, so that only the last checkpoint can detect it.
    run = start(tmp_path, 2, drift, "late", True, [], str(tmp_path / "job"))
    assert run.wait() == [1, 1]
    assert run.output().count("TrainingError: the replicas' weights differ: 'head.weight' on replica 1") == 2


@pytest.mark.parametrize(
    ("kind", "exempt"),
    [("none", []), ("rounding", []), ("noise", ["head.weight"]), ("noise", ["body", "norm", "head"])],
)
def test_that_rounding_batch_statistics_and_what_is_exempt_may_differ(
    tmp_path: Path, kind: str, exempt: list[str]
) -> None:
    first, second = run_ranks(tmp_path, 2, drift, kind, True, exempt, str(tmp_path / "job"))
    assert (first == second) == (kind == "none")


@pytest.mark.parametrize(
    "weights", [torch.ones(3, 2, dtype=torch.complex128).t(), torch.ones(4, dtype=torch.complex64)]
)
def test_that_weights_of_every_kind_have_a_sum(weights: torch.Tensor) -> None:
    same, other = torch.nn.Parameter(weights.clone()), torch.nn.Parameter(2 * weights)
    assert (
        bit_sums([torch.nn.Parameter(weights)]).tolist()
        == bit_sums([same]).tolist()
        != bit_sums([other]).tolist()
    )


def test_that_an_exemption_must_name_something() -> None:
    with joined(), pytest.raises(UsageError, match="exempt_from_comparison='heat' is not a parameter"):
        Trainee(exempt_from_comparison=["heat"])


def test_that_weights_are_compared_often_at_first_and_then_now_and_then() -> None:
    early = [number for number in range(1, 5000) if is_time_to_compare(number)]
    assert early == [1, 4, 16, 64, 256, 1024, 2048, 3072, 4096]


# ------------------------------------------------------------------------------------------ double wrapping


@pytest.mark.parametrize("is_inner", [False, True])
def test_that_a_wrapper_around_ours_is_refused(is_inner: bool) -> None:
    with joined():
        trainee = Trainee()
        narrowed = torch.nn.Sequential(trainee.parallel) if is_inner else trainee.parallel
        outer = torch.nn.parallel.DistributedDataParallel(narrowed)
        with pytest.raises(UsageError, match=r"around AdaptiveDataParallel.*PolluxAccelerator"):
            outer(torch.ones(2, 1))
        with pytest.raises(UsageError, match="DataParallel is around"):
            trainee.parallel._replicate_for_data_parallel()


def test_that_a_model_that_is_divided_is_refused_with_a_cure_that_is_not_refused() -> None:
    class FSDPModule(torch.nn.Module):
        """What `fully_shard` makes a base of the model's class, by its name."""

    class Divided(FSDPModule, Slope):
        pass

    with joined():
        model = Divided()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        with pytest.raises(UsageError, match="the model is divided over the GPUs: each replica") as refused:
            pt.AdaptiveDataParallel(model, optimizer)
        assert "ordinary job" in str(refused.value)
        assert "PolluxAccelerator" not in str(refused.value)


def test_that_ours_around_another_wrapper_is_refused() -> None:
    with joined():
        for inner in (Trainee().parallel, torch.nn.DataParallel(Slope())):
            optimizer = torch.optim.SGD(inner.parameters(), lr=1.0)
            with pytest.raises(UsageError, match="two of them would sum"):
                pt.AdaptiveDataParallel(torch.nn.Sequential(inner), optimizer)
