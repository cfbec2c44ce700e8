"""What newcomers would run alone is found, in an epoch and between the calls for epochs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import pollux_slurm.torch as pt
from pollux_slurm.torch.regroup.epoch_replay import EpochReplay
from tests.torch.single_replica import Numbers, Trainee, joined

pytestmark = pytest.mark.torch


@pytest.fixture
def replay(alone: None) -> EpochReplay:
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
    assert ": all_reduce (tests/torch/regroup/test_epoch_replay.py, line " in replay.reason
    assert replay.lasting_reason is None
    replay.begin_epoch()
    assert replay.reason is None


def test_that_communication_within_a_loop_does_not_count(replay: EpochReplay) -> None:
    for _ in range(2):
        replay.begin_loop()
        communicate()
        replay.end_loop(has_stepped=True)
    assert replay.reason is None


@pytest.mark.usefixtures("alone")
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


def test_that_what_a_boundary_communicates_is_no_part_of_a_step(replay: EpochReplay) -> None:
    """Such as to sum the states of replicas for a checkpoint."""
    replay.begin_loop()
    for step in range(40):
        communicate()
        replay.end_step(kind=1, is_typical=True)
        if step == 20:
            communicate()
        replay.begin_step()
    assert not replay.varies


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


@pytest.mark.parametrize(
    ("validates", "name"),
    [
        ("in an adaptive loop", None),
        ("over a DataLoader", None),
        ("by a count", "the wrapped model, which sends its buffers"),
        ("by a count, with a sum", "all_reduce"),
    ],
)
def test_that_batch_statistics_do_not_count_but_a_validation_by_a_count_does(
    validates: str, name: str | None
) -> None:
    """DDP sends buffers before the first forward pass of a validation, and not before the next training."""
    kind: Any = torch.nn.Linear(1, 1) if name == "all_reduce" else torch.nn.BatchNorm1d(1)
    model = torch.nn.Sequential(torch.nn.Linear(1, 1), kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with joined() as session:
        replay = session.regrouping.replay
        # As in a process that a launcher may let regroup.
        EpochReplay.__init__(replay, watches=True)
        parallel = pt.AdaptiveDataParallel(model, optimizer)
        loader = pt.AdaptiveDataLoader(Numbers(30), batch_size=3)
        evaluated = (torch.utils.data.DataLoader if "Data" in validates else pt.AdaptiveDataLoader)(
            Numbers(12), batch_size=3
        )

        def validate() -> None:
            parallel.eval()
            with torch.no_grad():
                for inputs, _ in evaluated:
                    parallel(inputs)
            parallel.train()

        for _ in pt.remaining_epochs_until(2):
            for number, (inputs, _) in enumerate(loader):
                optimizer.zero_grad()
                parallel(inputs).mean().backward()
                optimizer.step()
                if "count" in validates and number % 5 == 4:
                    if name == "all_reduce":
                        communicate()
                    else:
                        parallel.eval()
                        with torch.no_grad():
                            parallel(inputs)
                        parallel.train()
            if "count" not in validates:
                validate()
        assert replay.varies is (name is not None)
        if name is not None:
            assert replay.varying_call is not None
            call = str(replay.varying_call)
            assert call.startswith(f"{name} (tests/torch/regroup/test_epoch_replay.py, line ")
            number = int(call.rpartition(" ")[2].rstrip(")"))
            line = Path(__file__).read_text().splitlines()[number - 1].strip()
            assert line == {"all_reduce": "dist.all_reduce(torch.ones(1))"}.get(name, "parallel(inputs)")


class Summed(pt.State):
    """A state that the replicas sum up for each checkpoint."""

    num_synced = 0

    def sync(self) -> None:
        self.num_synced += 1
        communicate()

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None:
        pass


def test_that_checkpoints_of_states_that_are_summed_keep_no_replica_from_joining(tmp_path: Path) -> None:
    with joined(tmp_path, checkpoint_interval_s=1e-6) as session:
        EpochReplay.__init__(session.regrouping.replay, watches=True)
        summed, trainee = Summed("summed"), Trainee()
        loader = pt.AdaptiveDataLoader(Numbers(40), batch_size=2)
        num_between_steps = 0
        for epoch in pt.remaining_epochs_until(500):
            num_synced = None
            for inputs, _ in loader:
                num_between_steps += num_synced not in (None, summed.num_synced)
                num_synced = summed.num_synced
                trainee.step(inputs)
            replay = session.regrouping.replay
            assert (replay.varies, replay.reason, replay.lasting_reason) == (False, None, None)
            if epoch >= 2 and num_between_steps:
                break
        assert num_between_steps, "also between steps, not only at the ends of epochs"
