"""Loops over an adaptive loader in which another library's optimizer steps: reported, with the cure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import pollux_slurm.torch as pt
from pollux_slurm.errors import TrainingError
from tests.torch.single_replica import Numbers, Slope, Trainee, joined

pytestmark = pytest.mark.torch


class PlainTrainer:
    """What a trainer of another library does with a loader: a model, an optimizer and loops of its own."""

    def __init__(self, loader: pt.AdaptiveDataLoader) -> None:
        self.model, self.loader = Slope(), loader
        self.optimizer = torch.optim.Adam(self.model.parameters())

    def fit(self, num_epochs: int, *, most: int = 100) -> None:
        for _ in range(num_epochs):
            for number, (inputs, _) in enumerate(self.loader):
                self.optimizer.zero_grad()
                self.model(inputs).mean().backward()
                self.optimizer.step()
                if number == most:
                    break


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize("most", [100, 0])
def test_that_training_by_another_library_is_reported_once_with_its_cure(
    caplog: pytest.LogCaptureFixture, most: int
) -> None:
    with joined():
        PlainTrainer(pt.AdaptiveDataLoader(Numbers(8), batch_size=4)).fit(3, most=most)
    (message,) = errors(caplog)
    assert "without one step of a wrapped optimizer, but Adam stepped in it" in message
    assert "Give model and optimizer to AdaptiveDataParallel" in message


def test_that_it_ends_under_strict_at_the_end_of_its_first_loop() -> None:
    with joined(strict=True):
        trainer = PlainTrainer(pt.AdaptiveDataLoader(Numbers(8), batch_size=4))
        with pytest.raises(TrainingError, match="Adam stepped"):
            trainer.fit(2)
        assert trainer.optimizer.state[trainer.model.weight]["step"] == 2


def test_that_a_training_without_our_loader_and_model_is_reported_at_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with joined():
        model = Slope()
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(1)).mean().backward()
        optimizer.step()
        assert errors(caplog) == []
    (message,) = errors(caplog)
    assert message.startswith("training ended without one step of a wrapped optimizer")


def test_that_a_training_that_never_steps_is_reported_at_its_end(caplog: pytest.LogCaptureFixture) -> None:
    with joined():
        trainee = Trainee()
        for inputs, _ in pt.AdaptiveDataLoader(Numbers(8), batch_size=4):
            trainee.parallel(inputs).mean().backward()
    assert ["training ended without one step" in message for message in errors(caplog)] == [True]
    with joined(strict=True), pytest.raises(TrainingError, match="training ended without one step"):
        forget_to_step()


def forget_to_step() -> None:
    trainee = Trainee()
    for _ in pt.remaining_epochs_until(2):
        for inputs, _ in pt.AdaptiveDataLoader(Numbers(8), batch_size=4):
            trainee.parallel(inputs).mean().backward()


def train_on_an_ordinary_loader() -> None:
    trainee = Trainee()
    for inputs, _ in torch.utils.data.DataLoader(Numbers(48), batch_size=4):
        trainee.step(inputs)


def test_that_a_wrapped_model_over_an_ordinary_loader_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    with joined():
        train_on_an_ordinary_loader()
    (message,) = errors(caplog)
    assert "SGD steps the wrapped model outside of a loop over an AdaptiveDataLoader" in message
    assert "Make the training loader an AdaptiveDataLoader" in message
    with joined(strict=True), pytest.raises(TrainingError, match="every replica trains on all examples"):
        train_on_an_ordinary_loader()


def look_only(loader: pt.AdaptiveDataLoader) -> None:
    """Compute statistics of the data twice, before any model is made."""
    for _ in range(2):
        for _ in loader:
            pass


def evaluate_carelessly(loader: pt.AdaptiveDataLoader) -> None:
    """An evaluation with gradients enabled, of a model that another script has trained."""
    trainee = Trainee()
    for inputs, _ in loader:
        trainee.parallel(inputs)


def train_two(loader: pt.AdaptiveDataLoader) -> None:
    """A second model, with an optimizer of its own that steps first, beside the wrapped one."""
    trainee, other = Trainee(), Slope()
    optimizer = torch.optim.SGD(other.parameters(), lr=1.0)
    for inputs, _ in loader:
        other(inputs).mean().backward()
        optimizer.step()
        trainee.step(inputs)


def train_elsewhere(loader: pt.AdaptiveDataLoader) -> None:
    """Training over an ordinary loader, with an adaptive one for the evaluation."""
    model = Slope()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for inputs, _ in torch.utils.data.DataLoader(Numbers(8), batch_size=4):
        model(inputs).mean().backward()
        optimizer.step()
    for inputs, _ in loader:
        model(inputs)


def skip_overflows(loader: pt.AdaptiveDataLoader) -> None:
    """A gradient scaler whose first steps all overflow."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126)
    trainee = Trainee(mp_scaler=scaler)
    for inputs, _ in loader:
        trainee.optimizer.zero_grad()
        scaler.scale(trainee.parallel(inputs * 1e4).mean()).backward()
        scaler.step(trainee.optimizer)
        scaler.update()


def train_between_loops(loader: pt.AdaptiveDataLoader) -> None:
    """Steps between loops, on data of the script's own."""
    trainee = Trainee()
    for inputs, _ in loader:
        trainee.step(inputs)
    for _ in range(20):
        trainee.step(torch.ones(4, 1))


@pytest.mark.parametrize(
    "script",
    [look_only, evaluate_carelessly, train_two, train_elsewhere, skip_overflows, train_between_loops],
)
def test_that_other_loops_are_not_reported(
    caplog: pytest.LogCaptureFixture, script: Callable[[pt.AdaptiveDataLoader], None]
) -> None:
    with joined(strict=True):
        script(pt.AdaptiveDataLoader(Numbers(8), batch_size=4))
    assert errors(caplog) == []


def test_that_an_end_after_a_restart_with_nothing_left_is_no_fault(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        with joined(tmp_path, strict=True):
            trainee, loader = Trainee(), pt.AdaptiveDataLoader(Numbers(8), batch_size=4)
            for _ in pt.remaining_epochs_until(1):
                for inputs, _ in loader:
                    trainee.step(inputs)
    assert errors(caplog) == []
