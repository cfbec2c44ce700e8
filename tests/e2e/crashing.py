"""A training script for a test to submit: it reports, and then raises."""

from __future__ import annotations

import time

import torch
from torch.utils.data import TensorDataset

import pollux_slurm.torch as pt

BATCHES_BEFORE_THE_CRASH = 60


def main() -> None:
    network = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    pt.init_process_group()
    model = pt.AdaptiveDataParallel(network, optimizer)
    loader = pt.AdaptiveDataLoader(TensorDataset(torch.randn(4096, 4)), batch_size=8)
    batches = 0
    for _epoch in pt.remaining_epochs_until(100):
        for (inputs,) in loader:
            time.sleep(0.05)  # emulated device time
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
            batches += 1
            if batches > BATCHES_BEFORE_THE_CRASH:
                raise RuntimeError("this job was written to crash")


if __name__ == "__main__":
    main()
