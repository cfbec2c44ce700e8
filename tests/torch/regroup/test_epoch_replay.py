"""What newcomers would run alone is found, in an epoch and between the calls for epochs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from pollux_slurm.torch.regroup.epoch_replay import EpochReplay

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def replay() -> EpochReplay:
    replay = EpochReplay(watches=True)
    replay.begin_epoch()
    return replay


def communicate() -> None:
    dist.all_reduce(torch.ones(1))


def test_that_communication_before_a_loop_lets_newcomers_wait_for_the_next_epoch(replay: EpochReplay) -> None:
    communicate()
    replay.begin_loop()
    communicate()
    replay.end_loop(has_stepped=True)
    assert replay.reason is not None
    assert replay.lasting_reason is None
    replay.begin_epoch()
    assert replay.reason is None


def test_that_communication_within_a_loop_does_not_count(replay: EpochReplay) -> None:
    for _ in range(2):
        replay.begin_loop()
        communicate()
        replay.end_loop(has_stepped=True)
    assert replay.reason is None


def test_that_a_model_wrapped_before_the_training_does_not_count() -> None:
    replay = EpochReplay(watches=True)
    communicate()
    replay.add_model()
    replay.begin_loop()
    assert replay.reason is None


def test_that_a_model_wrapped_within_an_epoch_lets_newcomers_wait_for_the_next(replay: EpochReplay) -> None:
    replay.add_model()
    assert replay.reason is not None
    replay.begin_epoch()
    assert replay.reason is None


def test_that_communication_between_two_calls_for_epochs_lasts(replay: EpochReplay) -> None:
    replay.end_epochs()
    replay.begin_epoch()
    assert replay.lasting_reason is None
    replay.end_epochs()
    communicate()
    replay.begin_epoch()
    assert replay.lasting_reason is not None


def test_that_a_model_wrapped_between_two_calls_for_epochs_lasts(replay: EpochReplay) -> None:
    replay.end_epochs()
    replay.add_model()
    replay.begin_epoch()
    assert replay.lasting_reason is not None


def test_that_communication_in_some_steps_only_is_found(replay: EpochReplay) -> None:
    for period, varies in ((1, False), (20, True)):
        replay.begin_run()
        replay.begin_loop()
        for step in range(40):
            if step % period == 0:
                communicate()
            replay.end_step(kind=1, is_typical=True)
        assert replay.varies is varies


def test_that_the_first_steps_and_a_short_batch_may_communicate_otherwise(replay: EpochReplay) -> None:
    replay.begin_loop()
    for step in range(20):
        if step not in (1, 19):
            communicate()
        replay.end_step(kind=1, is_typical=step != 19)
    assert not replay.varies


def test_that_steps_of_another_kind_may_communicate_otherwise(replay: EpochReplay) -> None:
    replay.begin_loop()
    for step in range(20):
        num_micro_batches = 1 + step % 3
        for _ in range(num_micro_batches):
            communicate()
        replay.end_step(kind=num_micro_batches, is_typical=True)
    assert not replay.varies
