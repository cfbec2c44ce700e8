"""Schedules that are stepped once per batch: the same at each example, however the batches are split."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import pollux_slurm.torch as pt
from pollux_slurm.model import BatchChoice
from tests.torch.ranks import run_ranks, start
from tests.torch.single_replica import Numbers, Slope, Trainee, joined, propose

pytestmark = pytest.mark.torch

NUM_EPOCHS, NUM_EXAMPLES, BATCH = 3, 50, 12
NUM_STEPS = 5 * NUM_EPOCHS


class Rates(pt.State):
    """The learning rate of each step by its first example, and how many batches each epoch has had."""

    def __init__(self) -> None:
        super().__init__("rates")
        self.rates: dict[str, float] = {}

    def state_dict(self) -> dict[str, Any]:
        return self.rates

    def load_state_dict(self, state: Any) -> None:
        self.rates = dict(state)


def train_one_cycle(
    directory: str | None, num_micro_batches: int, stop_after: int | None, drop_last: bool = False
) -> list[Any]:
    """Train as a plain script does that steps OneCycleLR after each batch."""
    pt.init_process_group(checkpoint_dir=directory, checkpoint_interval_s=None)
    model, rates = Slope(), Rates()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = pt.AdaptiveDataLoader(Numbers(NUM_EXAMPLES), batch_size=BATCH, drop_last=drop_last)
    largest = -(-BATCH // (num_micro_batches * int(os.environ["WORLD_SIZE"])))
    loader.autoscale_batch_size(BATCH, (1, largest), gradient_accumulation=True)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=1.0, steps_per_epoch=len(loader), epochs=NUM_EPOCHS
    )
    parallel = pt.AdaptiveDataParallel(model, optimizer, scheduler)
    num_steps, whole_epochs = 0, []
    for epoch in pt.remaining_epochs_until(NUM_EPOCHS):
        num_batches = 0
        for inputs, _ in loader:
            num_batches += 1
            rate = optimizer.param_groups[0]["lr"]
            optimizer.zero_grad()
            parallel(inputs).mean().backward()
            optimizer.step()
            scheduler.step()
            if loader.is_stepping:
                rates.rates[f"{epoch}/{len([key for key in rates.rates if key[0] == str(epoch)])}"] = rate
                num_steps += 1
                if num_steps == stop_after:
                    os.kill(os.getpid(), signal.SIGTERM)
        whole_epochs.append([num_batches, len(loader)])
    return [
        rates.rates,
        scheduler.last_epoch,
        scheduler.total_steps,
        optimizer.param_groups[0]["lr"],
        whole_epochs,
    ]


def expected_rates() -> tuple[list[float], float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=1.0, steps_per_epoch=NUM_STEPS // NUM_EPOCHS, epochs=NUM_EPOCHS
    )
    rates = []
    for _ in range(NUM_STEPS):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates, optimizer.param_groups[0]["lr"]


@pytest.mark.parametrize(("num_ranks", "num_micro_batches"), [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3)])
def test_that_one_cycle_is_the_same_for_all_replicas_and_micro_batches(
    tmp_path: Path, num_ranks: int, num_micro_batches: int
) -> None:
    rates, last = expected_rates()
    for result in run_ranks(tmp_path, num_ranks, train_one_cycle, None, num_micro_batches, None):
        seen, num_steps, total_steps, rate, epochs = result
        assert (num_steps, total_steps, rate) == (NUM_STEPS, NUM_STEPS, last)
        assert list(seen.values()) == rates
        # What a progress bar shows: as many as the loop yields.
        assert all(num_batches == length for num_batches, length in epochs), epochs
        assert epochs[0][0] >= 4 * num_micro_batches + 1


def test_that_one_cycle_goes_on_over_moves_to_other_numbers_of_replicas_and_micro_batches(
    tmp_path: Path,
) -> None:
    rates, last = expected_rates()
    directory = str(tmp_path / "job")
    (tmp_path / "job").mkdir()
    for restart, (num_ranks, num_micro_batches) in enumerate([(1, 3), (2, 1), (1, 1)]):
        run = start(
            tmp_path, num_ranks, train_one_cycle, directory, num_micro_batches, 4, restart_count=restart
        )
        assert run.wait() == [143] * num_ranks, run.output()
    run = start(tmp_path, 2, train_one_cycle, directory, 2, None, restart_count=3)
    seen, num_steps, total_steps, rate, _ = run.succeed()[0]
    assert (num_steps, total_steps, rate) == (NUM_STEPS, NUM_STEPS, last)
    assert list(seen.values()) == rates


@pytest.mark.parametrize("drop_last", [False, True])
def test_that_a_schedule_counts_batches_of_the_initial_size_under_adaptation(drop_last: bool) -> None:
    with joined() as session:
        model = Slope()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        loader = pt.AdaptiveDataLoader(Numbers(44), batch_size=4, drop_last=drop_last)
        loader.autoscale_batch_size(12, (1, 12))
        num_steps = len(loader) * 2
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / num_steps)
        parallel = pt.AdaptiveDataParallel(model, optimizer, scheduler)
        stood = []
        for _ in pt.remaining_epochs_until(2):
            for inputs, _ in loader:
                propose(
                    session,
                    loader,
                    BatchChoice(global_batch_size=10, atomic_batch_size=10, accumulation_steps=0),
                )
                optimizer.zero_grad()
                parallel(inputs).mean().backward()
                optimizer.step()
                scheduler.step()
                stood.append(scheduler.last_epoch)
    # One batch of 4, then of 10: after 4, 14, 24, 34, 44 examples; then after 10, 20, 30, 40, 44.
    assert num_steps == 22
    assert stood == (
        [1, 4, 6, 9, 11, 14, 16, 19, 21, 22] if not drop_last else [1, 3, 6, 8, 11, 13, 16, 18, 21]
    )


def test_that_a_scheduler_that_takes_a_metric_is_stepped_once() -> None:
    with joined() as session:
        model = Slope()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=5)
        parallel = pt.AdaptiveDataParallel(model, optimizer, scheduler)
        loader = pt.AdaptiveDataLoader(Numbers(40), batch_size=4)
        loader.autoscale_batch_size(12, (1, 12))
        for inputs, _ in loader:
            propose(
                session, loader, BatchChoice(global_batch_size=12, atomic_batch_size=12, accumulation_steps=0)
            )
            optimizer.zero_grad()
            parallel(inputs).mean().backward()
            optimizer.step()
            scheduler.step(1.0)
    assert scheduler.num_bad_epochs == 3


def train_with_warmup(
    directory: Path | None, num_epochs: int, stop_at: int | None = None, largest: int | None = None
) -> list[float]:
    """Train as torchvision's detection reference: epoch 0 makes a warm-up of its own."""
    rates = []
    with joined(directory):
        trainee = Trainee(lr=0.4)
        main = torch.optim.lr_scheduler.StepLR(trainee.optimizer, 1, gamma=0.5)
        trainee.parallel.add_lr_scheduler(main)
        loader = pt.AdaptiveDataLoader(Numbers(8), batch_size=2)
        if largest is not None:
            loader.autoscale_batch_size(2, (1, largest), gradient_accumulation=True)
        for epoch in pt.remaining_epochs_until(num_epochs):
            warmup = None
            if epoch == 0:
                warmup = torch.optim.lr_scheduler.LinearLR(trainee.optimizer, 0.25, total_iters=3)
                trainee.parallel.add_lr_scheduler(warmup)
            for inputs, _ in loader:
                if pt.finished_steps() == stop_at:
                    os.kill(os.getpid(), signal.SIGTERM)
                trainee.step(inputs)
                if loader.is_stepping:
                    rates.append(trainee.optimizer.param_groups[0]["lr"])
                if warmup is not None:
                    warmup.step()
            main.step()
    return rates


def test_that_a_warmup_made_in_the_first_epoch_goes_on_there_and_is_over_in_the_next(tmp_path: Path) -> None:
    rates = train_with_warmup(None, 3)
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, *[0.2] * 4, *[0.1] * 4])
    for stop_at in (1, 5):
        with pytest.raises(pt.TrainingStopped):
            train_with_warmup(tmp_path, 3, stop_at)
    assert train_with_warmup(tmp_path, 3) == pytest.approx(rates[6:])


@pytest.mark.parametrize(("largest", "num_told"), [(1, 1), (2, 0)])
def test_that_a_schedule_made_in_an_epoch_counts_whole_batches_and_says_so_where_they_are_split(
    largest: int, num_told: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert train_with_warmup(None, 1, largest=largest) == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert sum("take it before the epochs" in one.getMessage() for one in caplog.records) == num_told
