"""Train a classifier by a Trainer class: validation, best checkpoint, early stopping, TensorBoard, tqdm.

before.py is the script as it was, train.py the same after it was made adaptive: docs/before-and-after.md
tells how.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

import pollux_slurm.torch as pollux


class Trainer:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        torch.manual_seed(options.seed)
        pollux.init_process_group()
        self.is_first = pollux.env.replica_rank() == 0
        self.train_set, self.val_set = rings(options.examples, seed=1), rings(500, seed=2)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(2, 64),
            torch.nn.LayerNorm(64),
            torch.nn.ReLU(),
            torch.nn.Linear(64, 4),
        ).to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=options.lr, weight_decay=0.01)
        self.train_loader = pollux.AdaptiveDataLoader(self.train_set, batch_size=options.batch, shuffle=True)
        self.val_loader = pollux.AdaptiveDataLoader(self.val_set, batch_size=100)
        self.num_steps = options.epochs * len(self.train_loader)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self.rate_at)
        self.parallel = pollux.AdaptiveDataParallel(self.model, self.optimizer, self.scheduler)
        self.kept = pollux.Variables(best=math.inf, best_epoch=0)
        if self.is_first:
            self.writer = SummaryWriter(options.out / "logs", purge_step=pollux.finished_steps() + 1)

    def rate_at(self, step: int) -> float:
        """Return the factor of the learning rate: linear warm-up, then half a cosine."""
        if step < self.options.warmup:
            return (step + 1) / float(self.options.warmup)
        part = (step - self.options.warmup) / max(self.num_steps - self.options.warmup, 1)
        return 0.5 * (1 + math.cos(math.pi * part))

    def train(self) -> None:
        """Train until the last epoch, or until validation has not improved for long."""
        for epoch in pollux.remaining_epochs_until(self.options.epochs):
            self.train_epoch(epoch)
            loss, accuracy = self.validate()
            if self.is_first:
                print(f"epoch {epoch}: val loss {loss:.6f}, accuracy {accuracy:.3f}", flush=True)
            self.log("val/loss", loss)
            self.log("val/accuracy", accuracy)
            if loss < self.kept["best"]:
                self.kept.update(best=loss, best_epoch=epoch)
                if self.is_first:
                    self.save(self.options.out / "best.pt")
            if epoch - self.kept["best_epoch"] == self.options.patience:
                break

    def train_epoch(self, epoch: int) -> None:
        """Train on each example once."""
        self.model.train()
        bar = tqdm(self.train_loader, desc=f"epoch {epoch}", disable=None if self.is_first else True)
        for inputs, labels in bar:
            self.optimizer.zero_grad()
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.options.bf16):
                outputs = self.parallel(inputs.to(self.device))
            loss = cross_entropy(outputs.float(), labels.to(self.device))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.scheduler.step()
            if self.train_loader.is_stepping and pollux.finished_steps() % 10 == 0:
                bar.set_postfix(loss=loss.item())
                self.log("train/loss", loss.item())
                self.log("train/rate", float(self.scheduler.get_last_lr()[0]))

    @torch.no_grad()
    def validate(self) -> tuple[float, float]:
        """Return the mean loss and the accuracy on the examples that are held out."""
        self.model.eval()
        sums = pollux.Accumulator()
        for inputs, labels in self.val_loader:
            outputs, labels = self.model(inputs.to(self.device)), labels.to(self.device)
            sums["loss"] += cross_entropy(outputs, labels, reduction="sum").item()
            sums["right"] += int((outputs.argmax(dim=1) == labels).sum())
            sums["n"] += len(labels)
        with sums.synchronized():
            return sums["loss"] / sums["n"], sums["right"] / sums["n"]

    def log(self, name: str, value: float) -> None:
        if self.is_first:
            self.writer.add_scalar(name, value, pollux.finished_steps())

    def save(self, path: Path) -> None:
        torch.save(self.model.state_dict(), path)


def rings(number: int, *, seed: int) -> TensorDataset:
    """Return points of the plane, and in which of four rings each is."""
    points = torch.randn(number, 2, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(points, (1.5 * points.norm(dim=1)).long().clamp(max=3))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--examples", type=int, default=5000)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--warmup", type=int, default=100, help="steps")
    parser.add_argument("--patience", type=int, default=5, help="epochs")
    parser.add_argument("--bf16", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("rings"))
    options = parser.parse_args()
    options.out.mkdir(exist_ok=True)
    Trainer(options).train()
