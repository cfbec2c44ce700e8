"""Regroups of scripts that are built otherwise: models by epoch, several trainings, an evaluation first."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import pollux_slurm.torch as pt
from tests.torch.regroup.members import Members
from tests.torch.regroup.script import reached, wait_at_gate
from tests.torch.scripts import Numbered, make_model

pytestmark = pytest.mark.torch


class _Training:
    """One model, and a loop over a loader. Before each batch it waits at the gate."""

    def __init__(self, gate: str) -> None:
        self._gate, self.num_batches = Path(gate), 0
        self.model, self._optimizer = make_model("sgd")
        self._wrapped = pt.AdaptiveDataParallel(self.model, self._optimizer)

    def run(self, loader: pt.AdaptiveDataLoader, *, steps: bool = True) -> None:
        for batch in loader:
            wait_at_gate(self._gate, self.num_batches)
            self.num_batches += 1
            if steps:
                self.step(batch)

    def step(self, batch: Any) -> None:
        self._optimizer.zero_grad()
        self._wrapped(batch[0]).pow(2).mean().backward()
        self._optimizer.step()


def _start(directory: str) -> pt.AdaptiveDataLoader:
    pt.init_process_group(checkpoint_dir=directory, checkpoint_interval_s=None, in_place=True)
    return pt.AdaptiveDataLoader(Numbered(64), batch_size=16)


def by_fold(directory: str, gate: str) -> dict[str, Any]:
    loader = _start(directory)
    num_batches = 0
    for fold in pt.remaining_epochs_until(3):
        torch.manual_seed(fold)
        training = _Training(gate)
        training.num_batches = num_batches
        training.run(loader)
        num_batches = training.num_batches
    return {"weights": training.model.state_dict(), "num_steps": pt.finished_steps()}


def in_two_phases(directory: str, gate: str) -> dict[str, Any]:
    loader = _start(directory)
    training = _Training(gate)
    for num_epochs in (1, 2):
        for _ in pt.remaining_epochs_until(num_epochs):
            training.run(loader)
        dist.all_reduce(torch.ones(1))
    return {"num_steps": pt.finished_steps()}


def communicating_in_each_step(directory: str, gate: str) -> dict[str, Any]:
    loader = _start(directory)
    training = _Training(gate)
    for _ in pt.remaining_epochs_until(8):
        for batch in loader:
            wait_at_gate(Path(gate), training.num_batches)
            training.num_batches += 1
            dist.all_reduce(batch[0].sum())
            training.step(batch)
    return {"num_steps": pt.finished_steps()}


def normalized_and_validated(directory: str, gate: str) -> dict[str, Any]:
    """BatchNorm sends its buffers from replica 0 in each wrapped forward pass, of a validation, too."""
    loader = _start(directory)
    held_out = pt.AdaptiveDataLoader(Numbered(16), batch_size=8)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    wrapped = pt.AdaptiveDataParallel(model, optimizer)
    num_batches = 0
    for _ in pt.remaining_epochs_until(3):
        wrapped.train()
        for inputs, *_ in loader:
            wait_at_gate(Path(gate), num_batches)
            num_batches += 1
            optimizer.zero_grad()
            wrapped(inputs).pow(2).mean().backward()
            optimizer.step()
        wrapped.eval()
        for inputs, *_ in held_out:
            wrapped(inputs)
    return {"weights": model.state_dict(), "num_steps": pt.finished_steps()}


def evaluated_first(directory: str, gate: str) -> dict[str, Any]:
    loader = _start(directory)
    training = _Training(gate)
    for _ in pt.remaining_epochs_until(1):
        training.run(loader, steps=False)
        training.run(loader)
    return {"num_steps": pt.finished_steps()}


def run(
    folder: Path, function: Any, *, num_members: int, at: int, num_processes: int
) -> tuple[tuple[bool, str] | None, list[Any]]:
    """Run a script, and ask at a batch for other replicas. Return the answer and the results."""
    gate = folder / "gate"
    gate.mkdir()
    (gate / "open").write_text(str(at))
    members = Members(folder, num_members, function, str(folder / "checkpoints"), str(gate))
    members.until(lambda: reached(gate) == at, what=f"batch {at}")
    request = members.ask(num_processes)
    members.until(lambda: members.folder.plan_after(0) or members.answered(request), what="the plan")
    (gate / "open").write_text(str(1 << 30))
    codes = members.wait(timeout_s=60)
    # A newcomer whose plan is withdrawn is stopped.
    assert set(codes.values()) <= {0, 128 + signal.SIGTERM}, members.output()
    answer = members.answered(request)
    return None if answer is None else (answer.is_done, answer.text), members.results()


@pytest.mark.parametrize(
    ("script", "at"),
    [
        (by_fold, 1),  # a model of an earlier epoch is not compared
        (normalized_and_validated, 5),  # after a validation
    ],
)
def test_that_a_newcomer_trains_on_as_the_first_replica(tmp_path: Path, script: Any, at: int) -> None:
    answer, results = run(tmp_path, script, num_members=1, at=at, num_processes=2)
    assert answer is not None
    assert answer[0], answer
    first, newcomer = results
    assert first["num_steps"] == newcomer["num_steps"] == 12
    for name, weight in first["weights"].items():
        assert torch.equal(newcomer["weights"][name], weight), name


def test_that_nobody_joins_after_communication_between_two_trainings(tmp_path: Path) -> None:
    answer, results = run(tmp_path, in_two_phases, num_members=1, at=5, num_processes=2)
    assert answer is not None
    assert not answer[0]
    assert "between two calls of remaining_epochs_until" in answer[1]
    assert [one["num_steps"] for one in results] == [8]


def test_that_a_regroup_in_an_evaluation_before_the_first_step_is_answered(tmp_path: Path) -> None:
    answer, results = run(tmp_path, evaluated_first, num_members=2, at=1, num_processes=1)
    assert answer is not None
    assert answer[0], answer
    assert [one["num_steps"] for one in results] == [4]


def test_that_replicas_join_twice_where_each_step_communicates(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.mkdir()
    (gate / "open").write_text("8")
    members = Members(tmp_path, 1, communicating_in_each_step, str(tmp_path / "checkpoints"), str(gate))

    def join(number: int, *, at: int) -> None:
        """Let one more replica join, as generation `number`, in the ten steps from this one on."""
        members.until(lambda: reached(gate) == at, what=f"step {at}")
        request = members.ask(number + 1)
        members.until(
            lambda: members.folder.plan_after(number - 1) or members.answered(request), what="the plan"
        )
        (gate / "open").write_text(str(at + 10))
        answer = members.until(lambda: members.answered(request), what="an answer")
        assert answer.is_done, answer

    join(1, at=8)
    join(2, at=18)
    (gate / "open").write_text(str(1 << 30))
    assert set(members.wait(timeout_s=60).values()) == {0}, members.output()
    assert [one["num_steps"] for one in members.results()] == [32] * 3
