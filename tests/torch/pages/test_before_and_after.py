"""The scripts of "A real script, before and after": their diffs, and the same numbers after two moves."""

from __future__ import annotations

import builtins
import difflib
import itertools
import os
import re
import runpy
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import RandomSampler

from pollux_slurm.torch.data.sampling_order import derived_seed, shuffled
from tests.pages.blocks import ROOT, blocks_of
from tests.torch.ranks import start

pytestmark = pytest.mark.torch

PAGE = ROOT / "docs" / "before-and-after.md"
STEPS, CLASSIFIER = ROOT / "examples" / "steps", ROOT / "examples" / "classifier"
STEP_OPTIONS = (
    "--steps=12",
    "--batch=8",
    "--micro-batch=2",
    "--length=8",
    "--width=16",
    "--warmup=4",
    "--eval-every=3",
    "--eval-batches=1",
    "--data=.",
)
EPOCH_OPTIONS = ("--epochs=6", "--examples=120", "--batch=16", "--warmup=5", "--patience=2", "--no-bf16")


def changes(folder: Path) -> list[str]:
    before, after = ((folder / name).read_text().splitlines() for name in ("before.py", "train.py"))
    return list(difflib.unified_diff(before, after, "before.py", "train.py", lineterm="", n=1))


def num_changed(folder: Path) -> int:
    return sum(line[0] in "+-" for line in changes(folder)[2:])


def orders(length: int) -> Iterator[list[int]]:
    """Yield the order of each epoch, as an adaptive loader has it."""
    for epoch in itertools.count():
        yield shuffled(length, derived_seed(0, epoch, 0)).indices.tolist()


def run_before(script: str, folder: str, arguments: tuple[str, ...]) -> None:
    """Run a script as it was, with the examples in the order of the adaptive one."""
    os.chdir(folder)
    if Path(script).parent == STEPS:
        passes = orders(len(np.fromfile("train.bin", dtype=np.uint16)) - 8)
        drawn = (
            one
            for order in passes
            for batch in zip(*[iter(order)] * 8, strict=False)
            for one in (batch[i : i + 2] for i in (0, 2, 4, 6))
        )
        torch.randint = lambda *_: torch.tensor(next(drawn))
    epochs = orders(120)
    RandomSampler.__iter__ = lambda _: iter(next(epochs))  # type: ignore[method-assign]
    for name in ("RANK", "WORLD_SIZE"):
        del os.environ[name]
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")


def run_adaptive(script: str, folder: str, arguments: tuple[str, ...], stop_at: str | None = None) -> None:
    """Run a script; SIGTERM comes when rank 0 prints a line that begins with `stop_at`."""
    os.chdir(folder)
    print_before = builtins.print

    def print_and_stop(*words: Any, **options: Any) -> None:
        print_before(*words, **options)
        if stop_at is not None and str(words[0]).startswith(stop_at):
            os.kill(os.getpid(), signal.SIGTERM)

    builtins.print = print_and_stop
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")


def moved(folder: Path, script: Path, arguments: tuple[str, ...], stops: tuple[str, str]) -> str:
    """Train with one process, two, and one again; return what was printed."""
    environ = {"POLLUX_CHECKPOINT_DIR": str(folder / "job")}
    outputs = []
    for restart, (number, stop_at) in enumerate(((1, stops[0]), (2, stops[1]), (1, None))):
        run = start(
            folder,
            number,
            run_adaptive,
            *(str(script), str(folder), arguments, stop_at),
            env=environ,
            restart_count=restart,
        )
        assert run.wait() == [0 if stop_at is None else 143] * number, run.output()
        outputs.append(run.output())
    return "\n".join(outputs)


def plain(folder: Path, script: Path, arguments: tuple[str, ...]) -> str:
    """Run the script as it was; return what it printed."""
    run = start(folder, 1, run_before, str(script), str(folder), arguments)
    run.succeed()
    return run.output()


def figures(output: str) -> list[list[float]]:
    """Return the numbers in each line about a step or an epoch."""
    lines = [line for line in output.splitlines() if line.startswith(("step ", "epoch ")) and "val" in line]
    return [[float(number) for number in re.findall(r"\d+(?:\.\d+)?", line)] for line in lines]


def folders(tmp_path: Path) -> tuple[Path, Path]:
    made = tmp_path / "plain", tmp_path / "moved"
    for folder in made:
        folder.mkdir()
    return made


def test_that_a_script_by_steps_trains_the_same_over_two_moves(tmp_path: Path) -> None:
    codes = np.random.default_rng(1).integers(0, 60, 90).astype(np.uint16)
    unmoved, where = folders(tmp_path)
    for folder in (unmoved, where):
        codes[:70].tofile(folder / "train.bin")
        codes[70:].tofile(folder / "val.bin")
    # 62 windows: a pass has 7 batches of 8, so the first stop is in the first pass, the second in the next.
    expected = figures(plain(unmoved, STEPS / "before.py", STEP_OPTIONS))
    found = figures(moved(where, STEPS / "train.py", STEP_OPTIONS, ("step 3", "step 9")))
    assert [line[0] for line in found] == [0, 3, 6, 9, 12]
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, rel=1e-5)
    # The best weights are those of the same step.
    saved, reference = (torch.load(folder / "model.pt", weights_only=True) for folder in (where, unmoved))
    assert saved["progress"]["best"] == pytest.approx(reference["progress"]["best"], rel=1e-5)
    for name, value in reference["network"].items():
        torch.testing.assert_close(saved["network"][name], value, rtol=1e-4, atol=1e-5)


def test_that_a_trainer_class_trains_the_same_over_two_moves(tmp_path: Path) -> None:
    unmoved, where = folders(tmp_path)
    expected = figures(plain(unmoved, CLASSIFIER / "before.py", EPOCH_OPTIONS))
    found = figures(moved(where, CLASSIFIER / "train.py", EPOCH_OPTIONS, ("epoch 0", "epoch 2")))
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, rel=1e-4)
    saved = torch.load(where / "rings" / "best.pt", weights_only=True)
    reference = torch.load(unmoved / "rings" / "best.pt", weights_only=True)
    for name, value in reference["model"].items():
        torch.testing.assert_close(saved[name], value, rtol=1e-4, atol=1e-5)


def test_that_the_page_shows_the_scripts_and_counts_what_changes() -> None:
    shown = {block.title: block.text.splitlines() for block in blocks_of(PAGE)}
    assert shown["classifier/before.py"] == (CLASSIFIER / "before.py").read_text().splitlines()
    for folder in (CLASSIFIER, STEPS):
        assert shown[f"{folder.name}/train.py"] == changes(folder)[2:]
    assert num_changed(STEPS) <= 30
    assert f"| `steps` | {num_changed(STEPS)} |" in PAGE.read_text()
    assert f"| `classifier` | {num_changed(CLASSIFIER)} |" in PAGE.read_text()
    assert f"{num_changed(CLASSIFIER)} lines of its diff" in (ROOT / "README.md").read_text()
