"""Loops that are left early and iterators that are kept: which steps count, which checkpoints are written."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import pollux_slurm.torch as pt
from pollux_slurm.agent.checkpoints.out_of_memory import read_bounds
from pollux_slurm.errors import UsageError
from pollux_slurm.model import BatchChoice
from tests.torch.single_replica import Numbers, Trainee, joined
from tests.waiting import wait_until

pytestmark = pytest.mark.torch


def train(trainee: Trainee, loader: pt.AdaptiveDataLoader) -> None:
    for inputs, _ in loader:
        trainee.count(inputs)


def test_that_a_look_at_the_first_batch_may_stay_in_a_variable() -> None:
    with joined() as session:
        trainee = Trainee()
        loader = pt.AdaptiveDataLoader(Numbers(8), batch_size=4)
        kept = iter(loader)
        next(kept)
        for _ in pt.remaining_epochs_until(2):
            train(trainee, loader)
        assert trainee.weight == -4
        assert session.progress_state.progress == 4
        with pytest.raises(UsageError, match=r"an epoch began .* make another one with iter\(loader\)"):
            next(kept)


def test_that_a_look_kept_before_a_loop_without_epochs_costs_no_position(tmp_path: Path) -> None:
    def run(stop_after: int) -> list[int]:
        trainee, seen = Trainee(), []
        loader = pt.AdaptiveDataLoader(Numbers(12), batch_size=4)
        kept = iter(loader)
        next(kept, None)
        for inputs, indices in loader:
            trainee.count(inputs)
            seen.append(int(indices[0]))
            if len(seen) == stop_after:
                os.kill(os.getpid(), signal.SIGTERM)
        del kept
        return seen

    with joined(tmp_path), pytest.raises(pt.TrainingStopped):
        run(stop_after=2)
    with joined(tmp_path):
        assert run(stop_after=9) == [8]


def test_that_an_iterator_kept_over_epochs_is_refused_and_one_for_each_works() -> None:
    with joined() as session:
        trainee = Trainee()
        loader = pt.AdaptiveDataLoader(Numbers(12), batch_size=4)
        for epoch in pt.remaining_epochs_until(2):
            batches = iter(loader)
            for number, (inputs, _) in enumerate(batches):
                trainee.count(inputs)
                if number == 1:
                    break
            assert session.progress_state.progress == 2 * epoch + 1
        assert (trainee.weight, session.progress_state.progress) == (-4, 4)
        with pytest.raises(UsageError, match="epoch 1 ended while an iterator over"):
            next(batches)


def train_counting(trainee: Trainee, loader: pt.AdaptiveDataLoader) -> None:
    batches = iter(loader)
    for _ in range(len(loader)):
        inputs, _ = next(batches)
        trainee.count(inputs)


def train_until_none(trainee: Trainee, loader: pt.AdaptiveDataLoader) -> None:
    batches = iter(loader)
    while (batch := next(batches, None)) is not None:
        trainee.count(batch[0])


def train_until_stopped(trainee: Trainee, loader: pt.AdaptiveDataLoader) -> None:
    batches = iter(loader)
    while True:
        try:
            inputs, _ = next(batches)
        except StopIteration:
            break
        trainee.count(inputs)


@pytest.mark.parametrize("largest", [4, 2])
def test_that_training_that_counts_batches_is_refused_at_its_first_use(largest: int) -> None:
    with joined():
        trainee = Trainee()
        loader = pt.AdaptiveDataLoader(Numbers(12), batch_size=4)
        loader.autoscale_batch_size(4, (1, largest), gradient_accumulation=True)
        for _ in pt.remaining_epochs_until(1):
            glances = iter(loader)
            assert [next(glances)[1].tolist() for _ in range(2)] != []
            del glances
            with pytest.raises(UsageError, match="Write `for batch in loader:`"):
                train_counting(trainee, loader)
        assert trainee.weight == -1


@pytest.mark.parametrize("loop", [train_until_none, train_until_stopped])
def test_that_an_iterator_whose_end_is_expected_goes_on_after_a_move(tmp_path: Path, loop: Any) -> None:
    def run(stop_after: int | None) -> list[float]:
        trainee, weights = Trainee(), []
        loader = pt.AdaptiveDataLoader(Numbers(12), batch_size=4)
        for _ in pt.remaining_epochs_until(20):
            if stop_after is not None and trainee.weight == -stop_after:
                os.kill(os.getpid(), signal.SIGTERM)
            loop(trainee, loader)
            weights.append(trainee.weight)
        return weights

    with joined(tmp_path), pytest.raises(pt.TrainingStopped):
        run(stop_after=30)
    with joined(tmp_path) as session:
        # Stopped after the first step of epoch 10.
        assert session.progress_state.finished_epochs == 10
        assert run(stop_after=None) == [-3.0 * epoch for epoch in range(11, 21)]


def test_that_training_inside_of_a_forgotten_iterator_is_refused() -> None:
    with joined():
        trainee = Trainee()
        other, loader = (pt.AdaptiveDataLoader(Numbers(size), batch_size=4) for size in (12, 8))
        kept = iter(other)
        next(kept)
        with pytest.raises(UsageError, match=r"'loader-1' .* within a loop over .*'loader-0'"):
            train(trainee, loader)
        assert trainee.weight == 0
        trainee = Trainee()
        for inputs, _ in loader:
            with pytest.raises(UsageError, match="only the outermost"), trainee.parallel.no_sync():
                trainee.parallel(inputs).mean().backward()
        del kept
        train(trainee, loader)
        assert trainee.weight == -2


def test_that_an_inner_loop_may_look_and_the_outer_one_then_trains_on() -> None:
    with joined():
        trainee = Trainee()
        outer, inner = (pt.AdaptiveDataLoader(Numbers(6), batch_size=size) for size in (4, 3))
        outer.autoscale_batch_size(4, (1, 2), gradient_accumulation=True)
        for inputs, _ in outer:
            for values, _ in inner:
                with torch.no_grad():
                    trainee.parallel(values)
            trainee.count(inputs)
    assert trainee.weight == -2


def test_that_a_step_before_a_break_counts() -> None:
    with joined() as session:
        trainee = Trainee()
        loader = pt.AdaptiveDataLoader(Numbers(12), batch_size=4)
        for inputs, _ in loader:
            trainee.count(inputs)
            break
        assert session.progress_state.progress == 1
        for _ in loader:
            break
        trainee.step(torch.ones(2))  # over something else
        for _ in loader:
            pass
        assert session.progress_state.progress == 1


def test_that_break_out_of_the_epochs_writes_the_last_checkpoint(tmp_path: Path) -> None:
    def run() -> tuple[float, list[int]]:
        trainee, visited = Trainee(), []
        loader = pt.AdaptiveDataLoader(Numbers(8), batch_size=4)
        for epoch in pt.remaining_epochs_until(5):
            visited.append(epoch)
            train(trainee, loader)
            if epoch == 1:
                break
        assert signal.getsignal(signal.SIGTERM) is before
        return trainee.weight, visited

    before = signal.getsignal(signal.SIGTERM)
    with joined(tmp_path):
        assert run() == (-4, [0, 1])
        assert len(list((tmp_path / "checkpoints").iterdir())) == 1
    with joined(tmp_path) as session:
        # The unfinished epoch has no step left, and is left by the same `break` again.
        assert run() == (-4, [1])
        assert session.progress_state.progress == 4


def test_that_sigterm_before_a_break_is_sent_again_after_the_checkpoint(tmp_path: Path) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
    try:
        with joined(tmp_path):
            trainee = Trainee()
            loader = pt.AdaptiveDataLoader(Numbers(8), batch_size=4)
            for _ in pt.remaining_epochs_until(5):
                train(trainee, loader)
                os.kill(os.getpid(), signal.SIGTERM)
                assert seen == []
                break
            assert seen == [signal.SIGTERM]
            assert len(list((tmp_path / "checkpoints").iterdir())) == 1
    finally:
        signal.signal(signal.SIGTERM, before)


def test_that_a_request_that_waits_for_the_last_epochs_end_delays_no_end_of_training(tmp_path: Path) -> None:
    with joined(tmp_path, epoch_end_wait_s=60.0, max_wait_s=0.5) as session:
        trainee, loader = Trainee(), pt.AdaptiveDataLoader(Numbers(8), batch_size=4)
        waited: list[int] = []
        session.boundary.pause = lambda duration_s: waited.append(pt.finished_epochs())
        assert session.measurements.reporter is not None
        for epoch in pt.remaining_epochs_until(2):
            for inputs, _ in loader:
                trainee.step(inputs)
                session.measurements.reporter._request = 5 if epoch == 1 else None
        assert not waited


def test_that_sigterm_in_a_long_validation_is_answered_without_a_store(tmp_path: Path) -> None:
    def written() -> bool:
        return any(path.name.startswith("000000-") for path in (tmp_path / "checkpoints").iterdir())

    def run() -> float:
        trainee, loader = Trainee(), pt.AdaptiveDataLoader(Numbers(8), batch_size=4)
        for epoch in pt.remaining_epochs_until(2):
            train(trainee, loader)
            if epoch == 0 and not written():
                os.kill(os.getpid(), signal.SIGTERM)
                # The validation goes on; nothing of the library is called meanwhile.
                wait_until(written, timeout_s=120, what="the checkpoint")
        return trainee.weight

    with joined(tmp_path), pytest.raises(pt.TrainingStopped):
        run()
    with joined(tmp_path):
        assert run() == -4


@pytest.mark.parametrize("uses_no_sync", [True, False])
@pytest.mark.parametrize("first_stop", [0, 4])
def test_that_gradients_added_up_over_batches_survive_a_stop_between_them(
    tmp_path: Path, uses_no_sync: bool, first_stop: int
) -> None:
    def run(stop_after: int) -> float:
        trainee, loader = Trainee(), pt.AdaptiveDataLoader(Numbers(18), batch_size=2)
        for number, (inputs, _) in enumerate(loader):
            if number % 3 < 2 and uses_no_sync:
                with trainee.parallel.no_sync():
                    trainee.parallel(inputs).mean().backward()
            else:
                trainee.parallel(inputs).mean().backward()
            if number % 3 == 2:
                trainee.optimizer.step()
                trainee.optimizer.zero_grad()
            if number == stop_after:
                os.kill(os.getpid(), signal.SIGTERM)
        return trainee.weight

    with joined(tmp_path), pytest.raises(pt.TrainingStopped):
        run(stop_after=first_stop)
    with joined(tmp_path):
        assert run(stop_after=9) == -sum(range(1, 19)) / 2


def test_that_gradients_added_up_over_the_end_of_a_loop_survive_a_stop_there(tmp_path: Path) -> None:
    """Three batches a step, two a loop: the first step's gradients wait at the end of the first loop."""

    def run(stop_after: int | None) -> float:
        trainee, loader = Trainee(), pt.AdaptiveDataLoader(Numbers(4), batch_size=2)
        number = 0
        while pt.finished_steps() < 2:
            for inputs, _ in loader:
                number += 1
                trainee.parallel(inputs).mean().backward()
                if number % 3 == 0:
                    trainee.optimizer.step()
                    trainee.optimizer.zero_grad()
                if number == stop_after:
                    os.kill(os.getpid(), signal.SIGTERM)
        return trainee.weight

    with joined(tmp_path), pytest.raises(pt.TrainingStopped):
        run(stop_after=2)
    with joined(tmp_path):
        # The first step is in the checkpoint, which was written after it.
        assert pt.finished_steps() == 1
        assert run(stop_after=None) == -(1.5 + 3.5 + 1.5) - (3.5 + 1.5 + 3.5)


