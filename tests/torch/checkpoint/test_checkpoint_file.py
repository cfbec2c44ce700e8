"""Checkpoints that are written in the background: what is in them, and what happens on failures."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import torch

import pollux_slurm.torch as pt
from pollux_slurm.agent.checkpoints.lineage import Lineage, WrittenCheckpoint
from pollux_slurm.errors import CheckpointError, DamagedCheckpointError, SupersededRunError, UsageError
from pollux_slurm.torch.checkpoint.checkpoint_file import read_checkpoint
from pollux_slurm.torch.checkpoint.progress import MeasuredState, ProgressState
from pollux_slurm.torch.failures.memory_bounds import MemoryBounds
from pollux_slurm.torch.session.allocation_history import AllocationHistory
from pollux_slurm.torch.session.session import Session
from tests.torch.ranks import start
from tests.torch.scripts import checkpoints
from tests.torch.single_replica import Numbers, Trainee, joined
from tests.waiting import wait_until

pytestmark = pytest.mark.torch


def make_and_drop(directory: str) -> int:
    """Make accumulators within an epoch; rank 1 keeps the first one for longer than rank 0."""
    pt.init_process_group(checkpoint_dir=directory, checkpoint_interval_s=None)
    rank, kept = torch.distributed.get_rank(), []
    for epoch in pt.remaining_epochs_until(3):
        sums = pt.Accumulator()
        sums["a"] += 1
        kept += [sums] if rank == 1 else []
        with sums.synchronized():
            assert sums["a"] == 2
        del sums
        if epoch == 1:
            os.kill(os.getpid(), signal.SIGTERM)
    return len(kept)


def test_that_a_state_that_only_one_rank_has_deleted_blocks_no_checkpoint(tmp_path: Path) -> None:
    run = start(tmp_path, 2, make_and_drop, str(tmp_path / "job"))
    assert run.wait() == [143, 143], run.output()
    assert start(tmp_path, 2, make_and_drop, str(tmp_path / "job"), restart_count=1).succeed() == [0, 1]


class Gate:
    """Delays writes until it is opened, as a slow disk does. `error` is raised by the write."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_open, self.error = threading.Event(), None
        self.error: Exception | None = None
        real, self.num_begun = Lineage.write, 0

        def write(lineage: Lineage, serialize: Callable[[BinaryIO], None]) -> WrittenCheckpoint:
            self.num_begun += 1
            assert self.is_open.wait(120)
            if self.error is not None:
                raise self.error
            return real(lineage, serialize)

        monkeypatch.setattr(Lineage, "write", write)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(monkeypatch)
    yield gate
    gate.is_open.set()


def steps(loader: pt.AdaptiveDataLoader) -> Iterator[tuple[int, torch.nn.Module]]:
    """Train a slope by −1 a step; yield the number of each step, after it."""
    trainee = Trainee()
    number = 0
    for _ in pt.remaining_epochs_until(1):
        for inputs, _ in loader:
            trainee.count(inputs)
            number += 1
            yield number, trainee.model


def weight_in(path: Path) -> float:
    return float(read_checkpoint(path)["model-0"]["model"]["weight"])


def test_that_training_goes_on_while_a_checkpoint_is_written_and_does_not_change_it(
    tmp_path: Path, gate: Gate
) -> None:
    files = tmp_path / "checkpoints"
    with joined(tmp_path, checkpoint_interval_s=0.0) as session:
        loader = pt.AdaptiveDataLoader(Numbers(8), batch_size=1)
        for number, model in steps(loader):
            # The first boundary, after step 1, began one; until it is done no other is.
            begun = {1: 0, 7: 2}.get(number, 1)
            wait_until(lambda begun=begun: gate.num_begun == begun, timeout_s=120, what="the writing thread")  # type: ignore[misc]
            assert model.weight.item() == -number
            if number == 6:
                gate.is_open.set()
                assert session.checkpointer.is_writing
                session.checkpointer.wait()
                (only,) = files.iterdir()
                assert weight_in(only) == -1.0
            if number == 7:
                break
    names = [name for name in checkpoints(tmp_path) if not name.startswith(".")]
    assert len(names) == 2


