"""What a script gives at another number of processes than the checkpoint's: refused, told, or the same."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, RandomSampler, Sampler, Subset

import pollux_slurm.torch as pt
from pollux_slurm.errors import ConfigError, UsageError
from pollux_slurm.torch.checkpoint.checkpoint_file import Checkpointer
from pollux_slurm.torch.checkpoint.given_values import GivenValues, follows
from pollux_slurm.torch.session.session import Session
from tests.torch.ranks import run_ranks, start
from tests.torch.single_replica import Numbers, Trainee, joined

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("before", "num_before", "now", "num_now", "expected"),
    [
        (12, 1, 6, 2, True),  # batch_size // world_size
        (64, 1, 21, 3, True),
        (21, 3, 32, 2, True),
        (600, 1, 301, 2, False),
        (601, 1, 301, 2, True),  # a part of 601, rounded up
        (12, 1, 24, 2, True),  # batch_size * world_size
        (0.1, 1, 0.2, 2, True),  # lr * world_size
        (0.1, 4, 0.2, 2, True),  # lr / world_size
        (0.1, 3, 0.2, 6, True),
        (12, 2, 6, 2, False),  # edited by hand
        (12, 1, 8, 2, False),
        (0.1, 1, 0.15, 2, False),
        (600, 1, 800, 2, False),  # a longer dataset
        (3e-4, 1, 3e-4 * 2**0.5, 2, False),
        (12, 64, 13, 60, False),  # no share by rounding between close numbers of processes
        (32, 32, 33, 31, False),
        (100, 100, 101, 99, False),
        (20, 3, 12, 5, True),  # a part of 60
        (21, 3, 12, 5, True),  # of 64, by 63
        (22, 3, 17, 4, True),  # of 66, rounded up
        (142, 7, 334, 3, False),  # no exact share
    ],
)
def test_that_a_value_follows_the_processes_only_by_just_their_ratio(
    before: float, num_before: int, now: float, num_now: int, expected: bool
) -> None:
    assert follows(now, before, num_now, num_before) is expected


def train(
    directory: Path,
    num_replicas: int,
    *,
    dataset: Dataset[Any] | None = None,
    batch_size: int = 4,
    lr: float = 0.5,
    epochs: int = 1,
    sampler: Any = None,
    accepts: bool = False,
    schedules: bool = False,
) -> tuple[Session, Trainee]:
    """Train as a process that was started as one of `num_replicas`; go on where the checkpoint is."""
    with joined(directory) as session:
        session.given = GivenValues(num_replicas=num_replicas, accepts=accepts, logs=True)
        trainee = Trainee(lr=lr)
        if schedules:
            schedule = torch.optim.lr_scheduler.StepLR(trainee.optimizer, 1, gamma=0.1)
            trainee.parallel.add_lr_scheduler(schedule)
        loader = pt.AdaptiveDataLoader(
            Numbers(12) if dataset is None else dataset, batch_size=batch_size, sampler=sampler
        )
        for _ in pt.remaining_epochs_until(epochs):
            for inputs, _ in loader:
                trainee.step(inputs)
    return session, trainee


class ByRank(Sampler[int]):
    """A part of the indices, under a name that does not tell."""

    def __init__(self, length: int, parts: int) -> None:
        self.length, self.parts = length, parts

    def __iter__(self) -> Any:
        return iter(range(0, self.length, self.parts))

    def __len__(self) -> int:
        return -(-self.length // self.parts)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 2}, r"batch_size of 'loader-0' was 4 with 1 process and is 2 with 2 processes.*args"),
        ({"batch_size": 8}, r"was 4 with 1 process and is 8 with 2 processes"),
        (
            {"lr": 1.0},
            r"learning rate of group 0 of SGD was 0.5 with 1 process and is 1 .*lr=args.lr.*restores its",
        ),
        (
            {"dataset": Subset(Numbers(12), range(0, 12, 2))},
            r"the dataset's length of 'loader-0' was 12 .* and is 6 .* give each process the whole dataset",
        ),
        ({"sampler": ByRank(12, 2)}, r"the sampler's length of 'loader-0' was 12 .* and is 6 "),
    ],
)
def test_that_what_follows_the_number_of_processes_is_refused_after_a_move(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, options: dict[str, Any], message: str
) -> None:
    sampler = {"sampler": RandomSampler(Numbers(12))} if "sampler" in options else {}
    train(tmp_path, 1, **sampler)
    with pytest.raises(UsageError, match=message):
        train(tmp_path, 2, epochs=2, **options)
    # The same at the same number of processes is the user's own doing, and so it is where they say so.
    for number, accepts in ((1, False), (2, True)):
        copy = tmp_path / f"copy-{number}"
        train(copy, 1, **sampler)
        caplog.clear()
        train(copy, number, epochs=2, accepts=accepts, **options)
        assert [record for record in caplog.records if "at the checkpoint" in record.message]


def lines_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the log but for where each start goes on."""
    return [one.message for one in caplog.records if "goes on from the checkpoint" not in one.message]


