"""Training scripts that the tests run as ranks: written as a user would, with a record of what they saw."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

import pollux_slurm.torch as pt
from pollux_slurm.torch.session.current_session import current_session
from tests.waiting import wait_until

NUM_EXAMPLES = 70


class Numbered(Dataset[tuple[torch.Tensor, torch.Tensor, int]]):
    """A small regression problem whose examples contain their index."""

    def __init__(self, length: int = NUM_EXAMPLES) -> None:
        generator = torch.Generator().manual_seed(5)
        self.inputs = torch.randn(length, 4, generator=generator)
        self.targets = (self.inputs @ torch.tensor([1.0, -2.0, 0.5, 3.0])).unsqueeze(1) + 0.3 * torch.randn(
            length, 1, generator=generator
        )

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        return self.inputs[index], self.targets[index], index


class Seen(pt.State):
    """For each epoch and step, which indices were used, and the sum of their losses.

    Merged over the ranks, kept over restarts.
    """

    def __init__(self) -> None:
        super().__init__("seen")
        self.steps: dict[str, list[int]] = {}
        self.losses: dict[str, float] = {}
        self.local: dict[str, list[int]] = {}
        self.local_losses: dict[str, float] = {}

    def add(self, epoch: int, step: int, indices: list[int], loss: float) -> None:
        key = f"{epoch}/{step}"
        self.local.setdefault(key, []).extend(indices)
        self.local_losses[key] = self.local_losses.get(key, 0.0) + loss * len(indices)

    def sync(self) -> None:
        for indices, losses in current_session().side_channel.gather([self.local, self.local_losses]):
            for key, part in indices.items():
                self.steps.setdefault(key, []).extend(part)
            for key, loss in losses.items():
                self.losses[key] = self.losses.get(key, 0.0) + loss
        self.local, self.local_losses = {}, {}

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "losses": self.losses}

    def load_state_dict(self, state: Any) -> None:
        self.steps, self.losses = state["steps"], state["losses"]


def make_model(kind: str) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    if kind == "adam":
        return model, torch.optim.Adam(model.parameters(), lr=0.02)
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def train(
    directory: str | None,
    num_epochs: int,
    batch_size: int,
    stop_after: int | None = None,
    optimizer_kind: str = "sgd",
    autoscale: tuple[int, int, int, bool] | None = None,
    clip: float | None = None,
    num_workers: int = 0,
    pause_s: float = 0.0,
    pause_after: int | None = None,
) -> dict[str, Any]:
    """Train; after `stop_after` steps of this process every rank gets the SIGTERM that Slurm sends.

    After `pause_after` steps it waits until it gets SIGTERM.
    """
    pt.init_process_group(checkpoint_dir=directory, checkpoint_interval_s=None)
    model, optimizer = make_model(optimizer_kind)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.8)
    parallel = pt.AdaptiveDataParallel(model, optimizer, scheduler)
    loader = pt.AdaptiveDataLoader(Numbered(), batch_size=batch_size, shuffle=True, num_workers=num_workers)
    if autoscale is not None:
        maximum, low, high, accumulation = autoscale
        loader.autoscale_batch_size(maximum, (low, high), gradient_accumulation=accumulation)
    seen, losses = Seen(), pt.Accumulator()
    session = current_session()
    num_steps, history = 0, []
    for epoch in pt.remaining_epochs_until(num_epochs):
        for inputs, targets, indices in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=optimizer_kind == "bfloat16"):
                outputs = parallel(inputs)
            loss = torch.nn.functional.mse_loss(outputs.float(), targets)
            loss.backward()
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(parallel.parameters(), clip)
            optimizer.step()
            if not loader.is_padding:
                seen.add(epoch, session.progress_state.num_steps, indices.tolist(), loss.item())
                losses["sum"] += loss.item() * len(inputs)
                losses["count"] += len(inputs)
            time.sleep(pause_s)
            num_steps += 1
            print("step", num_steps, flush=True)
            if num_steps == stop_after:
                os.kill(os.getpid(), signal.SIGTERM)
            if num_steps == pause_after:
                wait_until(lambda: session.boundary.stop.is_set, timeout_s=600, what="SIGTERM")
        scheduler.step()
        with losses.synchronized():
            history.append([epoch, losses["sum"] / losses["count"], losses["count"]])
            losses.clear()
    seen.sync()
    return {
        "weights": {name: value.clone() for name, value in model.state_dict().items()},
        "lr": optimizer.param_groups[0]["lr"],
        "steps": seen.steps,
        "losses": {key: seen.losses[key] / len(indices) for key, indices in seen.steps.items()},
        "history": history,
        "progress": session.progress_state.progress,
        "num_steps": session.progress_state.num_steps,
        "run_number": session.run_number,
    }


def checkpoints(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / "checkpoints").iterdir())
