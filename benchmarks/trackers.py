"""What logging a step costs: the tool by itself, a `Tracker` at each step, and one at every tenth.

The same small loop runs in blocks of steps, in turn without logging and in each of these ways, so that
other load on the machine affects all alike. Printed is by how much the processor time of a step is above
that without logging: medians over the blocks, all threads of the process included. W&B runs offline; its
own process is not counted.

    python -m benchmarks.trackers --tool wandb
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import TensorDataset

import pollux_slurm.torch as pt
from pollux_slurm.trackers import Tracker

_BATCH_SIZE = 16


def open_run(tool: str, folder: str) -> tuple[Any, Callable[[float, int], Any]]:
    """Return the tool's run, and the call with which a script would log a loss to it."""
    if tool == "wandb":
        import wandb

        run = wandb.init(mode="offline", dir=folder)
        return run, lambda loss, step: run.log({"loss": loss, "global_step": step})
    if tool == "mlflow":
        import mlflow

        mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
        active = mlflow.start_run()
        return active, lambda loss, step: mlflow.log_metric("loss", loss, step, synchronous=False)
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(folder)
    return writer, lambda loss, step: writer.add_scalar("loss", loss, step)


def measure(tool: str, folder: str, *, blocks: int, block_steps: int) -> dict[str, list[float]]:
    """Return the processor time of a step in each block, in seconds, by the way of logging."""
    pt.init_process_group("gloo", checkpoint_dir=folder, checkpoint_interval_s=None)
    torch.set_num_threads(1)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    parallel = pt.AdaptiveDataParallel(model, optimizer)
    made: list[Callable[[float, int], Any]] = []

    def make() -> Any:
        run, log = open_run(tool, folder)
        made.append(log)
        return run

    tracker = Tracker(make)
    sparse = Tracker(lambda: tracker.run, every=10)
    ways: dict[str, Callable[[torch.Tensor], Any]] = {
        "none": lambda loss: None,
        "tool alone": lambda loss: made[0](loss.item(), pt.finished_steps()),
        "Tracker": lambda loss: tracker.log({"loss": loss}),
        "Tracker, every=10": lambda loss: sparse.log({"loss": loss}),
    }
    num_steps = (2 * blocks + 1) * len(ways) * block_steps
    inputs = torch.randn(num_steps * _BATCH_SIZE, 8)
    loader = pt.AdaptiveDataLoader(TensorDataset(inputs, inputs[:, :1]), batch_size=_BATCH_SIZE)

    def steps() -> Iterator[torch.Tensor]:
        for features, targets in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(parallel(features), targets)
            loss.backward()
            optimizer.step()
            yield loss

    results: dict[str, list[float]] = {name: [] for name in ways}
    source = steps()
    for block in range(2 * blocks + 1):
        for name in list(ways)[:: 1 if block % 2 else -1]:
            began = time.process_time()
            for _ in range(block_steps):
                ways[name](next(source))
            if tool == "mlflow":
                # What threads have not logged yet belongs to this block.
                sys.modules["mlflow"].flush_async_logging()
                tracker.flush()
                sparse.flush()
            if block:
                results[name].append((time.process_time() - began) / block_steps)
    source.close()  # type: ignore[attr-defined]
    if tool == "mlflow":
        sys.modules["mlflow"].end_run()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tool", choices=["tensorboard", "wandb", "mlflow"], default="tensorboard")
    parser.add_argument("--blocks", type=int, default=12, help="pairs of blocks (default: %(default)s)")
    parser.add_argument("--block-steps", type=int, default=100)
    options = parser.parse_args()
    os.environ["WANDB_SILENT"] = "true"
    with tempfile.TemporaryDirectory() as folder:
        results = measure(options.tool, folder, blocks=options.blocks, block_steps=options.block_steps)
    base = statistics.median(results["none"])
    print(f"{options.tool}: a step without logging takes {1e3 * base:.3f} ms of processor time")
    for name, times in results.items():
        print(f"  {name:18} {1e3 * (statistics.median(times) - base):+.3f} ms")


if __name__ == "__main__":
    main()
