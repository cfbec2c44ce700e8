"""Training scripts for accelerate that the tests run as ranks, with a record of what they saw."""

from __future__ import annotations

import os
import signal
from typing import Any

import torch
from torch.utils.data import DataLoader

import pollux_slurm.torch as pt
from pollux_slurm.huggingface import PolluxAccelerator
from pollux_slurm.torch.session.current_session import current_session
from tests.torch.scripts import Numbered, Seen, make_model

PER_DEVICE, STEPS = 4, 4


class Rates(pt.State):
    """The learning rate of each step, as the optimizer had it."""

    def __init__(self) -> None:
        super().__init__("rates")
        self.rates: list[float] = []

    def state_dict(self) -> dict[str, Any]:
        return {"rates": self.rates}

    def load_state_dict(self, state: Any) -> None:
        self.rates = list(state["rates"])


def evaluate(accelerator: Any, model: Any, loader: Any) -> list[int]:
    """Return the indices that an evaluation saw, in its order."""
    seen = []
    model.eval()
    with torch.no_grad():
        for inputs, _, indices in loader:
            outputs, indices = accelerator.gather_for_metrics((model(inputs), indices))
            assert len(outputs) == len(indices)
            seen += indices.tolist()
    model.train()
    return seen


def train(
    directory: str | None,
    num_epochs: int,
    stop_after: int | None = None,
    *,
    clip: float | None = None,
    mixed_precision: str = "no",
    max_batch_size: int | None = None,
) -> dict[str, Any]:
    """Train as accelerate's own examples do; after `stop_after` steps every rank gets SIGTERM."""
    pt.init_process_group(checkpoint_dir=directory, checkpoint_interval_s=None)
    accelerator = PolluxAccelerator(
        gradient_accumulation_steps=STEPS, mixed_precision=mixed_precision, max_batch_size=max_batch_size
    )
    model, optimizer = make_model("sgd")
    loader = DataLoader(Numbered(), batch_size=PER_DEVICE, shuffle=True)
    evaluation = DataLoader(Numbered(22), batch_size=PER_DEVICE)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    scheduler, loader, evaluation, optimizer, model = accelerator.prepare(
        scheduler, loader, evaluation, optimizer, model
    )
    seen, rates, losses, steps, evaluated = Seen(), Rates(), pt.Accumulator(), 0, []
    session = current_session()
    for epoch in pt.remaining_epochs_until(num_epochs):
        for inputs, targets, indices in loader:
            with accelerator.accumulate(model):
                loss = torch.nn.functional.mse_loss(model(inputs), targets)
                accelerator.backward(loss)
                if clip is not None and accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), clip)
                rate = optimizer.param_groups[0]["lr"]
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            gathered = accelerator.gather_for_metrics(indices).tolist()
            assert len(set(gathered)) == len(gathered)
            if not loader.is_padding:
                seen.add(epoch, session.progress_state.num_steps, indices.tolist(), loss.item())
                losses["sum"] += loss.item() * len(inputs)
            if accelerator.sync_gradients:
                rates.rates.append(rate)
                steps += 1
                if steps == stop_after:
                    os.kill(os.getpid(), signal.SIGTERM)
        evaluated = evaluate(accelerator, model, evaluation)
    seen.sync()
    return {
        "weights": {
            key: value.clone() for key, value in accelerator.unwrap_model(model).state_dict().items()
        },
        "lr": optimizer.param_groups[0]["lr"],
        "rates": rates.rates,
        "steps": seen.steps,
        "losses": {key: seen.losses[key] / len(indices) for key, indices in seen.steps.items()},
        "history": [],
        "num_steps": session.progress_state.num_steps,
        "evaluated": evaluated,
        "world": [accelerator.num_processes, accelerator.process_index],
        "length": len(loader),
    }
