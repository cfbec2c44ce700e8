"""`Variables`: values of a script that a checkpoint has."""

from __future__ import annotations

import copy
import io
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import pollux_slurm.torch as pt
from pollux_slurm.errors import UsageError
from tests.torch.single_replica import Numbers, Trainee, joined

pytestmark = pytest.mark.torch


def train(stop_in: int | None, **more: Any) -> pt.Variables:
    trainee, loader = Trainee(), pt.AdaptiveDataLoader(Numbers(8), batch_size=4)
    kept = pt.Variables(best=9.0, history={}, **more)
    for epoch in pt.remaining_epochs_until(3):
        for inputs, _ in loader:
            trainee.count(inputs)
        kept["best"] = min(kept["best"], 4.0 - epoch)
        kept["history"][epoch] = trainee.weight
        if epoch == stop_in:
            os.kill(os.getpid(), signal.SIGTERM)
    return kept


def test_that_values_come_back_and_new_ones_begin_as_the_script_says(tmp_path: Path) -> None:
    with joined(tmp_path), pytest.raises(pt.TrainingStopped):
        train(stop_in=1)
    with joined(tmp_path):
        before = pt.Variables("others", best=1.0)
        kept = train(stop_in=None, added="new")
        assert kept == {"best": 2.0, "history": {0: -2.0, 1: -4.0, 2: -6.0}, "added": "new"}
        assert before == {"best": 1.0}
        with pytest.raises(UsageError, match="two states are named 'variables'"):
            pt.Variables(best=0.0)


def test_that_copies_and_saved_files_are_plain() -> None:
    with joined():
        kept = pt.Variables(best=1.5, sizes=[1, 2])
        copied, buffer = copy.deepcopy(kept), io.BytesIO()
        torch.save({"kept": kept}, buffer)
        buffer.seek(0)
        for one in (copied, torch.load(buffer, weights_only=True)["kept"]):
            assert not isinstance(one, pt.Variables)
            assert one == {"best": 1.5, "sizes": [1, 2]}
        copied["sizes"].append(3)
        assert kept["sizes"] == [1, 2]
