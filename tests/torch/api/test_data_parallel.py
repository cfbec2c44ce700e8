"""What the optimizer sees: the exact mean gradient, at the right moments, at the right rate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import pollux_slurm.torch as pt
from pollux_slurm.errors import CheckpointError, UsageError
from pollux_slurm.torch.gradients.measured_steps import ProbeSchedule
from tests.torch.single_replica import Numbers, Slope, Trainee, joined

pytestmark = pytest.mark.torch


def accumulating(length: int, batch_size: int, largest: int, **options: Any) -> pt.AdaptiveDataLoader:
    """Return a loader whose fixed batch needs several micro-batches of at most `largest` examples."""
    loader = pt.AdaptiveDataLoader(Numbers(length), batch_size=batch_size, **options)
    loader.autoscale_batch_size(batch_size, (1, largest), gradient_accumulation=True)
    return loader


def test_that_uneven_micro_batches_add_up_to_the_exact_mean() -> None:
    with joined():
        model, seen = Slope(), []
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        parallel = pt.AdaptiveDataParallel(model, optimizer)
        # 10 examples in 3 micro-batches of 4, 3, 3; then the last 4 in one.
        loader = accumulating(14, 10, 4)
        for _ in pt.remaining_epochs_until(1):
            for inputs, _ in loader:
                before = model.weight.item()
                optimizer.zero_grad()
                parallel(inputs).mean().backward()
                optimizer.step()
                seen.append((len(inputs), before - model.weight.item()))
    assert [count for count, _ in seen] == [4, 3, 3, 4]
    assert [change for _, change in seen] == pytest.approx([0, 0, 5.5, 12.5])


def test_that_clipping_in_each_micro_batch_clips_the_whole_gradient_once() -> None:
    with joined():
        model = Slope()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        parallel = pt.AdaptiveDataParallel(model, optimizer)
        norms = []
        for inputs, _ in accumulating(9, 9, 3):
            optimizer.zero_grad()
            parallel(inputs).mean().backward()
            norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5).item())
            optimizer.step()
    assert norms[-1] == pytest.approx(5.0)
    assert model.weight.item() == pytest.approx(-0.5, abs=1e-4)


def test_that_schedulers_and_scalers_move_once_a_global_batch() -> None:
    with joined():
        model = Slope()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step))
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
        parallel = pt.AdaptiveDataParallel(model, optimizer, scheduler, scaler)
        rates = []
        for inputs, _ in accumulating(16, 8, 2):
            optimizer.zero_grad()
            scaler.scale(parallel(inputs).mean()).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            rates.append(optimizer.param_groups[0]["lr"])
        # Two global batches of four micro-batches: means 4.5 and 12.5, rates 1 and 1/2.
        assert model.weight.item() == pytest.approx(-(4.5 + 12.5 / 2))
        assert rates == pytest.approx([1, 1, 1, 1 / 2, 1 / 2, 1 / 2, 1 / 2, 1 / 3])
        assert scaler.get_scale() == 16.0


def test_that_an_overflow_in_one_micro_batch_skips_the_step_and_not_the_data() -> None:
    with joined():
        model = Slope()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        parallel = pt.AdaptiveDataParallel(model, optimizer, mp_scaler=scaler)
        for index, (inputs, _) in enumerate(accumulating(8, 4, 2)):
            optimizer.zero_grad()
            loss = parallel(inputs).mean() * (float("inf") if index == 0 else 1.0)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        assert model.weight.item() == pytest.approx(-6.5)
        assert scaler.get_scale() == 4.0
        assert parallel.statistics is not None


def test_that_the_learning_rate_is_scaled_for_the_step_alone() -> None:
    class Seven(pt.ScalingRule):
        def factor(self, *, scale: float, gain: float) -> float:
            assert scale == 1.0
            return 7.0

    with joined():
        trainee = Trainee(lr=0.5, scaling_rule=Seven())
        for inputs, _ in pt.AdaptiveDataLoader(Numbers(2), batch_size=2):
            trainee.parallel(inputs).mean().backward()
            trainee.optimizer.step()
        assert trainee.weight == pytest.approx(-0.5 * 7 * 1.5)
        assert trainee.optimizer.param_groups[0]["lr"] == 0.5


def test_that_two_backward_passes_without_accumulation_add_up_as_in_plain_pytorch() -> None:
    with joined():
        model = Slope()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        parallel = pt.AdaptiveDataParallel(model, optimizer)
        for inputs, _ in pt.AdaptiveDataLoader(Numbers(4), batch_size=4):
            optimizer.zero_grad()
            parallel(inputs).mean().backward()
            parallel(inputs).sum().backward()
            optimizer.step()
        assert model.weight.item() == pytest.approx(-12.5)
        assert parallel.statistics is None


@pytest.mark.parametrize("kind", ["never", "after each step", "once a global batch"])
def test_that_micro_batches_add_up_whenever_the_script_zeroes(kind: str) -> None:
    with joined():
        trainee = Trainee()
        for number, (inputs, _) in enumerate(accumulating(14, 10, 4)):
            trainee.parallel(inputs).mean().backward()
            trainee.optimizer.step()
            if kind == "after each step" or (kind == "once a global batch" and number == 2):
                trainee.optimizer.zero_grad()
    # The last batch, of 4, is not split: without zeroing it adds to the one before, as in plain PyTorch.
    assert trainee.weight == pytest.approx(-(5.5 + 12.5 + (5.5 if kind == "never" else 0)))


def step_by_hand(trainee: Trainee, loader: pt.AdaptiveDataLoader) -> None:
    """Step in every other global batch, as a script does that accumulates gradients itself."""
    for number, (inputs, _) in enumerate(loader):
        trainee.parallel(inputs).mean().backward()
        if number % 4 == 3:
            trainee.optimizer.step()
            trainee.optimizer.zero_grad()


def test_that_accumulating_over_batches_that_are_split_is_refused() -> None:
    with joined():
        for largest in (2, 4):  # split now, or perhaps later
            trainee = Trainee()
            with pytest.raises(UsageError, match="Leave accumulation to the loader"):
                step_by_hand(trainee, accumulating(16, 4, largest))
            assert trainee.weight == 0.0, "before the first step"
        trainee = Trainee()
        step_by_hand(trainee, pt.AdaptiveDataLoader(Numbers(16), batch_size=4))
    assert trainee.weight == pytest.approx(-(2.5 + 6.5 + 10.5 + 14.5))


def clear(model: torch.nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = None


@pytest.mark.parametrize("largest", [4, 2])
@pytest.mark.parametrize("clears_before_forward", [True, False])
@pytest.mark.parametrize("clear", [clear, lambda model: model.zero_grad(set_to_none=False)])
def test_that_a_step_may_be_left_out_where_gradients_are_cleared_by_hand(
    clear: Callable[[torch.nn.Module], None], largest: int, *, clears_before_forward: bool
) -> None:
    with joined():
        trainee, number, skipped = Trainee(), 0, 0
        loader = accumulating(16, 4, largest)
        for inputs, _ in loader:
            if clears_before_forward:
                clear(trainee.model)
            loss = trainee.parallel(inputs).mean()
            if not clears_before_forward:
                clear(trainee.model)
            loss.backward()
            number += loader.is_stepping
            if number == 2 and loader.is_stepping:  # as an outlier
                skipped += 1
                continue
            trainee.optimizer.step()
    assert (number, skipped) == (4, 1)
    assert trainee.weight == pytest.approx(-(2.5 + 10.5 + 14.5))


def test_that_another_loss_through_the_model_after_its_step_leaves_nothing_behind() -> None:
    """As a generator's, through the discriminator that has just stepped, unwrapped."""
    with joined():
        trainee = Trainee()
        for inputs, _ in accumulating(8, 4, 2):
            trainee.step(inputs)
            trainee.model(inputs).sum().backward()
    assert trainee.weight == pytest.approx(-(2.5 + 6.5))


