"""The loader's positions: exact over epochs, batch sizes, breaks and restarts."""

from __future__ import annotations

import gc
import os
import signal
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler

import pollux_slurm.torch as pt
from pollux_slurm.errors import CheckpointError, UsageError
from pollux_slurm.model import BatchChoice
from tests.torch.data.test_iterable_share import Stream
from tests.torch.single_replica import Numbers, Trainee, joined, propose

pytestmark = pytest.mark.torch


def indices(loader: pt.AdaptiveDataLoader) -> list[int]:
    return [index for _, batch in loader for index in batch.tolist()]


def take(loader: pt.AdaptiveDataLoader, *, stop_after: int, seen: list[int]) -> None:
    """Loop over the loader; send this process SIGTERM in the step in which `seen` gets so long."""
    for _, batch in loader:
        seen += batch.tolist()
        if len(seen) == stop_after:
            os.kill(os.getpid(), signal.SIGTERM)


def epochs_of(num_epochs: int, *, loader: pt.AdaptiveDataLoader, stop_after: int, seen: list[int]) -> None:
    for _ in pt.remaining_epochs_until(num_epochs):
        take(loader, stop_after=stop_after, seen=seen)


def test_that_each_epoch_has_its_own_order_that_only_seed_and_epoch_decide() -> None:
    with joined():
        loader = pt.AdaptiveDataLoader(Numbers(20), batch_size=6, shuffle=True)
        first = [indices(loader) for _ in pt.remaining_epochs_until(3)]
    with joined():
        loader = pt.AdaptiveDataLoader(Numbers(20), batch_size=5, shuffle=True)
        second = [indices(loader) for _ in pt.remaining_epochs_until(3)]
        other = pt.AdaptiveDataLoader(Numbers(20), batch_size=5, shuffle=True, seed=1)
        third = [indices(other) for _ in pt.remaining_epochs_until(4)]
    assert all(sorted(epoch) == list(range(20)) for epoch in first)
    assert first == second
    assert len({tuple(epoch) for epoch in first}) == 3
    assert third[0] not in first


def test_that_a_stopped_epoch_goes_on_at_the_very_next_example(tmp_path: Path) -> None:
    seen: list[int] = []
    with joined(tmp_path):
        loader = pt.AdaptiveDataLoader(Numbers(20), batch_size=3, shuffle=True)
        with pytest.raises(pt.TrainingStopped) as stopped:
            epochs_of(2, loader=loader, stop_after=26, seen=seen)
        assert stopped.value.code == 143
    assert len(seen) == 26
    with joined(tmp_path):
        # Another batch size at the same position, which the user may choose.
        loader = pt.AdaptiveDataLoader(Numbers(20), batch_size=7, shuffle=True)
        assert pt.finished_epochs() == 1
        for epoch in pt.remaining_epochs_until(2):
            assert epoch == pt.current_epoch() == 1
            seen += indices(loader)
    assert sorted(seen[:20]) == sorted(seen[20:]) == list(range(20))


def test_that_a_stop_between_epochs_does_not_hide_the_next_one(tmp_path: Path) -> None:
    def train(*, stop_in_epoch: int, in_loop: bool, seen: list[list[int]]) -> None:
        loader = pt.AdaptiveDataLoader(Numbers(6), batch_size=2)
        next(iter(loader))
        for epoch in pt.remaining_epochs_until(3):
            seen.append([])
            for _, batch in loader:
                seen[-1] += batch.tolist()
                if in_loop and epoch == stop_in_epoch:
                    os.kill(os.getpid(), signal.SIGTERM)
            if not in_loop and epoch == stop_in_epoch:
                os.kill(os.getpid(), signal.SIGTERM)

    first, second, third = [], [], []
    with joined(tmp_path), pytest.raises(pt.TrainingStopped):
        train(stop_in_epoch=0, in_loop=False, seen=first)
    with joined(tmp_path), pytest.raises(pt.TrainingStopped):
        train(stop_in_epoch=1, in_loop=True, seen=second)
    with joined(tmp_path):
        train(stop_in_epoch=-1, in_loop=False, seen=third)
    assert [first, second, third] == [[[0, 1, 2, 3, 4, 5]], [[0, 1]], [[2, 3, 4, 5], [0, 1, 2, 3, 4, 5]]]


def test_that_a_loader_made_once_when_first_needed_is_found_again(tmp_path: Path) -> None:
    def train(stop_in_epoch: int, seen: list[list[int]]) -> None:
        loader = None
        for epoch in pt.remaining_epochs_until(3):
            if loader is None:
                loader = pt.AdaptiveDataLoader(Numbers(6), batch_size=2)
            seen.append([])
            for _, batch in loader:
                seen[-1] += batch.tolist()
                if epoch == stop_in_epoch and len(seen[-1]) == 4:
                    os.kill(os.getpid(), signal.SIGTERM)

    first, second = [], []
    with joined(tmp_path), pytest.raises(pt.TrainingStopped):
        train(1, first)
    with joined(tmp_path):
        train(-1, second)
    assert [first, second] == [[[0, 1, 2, 3, 4, 5], [0, 1, 2, 3]], [[4, 5], [0, 1, 2, 3, 4, 5]]]


