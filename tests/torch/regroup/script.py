"""A training script in variants, written as a user would, whose replicas may join and leave."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, Sampler

import pollux_slurm.torch as pt
from pollux_slurm.torch.session.current_session import current_session
from tests.torch.scripts import Numbered, Seen, make_model


@dataclass(frozen=True, kw_only=True)
class Variant:
    """What a script is like. `source`: map, sampler, batches or stream. `evaluation`: none, before, after
    (with an ordinary loader and a collective), adaptive.
    """

    kind: str = "sgd"
    source: str = "map"
    num_workers: int = 0
    keeps_workers: bool = False
    accumulates: bool = False
    num_models: int = 1
    has_scaler: bool = False
    evaluation: str = "none"
    has_epochs: bool = True
    schedule: str = "epoch"
    adds_outside: bool = False
    has_second_loop: bool = False
    max_batch_size: int | None = None


VARIANTS = {
    "plain": Variant(),
    "adam": Variant(kind="adam", schedule="step"),
    "bfloat16": Variant(kind="bfloat16"),
    "accumulation": Variant(accumulates=True),
    "scaler": Variant(has_scaler=True, accumulates=True),
    "workers": Variant(num_workers=2),
    "kept workers": Variant(num_workers=2, keeps_workers=True, has_second_loop=True),
    "stream": Variant(source="stream"),
    "stream, workers": Variant(source="stream", num_workers=2, accumulates=True),
    "sampler": Variant(source="sampler", num_workers=1),
    "batches": Variant(source="batches"),
    "two models": Variant(num_models=2, kind="adam", schedule="step"),
    "evaluation before": Variant(evaluation="before"),
    "evaluation after": Variant(evaluation="after", adds_outside=True),
    "adaptive evaluation": Variant(evaluation="adaptive"),
    "two loops": Variant(has_second_loop=True, num_models=2),
    "no epochs": Variant(has_epochs=False, schedule="step"),
    "varying batch": Variant(max_batch_size=48, accumulates=True),
}


class Stream(IterableDataset[Any]):
    """The numbered examples, in their order."""

    def __init__(self, length: int) -> None:
        self._examples = Numbered(length)

    def __iter__(self) -> Iterator[Any]:
        return (self._examples[index] for index in range(len(self._examples)))


class UnevenBatches(Sampler[list[int]]):
    """Batches of 8 and 16 indices in turn, in an order that is drawn in each epoch."""

    batch_size = 16

    def __init__(self, length: int) -> None:
        self._length = length

    def __iter__(self) -> Iterator[list[int]]:
        indices = torch.randperm(self._length).tolist()
        size = 16
        while indices:
            yield indices[:size]
            indices, size = indices[size:], 24 - size

    def __len__(self) -> int:
        return -(-self._length // 12)


def make_loader(variant: Variant, length: int) -> pt.AdaptiveDataLoader:
    options: dict[str, Any] = {"num_workers": variant.num_workers}
    if variant.num_workers:
        # As in a script that Python runs: the processes of these tests would start theirs by a server.
        options["multiprocessing_context"] = "fork"
    if variant.keeps_workers:
        options["persistent_workers"] = True
    if variant.source == "stream":
        loader = pt.AdaptiveDataLoader(Stream(length), batch_size=16, **options)
    elif variant.source == "sampler":
        examples = Numbered(length)
        loader = pt.AdaptiveDataLoader(examples, batch_size=16, sampler=RandomSampler(examples), **options)
    elif variant.source == "batches":
        loader = pt.AdaptiveDataLoader(Numbered(length), batch_sampler=UnevenBatches(length), **options)
    else:
        loader = pt.AdaptiveDataLoader(Numbered(length), batch_size=16, shuffle=True, **options)
    if variant.accumulates:
        loader.autoscale_batch_size(variant.max_batch_size or 16, (1, 3), gradient_accumulation=True)
    return loader


def wait_at_gate(gate: Path | None, num_steps: int) -> None:
    """Wait, before step `num_steps`, until the test lets the training come to it."""
    if gate is None:
        return
    if dist.get_rank() == 0:
        (gate / "reached").write_text(f"{num_steps:6d}")
    deadline = time.monotonic() + 120
    # A stop is answered at the boundary after this step.
    while dist.get_rank() == 0 and not current_session().boundary.stop.is_set and time.monotonic() < deadline:
        try:
            if int((gate / "open").read_text()) > num_steps:
                return
        except ValueError:
            pass
        time.sleep(0.005)


def reached(gate: Path) -> int:
    """Return the step at which the training waits, or which it makes; −1 before the first."""
    try:
        return int((gate / "reached").read_text())
    except (OSError, ValueError):
        return -1


def train(
    directory: str | None,
    gate: str | None,
    options: dict[str, Any],
    num_epochs: int,
    length: int = 70,
    interval_s: float | None = 0.1,
    pause_s: float = 0.0,
) -> dict[str, Any]:
    variant = Variant(**options)
    pt.init_process_group(
        checkpoint_dir=directory,
        checkpoint_interval_s=None if directory is None else interval_s,
        in_place=True,
    )
    gate_folder = None if gate is None else Path(gate)
    models, optimizers, schedulers, scalers = [], [], [], []
    for _ in range(variant.num_models):
        model, optimizer = make_model(variant.kind)
        models.append(model)
        optimizers.append(optimizer)
        step_size = {"epoch": 1, "step": 7}[variant.schedule]
        schedulers.append(torch.optim.lr_scheduler.StepLR(optimizer, step_size=step_size, gamma=0.9))
        scalers.append(torch.amp.GradScaler("cpu", init_scale=1024.0) if variant.has_scaler else None)
    parallels = [
        pt.AdaptiveDataParallel(
            model, optimizer, scheduler, **({} if scaler is None else {"mp_scaler": scaler})
        )
        for model, optimizer, scheduler, scaler in zip(models, optimizers, schedulers, scalers, strict=True)
    ]
    loader = make_loader(variant, length)
    second = make_loader(variant, 37) if variant.has_second_loop else None
    evaluated = (
        pt.AdaptiveDataLoader(Numbered(30), batch_size=10) if variant.evaluation == "adaptive" else None
    )
    seen, losses, outside = Seen(), pt.Accumulator(), pt.Accumulator()
    session = current_session()
    history: list[Any] = []

    def one_loop(epoch: int, loop: pt.AdaptiveDataLoader, base: int) -> None:
        for inputs, targets, indices in loop:
            wait_at_gate(gate_folder, session.progress_state.num_steps)
            total = 0.0
            for parallel, optimizer, scaler in zip(parallels, optimizers, scalers, strict=True):
                optimizer.zero_grad()
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=variant.kind == "bfloat16"):
                    outputs = parallel(inputs)
                loss = torch.nn.functional.mse_loss(outputs.float(), targets)
                if scaler is None:
                    loss.backward()
                    optimizer.step()
                else:
                    scaler.scale(loss).backward()
                    scaler.step(optimizer)
                    scaler.update()
                total += loss.item()
            if variant.schedule == "step":
                for scheduler in schedulers:
                    scheduler.step()
            if not loop.is_padding:
                seen.add(
                    epoch, session.progress_state.num_steps, [base + one for one in indices.tolist()], total
                )
                losses["sum"] += total * len(inputs)
                losses["count"] += len(inputs)
            time.sleep(pause_s)

    def evaluate(epoch: int) -> float:
        total = torch.zeros(1)
        with torch.no_grad():
            for inputs, targets, _ in DataLoader(Numbered(30), batch_size=10):
                total += torch.nn.functional.mse_loss(parallels[0](inputs), targets)
        dist.all_reduce(total)
        if variant.adds_outside:
            outside["sum"] += float(total) / dist.get_world_size() ** 2
        return float(total) / dist.get_world_size()

    for epoch in pt.remaining_epochs_until(num_epochs) if variant.has_epochs else range(num_epochs):
        entry: list[Any] = [epoch]
        if variant.evaluation == "before":
            entry.append(evaluate(epoch))
        one_loop(epoch, loader, 0)
        if second is not None:
            one_loop(epoch, second, 1000)
        if variant.evaluation == "after":
            entry.append(evaluate(epoch))
        if evaluated is not None:
            with torch.no_grad():
                for inputs, targets, _ in evaluated:
                    if not evaluated.is_padding:
                        losses["validation"] += len(inputs) * float(
                            torch.nn.functional.mse_loss(parallels[0](inputs), targets)
                        )
        if variant.schedule == "epoch":
            for scheduler in schedulers:
                scheduler.step()
        if variant.has_epochs:
            with losses.synchronized():
                entry += [losses["sum"] / losses["count"], losses["count"], losses.get("validation", 0.0)]
                losses.clear()
            with outside.synchronized():
                entry.append(outside.get("sum", 0.0))
        history.append(entry)
    seen.sync()
    return {
        "weights": {
            f"{number}/{name}": value.clone()
            for number, model in enumerate(models)
            for name, value in model.state_dict().items()
        },
        "lr": [optimizer.param_groups[0]["lr"] for optimizer in optimizers],
        "steps": seen.steps,
        "losses": {key: seen.losses[key] / len(indices) for key, indices in seen.steps.items()},
        "history": history,
        "progress": session.progress_state.progress,
        "num_steps": session.progress_state.num_steps,
        "run_number": session.run_number,
        "allocations": [asdict(one) for one in session.history.allocations],
    }
