"""Counts its epochs by `range`, with a schedule and a line printed for each."""

import torch
from problem import make_data, make_network

import pollux_slurm.torch as pt

pt.init_process_group()
network = make_network()
optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
model = pt.AdaptiveDataParallel(network, optimizer, schedule)
loader = pt.AdaptiveDataLoader(make_data(), batch_size=10, shuffle=True)
for epoch in range(100):
    for inputs, targets in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    schedule.step()
    print(f"epoch {epoch}: rate {schedule.get_last_lr()[0]}", flush=True)