def test_that_a_batch_size_changed_in_mid_epoch_loses_nothing() -> None:
    with joined() as session:
        trainee = Trainee(lr=0.0)
        loader = pt.AdaptiveDataLoader(Numbers(50), batch_size=4, shuffle=True)
        loader.autoscale_batch_size(20, (1, 5), gradient_accumulation=True)
        sizes, seen = [], []
        for inputs, batch in loader:
            trainee.step(inputs)
            sizes.append(len(batch))
            seen += batch.tolist()
            if len(sizes) == 2:
                propose(
                    session,
                    loader,
                    BatchChoice(global_batch_size=12, atomic_batch_size=4, accumulation_steps=2),
                )
    assert sizes == [4, 4] + [4, 4, 4] * 3 + [3, 3]
    assert sorted(seen) == list(range(50))


def test_that_worker_processes_change_nothing() -> None:
    with joined():
        plain = pt.AdaptiveDataLoader(Numbers(23), batch_size=5, shuffle=True)
        workers = pt.AdaptiveDataLoader(
            Numbers(23), batch_size=5, shuffle=True, num_workers=1, persistent_workers=True, prefetch_factor=4
        )
        for _ in pt.remaining_epochs_until(2):
            assert indices(plain) == indices(workers)


class Trap:
    """Garbage of the training process that must not be collected in another."""

    def __init__(self) -> None:
        self.owner, self.itself = os.getpid(), self

    def __del__(self) -> None:
        if os.getpid() != self.owner:
            os._exit(66)