def test_that_the_end_of_training_waits_for_the_write_and_adds_the_last_state(
    tmp_path: Path, gate: Gate
) -> None:
    with joined(tmp_path, checkpoint_interval_s=0.0):
        loader = pt.AdaptiveDataLoader(Numbers(3), batch_size=1)
        for number, _ in steps(loader):
            if number == 3:
                threading.Timer(0.1, gate.is_open.set).start()
    older, newer = sorted((tmp_path / "checkpoints").iterdir())
    assert (weight_in(older), weight_in(newer)) == (-1.0, -3.0)


def test_that_a_failed_write_costs_no_step_and_is_tried_again(
    tmp_path: Path, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    gate.error = CheckpointError("no space left")
    gate.is_open.set()
    with joined(tmp_path, checkpoint_interval_s=0.0) as session:
        now = [0.0]
        session.boundary.monotonic = lambda: now[0]
        session.boundary.last_checkpoint_s = 0.0
        loader = pt.AdaptiveDataLoader(Numbers(6), batch_size=1)
        for number, _ in steps(loader):
            session.checkpointer.wait()
            if number == 4:
                assert gate.num_begun == 1
                now[0] += 60.0
                gate.error = None
    assert "no space left" in caplog.text
    assert gate.num_begun > 1
    assert weight_in(max((tmp_path / "checkpoints").iterdir())) == -6.0


def test_that_a_defect_in_the_writing_thread_is_reported_as_a_failed_write(
    tmp_path: Path, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    gate.is_open.set()
    with joined(tmp_path) as session:
        outcomes = []
        for gate.error in (ValueError("a defect"), None):
            session.checkpointer.write_in_background()
            session.checkpointer.wait()
            outcomes.append(session.checkpointer.take_write_result())
    broken, whole = outcomes
    assert broken is not None
    assert whole is not None
    assert (broken.error, whole.error) == ("a defect", None)
    assert "a defect" in caplog.text


class AwayStore:
    """A reporter whose store went down while a checkpoint was requested."""

    checkpoint_request, superseded = 7, False

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: False


def test_that_a_store_that_is_down_with_a_request_open_costs_half_of_the_time_at_most(tmp_path: Path) -> None:
    with joined(tmp_path, max_wait_s=600.0) as session:
        now = [0.0]

        def pause(duration_s: float) -> None:
            now[0] += max(duration_s, 1.0)

        boundary = session.boundary
        boundary.monotonic, boundary.pause, boundary.reporter = lambda: now[0], pause, AwayStore()
        num_steps = 0
        for _ in steps(pt.AdaptiveDataLoader(Numbers(1500), batch_size=1)):
            now[0] += 1.0
            num_steps += 1
            if now[0] > 2500:
                break
    assert num_steps > 1000, "it trains for as long as it waited, not one step for each wait"


def test_that_a_newer_run_found_by_the_writing_thread_ends_training(tmp_path: Path, gate: Gate) -> None:
    gate.error = SupersededRunError("run 1 has taken over")
    gate.is_open.set()
    with joined(tmp_path, checkpoint_interval_s=0.0) as session:
        loop = steps(pt.AdaptiveDataLoader(Numbers(6), batch_size=1))
        assert next(loop)[0] == 1
        assert next(loop)[0] == 2
        session.checkpointer.wait()
        with pytest.raises(SupersededRunError):
            list(loop)


def test_that_the_cost_of_a_checkpoint_is_reported_and_sets_the_next_interval(tmp_path: Path) -> None:
    with joined(tmp_path, checkpoint_interval_s="auto") as session:
        checkpoint_interval, report_builder = (
            session.boundary.checkpoint_interval,
            session.measurements.report_builder,
        )
        assert checkpoint_interval is not None
        assert report_builder is not None
        assert checkpoint_interval.interval_s == 60.0
        now = [0.0]
        session.boundary.monotonic = lambda: now[0]
        session.boundary.last_checkpoint_s = 0.0
        reported: list[Any] = []
        for number, _ in steps(pt.AdaptiveDataLoader(Numbers(6), batch_size=1)):
            if number == 3:
                now[0] = 61.0
            session.checkpointer.wait()
            if number == 5:
                reported.append(report_builder.compose(sequence=1, checkpoint=None).checkpoint)
        # The test's clock did not advance during the copy: the interval is the least possible.
        assert checkpoint_interval.interval_s == 30.0
    (confirmation,) = reported
    assert confirmation.request_id is None
    assert confirmation.blocked_s > 0
    assert confirmation.size_bytes > 0


@pytest.mark.parametrize(
    "options",
    [{"checkpoint_interval_s": "often"}, {"checkpoint_interval_s": -1.0}, {"node_mtbf_s": 0.0}],
)
def test_that_invalid_intervals_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(options))):
        pt.init_process_group(environ={}, **options)