def test_that_a_step_skipped_by_the_gradient_scaler_leaves_nothing_behind() -> None:
    with joined():
        model = Slope()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        parallel = pt.AdaptiveDataParallel(model, optimizer, mp_scaler=scaler)
        for index, (inputs, _) in enumerate(accumulating(8, 4, 2)):
            # Zeroed in a way that no hook sees.
            model.zero_grad()
            loss = parallel(inputs).mean() * (float("inf") if index == 0 else 1.0)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    assert model.weight.item() == pytest.approx(-6.5)


class Branches(torch.nn.Module):
    """One weight for small inputs, another for large ones."""

    def __init__(self) -> None:
        super().__init__()
        self.small, self.large = Slope(), Slope()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.small(inputs) if inputs.max() <= 2 else self.large(inputs)
        return output


def test_that_a_weight_unused_in_the_last_micro_batch_keeps_its_gradient_from_earlier_ones() -> None:
    with joined():
        model = Branches()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        parallel = pt.AdaptiveDataParallel(model, optimizer, find_unused_parameters=True)
        for inputs, _ in accumulating(12, 4, 2):
            optimizer.zero_grad()
            parallel(inputs).mean().backward()
            optimizer.step()
    # Steps over 1 2 | 3 4, then 5 6 | 7 8 and 9 10 | 11 12: the small weight is in the first half only.
    assert model.small.weight.item() == pytest.approx(-1.5 / 2)
    assert model.large.weight.item() == pytest.approx(-(3.5 / 2 + 6.5 + 10.5))


