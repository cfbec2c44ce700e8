"""What a snapshot of a script contains."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch

from pollux_slurm.model import BatchLimits
from pollux_slurm.torch.rehearsal.rehearsal import batch_choices
from pollux_slurm.torch.rehearsal.snapshot import take_snapshot

pytestmark = pytest.mark.torch


class Meter:
    def __init__(self) -> None:
        self.sum = 2.5


@pytest.fixture(autouse=True)
def _without_others() -> None:
    """Collect what other tests have left."""
    gc.collect()


def snapshot_from_a_script() -> dict[str, Any]:
    total, history, best, meter = 7, list(range(50)), torch.tensor(0.5), Meter()
    network = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    teacher = torch.nn.Linear(5, 5)
    parts = torch.nn.Sequential(network[0])
    adam = torch.optim.Adam(network.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(adam, 1)
    snapshot = take_snapshot()
    del total, history, best, meter, teacher, parts, schedule
    return snapshot


def test_that_plain_variables_and_those_of_own_objects_are_given_as_text() -> None:
    variables = snapshot_from_a_script()["variables"]
    own = {
        name.partition(":")[2]: text for name, text in variables.items() if name.startswith("snapshot_from")
    }
    assert own == {"total": "7", "history": "a list of 50", "best": "0.5", "meter.sum": "2.5"}


def test_that_arrays_are_given_by_size_and_checksum() -> None:
    def snapshot_tensors() -> dict[str, str]:
        shadow = {"weight": torch.ones(2, 2), "bias": torch.zeros(2)}
        seen, both = np.arange(3), [torch.ones(2), "no array"]
        weight = torch.nn.Linear(2, 2).weight
        tensors = take_snapshot()["tensors"]
        shadow["bias"] += 1
        assert take_snapshot()["tensors"]["snapshot_tensors:shadow"] != tensors["snapshot_tensors:shadow"]
        assert take_snapshot()["tensors"]["snapshot_tensors:seen"] == tensors["snapshot_tensors:seen"]
        del seen, both, weight
        return tensors

    own = {
        name: text.partition(" #")[0]
        for name, text in snapshot_tensors().items()
        if name.startswith("snapshot_tensors:")
    }
    assert own == {"snapshot_tensors:shadow": "6 numbers", "snapshot_tensors:seen": "3 numbers"}


def test_that_a_generator_is_given_by_its_state() -> None:
    noise = torch.Generator().manual_seed(1)
    (name,) = [name for name in take_snapshot()["variables"] if name.endswith(":noise")]
    before = take_snapshot()["variables"][name]
    assert take_snapshot()["variables"][name] == before
    torch.randn(2, generator=noise)
    assert take_snapshot()["variables"][name] != before


def test_that_whatever_has_a_state_is_found_and_called_by_its_variable() -> None:
    objects = snapshot_from_a_script()["objects"]
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


def test_that_a_snapshot_does_not_copy_a_large_array() -> None:
    inputs, targets = torch.zeros(1 << 13, 1 << 12, dtype=torch.bfloat16), np.zeros((1 << 12, 1 << 12))
    tracemalloc.start()
    try:
        tensors = take_snapshot()["tensors"]
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    del inputs, targets
    own = [
        text.partition(" #")[0] for name, text in tensors.items() if name.startswith("test_that_a_snapshot")
    ]
    assert own == ["33554432 numbers", "16777216 numbers"]
    # Each has 64 MiB or more; a list of all objects has some.
    assert peak_bytes < 32 << 20
