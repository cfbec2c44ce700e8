"""Validates over an adaptive loader, and prints sums in its own variables."""

import torch
from problem import make_data, make_network

import pollux_slurm.torch as pt


def validate(network: torch.nn.Module, loader: pt.AdaptiveDataLoader) -> float:
    total, losses, count = 0.0, [], 0
    with torch.no_grad():
        for inputs, targets in loader:
            error = (network(inputs) - targets).abs()
            total += error.sum().item()
            losses.append(error.mean().item())
            count += len(inputs)
    return total / max(count, 1)


pt.init_process_group()
network = make_network()
optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
model = pt.AdaptiveDataParallel(network, optimizer)
loader = pt.AdaptiveDataLoader(make_data(), batch_size=10, shuffle=True)
held_out = pt.AdaptiveDataLoader(make_data(), batch_size=40)
for epoch in pt.remaining_epochs_until(100):
    for inputs, targets in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    print(f"epoch {epoch}: error {validate(network, held_out):.4f}", flush=True)
