"""Noise in the optimizer's own metric, whatever a script does to its gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

import pollux_slurm.torch as pt
from pollux_slurm.model import GradientStatistics
from pollux_slurm.torch.gradients.measured_steps import ProbeSchedule
from tests.torch.ranks import run_ranks
from tests.torch.single_replica import joined

pytestmark = pytest.mark.torch

# Coordinates of an example, which are its gradient's: 32 large constant ones, 32 small noisy ones.
WIDTH = 32
MEANS = torch.tensor([10.0] * WIDTH + [0.01] * WIDTH)
DEVIATIONS = torch.tensor([1.0] * WIDTH + [0.1] * WIDTH)
M0 = 8
SQR, VAR = WIDTH * 100.0, WIDTH * 1.01 / M0


class Points(Dataset[torch.Tensor]):
    """Normal points with exactly the means and deviations above."""

    def __init__(self, length: int = 400) -> None:
        points = torch.randn(
            length, 2 * WIDTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64
        )
        points = (points - points.mean(0)) / points.std(0, unbiased=False)
        self.points = (MEANS + DEVIATIONS * points).float()

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.points[index]


class Coordinates(torch.nn.Module):
    """w·x, the constant and the noisy weights apart: the gradient of the mean output is the mean input."""

    def __init__(self, *, has_unused: bool = False) -> None:
        super().__init__()
        self.first = torch.nn.Parameter(torch.zeros(WIDTH))
        self.second = torch.nn.Parameter(torch.zeros(WIDTH))
        if has_unused:
            self.unused = torch.nn.Parameter(torch.zeros(3))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs @ torch.cat([self.first, self.second])


Optimize = Callable[[Coordinates], torch.optim.Optimizer]


def sgd(model: Coordinates) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.0)


def measure(
    make: Optimize,
    *,
    num_epochs: int = 6,
    largest: int = 4,
    model: Coordinates | None = None,
    scaler: torch.amp.GradScaler | None = None,
    clip: float | None = None,
    spoil_at: int | None = None,
    seed: int = 0,
    **ddp_options: Any,
) -> pt.AdaptiveDataParallel:
    """Train without learning, M0 = 8 in micro-batches of at most `largest`; return the measured model."""
    model = model or Coordinates()
    optimizer = make(model)
    parallel = pt.AdaptiveDataParallel(model, optimizer, mp_scaler=scaler, **ddp_options)
    loader = pt.AdaptiveDataLoader(Points(), batch_size=M0, shuffle=True, seed=seed)
    loader.autoscale_batch_size(M0, (1, largest), gradient_accumulation=True)
    num_batches = 0
    for _ in pt.remaining_epochs_until(num_epochs):
        for inputs in loader:
            optimizer.zero_grad()
            loss = parallel(inputs).mean()
            num_batches += 1
            if num_batches == spoil_at:
                loss = loss * float("nan")
            if scaler is None:
                loss.backward()
            else:
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
    return parallel


def known(parallel: pt.AdaptiveDataParallel) -> GradientStatistics:
    statistics = parallel.statistics
    assert statistics is not None
    return statistics


def test_that_plain_norms_are_led_by_the_largest_coordinate() -> None:
    with joined():
        statistics = known(measure(sgd))
    assert statistics.sqr == pytest.approx(SQR, rel=0.01)
    assert statistics.var == pytest.approx(VAR, rel=0.1)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(lambda p: torch.optim.Adam(p, lr=0.0, eps=1e-12), id="Adam"),
        pytest.param(lambda p: torch.optim.AdamW(p, lr=0.0, eps=1e-12, foreach=True), id="AdamW"),
        pytest.param(lambda p: torch.optim.RMSprop(p, lr=0.0, eps=1e-12, alpha=0.99), id="RMSprop"),
        pytest.param(lambda p: torch.optim.Adagrad(p, lr=0.0, eps=1e-12), id="Adagrad"),
    ],
)
def test_that_an_adam_like_optimizer_measures_coordinates_in_its_own_units(kind: Any) -> None:
    with joined():
        statistics = known(measure(lambda model: kind(list(model.parameters())), num_epochs=8))
    # v = G² + σ²/M0 by coordinate, of the step's mean gradient; the floor of a hundredth adds 2 %.
    second = MEANS**2 + DEVIATIONS**2 / M0
    assert statistics.sqr == pytest.approx(float((MEANS**2 / second).sum()), rel=0.1)
    assert statistics.var == pytest.approx(float((DEVIATIONS**2 / M0 / second).sum()), rel=0.1)


def test_that_steps_before_the_preconditioner_is_settled_are_not_measured() -> None:
    with joined():
        # 50 steps an epoch; the first twenty are not measured, all of the others are, up to 32.
        parallel = measure(lambda m: torch.optim.Adam(m.parameters(), lr=0.0), num_epochs=1)
    assert parallel._pollux.noise.num_updates == 30


def test_that_parameter_groups_are_measured_apart() -> None:
    def two(model: Coordinates) -> torch.optim.Optimizer:
        return torch.optim.SGD([{"params": [model.second]}, {"params": [model.first]}], lr=0.0)

    with joined():
        parallel = measure(two)
        small, large = parallel.group_statistics
        both = known(parallel)
    assert large.sqr == pytest.approx(SQR, rel=0.01)
    assert large.var == pytest.approx(WIDTH / M0, rel=0.1)
    assert small.var == pytest.approx(WIDTH * 0.01 / M0, rel=0.1)
    assert (both.sqr, both.var) == pytest.approx((small.sqr + large.sqr, small.var + large.var), rel=1e-4)


def test_that_a_noisier_group_learns_faster_at_a_larger_batch() -> None:
    rates: list[list[float]] = []

    class Spy(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            rates.append([group["lr"] for group in self.param_groups])
            return super().step(closure)

    with joined():
        model = Coordinates()
        optimizer = Spy([{"params": [model.first]}, {"params": [model.second], "lr": 2e-9}], lr=1e-9)
        parallel = pt.AdaptiveDataParallel(model, optimizer)
        loader = pt.AdaptiveDataLoader(Points(), batch_size=M0, shuffle=True)
        loader.autoscale_batch_size(4 * M0, (16, 16), gradient_accumulation=True)
        for _ in pt.remaining_epochs_until(8):
            for inputs in loader:
                optimizer.zero_grad()
                parallel(inputs).mean().backward()
                optimizer.step()
        assert [group["lr"] for group in optimizer.param_groups] == [1e-9, 2e-9]
    assert rates[0] == [1e-9, 2e-9]
    # The constant group gains nothing from 16 examples instead of 8, the noisy one nearly twice.
    assert rates[-1][0] == pytest.approx(1e-9, rel=0.01)
    assert rates[-1][1] == pytest.approx(4e-9, rel=0.1)


def advance(directory: Path, num_epochs: int, rule: pt.ScalingRule, bounds: tuple[int, int]) -> list[float]:
    """Train up to so many epochs after those done before; return progress before and after, weight, rate."""
    with joined(directory) as session:
        model = Coordinates()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 25, 0.5)
        parallel = pt.AdaptiveDataParallel(model, optimizer, schedule, scaling_rule=rule)
        loader = pt.AdaptiveDataLoader(Points(), batch_size=M0, shuffle=True)
        loader.autoscale_batch_size(max(M0, bounds[0]), bounds, gradient_accumulation=True)
        before = session.progress_state.progress
        for _ in pt.remaining_epochs_until(num_epochs):
            for inputs in loader:
                optimizer.zero_grad()
                parallel(inputs).mean().backward()
                optimizer.step()
                schedule.step()
        weight = float(model.first.detach().sum())
        return [before, session.progress_state.progress, weight, optimizer.param_groups[0]["lr"]]


def test_that_progress_and_learning_rates_are_exact_over_restarts(tmp_path: Path) -> None:
    # Warm-up for two of four epochs of 50 steps, in two micro-batches each.
    rule, bounds = pt.LEGWScale(2.0, 400), (1, 4)
    whole = advance(tmp_path / "whole", 4, rule, bounds)
    parts = [advance(tmp_path / "parts", num_epochs, rule, bounds) for num_epochs in (1, 3, 4)]
    assert [(before, after) for before, after, _, _ in parts] == [(0, 50), (50, 150), (150, 200)]
    assert parts[-1][1:] == whole[1:]


def test_that_progress_at_a_larger_batch_goes_on_where_it_was(tmp_path: Path) -> None:
    # One micro-batch of 16: the noise comes from pairs of steps, and the pair that a restart divides is lost.
    rule, bounds = pt.AdaScale(), (16, 16)
    whole = advance(tmp_path / "whole", 4, rule, bounds)
    parts = [advance(tmp_path / "parts", num_epochs, rule, bounds) for num_epochs in (1, 3, 4)]
    assert [before for before, _, _, _ in parts[1:]] == [after for _, after, _, _ in parts[:-1]]
    # 25 steps of 16 examples an epoch, each worth between one and two of eight.
    assert 100 < whole[1] < 200
    assert parts[-1][1] == pytest.approx(whole[1], rel=1e-3)


def test_that_statistics_are_the_same_right_after_a_restart(tmp_path: Path) -> None:
    with joined(tmp_path):
        parallel = measure(sgd)
        before, before_of_groups = known(parallel), parallel.group_statistics
    with joined(tmp_path):
        model = Coordinates()
        parallel = pt.AdaptiveDataParallel(model, sgd(model))
        assert (parallel.statistics, parallel.group_statistics) == (before, before_of_groups)


def test_that_a_loops_batch_is_chosen_by_statistics_at_its_own_initial_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with joined() as session:
        parallel, seen = measure(sgd), []
        at_eight = known(parallel).var
        loader = pt.AdaptiveDataLoader(Points(), batch_size=2 * M0)
        loader.autoscale_batch_size(4 * M0)
        propose = session.measurements.propose

        def spy(training: Any) -> Any:
            seen.append(training.statistics.var)
            return propose(training)

        monkeypatch.setattr(session.measurements, "propose", spy)
        next(iter(loader))
    assert seen == [pytest.approx(at_eight / 2)]


# ------------------------------------------------------------ what scripts do to gradients changes nothing


def test_that_clipping_leaves_the_measurement_alone() -> None:
    with joined():
        plain = known(measure(sgd, num_epochs=2))
    with joined():
        assert known(measure(sgd, num_epochs=2, clip=1e-3)) == plain


def test_that_a_gradient_scaler_leaves_the_measurement_alone() -> None:
    with joined():
        plain = known(measure(sgd, num_epochs=2))
    with joined():
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=20)
        scaled = known(measure(sgd, num_epochs=2, scaler=scaler, clip=1e-3))
        assert scaler.get_scale() > 256.0
    assert scaled.sqr == pytest.approx(plain.sqr, rel=1e-5)
    assert scaled.var == pytest.approx(plain.var, rel=1e-3)


def test_that_an_unused_parameter_leaves_the_measurement_alone() -> None:
    with joined():
        plain = known(measure(sgd, num_epochs=2))
    with joined():
        model = Coordinates(has_unused=True)
        assert known(measure(sgd, num_epochs=2, model=model, find_unused_parameters=True)) == plain


@pytest.mark.parametrize("largest", [4, M0])
@pytest.mark.parametrize("has_scaler", [False, True])
def test_that_one_gradient_that_is_no_number_is_left_out(largest: int, has_scaler: bool) -> None:
    # A single part compares the next multiple of eight steps with the step after it.
    with joined():
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0) if has_scaler else None
        parallel = measure(sgd, largest=largest, scaler=scaler, spoil_at=13, num_epochs=4)
        statistics = known(parallel)
    assert statistics.sqr == pytest.approx(SQR, rel=0.01)
    assert statistics.var == pytest.approx(VAR, rel=0.2)


# ---------------------------------------------------------------------------- manual accumulation


def accumulated_manually(*, uses_no_sync: bool, num_epochs: int = 6) -> pt.AdaptiveDataParallel:
    """Add up two batches of 8 before each step, each worth half."""
    model = Coordinates()
    optimizer = sgd(model)
    parallel = pt.AdaptiveDataParallel(model, optimizer)
    loader = pt.AdaptiveDataLoader(Points(), batch_size=M0, shuffle=True)
    for _ in pt.remaining_epochs_until(num_epochs):
        for index, inputs in enumerate(loader):
            is_last = index % 2 == 1
            with contextlib.nullcontext() if is_last or not uses_no_sync else parallel.no_sync():
                (parallel(inputs).mean() / 2).backward()
            if is_last:
                optimizer.step()
                optimizer.zero_grad()
    return parallel


def test_that_micro_batches_under_no_sync_are_measured_each() -> None:
    with joined():
        statistics = known(accumulated_manually(uses_no_sync=True))
    # Of half the gradient, at batches of eight.
    assert statistics.sqr == pytest.approx(SQR / 4, rel=0.01)
    assert statistics.var == pytest.approx(VAR / 4, rel=0.1)


def add_to_reduced() -> bool:
    pt.init_process_group()
    return accumulated_manually(uses_no_sync=False, num_epochs=1).statistics is None


def test_that_gradients_added_to_reduced_ones_are_not_measured_as_one(tmp_path: Path) -> None:
    assert run_ranks(tmp_path, 2, add_to_reduced) == [True, True]


def test_that_no_sync_makes_no_difference_where_the_loader_splits_the_batch() -> None:
    changes = []
    for uses in (False, True):
        with joined():
            model = Coordinates()
            optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
            parallel = pt.AdaptiveDataParallel(model, optimizer)
            loader = pt.AdaptiveDataLoader(Points(16), batch_size=8)
            loader.autoscale_batch_size(8, (1, 4), gradient_accumulation=True)
            for index, inputs in enumerate(loader):
                optimizer.zero_grad()
                with parallel.no_sync() if uses and index % 2 == 0 else contextlib.nullcontext():
                    parallel(inputs).mean().backward()
                optimizer.step()
            changes.append(model.first.tolist())
    assert changes[0] == changes[1]


# ------------------------------------------------------------------------------------- a real network


class Images(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Two noisy classes in twelve dimensions."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.labels = torch.randint(2, (600,), generator=generator)
        self.inputs = torch.randn(600, 12, generator=generator) + 0.7 * self.labels[:, None]

    def __len__(self) -> int:
        return 600

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inputs[index], self.labels[index]


def network() -> torch.nn.Module:
    torch.manual_seed(2)
    return torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))


def measure_network(largest: int, num_epochs: int) -> list[float]:
    """Return |G|² and tr Σ at M0 = 24 of the network as it begins, also by many consecutive steps."""
    ProbeSchedule.share = 1.0
    pt.init_process_group()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    parallel = pt.AdaptiveDataParallel(model, optimizer)
    loader = pt.AdaptiveDataLoader(Images(), batch_size=24, shuffle=True)
    loader.autoscale_batch_size(24, (1, largest), gradient_accumulation=True)
    for _ in pt.remaining_epochs_until(num_epochs):
        for inputs, labels in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(parallel(inputs), labels).backward()
            optimizer.step()
    statistics = known(parallel)
    return [statistics.sqr, statistics.var]


def true_statistics() -> tuple[float, float]:
    """Return the same from every example's own gradient."""
    model, data = network(), Images()
    gradients = []
    for inputs, label in data:
        model.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs[None]), label[None]).backward()
        gradients.append(torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None]))
    all_of_them = torch.stack(gradients).double()
    mean = all_of_them.mean(0)
    return float(mean @ mean), float(((all_of_them - mean) ** 2).sum() / len(data) / 24)


@pytest.mark.parametrize(
    ("num_ranks", "largest", "num_epochs"),
    [
        pytest.param(3, 24, 16, id="replicas"),
        pytest.param(1, 8, 20, id="accumulation"),
        pytest.param(1, 24, 60, id="differences"),
    ],
)
def test_that_each_way_to_measure_a_real_network_comes_near_its_true_noise(
    tmp_path: Path, num_ranks: int, largest: int, num_epochs: int
) -> None:
    # Each within a tenth of the truth: any two within a fifth of each other.
    sqr, var = true_statistics()
    measured = run_ranks(tmp_path, num_ranks, measure_network, largest, num_epochs)[0]
    assert measured == pytest.approx([sqr, var], rel=0.1)
