"""A loss over the whole batch: the same candidates and gradients with any number of replicas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy, normalize

import pollux_slurm.torch as pt
from pollux_slurm.errors import UsageError
from tests.torch.ranks import run_ranks
from tests.torch.scripts import Numbered
from tests.torch.single_replica import Numbers, Trainee, joined

pytestmark = pytest.mark.torch

BATCH, LENGTH = 8, 26


class Towers(torch.nn.Module):
    """Two encoders, whose rows for the same example are to be alike."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 6), torch.nn.Linear(1, 6)

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return normalize(self.first(inputs)), normalize(self.second(targets))


def of_all(first: torch.Tensor, second: torch.Tensor, loader: Any) -> torch.Tensor:
    """The loss of the whole batch, on each replica."""
    first, second = pt.gather_batch(first, loader), pt.gather_batch(second, loader)
    logits, places = 5 * first @ second.T, torch.arange(len(first))
    return (cross_entropy(logits, places) + cross_entropy(logits.T, places)) / 2


def of_own_rows(first: torch.Tensor, second: torch.Tensor, loader: Any) -> torch.Tensor:
    """The loss of this replica's rows, against those of all."""
    places = pt.gather_batch(torch.arange(len(first)) + 100 * torch.distributed.get_rank(), loader)
    place = int((places == 100 * torch.distributed.get_rank()).nonzero()) if not loader.is_padding else 0
    of_others = [pt.gather_batch(rows, loader) for rows in (second, first)]
    own = torch.arange(len(first)) + place
    losses = [
        cross_entropy(5 * rows @ others.T, own)
        for rows, others in zip((first, second), of_others, strict=True)
    ]
    return (losses[0] + losses[1]) / 2


LOSSES = (of_all, of_own_rows)


def make() -> tuple[Towers, torch.optim.Optimizer]:
    torch.manual_seed(3)
    model = Towers()
    return model, torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)


def contrast() -> list[dict[str, torch.Tensor]]:
    """Train two epochs by each loss; the last batch of each epoch has two examples."""
    pt.init_process_group("gloo")
    made = [make() for _ in LOSSES]
    wrapped = [pt.AdaptiveDataParallel(model, optimizer) for model, optimizer in made]
    loader = pt.AdaptiveDataLoader(Numbered(LENGTH), batch_size=BATCH)
    first = torch.utils.data.Subset(Numbered(LENGTH), range(BATCH))
    validation = pt.AdaptiveDataLoader(first, batch_size=BATCH)
    for _ in pt.remaining_epochs_until(2):
        for inputs, targets, _ in loader:
            for parallel, (_, optimizer), loss_of in zip(wrapped, made, LOSSES, strict=True):
                optimizer.zero_grad()
                loss_of(*parallel(inputs, targets), loader).backward()
                optimizer.step()
        with torch.no_grad():
            for inputs, targets, _ in validation:
                losses = [of_all(*parallel(inputs, targets), validation) for parallel in wrapped]
    return [
        {"validation": loss, **{name: value.clone() for name, value in model.state_dict().items()}}
        for loss, (model, _) in zip(losses, made, strict=True)
    ]


@pytest.fixture(scope="module")
def plain() -> dict[str, torch.Tensor]:
    model, optimizer = make()
    data = Numbered(LENGTH)

    def loss_of(start: int) -> torch.Tensor:
        inputs, targets = (part[start : start + BATCH] for part in (data.inputs, data.targets))
        first, second = model(inputs, targets)
        logits, places = 5 * first @ second.T, torch.arange(len(first))
        return (cross_entropy(logits, places) + cross_entropy(logits.T, places)) / 2

    for _ in range(2):
        for start in range(0, LENGTH, BATCH):
            optimizer.zero_grad()
            loss_of(start).backward()
            optimizer.step()
    return {"validation": loss_of(0).detach(), **model.state_dict()}


def test_that_a_contrastive_loss_trains_the_same_with_uneven_shares(
    plain: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    # Of three replicas two have 3 examples and one has 2; in the last batch one has padding.
    for result in run_ranks(tmp_path, 3, contrast):
        for of_loss in result:
            torch.testing.assert_close(of_loss, plain, rtol=1e-4, atol=1e-5)


def test_that_rows_are_returned_outside_of_the_loop_and_refused_where_they_do_not_fit() -> None:
    with joined():
        trainee = Trainee()
        loader = pt.AdaptiveDataLoader(Numbers(8), batch_size=4)
        rows = torch.ones(3)
        assert pt.gather_batch(rows, loader) is rows
        for inputs, _ in loader:
            trainee.step(pt.gather_batch(inputs, loader))
            with pytest.raises(UsageError, match="got 8 rows for a batch of 4 examples"):
                pt.gather_batch(torch.cat([inputs, inputs]), loader)
        loader.autoscale_batch_size(4, (1, 2), gradient_accumulation=True)
        for inputs, _ in loader:
            with pytest.raises(UsageError, match=r"splits into micro-batches.*--min-gpus"):
                pt.gather_batch(inputs, loader)
