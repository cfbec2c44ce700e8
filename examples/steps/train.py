"""Train a small language model by steps: no epochs, batches from a memmap, the rate set by hand.

before.py is the script as it was, train.py the same after it was made adaptive: docs/before-and-after.md
tells how. Run prepare.py first.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

import pollux_slurm.torch as pollux

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=1000)
parser.add_argument("--batch", type=int, default=64, help="sequences of a step, over all GPUs")
parser.add_argument("--micro-batch", type=int, default=16, help="sequences of one forward pass")
parser.add_argument("--length", type=int, default=64, help="characters of a sequence")
parser.add_argument("--width", type=int, default=64)
parser.add_argument("--lr", type=float, default=3e-3)
parser.add_argument("--warmup", type=int, default=50)
parser.add_argument("--eval-every", type=int, default=100)
parser.add_argument("--eval-batches", type=int, default=8)
parser.add_argument("--data", default="data")
parser.add_argument("--out", default="model.pt")
parser.add_argument("--resume", action="store_true")
options = parser.parse_args()

rank = int(os.environ.get("RANK", 0))
pollux.init_process_group()
device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if torch.cuda.is_available() else "cpu"
torch.manual_seed(1337 + rank)
num_windows = Path(options.data, "train.bin").stat().st_size // 2 - options.length


class Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.second_norm = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.attention = torch.nn.Linear(width, 3 * width, bias=False)
        self.out = torch.nn.Linear(width, width)
        self.feed = torch.nn.Sequential(
            torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width)
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        query, key, value = self.attention(self.norm(hidden)).unflatten(2, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.out(mixed.transpose(1, 2).flatten(2))
        return hidden + self.feed(self.second_norm(hidden))  # type: ignore[no-any-return]


class LanguageModel(torch.nn.Module):
    def __init__(self, alphabet: int, length: int, width: int) -> None:
        super().__init__()
        self.characters = torch.nn.Embedding(alphabet, width)
        self.places = torch.nn.Embedding(length, width)
        self.blocks = torch.nn.Sequential(Block(width), Block(width))
        self.head = torch.nn.Linear(width, alphabet)

    def forward(self, codes: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        hidden = self.characters(codes) + self.places.weight[: codes.shape[1]]
        return functional.cross_entropy(self.head(self.blocks(hidden)).flatten(0, 1), following.flatten())


def get_batch(starts: Sequence[int] | None = None, split: str = "train") -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sequences that begin at `starts`, by default some at random, and those one later."""
    data = np.memmap(Path(options.data, f"{split}.bin"), dtype=np.uint16, mode="r")
    if starts is None:
        starts = torch.randint(num_windows, (options.micro_batch,)).tolist()
    windows = np.stack([data[start : start + options.length + 1] for start in starts]).astype(np.int64)
    return torch.from_numpy(windows[:, :-1]), torch.from_numpy(windows[:, 1:])


@torch.no_grad()
def estimate_loss(split: str) -> float:
    """Return the mean loss over the split's first sequences."""
    network.eval()
    losses: list[float] = []
    for number in range(options.eval_batches):
        first = number * options.micro_batch
        inputs, targets = get_batch(range(first, first + options.micro_batch), split)
        losses.append(network(inputs.to(device), targets.to(device)).item())
    network.train()
    return sum(losses) / len(losses)


def rate_at(step: int) -> float:
    """Return the learning rate: linear warm-up, then half a cosine down to a tenth."""
    if step < options.warmup:
        return float(options.lr * (step + 1) / options.warmup)
    part = (step - options.warmup) / max(options.steps - options.warmup, 1)
    return float(options.lr * (0.55 + 0.45 * math.cos(math.pi * part)))


network = LanguageModel(128, options.length, options.width).to(device)
optimizer = torch.optim.AdamW(network.parameters(), lr=options.lr, betas=(0.9, 0.95), weight_decay=0.1)
progress = pollux.Variables(best=float("inf"))
model = pollux.AdaptiveDataParallel(network, optimizer)
torch.multiprocessing.set_start_method("fork", force=True)  # of the process that loads ahead
loader = pollux.AdaptiveDataLoader(
    range(num_windows), options.batch, shuffle=True, drop_last=True, collate_fn=get_batch, num_workers=1
)
loader.autoscale_batch_size(options.batch, (1, options.micro_batch), gradient_accumulation=True)

for step, batches in pollux.remaining_steps_until(options.steps, loader):
    for group in optimizer.param_groups:
        group["lr"] = rate_at(step)
    if step % options.eval_every == 0 and rank == 0:
        losses = {split: estimate_loss(split) for split in ("train", "val")}
        print(f"step {step}: train {losses['train']:.6f}, val {losses['val']:.6f}", flush=True)
        if losses["val"] < progress["best"]:
            progress["best"] = losses["val"]
            saved = {"network": network.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**saved, "progress": progress}, options.out)
    for inputs, targets in batches:
        loss = model(inputs.to(device), targets.to(device))
        loss.backward()
    torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
if rank == 0:
    print(f"step {options.steps}: val {estimate_loss('val'):.6f}", flush=True)
