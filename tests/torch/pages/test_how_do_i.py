"""The cures of "How do I …?": each trains as one plain process does, with other numbers of replicas."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import mse_loss
from torch.utils.data import Dataset

import pollux_slurm.torch as pt
from pollux_slurm.errors import UsageError
from tests.torch.pages.test_docs import snippet
from tests.torch.ranks import run_ranks, start
from tests.torch.single_replica import joined

pytestmark = pytest.mark.torch

PAGE = "docs/how-do-i.md"
NUM_ROWS, LENGTH, WIDTH = 5, 6, 3


class Streams(Dataset[tuple[torch.Tensor, int, bool]]):
    """Streams of text: example i is the next piece of stream i mod NUM_ROWS, and whether it is the first."""

    def __init__(self) -> None:
        self.pieces = torch.randn(NUM_ROWS * LENGTH, 2, generator=torch.Generator().manual_seed(4))

    def __len__(self) -> int:
        return len(self.pieces)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, bool]:
        return self.pieces[index], index % NUM_ROWS, index < NUM_ROWS


def make_cell() -> tuple[torch.nn.RNNCell, torch.optim.Optimizer]:
    torch.manual_seed(2)
    cell = torch.nn.RNNCell(2, WIDTH)
    return cell, torch.optim.SGD(cell.parameters(), lr=0.3, momentum=0.5)


def train_carrying(directory: str, code: str, stop_at: int | None) -> dict[str, torch.Tensor]:
    pt.init_process_group(checkpoint_dir=directory, checkpoint_interval_s=None)
    names: dict[str, Any] = {"pollux": pt, "torch": torch}
    exec(code, names)
    cell, optimizer = make_cell()
    model = pt.AdaptiveDataParallel(cell, optimizer)
    carried = names["Carried"](NUM_ROWS, WIDTH)
    loader = pt.AdaptiveDataLoader(Streams(), batch_size=NUM_ROWS)
    for _ in pt.remaining_epochs_until(2):
        for pieces, places, is_first in loader:
            states = carried.rows[places] * ~is_first.unsqueeze(1)
            optimizer.zero_grad()
            states = model(pieces, states)
            states.pow(2).mean().backward()
            optimizer.step()
            if not loader.is_padding:
                carried.write(places, states)
            if pt.finished_steps() == stop_at:
                os.kill(os.getpid(), signal.SIGTERM)
    carried.sync()
    return {"carried": carried.rows, **{name: value.clone() for name, value in cell.state_dict().items()}}


def test_that_states_of_all_rows_are_carried_over_moves(tmp_path: Path) -> None:
    cell, optimizer = make_cell()
    pieces, states = Streams().pieces.unflatten(0, (LENGTH, NUM_ROWS)), torch.zeros(NUM_ROWS, WIDTH)
    for _ in range(2):
        states = torch.zeros(NUM_ROWS, WIDTH)
        for piece in pieces:
            optimizer.zero_grad()
            states = cell(piece, states.detach())
            states.pow(2).mean().backward()
            optimizer.step()
    expected = {"carried": states.detach(), **cell.state_dict()}
    code, job = snippet(PAGE, "class Carried"), str(tmp_path / "job")
    for restart, (number, stop_at) in enumerate([(1, 2), (2, 8), (3, None)]):
        run = start(tmp_path, number, train_carrying, job, code, stop_at, restart_count=restart)
        if stop_at is not None:
            assert run.wait() == [143] * number, run.output()
    for result in run.succeed():
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-6)


class Named(torch.nn.Module):
    """A model with a method beside `forward`, which an argument chooses, too."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(2, 1)

    def forward(self, inputs: torch.Tensor, which: str = "plain") -> torch.Tensor:
        outputs: torch.Tensor = self.inner(inputs) if which == "plain" else self.doubled(inputs)
        return outputs

    def doubled(self, inputs: torch.Tensor) -> torch.Tensor:
        return 2 * self.inner(inputs)  # type: ignore[no-any-return]


def make_named() -> tuple[Named, torch.optim.Optimizer]:
    torch.manual_seed(2)
    model = Named()
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def train_summing(code: str) -> dict[str, torch.Tensor]:
    """Train by a method of the model, with a loss that is a sum; evaluate on rank 0 alone."""
    pt.init_process_group("gloo")
    module, optimizer = make_named()
    model = pt.AdaptiveDataParallel(module, optimizer)
    loader = pt.AdaptiveDataLoader(Streams(), batch_size=8, drop_last=True)
    for inputs, _, _ in loader:
        loss = (model(inputs, which="f") - 1) ** 2
        optimizer.zero_grad()
        eval(code, {"loss": loss, "inputs": inputs}).backward()
        optimizer.step()
        if pt.env.replica_rank() == 0:
            with torch.no_grad():
                assert model.module.doubled(inputs).isfinite().all()
    return {name: value.clone() for name, value in module.state_dict().items()}


def test_that_a_sum_over_the_batch_and_a_method_train_as_in_one_process(tmp_path: Path) -> None:
    (code,) = re.findall(r"`(loss\.sum\(\) [^`]+)`", Path(PAGE).read_text(encoding="utf-8"))
    module, optimizer = make_named()
    for start_at in (0, 8, 16):
        optimizer.zero_grad()
        ((module.doubled(Streams().pieces[start_at : start_at + 8]) - 1) ** 2).sum().backward()
        optimizer.step()
    for result in run_ranks(tmp_path, 3, train_summing, code.replace("32", "8")):
        torch.testing.assert_close(result, dict(module.state_dict()), rtol=1e-4, atol=1e-6)


def test_that_a_method_past_the_wrapper_is_an_error() -> None:
    with joined(backend="gloo"):
        module, optimizer = make_named()
        model = pt.AdaptiveDataParallel(module, optimizer)
        for inputs, _, _ in pt.AdaptiveDataLoader(Streams(), batch_size=8):
            mse_loss(model.module.doubled(inputs), torch.ones(len(inputs), 1)).backward()
            with pytest.raises(UsageError, match=r"not model\.module"):
                optimizer.step()
            break
