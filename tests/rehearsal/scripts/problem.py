"""What the scripts of these tests train: a line through noise."""

import torch
from torch.utils.data import TensorDataset

NUM_EXAMPLES = 120


def make_data() -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(NUM_EXAMPLES, 4, generator=generator)
    noise = 0.1 * torch.randn(NUM_EXAMPLES, 1, generator=generator)
    return TensorDataset(inputs, inputs.sum(dim=1, keepdim=True) + noise)


def make_network() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
