"""Trains with BatchNorm, dropout, augmentation in a worker and a cosine schedule; a fault is an argument."""

import math
import sys
from pathlib import Path

import torch
from torch.utils.data import Dataset

import pollux_slurm.torch as pt

sys.path.append(str(Path(__file__).parents[1] / "scripts"))
from problem import make_data

FAULT = "".join(sys.argv[1:])
EPOCHS = 40


class Augmented(Dataset):
    """Adds noise to each example, from the process's generator and from one of its own."""

    def __init__(self) -> None:
        self.data, self.own = make_data(), torch.Generator().manual_seed(5)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, targets = self.data[index]
        noise = torch.randn(4) + torch.randn(4, generator=self.own)
        return inputs + 0.1 * noise, targets


def main() -> None:
    pt.init_process_group()
    torch.manual_seed(1)
    network = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1)
    )
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.02)
    loader = pt.AdaptiveDataLoader(Augmented(), batch_size=20, shuffle=True, num_workers=1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * len(loader))
    model = pt.AdaptiveDataParallel(network, optimizer, *[schedule] * (FAULT != "own_rate"))
    step = 0
    for _ in pt.remaining_epochs_until(EPOCHS):
        for inputs, targets in loader:
            if FAULT == "own_rate":
                for group in optimizer.param_groups:
                    group["lr"] = 0.01 * (1 + math.cos(math.pi * step / 200))
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            if FAULT == "own_weight":
                loss = loss + min(step / 5, 1) * network[0].weight.abs().sum()
            loss.backward()
            optimizer.step()
            if FAULT != "own_rate":
                schedule.step()
            step += 1


if __name__ == "__main__":
    main()