def test_that_iterators_that_outlive_the_session_end_with_it() -> None:
    with joined():
        epochs = iter(pt.remaining_epochs_until(2))
        next(epochs)
        batches = iter(pt.AdaptiveDataLoader(Numbers(12), batch_size=4))
        next(batches)
    with pytest.raises(UsageError, match="the session ended"):
        next(batches)
    # An error there could not be raised, so it would be pytest's warning.
    del epochs


def train_and_fail() -> None:
    trainee = Trainee()
    for _ in pt.remaining_epochs_until(2):
        train(trainee, pt.AdaptiveDataLoader(Numbers(8), batch_size=4))
        raise ValueError("the script's own")


def test_that_an_error_within_the_epochs_writes_nothing_and_restores_sigterms_handler(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with joined(tmp_path):
        with pytest.raises(ValueError, match="the script's own"):
            train_and_fail()
        assert signal.getsignal(signal.SIGTERM) is before
        assert list((tmp_path / "checkpoints").iterdir()) == []


def test_that_a_batch_out_of_memory_is_recorded_though_its_iterator_is_kept(tmp_path: Path) -> None:
    with joined(tmp_path) as session:
        batches = iter(pt.AdaptiveDataLoader(Numbers(12), batch_size=4))
        next(batches)
        session.memory_watch.note(torch.cuda.OutOfMemoryError("CUDA out of memory"))
    assert [bound.largest for bound in read_bounds(tmp_path)] == [2]


def test_that_lack_of_memory_after_a_break_is_not_the_loops(tmp_path: Path) -> None:
    error = torch.cuda.OutOfMemoryError("CUDA out of memory")
    with joined(tmp_path) as session:
        loader = pt.AdaptiveDataLoader(Numbers(12), batch_size=4)
        for _ in loader:
            break
        session.memory_watch.note(error)
        assert read_bounds(tmp_path) == ()
        try:
            for _ in loader:
                raise error
        except RuntimeError:
            pass
        # It was caught, and training went on.
        for _ in loader:
            pass
        session.memory_watch.note(error)
    assert read_bounds(tmp_path) == ()


def test_that_a_loop_that_begins_with_an_untried_local_batch_begins_with_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with joined(tmp_path, checkpoint_interval_s="auto") as session:
        # No checkpoint falls due however slow this machine is.
        session.boundary.monotonic = lambda: 0.0
        session.boundary.last_checkpoint_s = 0.0
        trainee = Trainee()
        loader = pt.AdaptiveDataLoader(Numbers(16), batch_size=4)
        loader.autoscale_batch_size(16, (1, 16))
        larger = BatchChoice(global_batch_size=8, atomic_batch_size=8, accumulation_steps=0)
        written = []
        for _ in range(3):
            for inputs, _ in loader:
                session.checkpointer.wait()
                written.append(len(list((tmp_path / "checkpoints").iterdir())))
                trainee.count(inputs)
            monkeypatch.setattr(session.measurements, "propose", lambda *_: larger)
    # Four steps of 4, then one checkpoint before the first of 8; none before the next ones.
    assert written == [0, 0, 0, 0, 1, 1, 1, 1]
    assert trainee.weight == -8
