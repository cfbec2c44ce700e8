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
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm


class Trainer:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        torch.manual_seed(options.seed)
        self.train_set, self.val_set = rings(options.examples, seed=1), rings(500, seed=2)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(2, 64),
            torch.nn.LayerNorm(64),
            torch.nn.ReLU(),
            torch.nn.Linear(64, 4),
        ).to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=options.lr, weight_decay=0.01)
        self.train_loader = DataLoader(self.train_set, batch_size=options.batch, shuffle=True)
        self.val_loader = DataLoader(self.val_set, batch_size=100)
        self.num_steps = options.epochs * len(self.train_loader)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self.rate_at)
        self.writer = SummaryWriter(options.out / "logs")
        self.first_epoch, self.step, self.best, self.best_epoch = 0, 0, math.inf, 0
        if options.resume:
            self.load(options.out / "last.pt")

    def rate_at(self, step: int) -> float:
        """Return the factor of the learning rate: linear warm-up, then half a cosine."""
        if step < self.options.warmup:
            return (step + 1) / float(self.options.warmup)
        part = (step - self.options.warmup) / max(self.num_steps - self.options.warmup, 1)
        return 0.5 * (1 + math.cos(math.pi * part))

    def train(self) -> None:
        """Train until the last epoch, or until validation has not improved for long."""
        for epoch in range(self.first_epoch, self.options.epochs):
            self.train_epoch(epoch)
            loss, accuracy = self.validate()
            print(f"epoch {epoch}: val loss {loss:.6f}, accuracy {accuracy:.3f}", flush=True)
            self.log("val/loss", loss)
            self.log("val/accuracy", accuracy)
            if loss < self.best:
                self.best, self.best_epoch = loss, epoch
                self.save(self.options.out / "best.pt", epoch)
            self.save(self.options.out / "last.pt", epoch)
            if epoch - self.best_epoch == self.options.patience:
                break

    def train_epoch(self, epoch: int) -> None:
        """Train on each example once."""
        self.model.train()
        bar = tqdm(self.train_loader, desc=f"epoch {epoch}", disable=None)
        for inputs, labels in bar:
            self.optimizer.zero_grad()
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.options.bf16):
                outputs = self.model(inputs.to(self.device))
            loss = cross_entropy(outputs.float(), labels.to(self.device))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.scheduler.step()
            self.step += 1
            if self.step % 10 == 0:
                bar.set_postfix(loss=loss.item())
                self.log("train/loss", loss.item())
                self.log("train/rate", float(self.scheduler.get_last_lr()[0]))

    @torch.no_grad()
    def validate(self) -> tuple[float, float]:
        """Return the mean loss and the accuracy on the examples that are held out."""
        self.model.eval()
        sums = dict.fromkeys(("loss", "right", "n"), 0.0)
        for inputs, labels in self.val_loader:
            outputs, labels = self.model(inputs.to(self.device)), labels.to(self.device)
            sums["loss"] += cross_entropy(outputs, labels, reduction="sum").item()
            sums["right"] += int((outputs.argmax(dim=1) == labels).sum())
            sums["n"] += len(labels)
        return sums["loss"] / sums["n"], sums["right"] / sums["n"]

    def log(self, name: str, value: float) -> None:
        self.writer.add_scalar(name, value, self.step)

    def save(self, path: Path, epoch: int) -> None:
        states = {name: getattr(self, name).state_dict() for name in ("model", "optimizer", "scheduler")}
        position = (epoch + 1, self.step, self.best, self.best_epoch)
        torch.save({**states, "position": position}, path)

    def load(self, path: Path) -> None:
        saved = torch.load(path, weights_only=True)
        for name in ("model", "optimizer", "scheduler"):
            getattr(self, name).load_state_dict(saved[name])
        self.first_epoch, self.step, self.best, self.best_epoch = saved["position"]


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
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(exist_ok=True)
    Trainer(options).train()
