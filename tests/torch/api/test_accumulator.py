"""Sums over replicas and restarts, and the user's own states."""

from __future__ import annotations

import io
import os
import pickle
import signal
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
import torch

import pollux_slurm.torch as pt
from pollux_slurm.errors import UsageError
from pollux_slurm.torch.data.micro_batches import MicroBatchPlan
from pollux_slurm.torch.session.current_session import current_session
from tests.torch.single_replica import Numbers, joined

pytestmark = pytest.mark.torch


def test_that_sums_show_inside_of_a_synchronized_block_only() -> None:
    with joined():
        sums = pt.Accumulator()
        sums["a"] += 2
        sums["a"] -= 0.5
        sums.update(b=torch.tensor([1.0, 2.0]))
        sums.subtract({"b": torch.tensor([1.0, 0.0])})
        assert (len(sums), list(sums)) == (0, [])
        with sums.synchronized():
            assert dict(sums)["a"] == 1.5
            assert sums["b"].tolist() == [0.0, 2.0]
            sums["a"] = 10
            del sums["b"]
        sums["a"] += 1
        with sums.synchronized():
            assert dict(sums) == {"a": 11}
            sums.clear()
        with sums.synchronized():
            assert dict(sums) == {}


def test_that_it_reads_as_if_it_were_empty_outside() -> None:
    with joined():
        sums = pt.Accumulator()
        sums["a"] += 1
        assert "a" not in sums
        assert sums.get("a") is None
        assert sums.get("a", 5) == 5
        assert (list(sums.items()), list(sums.values()), bool(sums)) == ([], [], False)
        for value in (1.0, 2.0):
            if "loss" not in sums:
                sums["loss"] += value
        with sums.synchronized():
            assert "a" in sums
            assert (sums.get("a"), sums.get("b"), sums.get("b", 5)) == (1, None, 5)
            assert sums["loss"] == 3.0
            assert (sums.setdefault("a", 7), sums.setdefault("b", 7), sums["b"]) == (1, 7, 7)


def test_that_a_mapping_is_added_and_subtracted_key_by_key() -> None:
    with joined():
        sums = given = pt.Accumulator()
        sums += {"a": 2, "b": torch.tensor(1.5)}
        sums -= {"a": 0.5, "c": 1}
        assert sums is given
        with sums.synchronized():
            assert dict(sums) == {"a": 1.5, "b": 1.5, "c": -1}
            sums += {"a": 1}
            sums -= {"b": 0.5}
            assert dict(sums) == {"a": 2.5, "b": 1.0, "c": -1}


def test_that_its_text_shows_its_values() -> None:
    with joined():
        sums = pt.Accumulator()
        sums["a"] += 2
        with sums.synchronized():
            assert repr(sums) == "Accumulator({'a': 2})"
        sums["a"] += 3
        sums["b"] += 0.5
        assert repr(sums) == "Accumulator({'a': 2}, added here since: {'a': 3, 'b': 0.5})"


def test_that_anything_but_adding_is_refused_outside() -> None:
    with joined():
        sums = pt.Accumulator()
        with pytest.raises(UsageError, match="\\+="):
            sums["a"] = 1
        with pytest.raises(UsageError, match="\\+="):
            sums.setdefault("a", 1)
        with pytest.raises(UsageError, match="cleared inside"):
            sums.clear()
        with pytest.raises(UsageError, match="changed inside"):
            del sums["a"]
        with sums.synchronized(), pytest.raises(UsageError, match="nested"), sums.synchronized():
            pass


def test_that_a_replayed_block_sees_what_it_saw_the_first_time(tmp_path: Path) -> None:
    def run(stop_at: int | None) -> list[tuple[str, float]]:
        recorded = []
        training = pt.AdaptiveDataLoader(Numbers(4), batch_size=2)
        evaluation = pt.AdaptiveDataLoader(Numbers(6), batch_size=2)
        sums = pt.Accumulator()
        for _ in pt.remaining_epochs_until(1):
            for inputs, _ in training:
                sums["x"] += inputs.sum().item()
            with sums.synchronized():
                recorded.append(("training", sums["x"]))
                sums.clear()
            for step, (inputs, _) in enumerate(evaluation):
                sums["y"] += inputs.sum().item()
                if step == stop_at:
                    os.kill(os.getpid(), signal.SIGTERM)
            with sums.synchronized():
                recorded.append(("evaluation", sums["y"]))
        return recorded

    with joined(tmp_path), pytest.raises(pt.TrainingStopped):
        run(stop_at=1)
    with joined(tmp_path):
        assert run(stop_at=None) == [("training", 10.0), ("evaluation", 21.0)]


