"""The explanation of an error after a restart, in the job's log."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from pollux_slurm.torch.failures.resume_notes import ResumeNotes
from tests.torch.ranks import run_program

pytestmark = pytest.mark.torch

SCRIPT = """
import os, signal, sys
import torch
import pollux_slurm.torch as pt
from torch.utils.data import TensorDataset

where, epochs, stop_in, stop_after = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
pt.init_process_group(checkpoint_dir=where, checkpoint_interval_s=None)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
parallel = pt.AdaptiveDataParallel(model, optimizer)
loader = pt.AdaptiveDataLoader(TensorDataset(torch.ones(12, 1)), batch_size=4)
for epoch in pt.remaining_epochs_until(epochs) if epochs else range(2):
    n = steps = 0
    for (inputs,) in loader:
        optimizer.zero_grad()
        parallel(inputs).mean().backward()
        optimizer.step()
        n, steps = n + len(inputs), steps + 1
        if stop_in == "loop" and (epoch, steps) == (1, stop_after):
            os.kill(os.getpid(), signal.SIGTERM)
    if stop_in == "raise":
        raise KeyError("the script's own")
    assert n in (0, 12), f"{n} of 12"
    print(epoch, 12 / n)
"""


@pytest.mark.parametrize(
    ("stop_after", "error", "where"),
    [
        (3, "ZeroDivisionError", "epoch 1: the loop over 'loader-0' had ended and yields nothing."),
        pytest.param(
            *(1, "AssertionError: 8 of 12", "epoch 1: the loop over 'loader-0' goes on at example 4 of 12."),
            marks=pytest.mark.full,
        ),
    ],
)
def test_that_an_error_after_a_restart_is_explained(
    tmp_path: Path, stop_after: int, error: str, where: str
) -> None:
    code, output = run_program(tmp_path, SCRIPT, tmp_path, 4, "loop", stop_after)
    assert code == 143, output
    code, output = run_program(tmp_path, SCRIPT, tmp_path, 4, "nowhere", 0, restart_count=1)
    assert code == 1
    # After the traceback, which is Python's own.
    traceback, _, explanation = output.partition("this error came after a restart")
    assert error in traceback
    assert where in explanation
    assert "docs/user.md" in explanation
    page = (Path(__file__).resolve().parents[3] / "docs" / "user.md").read_text(encoding="utf-8")
    assert "Variables of your own" in page


# The explanation itself is tested below, with epochs.
@pytest.mark.full
def test_that_without_epochs_an_error_is_explained_until_the_first_step(tmp_path: Path) -> None:
    code, output = run_program(tmp_path, SCRIPT, tmp_path, 0, "loop", 3)
    assert code == 143, output
    _, output = run_program(tmp_path, SCRIPT, tmp_path, 0, "nowhere", 0, restart_count=1)
    assert "which resumed the training: the loop over 'loader-0' had ended" in output


def test_that_another_error_is_left_as_it_is(tmp_path: Path) -> None:
    code, output = run_program(tmp_path, SCRIPT, tmp_path, 4, "raise", 0)
    assert code == 1
    assert output.rstrip().endswith('KeyError: "the script\'s own"')


class Trainer:
    """The script's own state, as it begins anew."""

    def __init__(self) -> None:
        self.count, self.losses = 0, list[float]()

    def mean(self) -> float:
        return 1.0 / self.count

    def best(self) -> float:
        return min(self.losses)


def without_a_batch(loader: Sequence[float] = ()) -> float:
    for batch in loader:
        loss = batch
    return loss


def of_the_first_epoch(epoch: int) -> float:
    losses: list[float] = []
    return losses[epoch - 1]


def test_that_errors_from_variables_that_began_anew_are_explained(caplog: pytest.LogCaptureFixture) -> None:
    trainer = Trainer()
    for function in (trainer.mean, trainer.best, without_a_batch, lambda: of_the_first_epoch(1)):
        assert is_explained(function, caplog), function


def missing_file(epoch: int = 1) -> None:
    Path(f"/nowhere/{epoch}").read_text()


def wrong_shape() -> None:
    torch.ones(2, 3) @ torch.ones(2, 3)


def misspelled(epoch: int = 1) -> None:
    print(epoch, lss)  # type: ignore[name-defined]  # noqa: F821


def in_a_library() -> None:
    json.loads("{" * int(torch.ones(1)))


def by_hand() -> None:
    raise ValueError("unknown schedule")


def cancelled() -> None:
    raise KeyboardInterrupt


def out_of_memory(batch_size: int = 8) -> None:
    raise torch.cuda.OutOfMemoryError(f"tried to allocate {batch_size} GiB")


@pytest.mark.parametrize(
    "function", [missing_file, wrong_shape, misspelled, in_a_library, by_hand, cancelled, out_of_memory]
)
def test_that_errors_that_come_from_elsewhere_are_left_as_they_are(
    function: Callable[[], object], caplog: pytest.LogCaptureFixture
) -> None:
    assert not is_explained(function, caplog)


def test_that_an_error_before_the_first_loop_is_left_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    assert not is_explained(Trainer().mean, caplog, epoch=None)


def is_explained(
    function: Callable[[], object], caplog: pytest.LogCaptureFixture, *, epoch: int | None = 1
) -> bool:
    caplog.clear()
    try:
        function()
    except BaseException as error:
        ResumeNotes(is_resumed=True).explain(error, epoch=epoch)
    return "this error came after a restart" in caplog.text
