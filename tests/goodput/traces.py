"""The published measurements of the Pollux artifact, where this machine has them."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest

from pollux_slurm.goodput import Observation

APPLICATIONS = ("bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3")


def traces_dir() -> Path:
    """Return the folder with a sub-folder for each application; skips the test where there is none.

    `POLLUX_TRACES` names it; otherwise it is looked for beside the checkout.
    """
    beside = Path(__file__).resolve().parents[3] / "shared" / "data" / "osdi21" / "traces"
    folder = Path(os.environ.get("POLLUX_TRACES", beside))
    if not folder.is_dir():
        pytest.skip(f"no published traces at {folder}: set POLLUX_TRACES to the folder that holds bert/, ...")
    return folder


def by_placement(application: str) -> dict[str, list[Observation]]:
    """Return what was measured on each placement (one digit a node: replicas on it)."""
    found: dict[str, list[Observation]] = {}
    with (traces_dir() / application / "placements.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            placement = row["placement"]
            step_s, sync_s = float(row["step_time"]), float(row["sync_time"])
            seen = Observation(
                num_nodes=len(placement),
                num_gpus=sum(int(digit) for digit in placement),
                atomic_batch_size=int(row["local_bsz"]),
                grad_time_s=step_s - sync_s,
                iter_time_s=step_s,
            )
            found.setdefault(placement, []).append(seen)
    return found
