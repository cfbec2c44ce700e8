"""Computes its loss with the module inside of the wrapper: gradients are not averaged over the replicas."""

import torch
from problem import make_data, make_network

import pollux_slurm.torch as pt

pt.init_process_group()
network = make_network()
optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
model = pt.AdaptiveDataParallel(network, optimizer)
loader = pt.AdaptiveDataLoader(make_data(), batch_size=10, shuffle=True)
for _ in pt.remaining_epochs_until(100):
    for inputs, targets in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model.module(inputs), targets).backward()
        optimizer.step()
