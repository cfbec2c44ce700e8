"""Loops that a framework owns: steps that end before the next batch is asked for, and pauses between two."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

import pollux_slurm.torch as pt
from pollux_slurm.agent.checkpoints.out_of_memory import read_bounds
from tests.torch.single_replica import Numbers, Trainee, joined

pytestmark = pytest.mark.torch


class Stream(IterableDataset[Any]):
    """The numbers in order; `read` counts how many were asked for."""

    def __init__(self, length: int) -> None:
        self.length, self.read = length, 0

    def __iter__(self) -> Iterator[Any]:
        for index in range(self.length):
            self.read += 1
            yield torch.tensor([float(index + 1)]), index


def go_over(loader: pt.AdaptiveDataLoader) -> list[tuple[list[int] | None, int | None]]:
    """Return the indices of each batch, None for the end of a step; and how many steps were left."""
    return [
        (None if batch is None else batch[1].tolist(), loader.num_steps_left)
        for batch in loader.iterate_steps()
    ]


def test_that_each_step_ends_with_none_and_says_how_many_follow() -> None:
    with joined():
        loader = pt.AdaptiveDataLoader(Numbers(7), batch_size=3)
        assert go_over(loader) == [
            *(([0, 1, 2], 2), (None, 2)),
            *(([3, 4, 5], 1), (None, 1)),
            *(([6], 0), (None, 0)),
        ]
        assert loader.num_steps_left is None
        lists = pt.AdaptiveDataLoader(Numbers(7), batch_sampler=[[0, 1], [2], [3, 4, 5]], batch_size=2)
        assert [left for batch, left in go_over(lists) if batch] == [2, 1, 0]


@pytest.mark.parametrize(("length", "drop_last"), [(6, False), (7, False), (7, True)])
def test_that_the_last_step_of_a_stream_is_known_before_it_ends(length: int, drop_last: bool) -> None:
    with joined():
        loader = pt.AdaptiveDataLoader(Stream(length), batch_size=3, drop_last=drop_last)
        left = [left for batch, left in go_over(loader) if batch]
        assert left == [None] * (len(left) - 1) + [0]
        assert len(left) == (3 if length == 7 and not drop_last else 2)


def test_that_a_plain_loop_reads_no_example_before_its_turn() -> None:
    with joined():
        stream = Stream(9)
        for number, _ in enumerate(pt.AdaptiveDataLoader(stream, batch_size=3)):
            assert stream.read == 3 * (number + 1)


@pytest.mark.parametrize("has_points", [False, True])
def test_that_sigterm_in_a_pause_is_answered_before_another_step(tmp_path: Path, has_points: bool) -> None:
    with joined(tmp_path) as session:
        trainee = Trainee()
        loader = pt.AdaptiveDataLoader(Numbers(6), batch_size=2)
        session.epochs.begin()
        batches = loader.iterate_steps()
        trainee.step(next(batches, None)[0])
        assert next(batches, "end") is None
        session.loops.pause()
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(pt.TrainingStopped):
            # At a point of the code that the framework runs in the pause, else after it.
            pt.checkpoint_point() if has_points else next(batches, None)
        weight = trainee.weight
    with joined(tmp_path) as session:
        trainee = Trainee()
        loader = pt.AdaptiveDataLoader(Numbers(6), batch_size=2)
        session.epochs.begin()
        assert trainee.weight == weight != 0.0
        assert [batch for batch, _ in go_over(loader)] == [[2, 3], None, [4, 5], None]


def test_that_lack_of_memory_in_a_pause_is_not_that_of_the_batch_before(tmp_path: Path) -> None:
    for is_paused in (True, False):
        with joined(tmp_path) as session:
            loader = pt.AdaptiveDataLoader(Numbers(6), batch_size=2)
            session.epochs.begin()
            batches = loader.iterate_steps()
            Trainee().step(next(batches, None)[0])
            if is_paused:
                next(batches, None)
                session.loops.pause()
            session.memory_watch.note(
                torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
            )
        assert [bound.largest for bound in read_bounds(tmp_path)] == ([] if is_paused else [1])
