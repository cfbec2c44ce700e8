"""How long a training stands still when replicas join and leave, by parts, and when it is started again.

    python -m benchmarks.regroup [--state-mb 100 1000] [--cycles 20] [--restarts 5]

A network of which weights and Adam's moments have the given size trains under `pollux run --in-place`. Each
cycle takes it from 1 to 2, 3, 2, 4 and 1 processes, some steps each. The standstill is the time from the end
of the last step before to the end of the first step after, without what that step takes by the steps that
follow. The parts are rank 0's. A restart is SIGTERM, the checkpoint, and `pollux run` with one process more.

    python -m benchmarks.regroup --ready [--blocks 12]

The median step of one process, with and without `--in-place`, in runs that alternate.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pollux_slurm.launch.run.local_runs import find_local_run

SIZES = (1, 2, 3, 2, 4, 1)
STEPS_BETWEEN = 4
TIMEOUT_S = 600.0
ADAM_BYTES = 12  # a parameter in single precision, and its two moments


def train(state_mb: float, events: Path, pause_s: float) -> None:
    """Train until stopped; rank 0 writes a line for each step."""
    import torch

    import pollux_slurm.torch as pt
    from pollux_slurm.torch.session.current_session import current_session

    torch.set_num_threads(1)
    in_place = "POLLUX_MEMBERSHIP" in os.environ
    pt.init_process_group("gloo", checkpoint_interval_s=None, in_place=in_place)
    layers = 10
    width = max(int((state_mb * 1e6 / ADAM_BYTES / layers) ** 0.5), 8)
    model = torch.nn.Sequential(
        *(torch.nn.Linear(width, width, device="meta") for _ in range(layers))
    ).to_empty(device="cpu")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1e-3)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-6)
    parallel = pt.AdaptiveDataParallel(model, optimizer)
    inputs = torch.randn(100_000, 1)
    loader = pt.AdaptiveDataLoader(torch.utils.data.TensorDataset(inputs), batch_size=12, shuffle=True)
    session = current_session()
    with events.open("a", encoding="utf-8") as file:
        for _ in pt.remaining_epochs_until(1000):
            for (batch,) in loader:
                optimizer.zero_grad()
                parallel(batch.expand(-1, width)).square().mean().backward()
                optimizer.step()
                if session.rank == 0:
                    parts = session.regrouping.times.parts
                    line = {
                        "at": time.time(),
                        "replicas": session.world_size,
                        "run": session.run_number,
                        "parts": parts,
                    }
                    file.write(json.dumps(line) + "\n")
                    file.flush()
                time.sleep(pause_s)


class Run:
    """A training under `pollux run`, and what its rank 0 has written."""

    def __init__(
        self,
        folder: Path,
        *,
        replicas: int,
        state_mb: float,
        in_place: bool,
        keep: bool = False,
        pause_s: float = 0.0,
    ) -> None:
        self._events = folder / "events.jsonl"
        if not keep:
            self._events.unlink(missing_ok=True)
        self._num_before = len(self.steps())
        options = ["--in-place"] if in_place else []
        command = [sys.executable, "-m", "pollux_slurm", "run", *options, "--nproc-per-node", str(replicas)]
        command += ["--checkpoint-dir", str(folder / "checkpoints"), "--", sys.executable, "-m"]
        command += ["benchmarks.regroup", "--train", str(state_mb), str(self._events), str(pause_s)]
        with (folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def steps(self) -> list[dict[str, Any]]:
        if not self._events.exists():
            return []
        lines = self._events.read_text(encoding="utf-8").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def wait_for_steps(self, number: int, *, replicas: int) -> None:
        """Wait for some steps with so many replicas, the last ones that were made."""
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline and self.process.poll() is None:
            last = self.steps()[self._num_before :][-number:]
            if len(last) == number and all(step["replicas"] == replicas for step in last):
                return
            time.sleep(0.1)
        raise SystemExit(f"no {number} steps with {replicas} replicas came")

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(TIMEOUT_S)


@contextmanager
def running(folder: Path, **options: Any) -> Iterator[Run]:
    run = Run(folder, **options)
    try:
        yield run
    finally:
        if run.process.poll() is None:
            run.process.kill()
            run.process.wait()


def standstills(steps: list[dict[str, Any]]) -> Iterator[tuple[str, float, float, dict[str, float]]]:
    """Yield, for each change of the replicas, its name, standstill, the step after it, and its parts."""
    for index, (before, after) in enumerate(itertools.pairwise(steps)):
        following = [
            step for step in steps[index + 1 : index + 1 + STEPS_BETWEEN] if step["run"] == after["run"]
        ]
        if before["run"] == after["run"] or len(following) < 3:
            continue
        step_s = statistics.median(b["at"] - a["at"] for a, b in itertools.pairwise(following))
        gap_s = after["at"] - before["at"]
        name = f"{before['replicas']} → {after['replicas']}"
        yield name, max(gap_s - step_s, 0.0), step_s, after["parts"]


def measure(state_mb: float, cycles: int, restarts: int) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-regroup-") as name:
        folder = Path(name)
        with running(folder, replicas=SIZES[0], state_mb=state_mb, in_place=True) as run:
            run.wait_for_steps(STEPS_BETWEEN, replicas=SIZES[0])
            requests = find_local_run(run.process.pid)
            for size in SIZES[1:] * cycles:
                request = requests.ask(size)
                while (answer := requests.take_answer(request)) is None and run.process.poll() is None:
                    time.sleep(0.1)
                if answer is None or not answer.is_done:
                    raise SystemExit(answer.text if answer else (folder / "log").read_text(errors="replace"))
                run.wait_for_steps(STEPS_BETWEEN, replicas=size)
            steps = run.steps()
            run.stop()
        show(f"{state_mb:g} MB of state, in place", steps)
        if restarts:
            for number in range(restarts + 1):
                replicas = 1 + number % 2
                with running(
                    folder, replicas=replicas, state_mb=state_mb, in_place=False, keep=number > 0
                ) as run:
                    run.wait_for_steps(STEPS_BETWEEN, replicas=replicas)
                    run.stop()
                    steps = run.steps()
            show(f"{state_mb:g} MB of state, started again", steps)


def show(title: str, steps: list[dict[str, Any]]) -> None:
    found: dict[str, list[tuple[float, float, dict[str, float]]]] = {}
    for name, standstill_s, step_s, parts in standstills(steps):
        found.setdefault(name, []).append((standstill_s, step_s, parts))
    print(f"{title}\n| replicas | number | standstill: median (range) | a step | parts of the median |")
    print("|---|---|---|---|---|")
    for name, rows in found.items():
        times = sorted(row[0] for row in rows)
        median = sorted(rows, key=lambda row: row[0])[len(rows) // 2]
        parts = ", ".join(f"{part} {took_s:.3f}" for part, took_s in median[2].items())
        print(
            f"| {name} | {len(rows)} | {statistics.median(times):.2f} s ({times[0]:.2f} to {times[-1]:.2f}) "
            f"| {median[1]:.2f} s | {parts} |",
            flush=True,
        )


def measure_readiness(blocks: int) -> None:
    medians: dict[bool, list[float]] = {False: [], True: []}
    with tempfile.TemporaryDirectory(prefix="bench-regroup-") as name:
        for block in range(2 * blocks):
            in_place = block % 4 in (1, 2)
            folder = Path(name) / str(block)
            folder.mkdir()
            with running(folder, replicas=1, state_mb=1.0, in_place=in_place) as run:
                run.wait_for_steps(600, replicas=1)
                run.stop()
                times = [step["at"] for step in run.steps()][100:]
            medians[in_place].append(statistics.median(b - a for a, b in itertools.pairwise(times)))
    plain, ready = (statistics.median(medians[kind]) for kind in (False, True))
    print(f"median step: {1e3 * plain:.3f} ms, ready to regroup {1e3 * ready:.3f} ms: {ready / plain:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--state-mb", type=float, nargs="+", default=[100.0, 1000.0])
    parser.add_argument("--cycles", type=int, default=20)
    parser.add_argument("--restarts", type=int, default=5)
    parser.add_argument("--ready", action="store_true")
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--train", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train(float(options.train[0]), Path(options.train[1]), float(options.train[2]))
    elif options.ready:
        measure_readiness(options.blocks)
    else:
        for state_mb in options.state_mb:
            measure(state_mb, options.cycles, options.restarts)


if __name__ == "__main__":
    main()
