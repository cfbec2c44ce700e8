"""Trains with a sum over the micro-batch, whose gradient follows its size; nothing random is drawn."""

import sys
from pathlib import Path

import torch

import pollux_slurm.torch as pt

sys.path.append(str(Path(__file__).parents[1] / "scripts"))
from problem import make_data, make_network

pt.init_process_group()
network = make_network()
optimizer = torch.optim.SGD(network.parameters(), lr=0.001)
loader = pt.AdaptiveDataLoader(make_data(), batch_size=20, shuffle=True)
model = pt.AdaptiveDataParallel(network, optimizer)
for _ in pt.remaining_epochs_until(40):
    for inputs, targets in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets, reduction="sum").backward()
        optimizer.step()
