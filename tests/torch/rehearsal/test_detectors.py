"""What a rehearsal detects of a script: weight averages, random draws and sums."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from pollux_slurm.torch.rehearsal.loop_sums import take_sums, variable_of, zeros_of
from pollux_slurm.torch.rehearsal.random_draws import RandomDrawDetector
from pollux_slurm.torch.rehearsal.weight_averages import WeightAverageDetector

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def _without_others() -> None:
    """Collect what other tests have left, and hide the rest: detectors look at every object there is."""
    gc.collect()
    gc.freeze()


def decayed(kept: torch.Tensor, weight: torch.Tensor, decay: float = 0.99) -> torch.Tensor:
    return decay * kept + (1 - decay) * weight.detach()


def replace_by_average(kept: dict[str, torch.Tensor], weight: torch.Tensor) -> None:
    kept["weight"] = decayed(kept["weight"], weight)


def average_in_place(kept: dict[str, torch.Tensor], weight: torch.Tensor) -> None:
    kept["weight"].mul_(0.9999).add_(weight.detach(), alpha=1e-4)


def copy(kept: dict[str, torch.Tensor], weight: torch.Tensor) -> None:
    kept["weight"].copy_(weight.detach())


def change_otherwise(kept: dict[str, torch.Tensor], weight: torch.Tensor) -> None:
    kept["weight"].add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))


def leave(kept: dict[str, torch.Tensor], weight: torch.Tensor) -> None:
    pass


@pytest.mark.parametrize(
    ("update", "found"),
    [
        (replace_by_average, True),
        (average_in_place, True),
        (copy, False),
        (change_otherwise, False),
        (leave, False),
    ],
)
def test_that_an_average_is_recognised_by_its_update(update: Callable[..., None], found: bool) -> None:
    torch.manual_seed(3)
    network = torch.nn.Linear(16, 8)
    shadow = {"weight": torch.randn(8, 16)}
    detector = WeightAverageDetector(lambda: [network])
    detector.begin_micro_batch()
    update(shadow, network.weight)
    assert detector.end_micro_batch() == (["shadow"] if found else [])


def test_that_a_module_that_averages_is_found() -> None:
    torch.manual_seed(3)
    network = torch.nn.Linear(16, 8)
    average = torch.optim.swa_utils.AveragedModel(network)
    average.update_parameters(network)
    detector = WeightAverageDetector(lambda: [network])
    with torch.no_grad():
        network.weight.add_(1.0)
    detector.begin_micro_batch()
    average.update_parameters(network)
    assert detector.end_micro_batch() == ["average"]


def test_that_a_large_sum_that_begins_anew_is_no_average() -> None:
    torch.manual_seed(3)
    network = torch.nn.Linear(16, 8)
    sums = {"gradients": 30 * torch.randn(8, 16)}
    detector = WeightAverageDetector(lambda: [network])
    detector.begin_micro_batch()
    sums["gradients"] = 0.02 * sums["gradients"] + torch.randn(8, 16)
    assert detector.end_micro_batch() == []


def test_that_an_average_within_a_model_is_the_models_own() -> None:
    torch.manual_seed(3)
    pair = torch.nn.ModuleList([torch.nn.Linear(16, 8), torch.nn.Linear(16, 8).requires_grad_(False)])
    detector = WeightAverageDetector(lambda: [pair])
    detector.begin_micro_batch()
    with torch.no_grad():
        pair[1].weight.mul_(0.99).add_(pair[0].weight, alpha=0.01)
        pair[0].weight.mul_(0.9)
    assert detector.end_micro_batch() == []


class Noisy(torch.nn.Module):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(inputs, 0.5)


def test_that_draws_are_attributed_to_script_model_and_dataset() -> None:
    drawn: list[tuple[str, list[str]]] = []
    model, own = Noisy(), torch.Generator().manual_seed(1)
    detector = RandomDrawDetector(
        lambda: [model], lambda who, names: drawn.append((who, names)), lambda: [("own", own)]
    )

    def one_micro_batch(script: Callable[[], Any]) -> list[tuple[str, list[str]]]:
        drawn.clear()
        detector.begin_micro_batch()
        script()
        detector.end_micro_batch()
        return list(drawn)

    detector.begin_loop()
    assert one_micro_batch(lambda: None) == []
    assert one_micro_batch(lambda: torch.randn(2)) == [("script", ["torch"])]
    assert one_micro_batch(lambda: torch.randn(2, generator=own)) == [("script", ["own"])]
    assert one_micro_batch(lambda: model(torch.ones(9))) == [("model", ["torch"])]
    random.random()
    np.random.rand()
    assert one_micro_batch(lambda: None) == [("dataset", ["numpy", "random"])]


def test_that_the_precision_is_that_of_the_weights_or_of_autocast() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    detector = RandomDrawDetector(lambda: [model], lambda who, names: None, tuple)
    detector.begin_micro_batch()
    model(torch.ones(1, 2))
    assert detector.precisions == {"torch.float32"}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(torch.ones(1, 2))
    detector.end_micro_batch()
    assert detector.precisions == {"torch.float32", "torch.bfloat16"}


class Meter:
    def __init__(self) -> None:
        self.sum = 0.0


def test_that_sums_are_what_begins_at_zero() -> None:
    total, losses, known, kept, meter = 0, [], 5.0, {"right": torch.tensor(0.0)}, Meter()
    table, done = np.zeros((2, 2)), False
    own = {name for name in zeros_of(take_sums()) if name.startswith("test_that_sums")}
    assert {name.partition(":")[2] for name in own} == {
        "total",
        "losses",
        "kept['right']",
        "meter.sum",
        "table",
    }
    total += 3
    losses += [0.5, 0.25]
    kept["right"] += 2
    table[1, 1] = 7
    meter.sum, done = 1.5, True
    sums = {name.partition(":")[2]: value for name, value in take_sums().items() if name in own}
    assert sums == {
        "total": (3.0, 3.0),
        "losses": (0.75, 2.0),
        "kept['right']": (2.0, 2.0),
        "meter.sum": (1.5, 1.5),
        "table": (7.0, 7.0),
    }
    assert variable_of(meter) == "meter"
    meter.sum = table
    del table
    assert variable_of(meter.sum) == "meter.sum"
    unnamed = variable_of(object())
    assert unnamed is None
    del known, done
