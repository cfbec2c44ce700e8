"""Replicas that leave a loop, or evaluate the wrapped model, alone: found; together: accepted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import TensorDataset

import pollux_slurm.torch as pt
from pollux_slurm.errors import TrainingError
from pollux_slurm.torch.coordination.same_calls import SameCalls
from pollux_slurm.torch.session.current_session import current_session
from tests.torch import ranks
from tests.waiting import wait_until

pytestmark = pytest.mark.torch


class Replica(SameCalls):
    """One of two replicas, after two steps of the first epoch."""

    def __init__(self, store: Any, rank: int, *, is_stopped: bool = False) -> None:
        self.progress, self.store = (0, 2), store
        super().__init__(progress=lambda: self.progress, is_stopped=lambda: is_stopped)
        self.meet_through(store, prefix="test", rank=rank, world_size=2)

    def go_on(self) -> None:
        self.progress = (self.progress[0], self.progress[1] + 1)


@pytest.fixture
def pair() -> Iterator[list[Replica]]:
    store = dist.HashStore()  # type: ignore[attr-defined]
    made = [Replica(store, rank) for rank in (0, 1)]
    yield made
    for one in made:
        one.close()


def together(*calls: Callable[[], None]) -> None:
    """Make the calls at once; they return."""
    threads = [threading.Thread(target=call, daemon=True) for call in calls]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
        assert not one.is_alive()


def test_that_a_replica_that_leaves_alone_is_named_with_the_other_and_the_cure(pair: list[Replica]) -> None:
    pair[0].begin_step()
    with pytest.raises(TrainingError, match=r"rank 1 has left the loop .*, and rank 0 goes on .*Accumulator"):
        pair[1].leave("the loop over 'train'")


def test_that_an_evaluation_alone_is_named_with_the_cure(pair: list[Replica]) -> None:
    pair[1].begin_epoch_end()
    with pytest.raises(TrainingError, match=r"rank 0 evaluates .* rank 1 does not.*model\.module"):
        pair[0].evaluate()


def test_that_a_share_of_the_data_or_of_sums_alone_is_named_with_the_cure(pair: list[Replica]) -> None:
    pair[1].begin_epoch_end()
    with pytest.raises(TrainingError, match=r"rank 0 goes over 'held {out}', .* ordinary DataLoader"):
        pair[0].go_over("'held {out}'")
    with pytest.raises(TrainingError, match=r"rank 0 adds up the sums of 'a' .* synchronized\(\)"):
        pair[0].add_up("'a'")


def test_that_an_evaluation_after_another_replicas_end_is_named(pair: list[Replica]) -> None:
    pair[1].close()
    with pytest.raises(TrainingError, match="rank 1 does not, but goes on"):
        pair[0].evaluate()


def test_that_one_that_came_earlier_and_has_gone_on_is_no_fault(pair: list[Replica]) -> None:
    first = threading.Thread(target=lambda: (pair[0].leave("it"), pair[0].go_on()), daemon=True)
    first.start()
    wait_until(lambda: pair[0].store.check(["test/left/0/2/0"]), timeout_s=60, what="the first to come")
    pair[0].store.set("test/at/0", "0 3")
    pair[1].leave("it")
    first.join(60)
    assert not first.is_alive()
    pair[1].go_on()
    # At the same place each is met once.
    together(pair[0].evaluate, pair[1].evaluate)
    pair[0].evaluate()


def test_that_one_who_is_further_in_a_step_than_the_other_has_told_is_met(pair: list[Replica]) -> None:
    """Both evaluate within a step; one of them is slow, and has told where it is."""
    for one in pair:
        one.begin_step()
    pair[0].store.set("test/at/1", "0 3")
    first = threading.Thread(target=pair[0].evaluate, daemon=True)
    first.start()
    wait_until(lambda: pair[0].store.check(["test/evaluates/0/2/0"]), timeout_s=60, what="the first to come")
    pair[1].evaluate()
    first.join(60)
    assert not first.is_alive()


def test_that_meetings_leave_no_more_than_two_keys_of_a_replica(pair: list[Replica]) -> None:
    for _ in range(20):
        together(pair[0].evaluate, pair[1].evaluate)
        for one in pair:
            one.go_on()
    assert pair[0].store.num_keys() <= 2 * 3


def test_that_a_long_wait_is_told(
    pair: list[Replica], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pollux_slurm.torch.coordination.same_calls._LONG_S", 0.0)
    first = threading.Thread(target=pair[0].evaluate, daemon=True)
    first.start()
    wait_until(lambda: "rank 0 has waited a minute for rank 1" in caplog.text, timeout_s=60, what="the line")
    assert "model.module(...)" in caplog.text
    pair[1].evaluate()
    first.join(60)
    assert not first.is_alive()


def test_that_a_wait_ends_with_a_request_to_stop() -> None:
    stopped = Replica(dist.HashStore(), 0, is_stopped=True)  # type: ignore[attr-defined]
    stopped.leave("it")
    stopped.close()


def scenario(directory: str, name: str) -> int:
    """Train; `name` says what rank 1, or rank 0, does alone. Returns the steps made."""
    pt.init_process_group(checkpoint_dir=Path(directory), checkpoint_interval_s=None)
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(1, 2), torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    model = pt.AdaptiveDataParallel(network, optimizer)
    loader = pt.AdaptiveDataLoader(TensorDataset(torch.randn(16, 1)), batch_size=4)
    held_out = pt.AdaptiveDataLoader(TensorDataset(torch.randn(6, 1)), batch_size=3, name="held-out")
    sums = pt.Accumulator(name="right")
    session, rank = current_session(), current_session().rank
    if name == "together" and rank == 0:
        # One looks at the data, as for a logger's graph.
        next(iter(loader))

    def rank_0_waits() -> bool:
        return bool(session.same_calls._store.check([f"pollux/calls/{session.run_number}/at/0"]))

    for epoch in pt.remaining_epochs_until(3):
        for step, (inputs,) in enumerate(loader, start=1):
            optimizer.zero_grad()
            model(inputs).mean().backward()
            optimizer.step()
            if step == 2 and (name == "together" or (name == "loop" and rank == 1)):
                if name == "together" and rank == 1:
                    wait_until(rank_0_waits, timeout_s=120, what="rank 0 to say where it is")
                break
        if name == "epochs" and rank == 1:
            break
        if name == "together" and epoch == 1:
            break
        model.eval()
        with torch.no_grad():
            if name == "together" or (name == "evaluation" and rank == 0):
                model(torch.ones(3, 1))
            if name == "at the end" and rank == 0 and epoch == 2:
                model(torch.ones(3, 1))
            if name == "together" or (name == "share" and rank == 0):
                for (inputs,) in held_out:
                    sums["right"] += len(inputs)
            if name == "together" or (name == "sums" and rank == 0):
                with sums.synchronized():
                    assert sums["right"] == 6 * (epoch + 1) or name == "sums"
            if rank == 0:
                model.module(torch.ones(3, 1))
        model.train()
    return session.num_steps


def test_that_replicas_that_leave_and_evaluate_together_are_accepted(tmp_path: Path) -> None:
    assert ranks.run_ranks(tmp_path, 2, scenario, str(tmp_path / "job"), "together") == [4, 4]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("loop", "rank 1 has left the loop over"),
        ("epochs", "rank 1 has left the epochs"),
        ("evaluation", "rank 0 evaluates the wrapped model"),
        ("at the end", "rank 0 evaluates the wrapped model"),
        ("share", "rank 0 goes over AdaptiveDataLoader 'held-out'"),
        ("sums", "rank 0 adds up the sums of 'right' over the replicas"),
    ],
)
def test_that_a_replica_alone_ends_the_training_with_the_cure(
    tmp_path: Path, name: str, message: str
) -> None:
    run = ranks.start(tmp_path, 2, scenario, str(tmp_path / "job"), name)
    codes = run.wait()
    assert 0 not in codes
    assert message in run.output()
    assert "EnforceNotMet" not in run.output()
