"""Several real replicas: padding, agreed changes of the batch, sums, noise, periodic checkpoints."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

import pollux_slurm.torch as pt
from pollux_slurm.model import BatchChoice
from pollux_slurm.torch.session.current_session import current_session
from tests.torch import scripts
from tests.torch.ranks import run_ranks, start
from tests.torch.single_replica import Numbers, Slope, Trainee, propose
from tests.torch.training.test_resume import assert_same_training
from tests.waiting import wait_until

pytestmark = pytest.mark.torch


def test_that_replicas_without_an_example_change_nothing(tmp_path: Path) -> None:
    # 70 = 23·3 + 1 examples in batches of 3 on 4 replicas: one is idle always, three in the last step.
    reference = run_ranks(tmp_path, 1, scripts.train, None, 2, 3, None, "adam", None, 1.0)[0]
    for result in run_ranks(tmp_path, 4, scripts.train, None, 2, 3, None, "adam", None, 1.0):
        assert_same_training(result, reference)


def train_with_padding() -> list[float]:
    """Train on one example with two replicas: the gradient of the one with padding is not a number."""
    pt.init_process_group()
    trainee = Trainee()
    loader = pt.AdaptiveDataLoader(Numbers(1), batch_size=1)
    idle = 0
    for inputs, _ in loader:
        idle += loader.is_padding
        (trainee.parallel(inputs).mean() * (float("nan") if loader.is_padding else 1.0)).backward()
        trainee.optimizer.step()
    return [trainee.weight, idle]


def test_that_padding_does_not_reach_the_model(tmp_path: Path) -> None:
    assert run_ranks(tmp_path, 2, train_with_padding) == [[-1.0, 0], [-1.0, 1]]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([Numbers(11)[index] for index in range(11)])


def loop_with_batch_norm() -> list[list[int]]:
    """Go over 11 examples in batches of 8: three are left for two replicas.

    Train a BatchNorm on them, on the same as a stream, and in evaluation mode.
    """
    pt.init_process_group()
    model = torch.nn.Sequential(torch.nn.Linear(1, 2), torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 1))
    parallel = pt.AdaptiveDataParallel(model, optimizer := torch.optim.SGD(model.parameters(), lr=0.1))
    seen: list[list[int]] = []
    for dataset, trains in ((Numbers(11), True), (Stream(), True), (Numbers(11), False), (Stream(), False)):
        seen.append([])
        parallel.train(trains)
        loader = pt.AdaptiveDataLoader(dataset, batch_size=8)
        for inputs, indices in loader:
            if trains:
                optimizer.zero_grad()
                parallel(inputs).mean().backward()
                optimizer.step()
            seen[-1] += [] if loader.is_padding else indices.tolist()
    return seen


def test_that_batch_norm_meets_no_single_example_that_its_script_does_not(tmp_path: Path) -> None:
    """And that examples are shared evenly where nothing needs pairs."""
    first, second = run_ranks(tmp_path, 2, loop_with_batch_norm)
    assert first == [[0, 1, 2, 3, 8, 9, 10]] * 2 + [[0, 1, 2, 3, 8, 9]] * 2
    assert second == [[4, 5, 6, 7]] * 2 + [[4, 5, 6, 7, 10]] * 2


def accumulate_manually(num_examples: int, batch_size: int) -> list[Any]:
    """Sum three global batches, two of them under `no_sync`, then step."""
    pt.init_process_group()
    trainee = Trainee()
    loader = pt.AdaptiveDataLoader(Numbers(num_examples), batch_size=batch_size)
    batches = iter(loader)
    with trainee.parallel.no_sync():
        for number, (inputs, _) in enumerate(batches):
            trainee.parallel(inputs * (float("nan") if loader.is_padding else 1.0)).mean().backward()
            if number == 1:
                break
    inputs, _ = next(batches)
    trainee.parallel(inputs * (float("nan") if loader.is_padding else 1.0)).mean().backward()
    trainee.optimizer.step()
    assert next(batches, None) is None
    statistics = trainee.parallel.statistics
    return [trainee.weight, statistics is not None]


@pytest.mark.parametrize(
    ("num_examples", "batch_size", "expected"),
    [
        # Means of 1-4, 5-8 and 9-11, or of 9 alone: then two of three replicas are idle.
        (11, 4, 2.5 + 6.5 + 10),
        (9, 4, 2.5 + 6.5 + 9),
        # One is always idle.
        (6, 2, 1.5 + 3.5 + 5.5),
    ],
)
def test_that_manually_accumulated_batches_count_alike_though_one_is_short_or_a_replica_idle(
    tmp_path: Path, num_examples: int, batch_size: int, expected: float
) -> None:
    for weight, is_measured in run_ranks(tmp_path, 3, accumulate_manually, num_examples, batch_size):
        assert weight == pytest.approx(-expected)
        # Batches of different sizes do not measure the noise.
        assert is_measured == (num_examples == 6)


def accumulate_over_loops() -> float:
    """Sum the batches of two loops under `no_sync`, one block for the first of them; step after the last."""
    pt.init_process_group()
    trainee = Trainee()
    loader = pt.AdaptiveDataLoader(Numbers(10), batch_size=4)
    with trainee.parallel.no_sync():
        for inputs, _ in loader:
            trainee.parallel(inputs * (float("nan") if loader.is_padding else 1.0)).mean().backward()
    for number, (inputs, _) in enumerate(loader):
        with trainee.parallel.no_sync() if number < 2 else contextlib.nullcontext():
            trainee.parallel(inputs * (float("nan") if loader.is_padding else 1.0)).mean().backward()
    trainee.optimizer.step()
    return trainee.weight


def test_that_batches_accumulated_manually_over_two_loops_count_alike(tmp_path: Path) -> None:
    # Means of 1-4, 5-8 and 9-10 (which leave one of three replicas idle), each twice.
    assert run_ranks(tmp_path, 3, accumulate_over_loops) == [pytest.approx(-2 * (2.5 + 6.5 + 9.5))] * 3


def stop_early(directory: str) -> list[Any]:
    """Leave each epoch after two of three steps, and the epochs in the second."""
    pt.init_process_group(checkpoint_dir=directory, checkpoint_interval_s=None)
    trainee, visited = Trainee(), []
    loader = pt.AdaptiveDataLoader(Numbers(12), batch_size=4)
    for epoch in pt.remaining_epochs_until(5):
        visited.append(epoch)
        for number, (inputs, _) in enumerate(loader):
            trainee.step(inputs)
            if number == 1:
                break
        if epoch == 1:
            break
    return [trainee.weight, current_session().progress_state.progress, visited]


def test_that_replicas_that_stop_early_write_a_last_checkpoint_for_any_number(tmp_path: Path) -> None:
    directory = tmp_path / "job"
    expected = -2 * (2.5 + 6.5)
    results = run_ranks(tmp_path, 2, stop_early, str(directory))
    assert results == [[pytest.approx(expected), 4.0, [0, 1]]] * 2
    (result,) = run_ranks(tmp_path, 1, stop_early, str(directory), restart_count=1)
    assert result == [pytest.approx(expected), 4.0, [1]]


def change_batch() -> dict[str, Any]:
    """Let rank 0 propose another batch in the third step; return what this rank was given."""
    pt.init_process_group()
    session, model = current_session(), Slope()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    parallel = pt.AdaptiveDataParallel(model, optimizer)
    loader = pt.AdaptiveDataLoader(Numbers(100), batch_size=6, shuffle=True)
    loader.autoscale_batch_size(24, (1, 12), gradient_accumulation=True)
    steps: list[Any] = []
    for inputs, indices in loader:
        optimizer.zero_grad()
        parallel(inputs).mean().backward()
        optimizer.step()
        steps.append([loader.current_batch_size, indices.tolist(), parallel.gain])
        if len(steps) == 3 and session.measurements.report_builder is not None:
            propose(
                session, loader, BatchChoice(global_batch_size=13, atomic_batch_size=4, accumulation_steps=1)
            )
    return {"steps": steps, "gradient": model.weight.grad}


def test_that_all_replicas_change_the_batch_at_the_same_step(tmp_path: Path) -> None:
    results = run_ranks(tmp_path, 2, change_batch)
    sizes = [[size for size, _, _ in result["steps"]] for result in results]
    assert sizes[0] == sizes[1]
    assert set(sizes[0]) == {6, 13}
    seen = [index for result in results for _, indices, _ in result["steps"] for index in indices]
    assert sorted(seen) == list(range(100))
    assert results[0]["steps"][-1][2] == results[1]["steps"][-1][2] > 1.0


def add_up() -> dict[str, Any]:
    pt.init_process_group()
    session, sums = current_session(), pt.Accumulator()
    if session.rank == 1:
        sums["only here"] += torch.tensor([1.0, 2.0])
    sums["everywhere"] += session.rank + 1
    with sums.synchronized():
        return dict(sums)


def test_that_sums_are_the_same_on_every_replica_whoever_added(tmp_path: Path) -> None:
    for total in run_ranks(tmp_path, 3, add_up):
        assert total["everywhere"] == 6
        assert total["only here"].tolist() == [1.0, 2.0]


def measure_noise(batch_size: int, largest: int) -> list[float]:
    pt.init_process_group()
    trainee = Trainee(lr=0.0)
    loader = pt.AdaptiveDataLoader(Numbers(1000), batch_size=batch_size, shuffle=True)
    loader.autoscale_batch_size(batch_size, (1, largest), gradient_accumulation=True)
    for _ in pt.remaining_epochs_until(3):
        for inputs, _ in loader:
            trainee.step(inputs)
    statistics = trainee.parallel.statistics
    assert statistics is not None
    return [statistics.sqr, statistics.var]


@pytest.mark.parametrize("largest", [5, pytest.param(2, marks=pytest.mark.full)])
def test_that_uneven_replicas_and_micro_batches_measure_the_true_noise(tmp_path: Path, largest: int) -> None:
    results = run_ranks(tmp_path, 3, measure_noise, 10, largest)
    assert results[0] == results[1] == results[2]
    sqr, var = results[0]
    assert sqr == pytest.approx(500.5**2, rel=0.1)
    assert var == pytest.approx(1000**2 / 12 / 10, rel=0.2)


def train_long(directory: str) -> None:
    pt.init_process_group(checkpoint_dir=directory, checkpoint_interval_s=0.05)
    trainee = Trainee(lr=0.0)
    loader = pt.AdaptiveDataLoader(Numbers(1000), batch_size=4)
    for _ in pt.remaining_epochs_until(100_000):
        for inputs, _ in loader:
            trainee.step(inputs)


def test_that_checkpoints_are_written_now_and_then_and_survive_a_kill(tmp_path: Path) -> None:
    directory = tmp_path / "job"
    run = start(tmp_path, 2, train_long, str(directory))

    def third() -> list[str]:
        names = scripts.checkpoints(directory) if (directory / "checkpoints").is_dir() else []
        return [name for name in names if not name.startswith(".") and int(name.split("-")[1]) >= 3]

    wait_until(third, timeout_s=120, what="the third checkpoint", every_s=0.05)
    run.signal(signal.SIGKILL)
    run.wait()
    run = start(tmp_path, 1, train_long, str(directory), restart_count=1)
    wait_until(
        lambda: [name for name in scripts.checkpoints(directory) if name.startswith("000001-")],
        timeout_s=120,
        what="a checkpoint of the next run",
    )
    run.terminate()
    assert run.wait() == [143], run.output()


def test_that_training_on_another_machines_disk_is_refused_with_a_reason(tmp_path: Path) -> None:
    directory = tmp_path / "job"
    run = start(tmp_path, 1, scripts.train, str(directory), 1, 16)
    run.succeed()
    runs = list((directory / "runs").iterdir())
    assert [path.name for path in runs] == ["000000.json"]
    run = start(tmp_path, 2, see_nothing, str(directory), restart_count=1)
    assert run.wait() == [1, 1]
    assert "all nodes share" in run.output()


def see_nothing(directory: str) -> None:
    """Hide the file that rank 0 names from rank 1."""
    if os.environ["RANK"] == "1":
        Path.is_file = lambda self: False  # type: ignore[method-assign, assignment]
    pt.init_process_group(checkpoint_dir=directory)
    torch.distributed.barrier()
