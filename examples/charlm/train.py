"""Train a small transformer to continue a text, character by character, adaptively.

    pollux sbatch train.sbatch              on a Slurm cluster
    python train.py                         anywhere else

The text is the GNU General Public License that every Debian machine has. Predicts at least 0.45 of the
characters of its unseen last tenth after 6 epochs (about 0.49). The lines that make the training adaptive
are marked.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch.nn import functional
from torch.utils.data import Dataset

import pollux_slurm.torch as pt  # adaptive

sys.path.append(str(Path(__file__).resolve().parents[2]))
from examples.common import Audit, conclude, parse_options, print_on_rank_0

TEXT = Path("/usr/share/common-licenses/GPL-3")
LENGTH = 32
STRIDE = 8
WIDTH = 64


class Windows(Dataset[tuple[torch.Tensor, torch.Tensor, int]]):
    """Windows of a text, the same one character later, and their index, which only the audit needs."""

    def __init__(self, codes: torch.Tensor, stride: int) -> None:
        self.windows = codes.unfold(0, LENGTH + 1, stride)

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        window = self.windows[index]
        return window[:-1], window[1:], index


class Transformer(torch.nn.Module):
    """Two layers of causal attention, without dropout: its results do not depend on the replicas."""

    def __init__(self, alphabet: int) -> None:
        super().__init__()
        self.characters = torch.nn.Embedding(alphabet, WIDTH)
        torch.nn.init.normal_(self.characters.weight, std=0.1)
        self.positions = torch.nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(
                WIDTH, nhead=4, dim_feedforward=4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(2)
        )
        self.out = torch.nn.Linear(WIDTH, alphabet)
        self.register_buffer("mask", torch.nn.Transformer.generate_square_subsequent_mask(LENGTH))

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        hidden = self.characters(codes) + self.positions
        for layer in self.layers:
            hidden = layer(hidden, src_mask=self.mask, is_causal=True)
        logits: torch.Tensor = self.out(hidden)
        return logits


def load_text() -> tuple[Windows, Windows, int]:
    """Return training and test windows, and the number of different characters."""
    if not TEXT.is_file():
        sys.exit(f"this example reads {TEXT}, which every Debian machine has")
    text = TEXT.read_text(encoding="utf-8")
    alphabet = sorted(set(text))
    codes = torch.tensor([alphabet.index(character) for character in text])
    split = len(codes) * 9 // 10
    return Windows(codes[:split], STRIDE), Windows(codes[split:], LENGTH), len(alphabet)


def main() -> int:
    options = parse_options(__doc__, epochs=6, target_accuracy=0.45)
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    train_set, test_set, alphabet = load_text()
    network: torch.nn.Module = Transformer(alphabet)
    optimizer = torch.optim.AdamW(network.parameters(), lr=6e-3, betas=(0.9, 0.95))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=options.epochs)

    # This network trains on the CPU, even if there are GPUs. To train on GPUs, leave out "gloo".
    pt.init_process_group("gloo", in_place=True)  # adaptive
    network = pt.AdaptiveDataParallel(network, optimizer, scheduler)  # adaptive
    loader = pt.AdaptiveDataLoader(train_set, batch_size=32, shuffle=True, seed=options.seed)  # adaptive
    loader.autoscale_batch_size(64, local_bsz_bounds=(4, 32), gradient_accumulation=True)  # adaptive

    options.emulate_device.announce()
    audit = Audit(options.epochs, len(train_set))
    audit.runs.append(torch.distributed.get_world_size())
    for epoch in pt.remaining_epochs_until(options.epochs):  # adaptive
        for codes, following, indices in loader:
            options.emulate_device.compute(len(codes))
            optimizer.zero_grad()
            loss = functional.cross_entropy(network(codes).flatten(0, 1), following.flatten())
            loss.backward()
            optimizer.step()
            if not loader.is_padding:
                audit.count(epoch, indices)
        scheduler.step()
        print_on_rank_0(
            f"epoch {epoch}: batch {loader.current_batch_size}, test accuracy {test(network, test_set):.4f}"
        )
    return conclude(options, audit, test(network, test_set))


def test(network: torch.nn.Module, test_set: Windows) -> float:
    """Return the share of characters of the unseen text that the network predicts from those before."""
    with torch.no_grad():
        answers = network(test_set.windows[:, :-1]).argmax(dim=2)
    return float((answers == test_set.windows[:, 1:]).float().mean())


if __name__ == "__main__":
    sys.exit(main())