class Kept(pt.State):
    """A script's own state, of any name."""

    def __init__(self, name: str, value: int) -> None:
        self.value = value
        super().__init__(name)

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: Any) -> None:
        self.value = state["value"]


OWN_STATES = {
    ProgressState: "progress",
    MeasuredState: "measured",
    MemoryBounds: "memory",
    AllocationHistory: "allocations",
}


def train_one_epoch(directory: Path, num_epochs: int) -> Session:
    with joined(directory) as session:
        trainee, loader = Trainee(), pt.AdaptiveDataLoader(Numbers(8), batch_size=2)
        for _ in pt.remaining_epochs_until(num_epochs):
            for inputs, _ in loader:
                trainee.step(inputs)
    return session


def test_that_a_script_may_name_its_states_as_the_library_might(tmp_path: Path) -> None:
    for value in (1, 2):
        with joined(tmp_path):
            kept = [Kept(name, value * number) for number, name in enumerate(OWN_STATES.values(), start=1)]
            assert [one.value for one in kept] == [1, 2, 3, 4]
            trainee, loader = Trainee(), pt.AdaptiveDataLoader(Numbers(8), batch_size=2)
            for _ in pt.remaining_epochs_until(value):
                for inputs, _ in loader:
                    trainee.step(inputs)
            assert pt.finished_steps() == 4 * value
            with pytest.raises(UsageError, match="two states are named 'progress'"):
                Kept("progress", 0)


@pytest.mark.parametrize(
    "content",
    [b"", b"x" * 100, b"\x80\x02h\x07.", b"\x80\x02.", b"\x80\x02X\x01\x00\x00\x00\xe1.", {"format": 2}],
    ids=["empty", "no pickle", "KeyError", "IndexError", "UnicodeDecodeError", "no states"],
)
def test_that_a_damaged_checkpoint_is_an_error_that_says_so(tmp_path: Path, content: Any) -> None:
    file = tmp_path / "damaged.pt"
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        torch.save(content, file)
    with pytest.raises(DamagedCheckpointError, match="cannot be read as a checkpoint"):
        read_checkpoint(file)


def test_that_a_checkpoint_without_names_of_the_librarys_own_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        for kind, name in OWN_STATES.items():
            patch.setattr(kind, "name", name)
        train_one_epoch(tmp_path, 1)
    path = next((tmp_path / "checkpoints").iterdir())
    assert set(OWN_STATES.values()) <= read_checkpoint(path).keys()
    session = train_one_epoch(tmp_path, 2)
    assert (session.progress_state.finished_epochs, session.progress_state.num_steps) == (2, 8)
    assert [one.run_number for one in session.history.allocations] == [0, 1]
    assert not session.checkpointer.unrestored
