"""Trains a generator and a discriminator, with noise from torch's generator; nothing is augmented."""

import torch
from problem import make_data

import pollux_slurm.torch as pt

torch.manual_seed(0)
pt.init_process_group()
makes = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))
judges = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
make_steps = torch.optim.Adam(makes.parameters(), lr=0.01)
judge_steps = torch.optim.Adam(judges.parameters(), lr=0.01)
generator = pt.AdaptiveDataParallel(makes, make_steps)
discriminator = pt.AdaptiveDataParallel(judges, judge_steps)
loader = pt.AdaptiveDataLoader(make_data(), batch_size=10, shuffle=True)
loss = torch.nn.BCEWithLogitsLoss()
for _ in pt.remaining_epochs_until(100):
    for real, _ in loader:
        fake = generator(torch.randn(len(real), 3))
        judge_steps.zero_grad()
        both = discriminator(torch.cat([real, fake.detach()]))
        labels = torch.cat([torch.ones(len(real), 1), torch.zeros(len(real), 1)])
        loss(both, labels).backward()
        judge_steps.step()
        make_steps.zero_grad()
        loss(judges(fake), torch.ones(len(real), 1)).backward()
        make_steps.step()
