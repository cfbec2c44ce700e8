"""The collectives of a training, in their order: replicas that differ in one wait for each other for ever.

Each file in `collectives/` has those of one training, a line for each, with its group and the shapes of its
tensors. Data of the side channel, whose size depends on its content, is `bytes`. A change of a file is a
change of what replicas tell each other: write it with POLLUX_WRITE_COLLECTIVES=1, and read the difference.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

import pollux_slurm.torch as pt
from pollux_slurm.torch.session.current_session import current_session
from tests.torch.ranks import run_ranks
from tests.torch.regroup import script
from tests.torch.regroup.members import Members
from tests.torch.scripts import Numbered, Seen, make_model

pytestmark = pytest.mark.torch
FOLDER = Path(__file__).parent / "collectives"
AT = 7


class Recorder(TorchDispatchMode):
    """Writes a line for each collective of this process, also of those that torch calls in C++."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._groups: dict[str, str] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            tensors = [one for arg in args for one in _tensors(arg)]
            group = next(name for arg in args if (name := _group_name(arg)) is not None)
            shapes = " ".join(_shape(one) for one in tensors)
            name = self._groups.setdefault(group, f"group {len(self._groups)}")
            self.lines.append(f"{name}: {func.__name__.split('.')[0].rstrip('_')} {shapes}".rstrip())
        return func(*args, **(kwargs or {}))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)


def _shape(tensor: torch.Tensor) -> str:
    is_bytes = tensor.dtype == torch.uint8 and tensor.dim() == 1
    return "bytes" if is_bytes else f"{str(tensor.dtype)[6:]}{list(tensor.shape)}"


def _group_name(value: Any) -> str | None:
    try:
        return str(dist.ProcessGroup.unbox(value).group_name)
    except (RuntimeError, TypeError):
        return None


def begin(directory: str | None, **options: Any) -> Any:
    """Begin a session whose clock stands: what depends on time does not change the calls."""
    pt.init_process_group(checkpoint_dir=directory, checkpoint_interval_s=None, **options)
    session = current_session()
    session.boundary.monotonic = lambda: 0.0
    return session


def train_plain(directory: str, local_batch: int | None = None) -> None:
    """Two epochs of an ordinary script; each step has several micro-batches where `local_batch` is small."""
    begin(directory)
    model, optimizer = make_model("sgd")
    parallel = pt.AdaptiveDataParallel(model, optimizer)
    loader = pt.AdaptiveDataLoader(Numbered(40), batch_size=16, shuffle=True)
    if local_batch is not None:
        loader.autoscale_batch_size(16, (1, local_batch), gradient_accumulation=True)
    evaluated, sums, seen = pt.AdaptiveDataLoader(Numbered(12), batch_size=6), pt.Accumulator(), Seen()
    for epoch in pt.remaining_epochs_until(2):
        for inputs, targets, indices in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(parallel(inputs), targets)
            loss.backward()
            optimizer.step()
            sums["loss"] += loss.item()
            seen.add(epoch, pt.finished_steps(), indices.tolist(), loss.item())
        with torch.no_grad():
            for inputs, targets, _ in evaluated:
                sums["error"] += torch.nn.functional.mse_loss(parallel(inputs), targets).item()
        with sums.synchronized():
            sums.clear()


def train_accumulated(directory: str) -> None:
    """The same with three micro-batches a step."""
    train_plain(directory, local_batch=3)


def train_as_a_framework(directory: str) -> None:
    """Two epochs of a loop that a framework owns, with a validation in the middle of each and at its end."""
    session = begin(directory)
    session.regrouping.refuse("a framework owns the process group")
    model, optimizer = make_model("adam")
    parallel = pt.AdaptiveDataParallel(model, optimizer)
    loader = pt.AdaptiveDataLoader(Numbered(40), batch_size=16, shuffle=True)
    session.epochs.declare(2)
    for _ in range(2):
        session.epochs.begin()
        batches, num_steps = loader.iterate_steps(), 0
        while (batch := next(batches, "end")) != "end":
            while batch is not None:
                optimizer.zero_grad()
                torch.nn.functional.mse_loss(parallel(batch[0]), batch[1]).backward()
                optimizer.step()
                batch = next(batches)
            num_steps += 1
            if num_steps == 2:
                session.loops.pause()
                pt.checkpoint_point()
        session.epochs.end()
    session.epochs.finish()


def recorded(function: Callable[..., Any], *args: Any) -> list[str]:
    recorder = Recorder()
    with recorder:
        function(*args)
    return recorder.lines


def train_in_place(*args: Any) -> list[str]:
    """The steps of `script.train`, whose members change."""
    recorder, begin_group = Recorder(), pt.init_process_group

    def begin_with_a_still_clock(*names: Any, **options: Any) -> None:
        begin_group(*names, **options)
        current_session().boundary.monotonic = lambda: 0.0

    vars(pt).update(init_process_group=begin_with_a_still_clock)
    with recorder:
        script.train(*args)
    return recorder.lines


def check(name: str, lines: list[str]) -> None:
    """Compare with the file; equal lines that follow each other stand there once, with their number."""
    text = "".join(
        f"{line}{'' if number == 1 else f' ({number} times)'}\n"
        for line, same in groupby(lines)
        for number in [len(list(same))]
    )
    file = FOLDER / f"{name}.txt"
    if os.environ.get("POLLUX_WRITE_COLLECTIVES"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "train"),
    [
        ("plain", train_plain),
        ("accumulated", train_accumulated),
        ("framework", train_as_a_framework),
    ],
)
def test_that_the_collectives_and_their_order_are_the_known_ones(
    tmp_path: Path, name: str, train: Callable[[str], None]
) -> None:
    first, second = run_ranks(tmp_path, 2, recorded, train, str(tmp_path / "job"))
    assert first == second
    check(name, first)


def test_that_those_of_a_training_in_place_are_the_known_ones(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.mkdir()
    (gate / "open").write_text(str(AT))
    args = (str(tmp_path / "job"), str(gate), asdict(script.Variant()), 3, 70, None)
    members = Members(tmp_path, 2, train_in_place, *args)
    members.until(lambda: script.reached(gate) == AT, what=f"step {AT}")
    members.ask(2, (1,))
    members.until(lambda: members.folder.plan_after(0), what="the plan")
    (gate / "open").write_text(str(1 << 30))
    codes = members.wait()
    assert set(codes.values()) == {0}, members.output()
    stayed, joined = members.results()
    check("in_place", stayed)
    check("joined_in_place", joined)