@pytest.mark.parametrize("number", [1, 2])
def test_that_a_rate_that_was_edited_is_one_line_and_the_checkpoints_holds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    train(tmp_path, 1)
    _, trainee = train(tmp_path, number, lr=0.4, epochs=2)
    lines = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert lines == [
        "the learning rate of group 0 of SGD is 0.4, and was 0.5 at the checkpoint: the checkpoint's rate "
        "holds; to train on with another one, set optimizer.param_groups[i]['lr'] after "
        "AdaptiveDataParallel(...)"
    ]
    assert trainee.optimizer.param_groups[0]["lr"] == 0.5
    caplog.clear()
    train(tmp_path, number, lr=0.4, epochs=3)
    assert not lines_of(caplog), "the next start gives what the last one gave"


def test_that_a_schedule_is_no_change(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for start_number in (1, 2, 3):
        train(tmp_path, start_number, epochs=start_number, schedules=True)
    assert not lines_of(caplog)


@pytest.mark.parametrize("length", [15, 9])
def test_that_a_dataset_of_another_length_goes_on_with_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, length: int
) -> None:
    train(tmp_path, 1)
    train(tmp_path, 2, dataset=Numbers(length), epochs=2)
    assert lines_of(caplog) == [
        f"the dataset's length of 'loader-0' is {length}, and was 12 at the checkpoint: what the script "
        "gives now holds"
    ]


def test_that_an_epoch_goes_on_at_its_example_in_a_dataset_of_another_length(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[int] = []

    def go_on(length: int) -> None:
        loader = pt.AdaptiveDataLoader(Numbers(length), batch_size=4)
        for _ in pt.remaining_epochs_until(1):
            for _, indices in loader:
                seen.extend(indices.tolist())
                if length == 12:
                    os.kill(os.getpid(), signal.SIGTERM)

    with joined(tmp_path), pytest.raises(pt.TrainingStopped):
        go_on(12)
    with joined(tmp_path):
        go_on(7)
    assert seen == [0, 1, 2, 3, 4, 5, 6]
    assert any("some examples twice, or not at all" in record.message for record in caplog.records)


def test_that_a_checkpoint_without_given_values_is_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the release before wrote it."""
    content = Checkpointer._content

    def without(*args: Any, **options: Any) -> dict[str, Any]:
        written = content(*args, **options)
        del written["states"]["model-0"]["given"]
        for key in ("batch_size", "num_sampled", "num_replicas"):
            del written["states"]["loader-0"][key]
        return written

    with monkeypatch.context() as patch:
        patch.setattr(Checkpointer, "_content", without)
        _, trainee = train(tmp_path, 1)
    _, restored = train(tmp_path, 2, batch_size=2, lr=1.0)
    assert restored.weight == trainee.weight
    assert restored.optimizer.param_groups[0]["lr"] == 0.5


def divide_batch(directory: str, batch_size: int, epochs: int) -> int:
    pt.init_process_group(checkpoint_dir=directory)
    trainee = Trainee()
    loader = pt.AdaptiveDataLoader(Numbers(48), batch_size=batch_size // pt.env.num_replicas())
    for _ in pt.remaining_epochs_until(epochs):
        for inputs, _ in loader:
            trainee.step(inputs)
    return loader.batch_size


def test_that_a_script_that_divides_its_batch_ends_at_its_first_move(tmp_path: Path) -> None:
    directory = str(tmp_path / "job")
    assert run_ranks(tmp_path, 1, divide_batch, directory, 12, 1) == [12]
    run = start(tmp_path, 2, divide_batch, directory, 12, 2, restart_count=1)
    assert 0 not in run.wait()
    assert "batch_size of 'loader-0' was 12 with 1 process and is 6 with 2 processes" in run.output()
    accepted = {"POLLUX_ACCEPT_CHANGES": "1"}
    assert run_ranks(tmp_path, 2, divide_batch, directory, 12, 2, restart_count=2, env=accepted) == [6, 6]


def test_that_the_switch_is_0_or_1() -> None:
    with pytest.raises(ConfigError, match="POLLUX_ACCEPT_CHANGES='yes' is neither 0 nor 1"):
        pt.init_process_group(environ={"POLLUX_ACCEPT_CHANGES": "yes"})
