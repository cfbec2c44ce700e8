"""The examples of the README and the guides are code that runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import pollux_slurm.torch as pt
from tests.pages.blocks import ROOT, blocks_of
from tests.torch.ranks import run_program
from tests.torch.scripts import Numbered
from tests.torch.single_replica import joined

pytestmark = pytest.mark.torch

# Their programs are forked from a process that has imported torch.
PAGES = ("docs/how-do-i.md", "docs/user.md")


@pytest.mark.parametrize("page", PAGES)
def test_that_a_pages_python_runs_as_one_program(page: str, tmp_path: Path) -> None:
    blocks = [
        block for block in blocks_of(ROOT / page) if block.mark and block.mark.endswith("/test_docs.py")
    ]
    code, output = run_program(tmp_path, "\n".join(f"# {block}\n{block.text}" for block in blocks))
    assert (code, bool(blocks)) == (0, True), output


def snippet(page: str, mark: str) -> str:
    """Return the one block of Python on a page that has `mark` in it."""
    blocks = blocks_of(ROOT / page)
    (text,) = [block.text for block in blocks if block.language == "python" and mark in block.text]
    return text


def pairs() -> torch.utils.data.TensorDataset:
    return torch.utils.data.TensorDataset(Numbered().inputs, Numbered().targets)


def test_that_the_readmes_script_runs_and_counts_every_example(capsys: pytest.CaptureFixture[str]) -> None:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with joined():
        names = {
            "model": model,
            "optimizer": optimizer,
            "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 10),
            "dataset": pairs(),
            "loss_fn": torch.nn.functional.mse_loss,
        }
        code = snippet("README.md", "remaining_epochs_until").replace("pollux.init_process_group()\n", "")
        exec(code.replace("import pollux_slurm.torch as pollux\n", ""), {**names, "pollux": pt})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [str(epoch) for epoch in range(30)]
    assert float(lines[-1].split()[1]) < float(lines[0].split()[1])


@pytest.mark.parametrize("largest", [16, 4])
def test_that_the_guides_average_of_weights_is_taken_once_a_step(largest: int) -> None:
    torch.manual_seed(0)
    inner = torch.nn.Linear(4, 1)
    reference = torch.nn.Linear(4, 1)
    reference.load_state_dict(inner.state_dict())
    averaged = AveragedModel(reference, multi_avg_fn=get_ema_multi_avg_fn(0.999))
    plain = torch.optim.SGD(reference.parameters(), lr=0.05)
    for _ in range(3):
        for start in range(0, 70, 16):
            plain.zero_grad()
            inputs, targets = pairs()[start : start + 16]
            torch.nn.functional.mse_loss(reference(inputs), targets).backward()
            plain.step()
            averaged.update_parameters(reference)
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.05)
    with joined():
        loader = pt.AdaptiveDataLoader(pairs(), batch_size=16)
        loader.autoscale_batch_size(16, (1, largest), gradient_accumulation=True)
        assert loader.is_stepping
        names = {
            "pollux": pt,
            "AveragedModel": AveragedModel,
            "get_ema_multi_avg_fn": get_ema_multi_avg_fn,
            "model": pt.AdaptiveDataParallel(inner, optimizer),
            "optimizer": optimizer,
            "loader": loader,
            "loss_fn": torch.nn.functional.mse_loss,
        }
        exec(snippet("docs/training.md", "is_stepping"), names)
        found = names["average"].averaged.state_dict()  # type: ignore[attr-defined]
    assert int(found["n_averaged"]) == 15
    for name, value in averaged.state_dict().items():
        torch.testing.assert_close(found[name], value)


def test_that_the_guides_tracker_logs_each_tenth_step(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    inner = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.05)
    with joined():
        names = {
            "pollux": pt,
            "model": pt.AdaptiveDataParallel(inner, optimizer),
            "optimizer": optimizer,
            "loader": pt.AdaptiveDataLoader(pairs(), batch_size=16),
            "loss_fn": torch.nn.functional.mse_loss,
            "SummaryWriter": SummaryWriter,
            "tmp_path": tmp_path,
        }
        code = snippet("docs/trackers.md", "tracker.log")
        assert 'wandb.init(project="digits")' in code
        exec(code.replace('wandb.init(project="digits")', "SummaryWriter(tmp_path)"), names)
        names["tracker"].run.close()  # type: ignore[attr-defined]
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [value.step for value in events.Scalars("loss")] == [1, *range(10, 151, 10)]
    assert [value.value for value in events.Scalars("finished_epochs")] == list(range(1, 31))
