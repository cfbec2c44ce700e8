"""A script as it was written for AdaptDL, with other imports."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import torch

import pollux_slurm.torch as adl
from pollux_slurm.torch import env
from pollux_slurm.torch.checkpoint.checkpoint_file import read_checkpoint
from tests.torch.single_replica import Numbers, joined
from tests.torch.training.test_plain_use import Writer

pytestmark = pytest.mark.torch


class Best(adl.State):
    """A state that writes itself to a file."""

    def __init__(self) -> None:
        super().__init__("best")
        self.loss = float("inf")

    def save(self, fileobj: BinaryIO) -> None:
        fileobj.write(str(self.loss).encode())

    def load(self, fileobj: BinaryIO) -> None:
        self.loss = float(fileobj.read().decode())


def main(writer: Writer, stop_in_epoch: int | None) -> list[float]:
    torch.manual_seed(0)
    net: Any = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD([{"params": [param]} for param in net.parameters()], lr=1e-3, momentum=0.9)
    lr_scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 3], 0.1)
    net = adl.AdaptiveDataParallel(net, optimizer, lr_scheduler, scaling_rule=adl.scaling_rules.AdaScale())
    trainloader = adl.AdaptiveDataLoader(Numbers(50), batch_size=8, shuffle=True, drop_last=True)
    trainloader.autoscale_batch_size(32, local_bsz_bounds=(4, 16), gradient_accumulation=True)
    best, recorded = Best(), []
    for epoch in adl.remaining_epochs_until(4):
        net.train()
        stats = adl.Accumulator()
        for inputs, _ in trainloader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(net(inputs), 2 * inputs)
            loss.backward()
            optimizer.step()
            stats["loss_sum"] += loss.item() * inputs.size(0)
            stats["total"] += inputs.size(0)
            if epoch == stop_in_epoch:
                os.kill(os.getpid(), signal.SIGTERM)
        trainloader.to_tensorboard(writer, epoch, tag_prefix="AdaptiveDataLoader/")
        net.to_tensorboard(writer, epoch, tag_prefix="AdaptiveDataParallel/")
        with stats.synchronized():
            stats["loss_avg"] = stats["loss_sum"] / stats["total"]
            assert stats["total"] in (32, 40, 48)
        net.eval()
        validloader = adl.AdaptiveDataLoader(Numbers(9), batch_size=4, shuffle=False)
        valid = adl.Accumulator()
        with torch.no_grad():
            for inputs, _ in validloader:
                valid["loss_sum"] += torch.nn.functional.mse_loss(net(inputs), 2 * inputs).item() * len(
                    inputs
                )
                valid["total"] += len(inputs)
                if stop_in_epoch is not None and epoch + 10 == stop_in_epoch:
                    os.kill(os.getpid(), signal.SIGTERM)
        with valid.synchronized():
            assert valid["total"] == 9
            best.loss = min(best.loss, valid["loss_sum"] / valid["total"])
        recorded.append(best.loss)
        lr_scheduler.step()
        if env.replica_rank() == 0:
            writer.add_scalar("Loss/Valid", best.loss, epoch)
    assert adl.finished_epochs() == 4
    assert net.gain >= 1.0
    return recorded


@pytest.mark.parametrize("stop_in_epoch", [2, 12])
def test_that_it_runs_and_is_resumed(tmp_path: Path, stop_in_epoch: int) -> None:
    """It is stopped in the third epoch, while training or (plus ten) while validating."""
    writer = Writer()
    with joined(tmp_path / "job", backend="gloo"), pytest.raises(adl.TrainingStopped):
        main(writer, stop_in_epoch=stop_in_epoch)
    stopped_at = writer.written["Loss/Valid"]
    with joined(tmp_path / "job", backend="gloo"):
        recorded = main(writer, stop_in_epoch=None)
    assert stopped_at[1] == 1
    assert len(recorded) == 2
    assert recorded[-1] <= recorded[0] <= stopped_at[0]
    kept = read_checkpoint(max((tmp_path / "job" / "checkpoints").iterdir()))
    # Of the objects that each epoch makes again, at most the last one is left.
    assert len([name for name in kept if name.startswith("accumulator-")]) <= 2
    assert len([name for name in kept if name.startswith("loader-")]) <= 2
    assert writer.written["AdaptiveDataLoader/Total_Batch_Size"][1] == 3
