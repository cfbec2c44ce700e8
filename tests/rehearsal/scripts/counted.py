"""Counts the batches itself and fetches them from an iterator."""

import torch
from problem import make_data, make_network

import pollux_slurm.torch as pt

pt.init_process_group()
network = make_network()
optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
model = pt.AdaptiveDataParallel(network, optimizer)
loader = pt.AdaptiveDataLoader(make_data(), batch_size=10, shuffle=True)
for _ in pt.remaining_epochs_until(100):
    batches = iter(loader)
    for _ in range(len(loader)):
        inputs, targets = next(batches)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
