"""Trains two models on split batches: one writes buffers, the other is trained through after its own step."""

import torch
from torch.utils.data import TensorDataset

import pollux_slurm.torch as pt

pt.init_process_group()
first = torch.nn.Sequential(
    torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(4, 4)),
    torch.nn.Dropout(0.0),
    torch.nn.Linear(4, 1),
)
second = torch.nn.Linear(1, 1)
optimizers = [torch.optim.SGD(network.parameters(), lr=0.01) for network in (first, second)]
generator, judge = (pt.AdaptiveDataParallel(*pair) for pair in zip((first, second), optimizers, strict=True))
loader = pt.AdaptiveDataLoader(TensorDataset(torch.randn(60, 4), torch.randn(60, 1)), batch_size=20)
loader.autoscale_batch_size(20, (2, 10), gradient_accumulation=True)
for _ in pt.remaining_epochs_until(1):
    for inputs, targets in loader:
        optimizers[1].zero_grad()
        (judge(targets) - 1).square().mean().backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        judge(generator(inputs)).mean().backward()
        optimizers[0].step()
