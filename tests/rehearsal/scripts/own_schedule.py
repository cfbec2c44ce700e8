"""Steps a schedule once per batch without passing it to `AdaptiveDataParallel`."""

import torch
from problem import make_data, make_network

import pollux_slurm.torch as pt

pt.init_process_group()
network = make_network()
optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
loader = pt.AdaptiveDataLoader(make_data(), batch_size=10, shuffle=True)
schedule = torch.optim.lr_scheduler.OneCycleLR(
    optimizer, max_lr=0.05, epochs=100, steps_per_epoch=len(loader), cycle_momentum=False
)
model = pt.AdaptiveDataParallel(network, optimizer)
for _ in pt.remaining_epochs_until(100):
    for inputs, targets in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        schedule.step()
