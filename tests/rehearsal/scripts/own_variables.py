"""Sums in its own variables, and keeps an average of the weights that is in no checkpoint."""

import torch
from problem import make_data, make_network

import pollux_slurm.torch as pt

pt.init_process_group()
network = make_network()
optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
average = torch.optim.swa_utils.AveragedModel(network)
model = pt.AdaptiveDataParallel(network, optimizer)
loader = pt.AdaptiveDataLoader(make_data(), batch_size=10, shuffle=True)
for epoch in pt.remaining_epochs_until(100):
    total = n = 0
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        average.update_parameters(network)
        total += loss.item() * len(inputs)
        n += len(inputs)
    print(f"epoch {epoch}: loss {total / n:.4f}", flush=True)
