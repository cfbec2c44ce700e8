"""One replica with one micro-batch measures gradient noise at the same weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint
from torch.utils.data import IterableDataset, TensorDataset

import pollux_slurm.torch as pt
from benchmarks.gradient_noise import results
from pollux_slurm.errors import UsageError
from pollux_slurm.torch.gradients import preconditioning
from pollux_slurm.torch.gradients.half_batches import HalfBatches
from pollux_slurm.torch.gradients.measured_steps import ProbeSchedule
from pollux_slurm.torch.gradients.noise_scale import NoiseEstimator
from tests.torch.single_replica import joined

SIZE = 8


class Network(torch.nn.Module):
    """A classifier of five classes. `end` turns its logits and the targets into the model's output."""

    def __init__(self, end: Callable[..., Any] | None = None, layer: torch.nn.Module | None = None) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(4, 6), torch.nn.Linear(6, 5)
        self.layer, self.end = layer, end

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> Any:
        hidden = torch.tanh(self.first(inputs))
        if self.layer is not None:
            hidden = self.layer(hidden)
        logits = self.last(hidden)
        return logits if self.end is None else self.end(logits, targets)


def cross_entropy(output: Any, targets: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(output, targets)


class Training:
    """Steps of SGD, on data that is the same each time; `sizes` are those of the micro-batches."""

    def __init__(
        self,
        directory: Path | None = None,
        *,
        network: Network | None = None,
        loss: Callable[[Any, torch.Tensor], torch.Tensor] = cross_entropy,
        accumulation: bool = False,
        num_steps: int = 12,
        halves: bool = True,
        rate: float = 0.5,
        optimizer_type: Any = torch.optim.SGD,
        **options: Any,
    ) -> None:
        torch.manual_seed(0)
        self.network = network or Network()
        with torch.no_grad():
            for parameter in self.network.parameters():
                parameter.copy_(torch.linspace(-1, 1, parameter.numel()).sin().view_as(parameter))
        data = torch.Generator().manual_seed(1)
        inputs = torch.randn(SIZE * num_steps, 4, generator=data)
        targets = torch.randint(5, (SIZE * num_steps,), generator=data)
        self.sizes: list[int] = []
        with joined(directory):
            optimizer = optimizer_type(self.network.parameters(), lr=rate)
            self.model = pt.AdaptiveDataParallel(self.network, optimizer, **options)
            self.reducer, self.noise = self.model._pollux.reducer, self.model._pollux.noise
            self.reducer.measured.halves.is_possible = halves
            self.schedules = self.reducer.measured.whole_schedule, self.reducer.measured.split_schedule
            loader = pt.AdaptiveDataLoader(TensorDataset(inputs, targets), batch_size=SIZE)
            loader.autoscale_batch_size(2 * SIZE, gradient_accumulation=accumulation)
            for _ in pt.remaining_epochs_until(1):
                for batch, wanted in loader:
                    self.sizes.append(len(batch))
                    optimizer.zero_grad()
                    loss(self.model(batch, wanted), wanted).backward()
                    optimizer.step()

    @property
    def weights(self) -> torch.Tensor:
        return torch.cat([parameter.detach().flatten() for parameter in self.network.parameters()])


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What each measurement of parts gave to the estimator."""
    found: list[dict[str, Any]] = []
    update = NoiseEstimator.update

    def note(self: NoiseEstimator, **given: Any) -> bool:
        found.append(given)
        return update(self, **given)

    monkeypatch.setattr(NoiseEstimator, "update", note)
    return found


def test_that_halves_and_split_steps_measure_the_same_at_the_same_weights_and_change_no_training(
    added: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that both measure the same steps.
    monkeypatch.setattr("pollux_slurm.torch.session.training_steps._WHOLE_STEPS", 1)
    plain = Training(halves=False)
    assert plain.noise.drifts
    added.clear()
    halves = Training()
    first = dict(added[-1])
    added.clear()
    split = Training(accumulation=True)
    # Bit by bit by halves; by rounding where a step is split.
    assert torch.equal(halves.weights, plain.weights)
    torch.testing.assert_close(split.weights, plain.weights)
    assert set(halves.sizes) == {SIZE}
    assert sorted(set(split.sizes)) == [SIZE // 2, SIZE]
    assert not halves.noise.drifts
    assert not split.noise.drifts
    # The same step was measured in both ways.
    assert halves.schedules[0].state() == split.schedules[1].state()
    for name in ("parts_sum", "mean_sqr", "num_examples", "num_parts"):
        assert added[-1][name] == pytest.approx(first[name], rel=1e-4), name


@pytest.mark.parametrize("halves", [True, False])
def test_that_other_steps_have_no_norms_and_those_of_one_step_share_a_preconditioner(
    added: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, *, halves: bool
) -> None:
    calls = []
    divisors = preconditioning._divisors
    monkeypatch.setattr(preconditioning, "_divisors", lambda *given: calls.append(1) or divisors(*given))
    training = Training(num_steps=40, optimizer_type=torch.optim.AdamW, rate=0.01, halves=halves)
    # Twenty steps until the preconditioner is settled; then some of the other half.
    num_probes = training.reducer.measured.whole_schedule.num_probes
    assert 3 <= num_probes < 20
    assert len(calls) == len(added) == num_probes


def test_that_a_batch_of_one_example_is_measured_by_consecutive_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It cannot be split, though splits are allowed."""
    monkeypatch.setitem(globals(), "SIZE", 1)
    training = Training(num_steps=40, accumulation=True, rate=0.01)
    assert training.noise.num_updates > 0
    assert training.noise.drifts


def test_that_a_term_of_the_loss_beside_the_output_is_no_noise(added: list[dict[str, Any]]) -> None:
    network = Network()
    Training(network=network, rate=0.0)
    plain = [one["parts_sum"][0] - one["num_examples"] * one["mean_sqr"][0] for one in added[:1]]
    added.clear()
    network = Network()
    Training(
        network=network,
        loss=lambda output, targets: (
            cross_entropy(output, targets) + 5 * sum((one**2).sum() for one in network.parameters())
        ),
        rate=0.0,
    )
    assert added
    spread = added[0]["parts_sum"][0] - added[0]["num_examples"] * added[0]["mean_sqr"][0]
    assert spread == pytest.approx(plain[0], rel=1e-3)


# Each leaves one tensor with a row for each example.
SUITABLE = [
    pytest.param(
        lambda logits, targets: {"logits": logits, "loss": None}, lambda out: out["logits"], id="dict"
    ),
    pytest.param(lambda logits, targets: (logits, logits.detach()), lambda out: out[0], id="pair"),
]


@pytest.mark.parametrize(("end", "logits"), SUITABLE)
def test_that_outputs_with_a_row_for_each_example_are_measured_by_halves(
    end: Callable[..., Any], logits: Callable[[Any], torch.Tensor]
) -> None:
    training = Training(
        network=Network(end), loss=lambda output, targets: cross_entropy(logits(output), targets)
    )
    assert training.reducer.measured.halves.is_possible
    assert training.noise.num_updates > 0
    assert not training.noise.drifts


def in_place(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    output /= 2.0
    return cross_entropy(output, targets)


# The loss is computed within the model; a matrix of examples by examples; changed in place afterwards.
UNSUITABLE = [
    pytest.param(cross_entropy, lambda output, targets: output, id="loss within the model"),
    pytest.param(
        lambda logits, targets: logits @ logits.T,
        lambda output, targets: cross_entropy(output, torch.arange(len(output))),
        id="examples by examples",
    ),
    pytest.param(lambda logits, targets: logits, in_place, id="changed in place"),
]


@pytest.mark.parametrize(("end", "loss"), UNSUITABLE)
def test_that_other_outputs_are_measured_by_consecutive_steps_which_says_so(
    end: Callable[..., Any],
    loss: Callable[[Any, torch.Tensor], torch.Tensor],
    caplog: pytest.LogCaptureFixture,
) -> None:
    training = Training(network=Network(end), loss=loss, num_steps=24)
    assert not training.reducer.measured.halves.is_possible
    assert training.noise.drifts
    assert training.model.noise_source == "consecutive steps"
    (message,) = [one.getMessage() for one in caplog.records if "noise" in one.getMessage()]
    assert "gradient_accumulation=True" in message
    # The same with accumulation allowed is measured by splits.
    if loss is not in_place:
        split = Training(network=Network(end), loss=loss, accumulation=True, num_steps=24)
        assert split.model.noise_source == "parts of a step"


class Counted(torch.nn.Module):
    """A layer whose backward pass runs Python code. `kind` says which; `count` is how often it has run."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.count = kind, 0
        self.norm = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.BatchNorm1d(6))
        if kind == "parameter hook":
            next(self.norm.parameters()).register_hook(self.note)
        elif kind == "module hook":
            self.norm.register_full_backward_hook(lambda *given: self.note(given[-1][0]))

    def note(self, gradient: torch.Tensor) -> None:
        self.count += 1

    def forward(self, hidden: torch.Tensor) -> Any:
        if self.kind == "function":
            return Noise.apply(self.norm(hidden), self)
        if self.kind.endswith("checkpoint"):
            return checkpoint(self.norm, hidden, use_reentrant=self.kind.startswith("reentrant"))
        result = self.norm(hidden)
        if self.kind == "tensor hook":
            result.register_hook(self.note)
        return result


class Noise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, layer: Counted) -> torch.Tensor:
        ctx.layer = layer
        return hidden.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.layer.note(gradient)
        return gradient + 0.1 * torch.randn_like(gradient), None


KINDS = ["parameter hook", "module hook", "tensor hook", "function", "checkpoint", "reentrant checkpoint"]


@pytest.mark.parametrize("kind", KINDS)
def test_that_python_code_in_the_backward_pass_runs_as_often_as_without_a_measurement(kind: str) -> None:
    found = []
    for halves in (True, False):
        layer = Counted(kind)
        training = Training(network=Network(layer=layer), halves=halves)
        assert training.noise.drifts
        state = [*training.network.buffers(), training.weights, torch.get_rng_state()]
        found.append((layer.count, [one.clone() for one in state]))
    (count, state), (plain_count, plain_state) = found
    assert count == plain_count == (0 if "checkpoint" in kind else 12)
    assert all(torch.equal(one, other) for one, other in zip(state, plain_state, strict=True))


class Recurrent(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.BatchNorm1d(6), torch.nn.Dropout(0.3))
        self.recurrent = torch.nn.GRU(6, 6, batch_first=True)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        states, _ = self.recurrent(self.layers(hidden).unsqueeze(1))
        attended = torch.nn.functional.scaled_dot_product_attention(states, states, states, dropout_p=0.1)
        return torch.cat([attended.squeeze(1)[:, :3], hidden[:, 3:]], dim=1)


@pytest.mark.parametrize("finds_unused", [True, False])
def test_that_torchs_own_layers_are_measured_by_halves_and_train_alike(*, finds_unused: bool) -> None:
    found = []
    for halves in (True, False):
        network = Network(layer=Recurrent())
        training = Training(network=network, halves=halves, find_unused_parameters=finds_unused)
        assert training.noise.drifts is not halves
        found.append([*network.buffers(), training.weights, torch.get_rng_state()])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize("creates_graph", [True, False])
def test_that_a_gradient_of_the_output_itself_is_not_taken_for_that_of_the_loss(
    *, creates_graph: bool
) -> None:
    """As a gradient penalty, and as a look at what the output depends on."""

    def penalized(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        (slope,) = torch.autograd.grad(
            output.sum(), network.first.bias, create_graph=creates_graph, retain_graph=True
        )
        return cross_entropy(output, targets) + (slope**2).sum()

    network = Network()
    training = Training(network=network, loss=penalized)
    assert not training.reducer.measured.halves.is_possible
    assert training.noise.drifts


@pytest.mark.parametrize("accumulation", [True, False])
def test_that_the_noise_of_a_fixed_batch_costs_nothing(
    *, accumulation: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is of no use: each step is whole and has one backward pass, and the log has no advice."""
    monkeypatch.delattr(HalfBatches, "begin_step")
    with joined():
        network = Network()
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        model = pt.AdaptiveDataParallel(network, optimizer)
        data = TensorDataset(torch.randn(12 * SIZE, 4), torch.randint(5, (12 * SIZE,)))
        loader = pt.AdaptiveDataLoader(data, batch_size=SIZE)
        loader.autoscale_batch_size(SIZE, gradient_accumulation=accumulation)
        for _ in pt.remaining_epochs_until(1):
            sizes = []
            for batch, wanted in loader:
                sizes.append(len(batch))
                assert len(loader) == 12
                optimizer.zero_grad()
                cross_entropy(model(batch, wanted), wanted).backward()
                optimizer.step()
        assert sizes == [SIZE] * 12
        assert model.noise_source == "consecutive steps"
        assert "noise" not in caplog.text


def test_that_layers_that_depend_on_the_local_batch_are_not_split() -> None:
    training = Training(network=Network(layer=torch.nn.BatchNorm1d(6)), accumulation=True)
    assert set(training.sizes) == {SIZE}
    assert training.noise.num_updates > 0
    assert not training.noise.drifts


def add_up_two(model: Any, optimizer: torch.optim.Optimizer, loader: pt.AdaptiveDataLoader) -> None:
    for number, (batch, wanted) in enumerate(loader):
        assert (len(batch), number < 2) == (SIZE, True)
        cross_entropy(model(batch, wanted), wanted).backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()


def test_that_a_script_that_adds_up_whole_batches_is_refused_before_one_is_split() -> None:
    torch.manual_seed(0)
    inputs, targets = torch.randn(32 * SIZE, 4), torch.randint(5, (32 * SIZE,))
    with joined():
        network = Network()
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        model = pt.AdaptiveDataParallel(network, optimizer)
        loader = pt.AdaptiveDataLoader(TensorDataset(inputs, targets), batch_size=SIZE)
        loader.autoscale_batch_size(2 * SIZE, gradient_accumulation=True)
        with pytest.raises(UsageError, match="Leave accumulation to the loader"):
            add_up_two(model, optimizer, loader)


class Stream(IterableDataset[tuple[torch.Tensor, torch.Tensor]]):
    def __iter__(self) -> Any:
        data = torch.Generator().manual_seed(0)
        return ((torch.randn(4, generator=data), torch.tensor(index % 5)) for index in range(12 * SIZE))


def test_that_a_stream_is_measured_by_halves() -> None:
    with joined():
        network = Network()
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        model = pt.AdaptiveDataParallel(network, optimizer)
        loader = pt.AdaptiveDataLoader(Stream(), batch_size=SIZE)
        loader.autoscale_batch_size(2 * SIZE, gradient_accumulation=True)
        for _ in pt.remaining_epochs_until(1):
            for batch, wanted in loader:
                optimizer.zero_grad()
                cross_entropy(model(batch, wanted), wanted).backward()
                optimizer.step()
        assert model._pollux.noise.num_updates > 0
        assert model.noise_source == "parts of a step"


# ------------------------------------------------------------------------------------------ how right it is


@pytest.fixture
def _as_often_as_in_a_training(_often: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProbeSchedule, "share", 0.01)


@pytest.mark.usefixtures("_as_often_as_in_a_training")
@pytest.mark.parametrize("setting", ["closed", "quadratic"])
def test_that_the_truth_is_in_nine_of_ten_95_percent_intervals(setting: str) -> None:
    found = [results(setting, seed, by_halves=True, steps=600) for seed in range(20)]
    assert sum(one.is_covered for one in found) >= 18
    assert sum(one.high < float("inf") for one in found) >= 10


@pytest.mark.usefixtures("_as_often_as_in_a_training")
def test_that_consecutive_steps_overestimate_where_the_weights_move() -> None:
    found = [results("quadratic", seed, by_halves=False, steps=600) for seed in range(5)]
    assert all(one.low > 2 * one.truth for one in found)


@pytest.mark.full
@pytest.mark.usefixtures("_as_often_as_in_a_training")
@pytest.mark.parametrize("setting", ["closed", "quadratic", "training"])
def test_that_the_truth_is_in_90_of_100_intervals(setting: str) -> None:
    found = [results(setting, seed, by_halves=True, steps=1000) for seed in range(100)]
    assert sum(one.is_covered for one in found) >= 90
