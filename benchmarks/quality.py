"""Whether a model is as good after the same epochs where its batch size changes.

    python -m benchmarks.quality [digits charlm] [--seeds 8]

Trains an example with its batch fixed at M0, and adaptively on one and on four processes of an emulated
device on which larger batches pay. Prints the accuracy on held-out data, and the differences from the fixed
batch.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
FIXED = (
    "import runpy, sys, pollux_slurm.torch as pt; "
    "pt.AdaptiveDataLoader.autoscale_batch_size = lambda *_, **__: None; "
    "del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
)
# A micro-batch takes this long, and each of its examples so much more: throughput grows with the batch.
DEVICE = "0.05,0.0001"
BOUND_S = 900.0


def train(example: str, seed: int, folder: Path, environ: Mapping[str, str], *, replicas: int) -> Any:
    """Train once in a new folder and return the example's result; with no replicas, the batch is fixed."""
    folder.mkdir()
    result = folder / "result.json"
    start = [sys.executable] if replicas else [sys.executable, "-c", FIXED]
    options = {"seed": seed, "target-accuracy": 0, "result": result}
    options |= {"emulate-device": DEVICE} if replicas else {}
    processes = ["--nproc-per-node", str(replicas or 1)]
    command = [sys.executable, "-m", "pollux_slurm", "run", *processes, "--", *start]
    command += [str(EXAMPLES / example / "train.py"), *(f"--{key}={value}" for key, value in options.items())]
    subprocess.run(
        command,
        check=True,
        timeout=BOUND_S,
        cwd=folder,
        env={**os.environ, **environ},
        stdout=subprocess.DEVNULL,
    )
    return json.loads(result.read_text())


def main() -> None:
    """Train the named examples with each seed in the three ways."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("examples", nargs="*", default=["digits", "charlm"])
    parser.add_argument("--seeds", type=int, default=8)
    options = parser.parse_args()
    ways = {"fixed": 0, "1 replica": 1, "4 replicas": 4}
    with tempfile.TemporaryDirectory() as directory:
        settings = Path(directory, "pollux.toml")
        settings.write_text("[agent]\nreport_interval_s = 1.0\n")
        environ = {"POLLUX_CONFIG": str(settings)}
        for example in options.examples:
            found: dict[str, list[Any]] = {way: [] for way in ways}
            for seed in range(options.seeds):
                for way, replicas in ways.items():
                    folder = Path(directory, f"{example}-{seed}-{replicas}")
                    found[way].append(train(example, seed, folder, environ, replicas=replicas))
                last = {way: (each[-1]["accuracy"], each[-1]["global_step"]) for way, each in found.items()}
                print(f"{example}, seed {seed}, accuracy and steps: {last}", flush=True)
            for way, results in found.items():
                accuracies = [result["accuracy"] for result in results]
                fixed = [result["accuracy"] for result in found["fixed"]]
                by_seed = [one - other for one, other in zip(accuracies, fixed, strict=True)]
                steps = statistics.median(result["global_step"] for result in results)
                error = statistics.stdev(by_seed) / len(by_seed) ** 0.5
                print(
                    f"{example}, {way}: {steps:g} steps, accuracy {statistics.mean(accuracies):.4f} "
                    f"({min(accuracies):.4f} to {max(accuracies):.4f}), difference "
                    f"{statistics.mean(by_seed):+.4f}, standard error {error:.4f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
