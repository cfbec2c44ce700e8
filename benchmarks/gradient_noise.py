"""How right the gradient noise scale of one replica with one micro-batch is: coverage of its 95 % intervals.

Three trainings, each with many seeds:

- closed: gradients of a given mean and covariance, which the weights do not change.
- quadratic: SGD on a quadratic loss whose optimum moves on and on; η·λ goes up to 1.6, so that they overshoot
  along the steep directions. |G|² is known at each step. The truth is that of the last weights, averaged over
  the steps that the estimate is about.
- training: a small classifier through the library; the truth is at its last weights, from all its data.

By the halves of some steps (`half_batches`), and by consecutive steps. Printed: how many intervals contain
the truth, how many have an upper end, and the median of estimate/truth.

A fourth part, cost: the share of processor time that goes into measuring, with AdamW and SGD, in the three
ways in turn. Times are those of the training's own thread, so that other load matters less.

    python -m benchmarks.gradient_noise --seeds 100
    python -m benchmarks.gradient_noise --settings cost
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import TensorDataset

import pollux_slurm.torch as pt
from pollux_slurm.torch.gradients.measured_steps import ProbeSchedule
from pollux_slurm.torch.gradients.noise_scale import NoiseEstimator, parts_of_consecutive
from pollux_slurm.torch.session.current_session import current_session, set_session
from pollux_slurm.torch.wrapped_model.patching import patch

_BATCH = 32
_DIMENSIONS = 40
_Z = 1.96
# Parameters of a model that is measured as often as others are.
_LARGE = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One seed's φ: truth, estimate (infinite where |G|² was estimated as 0) and 95 % interval."""

    truth: float
    estimate: float
    low: float
    high: float

    @property
    def is_covered(self) -> bool:
        return self.low <= self.truth <= self.high


def result(estimator: NoiseEstimator, truth: float) -> Result:
    """Return what an estimator has found."""
    found, (low, high) = estimator.statistics(), estimator.interval(z=_Z).scale
    assert found is not None
    estimate = _BATCH * found.var / found.sqr if found.sqr > 0 else math.inf
    return Result(truth=truth, estimate=estimate, low=low, high=high)


class Measured:
    """An estimator that is given the gradients of a step's halves, as one replica measures them."""

    def __init__(self, *, by_halves: bool) -> None:
        self.estimator, self._schedule = NoiseEstimator(), ProbeSchedule(_LARGE)
        self.estimator.set_initial_batch_size(_BATCH)
        self._by_halves = by_halves
        # Steps since the last one that was measured.
        self._steps = 0
        self._previous: np.ndarray | None = None

    def add(self, first: np.ndarray, second: np.ndarray) -> None:
        """Add a step whose halves have these gradients."""
        whole, before = (first + second) / 2, self._previous
        norm = float(whole @ whole)
        self._steps += 1
        is_due = self._schedule.is_due and before is None
        self._schedule.add_step(is_probe=is_due)
        if before is not None:
            parts, mean = parts_of_consecutive(
                previous_sqr=float(before @ before),
                previous_size=_BATCH,
                sqr=norm,
                size=_BATCH,
                difference_sqr=float((whole - before) @ (whole - before)),
            )
            self._update(parts, mean, 2 * _BATCH)
            self._previous = None
        elif is_due and self._by_halves:
            spread = _BATCH / 4 * float((first - second) @ (first - second))
            self._update(spread + _BATCH * norm, norm, _BATCH)
        elif is_due:
            self._previous = whole

    def _update(self, parts_sum: float, mean_sqr: float, num_examples: int) -> None:
        self.estimator.update(
            parts_sum=parts_sum,
            mean_sqr=mean_sqr,
            num_examples=num_examples,
            num_parts=2,
            span=self._steps * _BATCH,
            drifts=not self._by_halves,
        )
        self._steps = 0


