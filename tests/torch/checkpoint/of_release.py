"""A training whose checkpoints, as version 0.1.0 wrote them after 5 and 11 steps, lie beside this file.

They were made with a checkout of commit cd0be72f in the folder RELEASE, in this folder:

    for n in 5 11; do
        PYTHONPATH=RELEASE python of_release.py made-$n $n
        cp made-$n/checkpoints/*.pt of_release_$n.pt
    done

So this calls nothing that the release lacks.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset, TensorDataset

import pollux_slurm.torch as pt


class Stream(IterableDataset[Any]):
    """The numbers from 0 to 9."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.tensor([float(number)]) for number in range(10))


class Seen(pt.State):
    """The inputs of each batch."""

    def __init__(self) -> None:
        super().__init__("seen")
        self.batches: list[list[float]] = []

    def state_dict(self) -> dict[str, Any]:
        return {"batches": self.batches}

    def load_state_dict(self, state: Any) -> None:
        self.batches = list(state["batches"])


def train(stop_after: int | None = None) -> dict[str, Any]:
    """Train for three epochs over two loaders, with a warm-up that the first one makes."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(1, 2), torch.nn.Linear(2, 1))
    optimizer = torch.optim.AdamW(
        [
            {"params": model[0].parameters(), "lr": 0.02, "weight_decay": 0.1},
            {"params": model[1].parameters(), "lr": 0.05, "weight_decay": 0.0},
        ]
    )
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    parallel = pt.AdaptiveDataParallel(model, optimizer, schedule)
    mapped = pt.AdaptiveDataLoader(
        TensorDataset(torch.arange(10, 20.0).unsqueeze(1)), batch_size=4, shuffle=True
    )
    streamed = pt.AdaptiveDataLoader(Stream(), batch_size=4)
    seen, losses, means, num_steps = Seen(), pt.Accumulator(), [], 0
    for epoch in pt.remaining_epochs_until(3):
        if epoch == 0:
            warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.5, total_iters=4)
            parallel.add_lr_scheduler(warmup)
        for loader in (mapped, streamed):
            for batch in loader:
                inputs = batch[0] if loader is mapped else batch
                optimizer.zero_grad()
                loss = (parallel(inputs) - inputs.sin()).square().mean()
                loss.backward()
                optimizer.step()
                if epoch == 0:
                    warmup.step()
                losses["sum"] += loss.item()
                seen.batches.append(inputs.flatten().tolist())
                num_steps += 1
                if num_steps == stop_after:
                    os.kill(os.getpid(), signal.SIGTERM)
        schedule.step()
        with losses.synchronized():
            means.append(losses["sum"])
            losses.clear()
    return {
        "weights": [one.tolist() for one in model.parameters()],
        "rates": [group["lr"] for group in optimizer.param_groups],
        "batches": seen.batches,
        "means": means,
    }


if __name__ == "__main__":
    pt.init_process_group(checkpoint_dir=sys.argv[1], checkpoint_interval_s=None)
    train(int(sys.argv[2]))