def test_that_what_is_added_between_loops_counts_once_however_often_its_code_runs(tmp_path: Path) -> None:
    def run(stop_in: str | None) -> list[dict[str, float]]:
        recorded = []
        training = pt.AdaptiveDataLoader(Numbers(4), batch_size=2)
        evaluation = pt.AdaptiveDataLoader(Numbers(4), batch_size=2)
        sums = pt.Accumulator()
        for epoch in pt.remaining_epochs_until(2):
            for inputs, _ in training:
                sums["trained"] += inputs.sum().item()
            sums["between"] += 1
            for batch in range(3):
                sums["validated"] += batch
                if epoch == 1 and stop_in == "validation" and batch == 1:
                    os.kill(os.getpid(), signal.SIGTERM)
                pt.checkpoint_point()
            for inputs, _ in evaluation:
                sums["evaluated"] += inputs.sum().item()
                if epoch == 1 and stop_in == "evaluation":
                    os.kill(os.getpid(), signal.SIGTERM)
            if epoch == 1:
                with sums.synchronized():
                    recorded.append(dict(sums))
                sums["after"] += 1
                if stop_in == "end":
                    os.kill(os.getpid(), signal.SIGTERM)
                pt.checkpoint_point()
                with sums.synchronized():
                    recorded.append(dict(sums))
        return recorded

    first = {"trained": 20.0, "between": 2, "validated": 6, "evaluated": 20.0}
    for stop_in in ("validation", "evaluation", "end"):
        directory = tmp_path / stop_in
        with joined(directory), pytest.raises(pt.TrainingStopped):
            run(stop_in)
        with joined(directory):
            assert run(None) == [first, first | {"after": 1}]


class Count(pt.State):
    """A state of plain data; its part for this process is brought in by `sync`."""

    def __init__(self, name: str = "count") -> None:
        super().__init__(name)
        self.total, self.fresh = 0, 0

    def sync(self) -> None:
        self.total, self.fresh = self.total + self.fresh, 0

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total}

    def load_state_dict(self, state: Any) -> None:
        self.total = state["total"]


class Pickled(pt.State):
    """A state as AdaptDL's scripts write them: to and from a file."""

    def __init__(self) -> None:
        super().__init__("pickled")
        self.value: Any = None

    def save(self, fileobj: BinaryIO) -> None:
        pickle.dump(self.value, fileobj)

    def load(self, fileobj: BinaryIO) -> None:
        self.value = pickle.load(fileobj)


def test_that_states_are_synced_saved_and_restored_when_made(tmp_path: Path) -> None:
    with joined(tmp_path):
        count, pickled = Count(), Pickled()
        count.fresh, pickled.value = 3, {1, 2}
        for _ in pt.remaining_epochs_until(1):
            pass
    with joined(tmp_path):
        assert (Count().total, Pickled().value) == (3, {1, 2})


def test_that_a_state_not_made_again_yet_is_carried_on(tmp_path: Path) -> None:
    with joined(tmp_path):
        count = Count()
        count.fresh = 3
        for _ in pt.remaining_epochs_until(1):
            pass
    with joined(tmp_path):
        for _ in pt.remaining_epochs_until(2):
            pass
    with joined(tmp_path):
        assert Count().total == 3


def test_that_two_states_of_one_name_are_refused() -> None:
    with joined():
        Count()
        with pytest.raises(UsageError, match="two states are named 'count'"):
            Count()


class Strange(pt.State):
    def __init__(self, value: Any) -> None:
        super().__init__("strange")
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"inner": [self.value]}

    def load_state_dict(self, state: Any) -> None:
        self.value = state["inner"][0]


@pytest.mark.parametrize("value", [object(), lambda: None, io.BytesIO(), {(1, 2.5): 3}])
def test_that_what_could_not_be_read_back_safely_is_named_and_not_written(
    tmp_path: Path, value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with joined(tmp_path):
        Strange(value)
        for _ in pt.remaining_epochs_until(1):
            pass
    assert "strange['inner'][0]" in caplog.text
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_that_plain_data_of_every_kind_comes_back(tmp_path: Path) -> None:
    value = {
        "t": torch.arange(3),
        "l": [1, 2.5, "x", None, True, (1, 2), {3}],
        "n": np.float64(0.5),
        4: torch.float16,
    }
    with joined(tmp_path):
        Strange(value)
        for _ in pt.remaining_epochs_until(1):
            pass
    with joined(tmp_path):
        back = Strange(None).value
    assert back["l"] == value["l"]
    assert (back["n"], back[4], back["t"].tolist()) == (0.5, torch.float16, [0, 1, 2])


def test_that_nothing_is_added_during_padding() -> None:
    with joined() as session:
        sums = pt.Accumulator()
        loader = pt.AdaptiveDataLoader(Numbers(2), batch_size=2)
        for _ in loader:
            sums["n"] += 1
            padding = MicroBatchPlan(start=0, size=0, weight=0.0, index=0, is_last=True, step_size=1)
            loader._loop.plan = padding
            assert session.loops.is_padding
            sums["n"] += 1
        with sums.synchronized():
            assert sums["n"] == 1


def test_that_accumulators_need_a_session() -> None:
    with pytest.raises(UsageError, match="init_process_group"):
        current_session()
