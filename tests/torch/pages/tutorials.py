"""Scripts like AdaptDL's own tutorials and examples, with its imports renamed: what each does in its order.

Loaders come before `init_process_group`; `adaptdl.torch.x` and `adaptdl.env.x` are spelled out. The data are
made on the spot. Each returns what a test can compare.
"""

from __future__ import annotations

import copy
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.optim.lr_scheduler import StepLR
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import Dataset, TensorDataset

import pollux_slurm as adaptdl
import pollux_slurm.env
import pollux_slurm.torch
import pollux_slurm.torch as adl

NUM_DIGITS, NUM_TESTED = 60, 21


class Scalars:
    """Stands where scripts have a TensorBoard writer."""

    def __init__(self) -> None:
        self.written: dict[str, float] = {}

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.written[tag] = value


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model.named_parameters()}


# ------------------------------------------------------------------------------------------- digits, by step


class Digits(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.filters = torch.nn.Conv2d(1, 4, 3)
        self.head = torch.nn.Linear(4 * 3 * 3, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        seen = functional.max_pool2d(functional.relu(self.filters(images)), 2)
        return functional.log_softmax(self.head(seen.flatten(1)), dim=1)


def some_digits(number: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(number)
    digits = torch.randint(10, (number,), generator=generator)
    images = torch.randn(number, 1, 8, 8, generator=generator) + digits.view(-1, 1, 1, 1) / 5
    return TensorDataset(images, digits)


def digits(step: int, stop_in_epoch: int | None = None, num_epochs: int = 3) -> Any:
    """Train on digits as far as the tutorial's `step` (2 to 5) goes; return weights and the last test."""
    torch.manual_seed(1)
    train_loader = adaptdl.torch.AdaptiveDataLoader(
        some_digits(NUM_DIGITS), drop_last=True, batch_size=8, shuffle=True
    )
    test_loader = adaptdl.torch.AdaptiveDataLoader(some_digits(NUM_TESTED), batch_size=8)
    if step >= 3:
        # Where it may grow, how fast this machine is would decide what is trained.
        train_loader.autoscale_batch_size(8, local_bsz_bounds=(2, 8))
    model: Any = Digits()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    adaptdl.torch.init_process_group("gloo")
    model = adaptdl.torch.AdaptiveDataParallel(model, optimizer, scheduler)
    tested = {"loss": 0.0, "number": 0.0}
    epochs = adaptdl.torch.remaining_epochs_until(num_epochs) if step >= 4 else range(num_epochs)
    for epoch in epochs:
        model.train()
        for number, (images, labels) in enumerate(train_loader):
            optimizer.zero_grad()
            functional.nll_loss(model(images), labels).backward()
            optimizer.step()
            if epoch == stop_in_epoch and number == 2:
                os.kill(os.getpid(), signal.SIGTERM)
        model.eval()
        stats: Any = adaptdl.torch.Accumulator() if step >= 5 else {"loss": 0.0, "number": 0.0}
        with torch.no_grad():
            for images, labels in test_loader:
                stats["loss"] += functional.nll_loss(model(images), labels, reduction="sum").item()
                stats["number"] += len(labels)
        if step >= 5:
            with stats.synchronized():
                tested = {"loss": stats["loss"], "number": stats["number"]}
        else:
            tested = dict(stats)
        scheduler.step()
    return {"weights": weights(model), "state": list(model.state_dict()), "tested": tested}


# ------------------------------------------------------------------------------------------ two adversaries


def adversaries(num_epochs: int = 2) -> Any:
    """Two models that train against each other, several backward passes in each batch."""
    torch.manual_seed(2)
    data = TensorDataset(torch.randn(32, 4) + 2.0)
    loader = adl.AdaptiveDataLoader(data, batch_size=8, num_workers=0, shuffle=False)
    loader.autoscale_batch_size(8 * 8, local_bsz_bounds=(2, 64))
    critic: Any = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LeakyReLU(), torch.nn.Linear(8, 1))
    maker: Any = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    of_critic, of_maker = (
        torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True) for net in (critic, maker)
    )
    later_critic, later_maker = StepLR(of_critic, 15, 0.1), StepLR(of_maker, 15, 0.1)
    adaptdl.torch.init_process_group("gloo")
    critic = adl.AdaptiveDataParallel(critic, of_critic, later_critic, name="critic")
    maker = adl.AdaptiveDataParallel(maker, of_maker, later_maker, name="maker")
    judged = functional.binary_cross_entropy_with_logits
    for _ in adl.remaining_epochs_until(num_epochs):
        stats = adl.Accumulator()
        for (real,) in loader:
            yes, no = torch.ones(len(real), 1), torch.zeros(len(real), 1)
            critic.zero_grad()
            judged(critic(real), yes).backward()
            made = maker(torch.randn(len(real), 3))
            judged(critic(made.detach()), no).backward()
            of_critic.step()
            maker.zero_grad()
            loss = judged(critic(made), yes)
            loss.backward()
            of_maker.step()
            stats["loss"] += loss.item()
            stats["batches"] += 1
        later_critic.step()
        later_maker.step()
        with stats.synchronized():
            batches = stats["batches"]
    return {
        "weights": {**weights(critic), **{f"made.{k}": v for k, v in weights(maker).items()}},
        "batches": batches,
    }


# ------------------------------------------------------------------------------------------------- ratings


class Ratings(Dataset[tuple[Any, Any, Any]]):
    """Pairs of users and things they chose; other things are drawn for each epoch."""

    def __init__(self) -> None:
        self.chosen = [(user, (3 * user) % 12) for user in range(24)]
        self.pairs: list[tuple[int, int, float]] = []

    def draw(self) -> None:
        generator = np.random.default_rng(0)
        others = [(user, int(generator.integers(12)), 0.0) for user, _ in self.chosen]
        self.pairs = [(user, thing, 1.0) for user, thing in self.chosen] + others

    def __len__(self) -> int:
        return 2 * len(self.chosen)

    def __getitem__(self, index: int) -> tuple[Any, Any, Any]:
        return self.pairs[index]


class Taste(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users, self.things = torch.nn.Embedding(24, 4), torch.nn.Embedding(12, 4)
        self.unused = torch.nn.Linear(4, 1)

    def forward(self, user: torch.Tensor, thing: torch.Tensor) -> torch.Tensor:
        return (self.users(user) * self.things(thing)).sum(1)


def ratings(num_epochs: int = 2) -> Any:
    """Learn tastes with Adam, some parameters unused; save the best model as a whole."""
    torch.manual_seed(3)
    path = Path(adaptdl.env.share_path() or "")
    data = Ratings()
    loader = adl.AdaptiveDataLoader(data, batch_size=np.int64(8), shuffle=True, drop_last=True)
    tested = adl.AdaptiveDataLoader(TensorDataset(torch.arange(24)), batch_size=6, shuffle=False)
    # As where a script computes its bounds: max(base / 4, 2), min(2 * base, 16).
    loader.autoscale_batch_size(64, local_bsz_bounds=(8 / 4, np.float32(16)), gradient_accumulation=True)
    network: Any = Taste()
    adaptdl.torch.init_process_group("gloo")
    optimizer = torch.optim.Adam(network.parameters(), lr=0.05)
    network = adl.AdaptiveDataParallel(network, optimizer, find_unused_parameters=True)
    writer, best = Scalars(), float("inf")
    for epoch in adl.remaining_epochs_until(num_epochs):
        network.train()
        data.draw()
        for user, thing, label in loader:
            network.zero_grad()
            loss = functional.binary_cross_entropy_with_logits(network(user, thing), label.float())
            loss.backward()
            optimizer.step()
            writer.add_scalar("passes", loader.accumulation_steps + 1, epoch)
        loader.to_tensorboard(writer, epoch, tag_prefix="AdaptDL/Data/")
        network.to_tensorboard(writer, epoch, tag_prefix="AdaptDL/Model/")
        network.eval()
        stats = adl.Accumulator()
        with torch.no_grad():
            for (user,) in tested:
                stats["miss"] += -network(user, (3 * user) % 12).sum().item()
        with stats.synchronized():
            miss = stats["miss"]
        if miss < best:
            best = miss
            if adaptdl.env.replica_rank() == 0:
                torch.save(network, path / "taste.pt")
    return {
        "weights": weights(network.module),
        "gain": network.gain,
        "written": writer.written,
        "replicas": adaptdl.env.num_replicas(),
        "best": best,
    }


# ------------------------------------------------------------------------------------------------- averages


def averaged(num_epochs: int = 2) -> Any:
    """Keep a running average of the weights, and evaluate copies on rank 0 alone."""
    torch.manual_seed(4)
    generator = torch.Generator().manual_seed(4)
    inputs = torch.randn(30, 4, generator=generator)
    adl.init_process_group("gloo")
    loader = adl.AdaptiveDataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=5)
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    model = adl.AdaptiveDataParallel(net, optimizer)
    average = AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.5))
    expected = weights(net)
    for epoch in adl.remaining_epochs_until(num_epochs):
        for number, (given, wanted) in enumerate(loader):
            optimizer.zero_grad()
            functional.mse_loss(model(given), wanted).backward()
            optimizer.step()
            average.update_parameters(model)
            is_first = epoch == 0 and number == 0
            for name, value in weights(net).items():
                expected[name] = value if is_first else expected[name].lerp(value, 0.5)
    kept = copy.deepcopy(model).eval()
    outputs = None
    if adl.env.replica_rank() == 0:
        # A copy does not communicate: no other replica takes part in this.
        with torch.no_grad():
            outputs = [kept(inputs), model.eval().module(inputs), average.eval()(inputs)]
    model.load_state_dict(kept.state_dict())
    return {
        "average": weights(average.module.module),
        "expected": expected,
        "copied": list(kept.state_dict()) == list(model.state_dict()),
        "outputs": outputs,
    }
