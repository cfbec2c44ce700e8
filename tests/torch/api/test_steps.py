"""Training by steps: the same steps over stops, breaks and moves, and what is refused."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

import pollux_slurm.torch as pt
from pollux_slurm.agent.checkpoints.out_of_memory import read_bounds
from pollux_slurm.errors import UsageError
from tests.torch.ranks import run_ranks, start
from tests.torch.regroup.members import Members
from tests.torch.regroup.script import reached, wait_at_gate
from tests.torch.scripts import Numbered, Seen, make_model
from tests.torch.single_replica import Numbers, Trainee, joined

pytestmark = pytest.mark.torch

Steps = list[tuple[int, list[int]]]
NUM_STEPS = 8


def train(
    num_steps: int = NUM_STEPS,
    *,
    largest: int = 4,
    data: Any = None,
    leave: Callable[[int], bool | None] = lambda step: False,
) -> Steps:
    """Train on 10 examples in batches of 4, so that an epoch has 3 steps; return each step's examples.

    It breaks where `leave` returns True.
    """
    trainee, made = Trainee(), []
    loader = pt.AdaptiveDataLoader(data or Numbers(10), batch_size=4, shuffle=data is None)
    loader.autoscale_batch_size(4, (1, largest), gradient_accumulation=True)
    for step, batches in pt.remaining_steps_until(num_steps, loader):
        assert step == pt.finished_steps()
        indices = []
        for inputs, places in batches:
            (trainee.parallel(inputs) / inputs).mean().backward()
            indices += places.tolist()
        assert list(batches) == []
        trainee.optimizer.step()
        trainee.optimizer.zero_grad()
        made.append((step, indices))
        assert (pt.finished_steps(), trainee.weight) == (step + 1, pytest.approx(-step - 1))
        if leave(step):
            break
    return made


@pytest.fixture(scope="module")
def by_epochs() -> Steps:
    """The examples of each step of a training by epochs."""
    made: Steps = []
    with joined():
        trainee = Trainee()
        loader = pt.AdaptiveDataLoader(Numbers(10), batch_size=4, shuffle=True)
        for _ in pt.remaining_epochs_until(3):
            for inputs, places in loader:
                trainee.count(inputs)
                made.append((len(made), places.tolist()))
    return made[:NUM_STEPS]


@pytest.mark.parametrize("largest", [4, 3, 1])
def test_that_steps_go_over_epochs_in_their_order_whole_or_split(by_epochs: Steps, largest: int) -> None:
    with joined():
        assert train(largest=largest) == by_epochs
        assert (pt.current_epoch(), pt.finished_epochs()) == (None, 2)


def stop(step: int) -> Callable[[int], bool | None]:
    return lambda now: os.kill(os.getpid(), signal.SIGTERM) if now == step else None


@pytest.mark.parametrize("last", [0, 2, 4, 7])
def test_that_steps_go_on_exactly_where_they_were_stopped(
    by_epochs: Steps, tmp_path: Path, last: int
) -> None:
    with joined(tmp_path), pytest.raises(pt.TrainingStopped):
        train(leave=stop(last))
    with joined(tmp_path):
        assert train(largest=2) == by_epochs[last + 1 :]


@pytest.mark.parametrize("last", [0, 2, 4])
def test_that_more_steps_go_on_where_fewer_had_ended(by_epochs: Steps, tmp_path: Path, last: int) -> None:
    with joined(tmp_path):
        assert train(last + 1) == by_epochs[: last + 1]
        # In the same process, too.
        assert len(list((tmp_path / "checkpoints").iterdir())) == 1
    for _ in range(2):
        with joined(tmp_path):
            assert train(last + 1) == []
    with joined(tmp_path):
        assert train() == by_epochs[last + 1 :]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="there a break cannot be told from an error")
@pytest.mark.parametrize("last", [0, 2, 4])
def test_that_a_break_writes_a_checkpoint_from_which_the_next_step_follows(
    by_epochs: Steps, tmp_path: Path, last: int
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with joined(tmp_path):
        train(leave=lambda step: step == last)
        assert signal.getsignal(signal.SIGTERM) is before
    with joined(tmp_path):
        assert train() == by_epochs[last + 1 :]


def test_that_two_trainings_by_steps_follow_each_other_within_an_epoch(by_epochs: Steps) -> None:
    with joined():
        trainee, made = Trainee(), []
        loader = pt.AdaptiveDataLoader(Numbers(10), batch_size=4, shuffle=True)
        for num_steps in (2, 5, 5, NUM_STEPS):
            for step, batches in pt.remaining_steps_until(num_steps, loader):
                for inputs, places in batches:
                    trainee.count(inputs)
                    made.append((step, places.tolist()))
        assert made == by_epochs


def test_that_a_step_that_the_body_skips_uses_up_its_batches_and_does_not_count(by_epochs: Steps) -> None:
    with joined():
        trainee, made, turn = Trainee(), [], 0
        loader = pt.AdaptiveDataLoader(Numbers(10), batch_size=4, shuffle=True)
        loader.autoscale_batch_size(4, (1, 2), gradient_accumulation=True)
        for step, batches in pt.remaining_steps_until(4, loader):
            turn += 1
            if turn in (2, 3):
                # Not even looked at, or only its first batch.
                _ = turn == 3 and next(batches)
                continue
            indices = []
            for inputs, places in batches:
                trainee.count(inputs)
                indices += places.tolist()
            made.append((step, indices))
    expected = [indices for number, (_, indices) in enumerate(by_epochs) if number not in (1, 2)]
    assert made == list(enumerate(expected))[:4]


def test_that_batches_of_an_earlier_step_are_over_with_it() -> None:
    with joined():
        trainee, kept = Trainee(), []
        loader = pt.AdaptiveDataLoader(Numbers(10), batch_size=4)
        for _, batches in pt.remaining_steps_until(3, loader):
            assert [batch for earlier in kept for batch in earlier] == []
            trainee.count(next(iter(batches))[0])
            kept.append(batches)
        assert trainee.weight == -3


class Endless(IterableDataset[Any]):
    """The numbers from 1, with their index, without an end."""

    def __iter__(self) -> Iterator[Any]:
        number = 0
        while True:
            yield torch.tensor([float(number + 1)]), number
            number += 1


class Epochs(IterableDataset[Any]):
    """Ten examples, which tell their epoch."""

    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        return ((torch.tensor([1.0]), 100 * self.epoch + number) for number in range(10))


def test_that_streams_with_and_without_an_end_are_read_on(tmp_path: Path) -> None:
    for name, data, expected in (
        ("endless", Endless(), range(32)),
        ("epochs", Epochs(), [100 * epoch + number for epoch in range(3) for number in range(10)][:28]),
    ):
        with joined(tmp_path / name), pytest.raises(pt.TrainingStopped):
            train(data=data, leave=stop(3))
        with joined(tmp_path / name):
            rest = [index for _, indices in train(data=data) for index in indices]
        assert rest == list(expected)[16 if name == "endless" else 14 :]


def test_that_a_loop_in_which_no_optimizer_steps_is_refused_after_its_data() -> None:
    with joined():
        trainee = Trainee()
        loader = pt.AdaptiveDataLoader(Numbers(10), batch_size=4)
        steps = pt.remaining_steps_until(2, loader)
        with pytest.raises(UsageError, match=r"without one step of an optimizer .* optimizer.step\(\)"):
            # Six forward passes, and no step.
            list(map(trainee.parallel, (inputs for _, batches in steps for inputs, _ in batches)))
        few = pt.AdaptiveDataLoader(Numbers(3), batch_size=4, drop_last=True)
        with pytest.raises(UsageError, match="less than one batch with drop_last=True"):
            list(pt.remaining_steps_until(2, few))


def test_that_an_ordinary_loader_is_refused() -> None:
    with joined(), pytest.raises(UsageError, match="needs an AdaptiveDataLoader, not DataLoader"):
        next(iter(pt.remaining_steps_until(2, DataLoader(Numbers(4)))))  # type: ignore[arg-type]


def fail(error: Exception) -> None:
    loader = pt.AdaptiveDataLoader(Numbers(10), batch_size=4)
    for _, batches in pt.remaining_steps_until(2, loader):
        for _ in batches:
            raise error


def test_that_an_error_writes_nothing_restores_sigterm_and_lack_of_memory_is_recorded(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with joined(tmp_path) as session:
        try:
            fail(torch.cuda.OutOfMemoryError("CUDA out of memory"))
        except torch.cuda.OutOfMemoryError as error:
            session.memory_watch.note(error)
        assert signal.getsignal(signal.SIGTERM) is before
        assert list((tmp_path / "checkpoints").iterdir()) == []
    assert [bound.largest for bound in read_bounds(tmp_path)] == [2]


def train_by_steps(
    directory: str | None, num_steps: int, stop_at: int | None = None, gate: str | None = None
) -> dict[str, Any]:
    """Train with momentum, a rate set by hand, and an evaluation each third step on rank 0."""
    pt.init_process_group(checkpoint_dir=directory, checkpoint_interval_s=None, in_place=gate is not None)
    model, optimizer = make_model("sgd")
    parallel = pt.AdaptiveDataParallel(model, optimizer)
    loader = pt.AdaptiveDataLoader(Numbered(70), batch_size=16, shuffle=True)
    loader.autoscale_batch_size(16, (1, 5), gradient_accumulation=True)
    seen, kept = Seen(), pt.Variables(evaluated={})
    for step, batches in pt.remaining_steps_until(num_steps, loader):
        wait_at_gate(None if gate is None else Path(gate), step)
        for group in optimizer.param_groups:
            group["lr"] = 0.05 / (1 + step)
        if step % 3 == 0 and torch.distributed.get_rank() == 0:
            with torch.no_grad():
                loss = torch.nn.functional.mse_loss(model(Numbered().inputs), Numbered().targets)
            kept["evaluated"][step] = loss.item()
        for inputs, targets, indices in batches:
            loss = torch.nn.functional.mse_loss(parallel(inputs), targets)
            loss.backward()
            if not loader.is_padding:
                seen.add(0, step, indices.tolist(), loss.item())
        optimizer.step()
        optimizer.zero_grad()
        if step == stop_at:
            os.kill(os.getpid(), signal.SIGTERM)
    seen.sync()
    return {
        "weights": {name: value.clone() for name, value in model.state_dict().items()},
        "steps": {key: sorted(indices) for key, indices in seen.steps.items()},
        "evaluated": kept["evaluated"],
    }


def assert_same(result: dict[str, Any], expected: dict[str, Any], *, is_first: bool = True) -> None:
    assert result["steps"] == expected["steps"]
    torch.testing.assert_close(result["weights"], expected["weights"], rtol=1e-4, atol=1e-5)
    if is_first:
        assert result["evaluated"] == pytest.approx(expected["evaluated"], rel=1e-4)


@pytest.fixture(scope="module")
def unmoved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    result: dict[str, Any] = run_ranks(tmp_path_factory.mktemp("unmoved"), 1, train_by_steps, None, 12)[0]
    assert list(result["evaluated"]) == [0, 3, 6, 9]
    return result


def test_that_steps_are_the_same_with_other_numbers_of_processes(
    unmoved: dict[str, Any], tmp_path: Path
) -> None:
    directory = str(tmp_path / "job")
    for restart, (replicas, stop_at) in enumerate([(1, 2), (3, 6)]):
        run = start(tmp_path, replicas, train_by_steps, directory, 12, stop_at, restart_count=restart)
        assert run.wait() == [143] * replicas, run.output()
    for rank, result in enumerate(
        run_ranks(tmp_path, 2, train_by_steps, directory, 12, None, restart_count=2)
    ):
        assert_same(result, unmoved, is_first=rank == 0)


def test_that_replicas_join_and_leave_between_two_steps(unmoved: dict[str, Any], tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.mkdir()
    (gate / "open").write_text("2")
    members = Members(tmp_path, 1, train_by_steps, str(tmp_path / "job"), 12, None, str(gate))
    # In the first epoch a second one joins. In the next the first one leaves.
    for generation, (at, number, leaves) in enumerate([(2, 2, ()), (7, 1, (0,))]):
        members.until(lambda at=at: reached(gate) == at, what=f"step {at}")  # type: ignore[misc]
        request = members.ask(number, leaves)
        members.until(lambda after=generation: members.folder.plan_after(after), what="the plan")  # type: ignore[misc]
        (gate / "open").write_text("7" if at < 7 else str(1 << 30))
        answer = members.until(lambda asked=request: members.answered(asked), what="the answer")  # type: ignore[misc]
        assert answer is not None, members.output()
        assert answer.is_done, answer.text
    assert set(members.wait().values()) == {0}, members.output()
    (result,) = members.results()
    assert_same(result, unmoved)
