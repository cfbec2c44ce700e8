"""What a `Tracker` logs, at which steps, and what it does where its tool fails."""

from __future__ import annotations

import importlib
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

import pollux_slurm.torch as pt
from pollux_slurm.agent.measure.fit_and_batch_choice import Prediction
from pollux_slurm.errors import UsageError
from pollux_slurm.model import BatchChoice
from pollux_slurm.torch.session.allocation_history import Allocation
from pollux_slurm.trackers import Tracker
from pollux_slurm.trackers.series import describe_move
from tests.torch.single_replica import Numbers, Trainee, joined

pytestmark = pytest.mark.torch


class Writer:
    """Has what a `SummaryWriter` has."""

    def __init__(self) -> None:
        self.scalars: dict[str, list[tuple[int, float]]] = {}
        self.texts: list[str] = []

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.scalars.setdefault(tag, []).append((step, value))

    def add_text(self, tag: str, text: str, step: int) -> None:
        self.texts.append(text)


def train(tracker: Tracker, num_epochs: int, *, size: int = 2) -> None:
    """Train two steps an epoch; each of two micro-batches."""
    trainee = Trainee(scaling_rule=pt.LinearScale())
    loader = pt.AdaptiveDataLoader(Numbers(8), batch_size=4)
    loader.autoscale_batch_size(4, (1, size), gradient_accumulation=True)
    for epoch in pt.remaining_epochs_until(num_epochs):
        for inputs, _ in loader:
            trainee.step(inputs)
            tracker.log({"loss": trainee.parallel.module(inputs * 0).sum()})
        tracker.log({"epoch": epoch})


def test_that_steps_are_logged_once_each_with_the_figures_of_training() -> None:
    with joined():
        tracker = Tracker(Writer)
        train(tracker, 2)
    scalars = tracker.run.scalars
    assert scalars["loss"] == [(1, 0.0), (2, 0.0), (3, 0.0), (4, 0.0)]
    assert scalars["epoch"] == [(2, 0.0), (4, 1.0)]
    assert {name: values[-1] for name, values in scalars.items() if name.startswith("pollux/")} == {
        "pollux/batch_size": (4, 4.0),
        "pollux/local_batch_size": (4, 2.0),
        "pollux/accumulation_steps": (4, 1.0),
        "pollux/num_gpus": (4, 1.0),
        "pollux/num_nodes": (4, 1.0),
        "pollux/gain": (4, 1.0),
        "pollux/lr_factor": (4, 1.0),
        "pollux/noise_scale": (4, pytest.approx(scalars["pollux/noise_scale"][-1][1])),
        "pollux/progress": (4, 4.0),
    }
    assert tracker.run.texts == []


def test_that_predicted_goodput_and_efficiency_are_those_of_the_present_batch() -> None:
    batch = BatchChoice(global_batch_size=4, atomic_batch_size=2, accumulation_steps=1)
    with joined() as session:
        builder = session.measurements.report_builder
        assert builder is not None
        builder._prediction = (batch, Prediction(throughput=300.0, efficiency=0.5))
        tracker = Tracker(Writer)
        train(tracker, 1)
        assert tracker.run.scalars["pollux/goodput"] == [(1, 150.0), (2, 150.0)]
        assert tracker.run.scalars["pollux/efficiency"][-1] == (2, 0.5)
    with joined() as session:
        assert session.measurements.report_builder is not None
        session.measurements.report_builder._prediction = (batch, Prediction(throughput=3.0, efficiency=0.5))
        other = Tracker(Writer)
        # Batches without accumulation are other ones.
        train(other, 1, size=4)
        assert "pollux/goodput" not in other.run.scalars


def test_that_every_nth_step_is_logged_and_the_first_after_each_start(tmp_path: Path) -> None:
    for num_epochs, expected in ((2, [1, 3]), (4, [5, 6])):
        with joined(tmp_path):
            tracker = Tracker(Writer, every=3)
            train(tracker, num_epochs)
        assert [step for step, _ in tracker.run.scalars["loss"]] == expected
        assert len(tracker.run.scalars["epoch"]) == 2
    (text,) = tracker.run.texts
    assert text.startswith("step 5: restarted on 1 GPU on 1 node, ")
    assert [step for step, _ in tracker.run.scalars["pollux/move_s"]] == [5]


def test_that_two_calls_in_one_step_are_both_logged() -> None:
    with joined():
        trainee, tracker = Trainee(), Tracker(Writer)
        for inputs, _ in pt.AdaptiveDataLoader(Numbers(8), batch_size=4):
            tracker.log({"too_early": 1.0})
            trainee.step(inputs)
            tracker.log({"loss": 1.0})
            tracker.log({"accuracy": 0.5})
    scalars = tracker.run.scalars
    assert "too_early" not in scalars
    assert [step for step, _ in scalars["accuracy"]] == [step for step, _ in scalars["loss"]] == [1, 2]
    assert [step for step, _ in scalars["pollux/num_gpus"]] == [1, 2]


def fail() -> Any:
    raise ConnectionError("no server")


def test_that_a_tool_that_cannot_be_opened_ends_the_first_start_and_warns_after_a_move(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with joined(tmp_path), pytest.raises(ConnectionError):
        Tracker(fail)
    with joined(tmp_path):
        train(Tracker(Writer), 1)
    with joined(tmp_path), caplog.at_level(logging.WARNING, "pollux_slurm"):
        tracker = Tracker(fail)
        train(tracker, 2)
        assert pt.finished_steps() == 4
    assert tracker.run is None
    assert "training goes on without its tracker" in caplog.text


def test_that_a_tool_that_fails_later_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    writer = Writer()
    writer.add_scalar = lambda *arguments: fail()  # type: ignore[method-assign]
    with joined(), caplog.at_level(logging.WARNING, "pollux_slurm"):
        train(Tracker(lambda: writer), 2)
        assert pt.finished_steps() == 4
    assert caplog.text.count("the tracker has failed") == 1


def test_that_a_tool_that_is_not_installed_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with (
        joined(),
        pytest.raises(ModuleNotFoundError, match=r"wandb.*: pip install '\.\[trackers\]'"),
    ):
        Tracker(lambda: importlib.import_module("wandb").init())


def test_that_mistakes_in_the_script_are_errors() -> None:
    with joined():
        with pytest.raises(UsageError, match=r"a function that returns wandb.init\(...\)"):
            Tracker(object)
        with pytest.raises(UsageError, match="every=0 must be 1 or more"):
            Tracker(Writer, every=0)
        with pytest.raises(TypeError):
            Tracker(Writer).log({"image": object()})


def test_that_a_move_is_told_in_one_line() -> None:
    before = Allocation(run_number=0, num_gpus=8, num_nodes=2, first_step=1, move_s=None)
    after = Allocation(run_number=3, num_gpus=1, num_nodes=1, first_step=1201, move_s=37.04)
    assert (
        describe_move([before, after], 1)
        == "step 1201: moved from 8 GPUs on 2 nodes to 1 GPU on 1 node, 37.0 s after the step before it"
    )