def simulated(seed: int, *, drifts: bool, by_halves: bool, steps: int, noise: float) -> Result:
    """Return φ of a quadratic loss with curvatures λ, or (`drifts` False) of a gradient that stays.

    One example's gradient is Λ(w − c) plus noise whose covariance has the trace `noise`·M.
    """
    rng = np.random.default_rng(seed)
    curvatures = np.linspace(0.05, 1.0, _DIMENSIONS)
    rate = 1.6 if drifts else 0.0
    velocity = np.full(_DIMENSIONS, rate / math.sqrt(_DIMENSIONS))
    # How far the weights are behind the optimum, in the long run: |G|² = 1 but for the noise in the weights.
    weights = -(velocity if drifts else np.full(_DIMENSIONS, 1 / math.sqrt(_DIMENSIONS))) / curvatures
    weights /= rate or 1.0
    measured, sums, total = Measured(by_halves=by_halves), 0.0, 0.0
    for step in range(-50 if drifts else 0, steps):
        true = curvatures * weights
        spread = math.sqrt(noise * 2 / _DIMENSIONS)
        halves = true + spread * rng.normal(size=(2, _DIMENSIONS))
        if step >= 0:
            measured.add(halves[0], halves[1])
            keep = math.exp(-1 / max(0.2 * (step + 1), 20.0))
            sums, total = keep * sums + float(true @ true), keep * total + 1.0
        weights = weights - rate * halves.mean(axis=0) - velocity
    return result(measured.estimator, noise * _BATCH / (sums / total))


