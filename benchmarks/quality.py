"""Whether a model is as good after the same epochs where its batch size changes.

    python -m benchmarks.quality [digits charlm] [--seeds 8]

Trains an example with its batch fixed at M0 on one process, and adaptively on four processes of an emulated
device on which larger batches pay. Prints the accuracy on held-out data, and the differences by seed.
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


def train(example: str, seed: int, folder: Path, environ: Mapping[str, str], *, is_adaptive: bool) -> Any:
    """Train once in a new folder and return the example's result."""
    folder.mkdir()
    result = folder / "result.json"
    start = [sys.executable] if is_adaptive else [sys.executable, "-c", FIXED]
    options = {"seed": seed, "target-accuracy": 0, "result": result}
    options |= {"emulate-device": DEVICE} if is_adaptive else {}
    processes = ["--nproc-per-node", "4" if is_adaptive else "1"]
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
    """Train the named examples with each seed in both ways."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("examples", nargs="*", default=["digits", "charlm"])
    parser.add_argument("--seeds", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        settings = Path(directory, "pollux.toml")
        settings.write_text("[agent]\nreport_interval_s = 1.0\n")
        environ = {"POLLUX_CONFIG": str(settings)}
        for example in options.examples:
            found: dict[str, list[Any]] = {"fixed": [], "changing": []}
            for seed in range(options.seeds):
                for way, results in found.items():
                    folder = Path(directory, f"{example}-{seed}-{way}")
                    results.append(train(example, seed, folder, environ, is_adaptive=way == "changing"))
                last = {way: (each[-1]["accuracy"], each[-1]["global_step"]) for way, each in found.items()}
                print(f"{example}, seed {seed}, accuracy and steps: {last}", flush=True)
            accuracies = {way: [result["accuracy"] for result in each] for way, each in found.items()}
            for way, results in found.items():
                steps = sorted(result["global_step"] for result in results)
                print(
                    f"{example}, {way}: {statistics.median(steps):g} steps ({steps[0]} to {steps[-1]}), "
                    f"accuracy {statistics.mean(accuracies[way]):.4f} "
                    f"({min(accuracies[way]):.4f} to {max(accuracies[way]):.4f})",
                    flush=True,
                )
            by_seed = [new - old for old, new in zip(*accuracies.values(), strict=True)]
            error = statistics.stdev(by_seed) / len(by_seed) ** 0.5
            print(f"{example}: difference {statistics.mean(by_seed):+.4f}, standard error {error:.4f}")


if __name__ == "__main__":
    main()
