"""The published measurements of the Pollux artifact, where this machine has them."""

from __future__ import annotations

import csv

from pollux_slurm.goodput import Observation
from tests.published import traces_dir

APPLICATIONS = ("bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3")


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
                micro_batch_s=step_s - sync_s,
                last_time_s=step_s,
            )
            found.setdefault(placement, []).append(seen)
    return found