def trained(seed: int, *, by_halves: bool, steps: int) -> Result:
    """Return φ of a small classifier that was trained through the library, at its last weights."""
    torch.manual_seed(seed)
    inputs = 2.0 * torch.randn(4096, 16)
    labels = (inputs @ torch.randn(16, 4) + 2.0 * torch.randn(4096, 4)).argmax(dim=1)
    network = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))
    loss_of = torch.nn.functional.cross_entropy
    pt.init_process_group(checkpoint_dir=None, checkpoint_interval_s=None, environ={})
    session = current_session()
    try:
        optimizer = torch.optim.SGD(network.parameters(), lr=1.0)
        model = pt.AdaptiveDataParallel(network, optimizer)
        model._pollux.reducer.measured.halves.is_possible = by_halves
        loader = pt.AdaptiveDataLoader(
            TensorDataset(inputs, labels), batch_size=_BATCH, shuffle=True, seed=seed
        )
        # Halves are measured only where the batch may vary.
        loader.autoscale_batch_size(_BATCH + 1)
        for _ in pt.remaining_epochs_until(-(-steps // len(loader))):
            for batch, targets in loader:
                optimizer.zero_grad()
                loss_of(model(batch), targets).backward()
                optimizer.step()
                if session.progress_state.num_steps + 1 >= steps:
                    break
        return result(model._pollux.noise, true_scale(network, inputs, labels))
    finally:
        set_session(None)
        session.close()


def true_scale(network: torch.nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> float:
    """Return φ at these weights, from all batches of the data: E|g|² − |G|² is σ²/M."""
    parameters = list(network.parameters())
    flat = torch.stack(
        [
            torch.cat([one.flatten() for one in torch.autograd.grad(loss, parameters)])
            for part, targets in zip(inputs.split(_BATCH), labels.split(_BATCH), strict=True)
            for loss in [torch.nn.functional.cross_entropy(network(part), targets)]
        ]
    )
    spread = float(flat.var(dim=0).sum())
    return _BATCH * spread / float((flat.mean(dim=0) ** 2).sum())


def results(setting: str, seed: int, *, by_halves: bool, steps: int) -> Result:
    """Return one seed's result in one of the settings."""
    if setting == "training":
        return trained(seed, by_halves=by_halves, steps=steps)
    noise = 0.5 if seed % 2 else 8.0
    return simulated(seed, drifts=setting == "quadratic", by_halves=by_halves, steps=steps, noise=noise)


def rows(settings: list[str], seeds: int, steps: int) -> Iterator[str]:
    """Yield a table's row for each setting and estimator."""
    for setting in settings:
        for by_halves in (True, False):
            found = [results(setting, seed, by_halves=by_halves, steps=steps) for seed in range(seeds)]
            covered = sum(one.is_covered for one in found)
            bounded = sum(one.high < math.inf for one in found)
            middle = statistics.median(one.estimate / one.truth for one in found)
            name = "halves" if by_halves else "consecutive steps"
            yield f"| {setting} | {name} | {covered} | {bounded} | {middle:.2f} |"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What measuring takes of a training: the time of an unmeasured step, and shares of the whole.

    `measured` is what measured steps take beyond their neighbours; `decided` what deciding and handing over
    takes in all steps.
    """

    step_s: float
    measured: float
    decided: float


class Meter:
    """Adds up the processor time of this thread within some methods of objects."""

    def __init__(self) -> None:
        self._sum_s, self._num_calls = 0.0, 0

    def beyond(self, empty: Meter) -> float:
        """Return the time without what reading the clock takes, as another meter has found."""
        return self._sum_s - self._num_calls * empty._sum_s / empty._num_calls

    def watch(self, owner: Any, *names: str) -> None:
        """Measure these methods of an object from now on."""
        for name in names:
            patch(owner, name, self.timed)

    def timed(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        began_s = time.thread_time()
        try:
            return original(*args, **kwargs)
        finally:
            self._sum_s += time.thread_time() - began_s
            self._num_calls += 1


def cost(optimizer_type: Any, width: int, batch_size: int, *, way: str, steps: int) -> Cost:
    """Return what measuring costs in one of the ways: halves, splits, or consecutive steps."""
    torch.manual_seed(0)
    inputs, labels = torch.randn(4096, 16), torch.randint(4, (4096,))
    layers = [torch.nn.Linear(16, width), torch.nn.Tanh(), torch.nn.Linear(width, width), torch.nn.Tanh()]
    network = torch.nn.Sequential(*layers, torch.nn.Linear(width, 4))
    pt.init_process_group(checkpoint_dir=None, checkpoint_interval_s=None, environ={})
    session = current_session()
    try:
        optimizer = optimizer_type(network.parameters(), lr=1e-3)
        model = pt.AdaptiveDataParallel(network, optimizer)
        wrapped, meter, empty = model._pollux, Meter(), Meter()
        reducer = wrapped.reducer
        reducer.measured.halves.is_possible = way == "halves"
        meter.watch(reducer, "_choose_measurement")
        meter.watch(wrapped, "take_step")
        loader = pt.AdaptiveDataLoader(TensorDataset(inputs, labels), batch_size=batch_size, shuffle=True)
        loader.autoscale_batch_size(batch_size + 1, gradient_accumulation=way == "splits")
        taken_s, is_measured = [], []
        began_s = time.thread_time()
        for _ in pt.remaining_epochs_until(-(-steps // len(loader))):
            for batch, targets in loader:
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(batch), targets).backward()
                optimizer.step()
                if reducer.is_accumulating:
                    continue
                now_s = time.thread_time()
                # In the training, as it is slower there than in a loop of its own.
                empty.timed(lambda: None)
                taken_s.append(now_s - began_s)
                is_measured.append(reducer.measured.measures)
                began_s = now_s
                if len(taken_s) >= steps:
                    break
        extra_s = sum(
            taken_s[step] - usual_s + (0.0 if is_measured[step + 1] else taken_s[step + 1] - usual_s)
            for step in range(steps - 1)
            if is_measured[step]
            # The end of a step is in the time of the next one.
            for near in [range(max(step - 15, 0), min(step + 16, steps))]
            for usual_s in [statistics.median(taken_s[one] for one in near if not is_measured[one])]
        )
        usual_s = statistics.median(taken_s)
        return Cost(
            step_s=usual_s, measured=extra_s / sum(taken_s), decided=meter.beyond(empty) / sum(taken_s)
        )
    finally:
        set_session(None)
        session.close()


def print_cost(steps: int, repeats: int) -> None:
    """Print what measuring costs, the ways in turn."""
    print(f"{steps} steps, medians of {repeats}: % of the processor time")
    print("| optimizer, width, batch | way | ms of a step | measured steps | deciding, in all steps |")
    print("|---|---|---|---|---|")
    ways = ("halves", "splits", "consecutive steps")
    for optimizer_type in (torch.optim.AdamW, torch.optim.SGD):
        for width, batch_size in ((32, 32), (512, 128), (1024, 256)):
            found: dict[str, list[Cost]] = {way: [] for way in ways}
            for _ in range(repeats):
                for way in ways:
                    found[way].append(cost(optimizer_type, width, batch_size, way=way, steps=steps))
            for way, costs in found.items():
                step_s, measured, decided = (
                    statistics.median(getattr(one, name) for one in costs)
                    for name in ("step_s", "measured", "decided")
                )
                print(
                    f"| {optimizer_type.__name__}, {width}, {batch_size} | {way} | {1000 * step_s:.1f} | "
                    f"{100 * measured:.2f} | {100 * decided:.2f} |",
                    flush=True,
                )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--settings", default="closed,quadratic,training")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.settings == "cost":
        print_cost(given.steps, given.repeats)
        return
    print(f"of {given.seeds} seeds, {given.steps} steps")
    print("| training | estimator | truth in the interval | with an upper end | estimate/truth, median |")
    print("|---|---|---|---|---|")
    for row in rows(given.settings.split(","), given.seeds, given.steps):
        print(row, flush=True)


if __name__ == "__main__":
    main()
