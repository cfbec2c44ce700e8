"""Steps a part of the wrapped model by an optimizer that was not passed to the wrapper."""

import torch
from problem import make_data, make_network

import pollux_slurm.torch as pt

pt.init_process_group()
network = make_network()
first = torch.optim.SGD(network[0].parameters(), lr=0.05)
second = torch.optim.SGD(network[2].parameters(), lr=0.05, momentum=0.9)
model = pt.AdaptiveDataParallel(network, first)
loader = pt.AdaptiveDataLoader(make_data(), batch_size=10, shuffle=True)
for _ in pt.remaining_epochs_until(100):
    for inputs, targets in loader:
        first.zero_grad()
        second.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        first.step()
        second.step()