def test_that_compiled_models_and_bfloat16_train() -> None:
    with joined():
        model = Slope()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        compiled = torch.compile(model, backend="eager")
        assert isinstance(compiled, torch.nn.Module)
        parallel = pt.AdaptiveDataParallel(compiled, optimizer)
        for inputs, _ in accumulating(8, 8, 4):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = parallel(inputs).mean()
            loss.backward()
            optimizer.step()
    assert model.weight.item() == pytest.approx(-4.5)


def test_that_outside_of_a_loader_it_is_plain_data_parallel() -> None:
    with joined():
        trainee = Trainee()
        trainee.parallel(torch.tensor([3.0])).mean().backward()
        trainee.optimizer.step()
    assert trainee.weight == pytest.approx(-3.0)


@pytest.mark.parametrize("largest", [2, 100])
def test_that_the_statistics_of_a_real_gradient_are_near_the_truth(
    largest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Micro-batches of 2, and the halves of steps of 8: gradients 1..N, shuffled."""
    monkeypatch.setattr(ProbeSchedule, "share", 0.3)
    with joined():
        trainee = Trainee(lr=0.0)
        loader = accumulating(2000, 8, largest, shuffle=True)
        for _ in pt.remaining_epochs_until(4):
            for inputs, _ in loader:
                trainee.step(inputs)
        statistics = trainee.parallel.statistics
    assert statistics is not None
    assert statistics.sqr == pytest.approx(1000.5**2, rel=0.1)
    assert statistics.var == pytest.approx(2000**2 / 12 / 8, rel=0.2)


def test_that_a_scheduler_keeps_its_own_state_free_of_ours() -> None:
    with joined():
        model = Slope()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 3])
        keys = set(scheduler.state_dict())
        pt.AdaptiveDataParallel(model, optimizer, scheduler)
        assert set(scheduler.state_dict()) == keys
        assert isinstance(scheduler, torch.optim.lr_scheduler.MultiStepLR)


def test_that_a_script_whose_model_changed_is_refused(tmp_path: Path) -> None:
    with joined(tmp_path):
        model = Slope()
        pt.AdaptiveDataParallel(model, torch.optim.SGD(model.parameters(), lr=1.0))
        for _ in pt.remaining_epochs_until(1):
            pass
    with joined(tmp_path):
        other = torch.nn.Linear(2, 2)
        with pytest.raises(CheckpointError, match="'model-0' does not fit this script"):
            pt.AdaptiveDataParallel(other, torch.optim.SGD(other.parameters(), lr=1.0))


def test_that_everything_needs_a_session() -> None:
    model = Slope()
    with pytest.raises(UsageError, match="init_process_group"):
        pt.AdaptiveDataParallel(model, torch.optim.SGD(model.parameters(), lr=1.0))


def test_that_sparse_gradients_are_refused_with_what_to_do() -> None:
    with joined():
        model = torch.nn.Sequential(torch.nn.Embedding(9, 1, sparse=True))
        with pytest.raises(UsageError, match=r"0: sparse gradients; make it with sparse=False"):
            pt.AdaptiveDataParallel(model, torch.optim.SGD(model.parameters(), lr=1.0))


def test_that_an_argument_in_anothers_place_is_named() -> None:
    with joined():
        model = Slope()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scheduler: Any = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        with pytest.raises(UsageError, match="StepLR is not an optimizer"):
            pt.AdaptiveDataParallel(model, scheduler, optimizer)


@pytest.mark.parametrize("largest", [2, None])
def test_that_batch_norm_on_a_single_example_names_the_cure_where_a_split_made_it(
    largest: int | None,
) -> None:
    with joined():
        model = torch.nn.Sequential(torch.nn.Linear(1, 2), torch.nn.BatchNorm1d(2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        parallel = pt.AdaptiveDataParallel(model, optimizer)
        # Three examples in micro-batches of at most two; or the script's own batch is a single one.
        loader = pt.AdaptiveDataLoader(Numbers(3), batch_size=3 if largest else 1)
        loader.autoscale_batch_size(loader.batch_size, (1, largest), gradient_accumulation=True)
        error = pytest.raises(
            UsageError if largest else ValueError, match="drop_last=True" if largest else "Expected"
        )
        with error:
            for inputs, _ in loader:
                parallel(inputs).mean().backward()
                optimizer.step()
