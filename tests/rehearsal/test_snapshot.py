"""What a look at a script's own frames finds, and what it leaves out."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

from pollux_slurm.model import BatchLimits
from pollux_slurm.torch.rehearsed import batch_choices
from pollux_slurm.torch.snapshot import take_snapshot

pytestmark = pytest.mark.torch


class Meter:
    def __init__(self) -> None:
        self.sum = 2.5


@pytest.fixture(autouse=True)
def _without_others() -> None:
    """Let what other tests have left be gone."""
    gc.collect()


def look_from_a_script() -> dict[str, Any]:
    total, history, best, meter = 7, list(range(50)), torch.tensor(0.5), Meter()
    network = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    teacher = torch.nn.Linear(5, 5)
    parts = torch.nn.Sequential(network[0])
    adam = torch.optim.Adam(network.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(adam, 1)
    snapshot = take_snapshot()
    del total, history, best, meter, teacher, parts, schedule
    return snapshot


def test_that_plain_variables_and_those_of_own_objects_are_told_in_words() -> None:
    variables = look_from_a_script()["variables"]
    own = {name.partition(":")[2]: text for name, text in variables.items() if name.startswith("look_from")}
    assert own == {"total": "7", "history": "a list of 50", "best": "0.5", "meter.sum": "2.5"}


def test_that_whatever_has_a_state_is_found_and_called_by_its_variable() -> None:
    objects = look_from_a_script()["objects"]
    kinds = {name: objects[name]["kind"] for name in ("network", "teacher", "adam", "schedule")}
    assert kinds == {"network": "module", "teacher": "module", "adam": "optimizer", "schedule": "scheduler"}
    # The same parameters in another arrangement, and a part of what was found, are nothing of their own.
    assert "parts" not in objects
    assert len(objects["network"]["numbers"]) == 8


def test_that_the_batches_of_a_rehearsal_keep_to_the_limits() -> None:
    limits = BatchLimits(
        initial_batch_size=32, max_batch_size=256, min_atomic=8, max_atomic=64, accumulation=True
    )
    choices = batch_choices(limits, 2)
    assert {choice.global_batch_size for choice in choices} == {32, 64, 256}
    assert {choice.accumulation_steps for choice in choices} == {0, 1, 2}
    assert all(8 <= choice.atomic_batch_size <= 64 for choice in choices)
    (only,) = batch_choices(BatchLimits(initial_batch_size=32, max_batch_size=32), 3)
    assert (only.global_batch_size, only.atomic_batch_size, only.accumulation_steps) == (32, 11, 0)
