"""Helpers of the examples: options, an emulated device, and an audit of the used examples."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import pollux_slurm.torch as pt


def parse_options(
    description: str | None, *, epochs: int, target_accuracy: float, **choices: list[str]
) -> argparse.Namespace:
    """Parse the options of all examples; `choices` are one's own, each with its values, the default first."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--epochs", type=int, default=epochs)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--target-accuracy",
        type=float,
        default=target_accuracy,
        help="exit with 1 if the test accuracy at the end is lower (default: %(default)s)",
    )
    parser.add_argument(
        "--emulate-device",
        type=Device,
        default=Device("0,0"),
        metavar="FIXED_S,PER_EXAMPLE_S",
        help="let each micro-batch take this long, as if a device computed: replicas then shorten an epoch",
    )
    for name, values in choices.items():
        parser.add_argument(f"--{name}", choices=values, default=values[0], help="default: %(default)s")
    parser.add_argument("--audit", action="store_true", help="count how often each example was used")
    parser.add_argument("--result", type=Path, help="write accuracy and audit to this JSON file")
    return parser.parse_args()


class Device:
    """An emulated device: it sleeps `fixed_s` plus `per_example_s` for each example of a micro-batch.

    Like a real one it computes beside the CPU: the script's own time between two micro-batches counts only if
    it is longer. So a micro-batch takes about the same time on a busy machine.
    """

    def __init__(self, text: str) -> None:
        try:
            self.fixed_s, self.per_example_s = (float(part) for part in text.split(","))
        except ValueError:
            raise argparse.ArgumentTypeError("expected two numbers, such as 0.01,0.004") from None
        if not (0 <= self.fixed_s < 3600 and 0 <= self.per_example_s < 3600):
            raise argparse.ArgumentTypeError("times in seconds, 0 or more")
        self._ready_s = 0.0  # when the last micro-batch is done

    def announce(self) -> None:
        """Print that device times are emulated."""
        if self.fixed_s or self.per_example_s:
            print_on_rank_0(
                f"device time is EMULATED: each micro-batch takes {self.fixed_s:g} s "
                f"+ {self.per_example_s:g} s per example"
            )

    def compute(self, num_examples: int) -> None:
        """Wait for as long as the device computes one micro-batch."""
        took_s, now_s = self.fixed_s + self.per_example_s * num_examples, time.monotonic()
        # The script's time between two micro-batches overlaps with the device's; a longer pause does not.
        self._ready_s = now_s if now_s - self._ready_s > 2 * took_s else self._ready_s
        self._ready_s = max(self._ready_s + took_s, now_s)
        time.sleep(self._ready_s - now_s)


class Audit(pt.State):
    """Counts how often each example of each epoch was used, over all replicas and restarts.

    It is part of the checkpoints. So work after a run's last checkpoint, which is not in the final model, is
    not counted either. `runs` has the number of replicas of every run.
    """

    def __init__(self, num_epochs: int, num_examples: int) -> None:
        self.counts = torch.zeros(num_epochs, num_examples, dtype=torch.int32)
        self.unsynced = torch.zeros_like(self.counts)
        self.runs: list[int] = []
        super().__init__("audit")

    def count(self, epoch: int, indices: torch.Tensor) -> None:
        """Count these examples of `epoch`."""
        self.unsynced[epoch].index_add_(0, indices, torch.ones_like(indices, dtype=torch.int32))

    def sync(self) -> None:
        """Add up the replicas' counts since the last call."""
        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        total = self.unsynced.to(device)
        dist.all_reduce(total)
        self.counts += total.cpu()
        self.unsynced.zero_()

    def state_dict(self) -> dict[str, Any]:
        return {"counts": self.counts, "runs": self.runs}

    def load_state_dict(self, state: Any) -> None:
        rows = min(len(self.counts), len(state["counts"]))
        self.counts[:rows] = state["counts"][:rows]
        self.runs = state["runs"]

    def epochs(self) -> list[dict[str, int]]:
        """Return, for each epoch, the lowest and the highest count of an example: both must be 1."""
        return [
            {"epoch": epoch, "min": int(row.min()), "max": int(row.max())}
            for epoch, row in enumerate(self.counts)
        ]


def conclude(options: argparse.Namespace, audit: Audit, accuracy: float, **more: Any) -> int:
    """Print and write the results, and `more` with them; return the script's exit code."""
    audit.sync()
    epochs = audit.epochs() if options.audit else []
    exact = sum(epoch["min"] == epoch["max"] == 1 for epoch in epochs)
    print_on_rank_0(
        f"test accuracy {accuracy:.4f} (target {options.target_accuracy:g}) in {len(audit.runs)} run(s)"
    )
    if options.audit:
        print_on_rank_0(f"audit: {exact} of {len(epochs)} epochs used every example exactly once")
    if options.result is not None and dist.get_rank() == 0:
        result = {
            "accuracy": accuracy,
            "target_accuracy": options.target_accuracy,
            "epochs": pt.finished_epochs(),
            "global_step": pt.finished_steps(),
            "runs": audit.runs,
            "restarts": len(audit.runs) - 1,
            "audit": epochs,
            **more,
        }
        draft = options.result.with_name(f".{options.result.name}.{os.getpid()}")
        draft.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        draft.replace(options.result)
    return 0 if accuracy >= options.target_accuracy and exact == len(epochs) else 1


def print_on_rank_0(text: str) -> None:
    """Print on rank 0 only."""
    if dist.get_rank() == 0:
        print(text, flush=True)
