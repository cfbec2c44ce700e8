"""The processor time that the strategy adds to Lightning's own single-device strategy, in one run.

    python -m benchmarks.lightning_overhead [--blocks 40] [--block-steps 10] [--batch 256] [--step-ms 50]

Both fits run at once, in threads that take turns: one trains a block of steps while the other waits. So other
load on the machine affects both alike. Times are processor times of all threads, from the end of one batch to
the end of the next. Printed are the ratio of the medians of all steps, and the median over pairs of adjacent
blocks, with its 95 % interval.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import threading
import time
import warnings
from typing import Any

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

import pollux_slurm.torch as pollux
from pollux_slurm.lightning import PolluxStrategy

# Steps in which the library still measures each gradient.
_WARM_UP = 40


class Layers(pl.LightningModule):
    """Equal layers, as many as a step of the wanted length takes."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(depth)))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss: torch.Tensor = self.layers(batch[0]).square().mean()
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-4, momentum=0.9)


class Turns(pl.Callback):
    """Lets two fits train in turn, and keeps the processor time of each step after the warm-up."""

    def __init__(self, block_steps: int, mine: threading.Semaphore, other: threading.Semaphore) -> None:
        self.block_steps, self._mine, self._other = block_steps, mine, other
        self.seconds: list[float] = []
        self._num_steps, self._at = 0, 0.0

    def on_train_start(self, *args: Any) -> None:
        self._mine.acquire()
        self._at = time.process_time()

    def on_train_batch_end(self, *args: Any) -> None:
        now = time.process_time()
        self._num_steps += 1
        if self._num_steps > _WARM_UP:
            self.seconds.append(now - self._at)
        if self._num_steps % self.block_steps == 0:
            self._other.release()
            self._mine.acquire()
        self._at = time.process_time()

    def on_train_end(self, *args: Any) -> None:
        self._other.release()


def fit(strategy: Any, turns: pl.Callback | None, depth: int, steps: int, batch: int) -> None:
    torch.set_num_threads(1)
    trainer = pl.Trainer(
        strategy=strategy,
        accelerator="cpu",
        max_epochs=1,
        callbacks=[] if turns is None else [turns],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    data = TensorDataset(torch.randn(batch, 256).repeat(steps, 1))
    trainer.fit(Layers(depth), DataLoader(data, batch_size=batch))


def depth_of(step_ms: float, batch: int) -> int:
    """Return how many layers take so long."""
    fit("auto", None, 16, 10, batch)
    started = time.process_time()
    fit("auto", None, 16, 20, batch)
    return max(round(step_ms / 1000 / ((time.process_time() - started) / 20 / 16)), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=40)
    parser.add_argument("--block-steps", type=int, default=10)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--step-ms", type=float, default=50.0)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    pollux.init_process_group("gloo")
    depth, size = depth_of(options.step_ms, options.batch), options.block_steps
    steps = _WARM_UP + options.blocks * size
    first, second = threading.Semaphore(1), threading.Semaphore(0)
    turns = [Turns(size, first, second), Turns(size, second, first)]
    threads = [
        threading.Thread(target=fit, args=(strategy, one, depth, steps, options.batch))
        for strategy, one in zip(("auto", PolluxStrategy()), turns, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    own, ours = (one.seconds for one in turns)
    blocks = range(0, len(own) - size + 1, size)
    ratios = sorted(sum(ours[at : at + size]) / sum(own[at : at + size]) for at in blocks)
    spread = 0.98 * len(ratios) ** 0.5
    low, high = (ratios[round(len(ratios) / 2 + sign * spread)] for sign in (-1, 1))
    print(
        f"steps of {statistics.median(own) * 1000:.2f} ms, {statistics.median(ours) * 1000:.2f} ms under "
        f"PolluxStrategy ({depth} layers, {len(own)} steps each); ratio "
        f"{statistics.median(ours) / statistics.median(own):.3f}, of adjacent blocks "
        f"{statistics.median(ratios):.3f} ({low:.3f} to {high:.3f})"
    )


if __name__ == "__main__":
    main()