class Littering(Numbers):
    """Makes garbage of its own, and collects it."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        assert gc.isenabled()
        gc.collect()
        return super().__getitem__(index)


def test_that_a_forked_worker_does_not_collect_what_it_inherited() -> None:
    with joined():
        loader = pt.AdaptiveDataLoader(
            Littering(4), batch_size=2, num_workers=1, multiprocessing_context="fork"
        )
        gc.collect()
        Trap()
        assert indices(loader) == [0, 1, 2, 3]
        assert gc.isenabled()


def glance_and_break(stop_after: int) -> list[list[int]]:
    """Take one batch, outside of an epoch and within; leave a loop by `break`; evaluate twice."""
    loader = pt.AdaptiveDataLoader(Numbers(12), batch_size=4)
    other = pt.AdaptiveDataLoader(Numbers(6), batch_size=2)
    trained: list[int] = []
    evaluated: list[int] = []
    assert len(next(iter(loader))[1]) == 4
    for _ in pt.remaining_epochs_until(1):
        assert len(next(iter(loader))[1]) == 4
        for _, batch in loader:
            trained += batch.tolist()
            if len(trained) == 8:
                break
        take(other, stop_after=stop_after, seen=evaluated)
        evaluated += indices(other)
    return [trained, evaluated]


def test_that_a_loop_left_with_break_is_done_and_a_glance_is_not(tmp_path: Path) -> None:
    with joined(tmp_path), pytest.raises(pt.TrainingStopped):
        glance_and_break(4)
    with joined(tmp_path):
        assert glance_and_break(-1) == [[], [4, 5, 0, 1, 2, 3, 4, 5]]


def test_that_a_glance_does_not_move_a_resumed_loop(tmp_path: Path) -> None:
    def glance_and_train(stop_after: int, seen: list[int]) -> None:
        loader = pt.AdaptiveDataLoader(Numbers(12), batch_size=4)
        next(iter(loader))
        for _ in pt.remaining_epochs_until(1):
            next(iter(loader))
            take(loader, stop_after=stop_after, seen=seen)

    seen: list[int] = []
    with joined(tmp_path), pytest.raises(pt.TrainingStopped):
        glance_and_train(4, seen)
    with joined(tmp_path):
        glance_and_train(-1, seen)
    assert seen == list(range(12))


def test_that_a_finished_job_has_nothing_left_to_do(tmp_path: Path) -> None:
    for expected in ([0, 1], []):
        with joined(tmp_path):
            loader = pt.AdaptiveDataLoader(Numbers(4), batch_size=2)
            epochs = []
            for epoch in pt.remaining_epochs_until(2):
                epochs.append(epoch)
                indices(loader)
            assert epochs == expected


def test_that_a_loop_without_declared_epochs_is_resumed_too(tmp_path: Path) -> None:
    with joined(tmp_path):
        loader = pt.AdaptiveDataLoader(Numbers(4), batch_size=2)
        assert indices(loader) == [0, 1, 2, 3]
        with pytest.raises(pt.TrainingStopped):
            take(loader, stop_after=2, seen=[])
    with joined(tmp_path):
        loader = pt.AdaptiveDataLoader(Numbers(4), batch_size=2)
        assert [indices(loader) for _ in range(3)] == [[], [2, 3], [0, 1, 2, 3]]


def test_that_an_evaluation_inside_the_training_loop_disturbs_nothing() -> None:
    with joined():
        training = pt.AdaptiveDataLoader(Numbers(6), batch_size=2)
        evaluation = pt.AdaptiveDataLoader(Numbers(3), batch_size=2)
        seen = []
        for _ in pt.remaining_epochs_until(1):
            for _, batch in training:
                seen += batch.tolist()
                assert indices(evaluation) == [0, 1, 2]
    assert seen == [0, 1, 2, 3, 4, 5]


def test_that_an_evaluation_inside_the_training_loop_is_whole_after_a_restart(tmp_path: Path) -> None:
    def run(stop_at: int | None) -> list[list[int]]:
        training = pt.AdaptiveDataLoader(Numbers(6), batch_size=2)
        evaluation = pt.AdaptiveDataLoader(Numbers(3), batch_size=2)
        sums = pt.Accumulator()
        recorded = []
        for _ in pt.remaining_epochs_until(1):
            for number, (_, batch) in enumerate(training):
                sums["n"] += len(batch)
                recorded.append([*batch.tolist(), *indices(evaluation)])
                with sums.synchronized():
                    recorded.append([sums["n"]])
                if number == stop_at:
                    os.kill(os.getpid(), signal.SIGTERM)
        assert not sums.state_dict()["seen"], "one record a step would fill the checkpoint"
        return recorded

    with joined(tmp_path), pytest.raises(pt.TrainingStopped):
        run(stop_at=1)
    with joined(tmp_path):
        assert run(stop_at=None) == [[4, 5, 0, 1, 2], [6]]


def test_that_a_sampler_keeps_the_epoch_that_the_script_has_set() -> None:
    class Told(torch.utils.data.Sampler[int]):
        epoch = 0

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Iterator[int]:
            return iter([(self.epoch + index) % 3 for index in range(3)])

        def __len__(self) -> int:
            return 3

    with joined():
        sampler = Told()
        loader = pt.AdaptiveDataLoader(Numbers(3), batch_size=3, sampler=sampler)
        seen = []
        for epoch in range(3):
            sampler.set_epoch(epoch)
            seen.append(indices(loader))
        assert seen == [[0, 1, 2], [1, 2, 0], [2, 0, 1]]
        for _ in pt.remaining_epochs_until(2):
            seen.append(indices(loader))
    assert seen[3:] == [[0, 1, 2], [1, 2, 0]], "its own loop of epochs tells it"


def test_that_loaders_advanced_together_are_refused() -> None:
    with joined():
        one, other = (pt.AdaptiveDataLoader(Numbers(6), batch_size=2) for _ in range(2))
        with pytest.raises(UsageError, match="advance together"):
            for _ in zip(one, other, strict=True):
                pass
        with pytest.raises(UsageError, match="two cannot run at once"):
            for _ in zip(one, one, strict=True):
                pass


def test_that_its_length_is_the_number_of_batches_it_yields() -> None:
    with joined() as session:
        for drop_last in (False, True):
            loader = pt.AdaptiveDataLoader(Numbers(23), batch_size=9, drop_last=drop_last)
            loader.autoscale_batch_size(9, (1, 2), gradient_accumulation=True)
            # What schedules count, and then what a loop yields: five micro-batches, three in the short one.
            assert len(loader) == (3 if not drop_last else 2)
            for _ in pt.remaining_epochs_until(session.progress_state.finished_epochs + 1):
                assert len(loader) == len(list(loader)) == (13 if not drop_last else 10)
            for number, _ in enumerate(loader, 1):
                if number == len(loader):
                    break
            assert number == (13 if not drop_last else 10)


def test_that_a_stream_is_no_continuation_of_a_map_style_dataset(tmp_path: Path) -> None:
    with joined(tmp_path):
        loader = pt.AdaptiveDataLoader(Numbers(4), batch_size=2)
        for _ in pt.remaining_epochs_until(1):
            indices(loader)
    with joined(tmp_path), pytest.raises(CheckpointError, match="an iterable dataset has become"):
        pt.AdaptiveDataLoader(Stream(), batch_size=2)


def test_that_a_batch_sampler_makes_the_global_batches(tmp_path: Path) -> None:
    batches = [[5, 1], [0], [2, 3, 4], []]

    class Own:
        batch_size = 2

        def __iter__(self) -> Iterator[list[int]]:
            # Only the first time: after a restart the checkpoint has it.
            return iter([batches.pop(0) for _ in range(4)])

        def __len__(self) -> int:
            return 4

    expected, seen = [list(batch) for batch in batches if batch], []
    with joined(tmp_path):
        loader = pt.AdaptiveDataLoader(Numbers(6), batch_sampler=Own())
        assert (loader.current_batch_size, len(loader)) == (2, 4)
        first: list[int] = []
        with pytest.raises(pt.TrainingStopped):
            take(loader, stop_after=2, seen=first)
        seen.append(first)
    with joined(tmp_path):
        loader = pt.AdaptiveDataLoader(Numbers(6), batch_sampler=Own())
        loader.autoscale_batch_size(2, (1, 2), gradient_accumulation=True)
        seen += [batch.tolist() for _, batch in loader]
    # The last batch of three takes two micro-batches of at most two.
    assert [*seen[:2], seen[2] + seen[3]] == expected


def test_that_the_seed_of_a_generator_among_the_options_decides_the_order() -> None:
    def first_epoch(generator_seed: int | None, seed: int | None) -> list[int]:
        generator = None
        if generator_seed is not None:
            generator = torch.Generator()
            generator.manual_seed(generator_seed)
        with joined():
            loader = pt.AdaptiveDataLoader(Numbers(20), shuffle=True, seed=seed, generator=generator)
            return [index for _ in pt.remaining_epochs_until(1) for index in indices(loader)]

    assert first_epoch(5, None) == first_epoch(None, 5)
    assert first_epoch(5, 6) == first_epoch(None, 6) != first_epoch(None, 5)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: pt.AdaptiveDataLoader(Numbers(4), batch_size=0), "batch_size"),
        (lambda: pt.AdaptiveDataLoader(Numbers(4), batch_size=True), "batch_size"),
        (lambda: pt.AdaptiveDataLoader(DataLoader(Numbers(4))), "give it the dataset"),
        (lambda: pt.AdaptiveDataLoader(Numbers(4), sampler=range(4), shuffle=True), "sampler"),
        (lambda: pt.AdaptiveDataLoader(Numbers(4), batch_sampler=[[0]]), "no batch_size"),
        (lambda: pt.AdaptiveDataLoader(Numbers(4), 2, batch_sampler=[[0]], drop_last=True), "drop_last"),
        (lambda: pt.AdaptiveDataLoader(Numbers(4), 2, batch_sampler=[[0]]).autoscale_batch_size(4), "its 2"),
        (lambda: list(pt.AdaptiveDataLoader(Numbers(4), sampler=["a"])), "whole numbers"),
        (lambda: pt.AdaptiveDataLoader(Numbers(4), sampler=DistributedSampler(Numbers(4), 2, 0)), "leave"),
        (lambda: pt.AdaptiveDataLoader(Numbers(4), num_workers=1, in_order=False), "in_order"),
        (lambda: pt.AdaptiveDataLoader(Stream(), shuffle=True), "own order"),
        (lambda: pt.AdaptiveDataLoader(Numbers(4), 8).autoscale_batch_size(4), "below batch_size=8"),
        (lambda: pt.AdaptiveDataLoader(Numbers(4), 8).autoscale_batch_size(16, (9, 3)), "no size"),
        (lambda: pt.AdaptiveDataLoader(Numbers(4), 8).autoscale_batch_size(16, (0, 3)), "not 0"),
        (lambda: pt.AdaptiveDataLoader(Numbers(4), 8).autoscale_batch_size(16, (17, 20)), "no size"),
    ],
)
def test_that_senseless_arguments_are_refused(make: Any, named: str) -> None:
    with joined(), pytest.raises(UsageError, match=named):
        make()


def test_that_an_empty_dataset_is_an_empty_loop() -> None:
    with joined():
        assert list(pt.AdaptiveDataLoader(Numbers(0), batch_size=2)) == []


def test_that_collating_and_other_options_reach_the_data_loader() -> None:
    with joined():
        loader = pt.AdaptiveDataLoader(Numbers(3), batch_size=2, collate_fn=lambda batch: len(batch))
        assert list(loader) == [2, 1]
        assert torch.is_tensor(next(iter(pt.AdaptiveDataLoader(Numbers(3), batch_size=2)))[0])


def test_that_a_loader_goes_with_its_last_name_after_a_loop() -> None:
    """Whose position is then in no checkpoint: an epoch may make a loader of its own."""
    with joined():
        loader = pt.AdaptiveDataLoader(Numbers(4), batch_size=2)
        gc.disable()
        try:
            for _ in loader:
                pass
            kept = weakref.ref(loader)
            del loader
            assert kept() is None
        finally:
            gc.enable()
