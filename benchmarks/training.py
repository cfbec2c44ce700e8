"""A real training on one device: a byte-level transformer on the text of Python's standard library.

    python -m benchmarks.training compare      time to the same held-out loss: fixed batch, and adaptive
    python -m benchmarks.training moves        stopped by SIGTERM and restarted: the time of each part
    python -m benchmarks.training noise        the noise scale by both estimators of a replica, and the truth

On a GPU in bfloat16 with 85 M parameters; on a CPU with a small network, to try the commands. Each training
is a process of its own, like a job's.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

import pollux_slurm.torch as pt
from pollux_slurm.torch.session.current_session import current_session

_CONTEXT = 256
_FIRST_BATCH = 32
_BOUND_S = 420.0


class Windows(torch.utils.data.Dataset[torch.Tensor]):
    """Windows of one more byte than the context, next to each other."""

    def __init__(self, text: torch.Tensor) -> None:
        self.windows = text.unfold(0, _CONTEXT + 1, _CONTEXT)

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.windows[index].long()


class Transformer(torch.nn.Module):
    """Causal attention over bytes, without dropout."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.symbols = torch.nn.Embedding(256, width)
        self.positions = torch.nn.Parameter(0.02 * torch.randn(_CONTEXT, width))
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(
                width, max(width // 64, 1), 4 * width, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(depth)
        )
        self.norm = torch.nn.LayerNorm(width)
        self.out = torch.nn.Linear(width, 256)
        self.register_buffer("mask", torch.nn.Transformer.generate_square_subsequent_mask(_CONTEXT))

    def forward(self, symbols: torch.Tensor) -> torch.Tensor:
        hidden = self.symbols(symbols) + self.positions
        for layer in self.layers:
            hidden = layer(hidden, src_mask=self.mask, is_causal=True)
        logits: torch.Tensor = self.out(self.norm(hidden))
        return logits


def corpus() -> tuple[Windows, Windows]:
    """Return training and held-out windows of the modules' sources, in the order of their names."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    files += sorted(Path(sysconfig.get_paths()["stdlib"]).glob("[a-l]*/*.py"))
    text = torch.frombuffer(bytearray(b"".join(path.read_bytes() for path in files)), dtype=torch.uint8)
    split = len(text) * 19 // 20
    return Windows(text[:split]), Windows(text[split:])


def train(options: argparse.Namespace) -> None:
    """Train as a job does; print one JSON line for each measurement."""
    on_gpu = torch.cuda.is_available()
    device = "cuda" if on_gpu else "cpu"
    pt.init_process_group(checkpoint_dir=options.checkpoint_dir, checkpoint_interval_s=None)
    session = current_session()
    torch.manual_seed(0)
    network = Transformer(768, 12) if on_gpu else Transformer(64, 2)
    network.to(device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, betas=(0.9, 0.95))
    model = pt.AdaptiveDataParallel(network, optimizer)
    training, held_out = corpus()
    loader = pt.AdaptiveDataLoader(
        training, batch_size=_FIRST_BATCH, shuffle=True, drop_last=True, num_workers=2, pin_memory=on_gpu
    )
    if options.max_batch:
        loader.autoscale_batch_size(options.max_batch, (8, options.local), gradient_accumulation=True)
    probe = torch.stack([held_out[index] for index in range(0, len(held_out), max(len(held_out) // 128, 1))])
    probe = probe.to(device)
    begun, num_steps, num_examples = time.perf_counter(), 0, 0
    print_json("setup", parameters=sum(p.numel() for p in network.parameters()), examples=len(training))
    for _ in pt.remaining_epochs_until(10**6):
        for windows in loader:
            windows = windows.to(device, non_blocking=True)
            optimizer.zero_grad()
            with torch.autocast(device, dtype=torch.bfloat16, enabled=on_gpu):
                logits = model(windows[:, :-1])
            functional.cross_entropy(logits.flatten(0, 1).float(), windows[:, 1:].flatten()).backward()
            optimizer.step()
            num_examples += len(windows)
            now = session.progress_state.num_steps
            if now == num_steps:
                continue
            num_steps = now
            if num_steps % options.every:
                continue
            loss = evaluate(network, probe, on_gpu=on_gpu)
            found = model.statistics
            print_json(
                "step",
                step=num_steps,
                examples=num_examples,
                elapsed_s=round(time.perf_counter() - begun, 3),
                loss=round(loss, 4),
                batch=loader.current_batch_size,
                local=loader.current_local_bsz,
                noise_scale=None if found is None else round(_FIRST_BATCH * found.var / found.sqr, 2),
                progress=round(session.progress_state.progress, 2),
                first_step_s=session.measurements.report_builder.first_step_s,
                restore_s=session.measurements.report_builder._template.restore_s,
            )
            if num_steps == options.truth_at:
                sqr, variance = true_noise(network, optimizer, training, probe.device, on_gpu=on_gpu)
                print_json("truth", sqr=sqr, noise_scale=round(variance / sqr, 1))
                return
            if loss <= options.target or time.perf_counter() - begun > options.bound_s:
                return


def evaluate(network: torch.nn.Module, probe: torch.Tensor, *, on_gpu: bool) -> float:
    """Return the mean loss of the held-out windows, in nats a byte."""
    with torch.no_grad(), torch.autocast(probe.device.type, dtype=torch.bfloat16, enabled=on_gpu):
        losses = [
            functional.cross_entropy(network(part[:, :-1]).flatten(0, 1).float(), part[:, 1:].flatten())
            for part in probe.split(64)
        ]
    return float(torch.stack(losses).mean())


def true_noise(
    network: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Windows,
    device: torch.device,
    *,
    on_gpu: bool,
    num_batches: int = 48,
    size: int = 8,
) -> tuple[float, float]:
    """Return |G|² and the trace of one example's covariance at these weights, as AdamW sees gradients.

    From the gradients of N batches of n: E|g|² is |G|² + σ²/n for one, |G|² + σ²/(n·N) for their mean.
    """
    parameters = list(network.parameters())
    scales = []
    for parameter in parameters:
        state = optimizer.state[parameter]
        root = state["exp_avg_sq"].sqrt()
        root = root + 1e-2 * root.norm() / root.numel() ** 0.5
        scales.append(1 / (root / (1 - 0.95 ** float(state["step"])) ** 0.5 + 1e-8))
    generator = torch.Generator().manual_seed(7)
    rows = torch.randperm(len(data), generator=generator)[: num_batches * size].view(num_batches, size)
    sums = [torch.zeros_like(parameter) for parameter in parameters]
    each = 0.0
    for row in rows:
        windows = torch.stack([data[int(index)] for index in row]).to(device)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=on_gpu):
            logits = network(windows[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1).float(), windows[:, 1:].flatten())
        for total, gradient, scale in zip(sums, torch.autograd.grad(loss, parameters), scales, strict=True):
            scaled = gradient * scale
            each += float((scaled * scaled).sum()) / num_batches
            total += scaled / num_batches
    mean = sum(float((total * total).sum()) for total in sums)
    variance = (each - mean) / (1 / size - 1 / (size * num_batches))
    return mean - variance / (size * num_batches), variance


def print_json(kind: str, **values: Any) -> None:
    print(json.dumps({"kind": kind, **values}), flush=True)


def start(*arguments: str) -> subprocess.Popen[str]:
    """Start a training."""
    command = [sys.executable, "-m", "benchmarks.training", "train", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "WORLD_SIZE": "1"})


def finish(*arguments: str) -> list[dict[str, Any]]:
    """Run a training to its end and return its lines."""
    with start(*arguments) as process:
        assert process.stdout is not None
        lines = [json.loads(line) for line in process.stdout if line.startswith("{")]
    if process.returncode != 0:
        raise SystemExit(f"a training ended with {process.returncode}")
    return lines


def compare(options: argparse.Namespace) -> None:
    """Print time and steps to the same loss, with a fixed batch and with an adaptive one."""
    target = ["--target", str(options.target), "--bound-s", str(options.bound_s), "--every", "25"]
    for name, more in (
        (f"fixed {_FIRST_BATCH}", ["--max-batch", "0"]),
        (f"adaptive to {options.max_batch}", ["--max-batch", str(options.max_batch)]),
    ):
        lines = [line for line in finish(*target, *more) if line["kind"] == "step"]
        last = lines[-1]
        sizes = [line["batch"] for line in lines]
        scales = [line["noise_scale"] for line in lines if line["noise_scale"] is not None]
        print(
            f"{name}: loss {last['loss']} after {last['elapsed_s']:.1f} s, {last['step']} steps, "
            f"{last['examples']} examples; batch {sizes[0]} to {max(sizes)} (last {sizes[-1]}); "
            f"noise scale {scales[0] if scales else '-'} to {scales[-1] if scales else '-'}; "
            f"progress {last['progress']}",
            flush=True,
        )
        for line in lines[:: max(len(lines) // 8, 1)]:
            print("   ", json.dumps(line), flush=True)


def moves(options: argparse.Namespace) -> None:
    """Stop and restart a training several times; print the time of each part."""
    parts: list[tuple[float, float, float, float]] = []
    with tempfile.TemporaryDirectory() as directory:
        for number in range(options.moves + 1):
            common = ["--checkpoint-dir", directory, "--every", "1", "--target", "0", "--max-batch", "0"]
            begun = time.perf_counter()
            with start(*common, "--bound-s", str(options.bound_s)) as process:
                assert process.stdout is not None
                steps = []
                for line in process.stdout:
                    if not line.startswith("{"):
                        continue
                    report = json.loads(line)
                    if report["kind"] == "step":
                        steps.append(report)
                    if len(steps) == 1 and report["kind"] == "step":
                        first_s = time.perf_counter() - begun
                    if len(steps) == 40:
                        stopped = time.perf_counter()
                        process.send_signal(signal.SIGTERM)
                        break
                process.stdout.read()
                process.wait()
                stop_s = time.perf_counter() - stopped
            size = max((p.stat().st_size for p in Path(directory, "checkpoints").iterdir()), default=0)
            report = steps[-1]
            print(
                f"run {number}: exit {process.returncode}, start to first step {first_s:.2f} s "
                f"(its own clock {report['first_step_s']:.2f} s, restore {report['restore_s']}), "
                f"SIGTERM to the end {stop_s:.2f} s, step {steps[0]['step']} to {report['step']}, "
                f"loss {steps[0]['loss']} to {report['loss']}, checkpoint {size / 1e9:.2f} GB",
                flush=True,
            )
            if number:
                parts.append((stop_s, first_s, report["restore_s"] or 0.0, size / 1e9))
    names = ("stop, checkpoint included", "start to first step", "of it: restore")
    for name, values in zip(names, zip(*parts, strict=True), strict=False):
        print(f"{name}: median {statistics.median(values):.2f} s")


def noise(options: argparse.Namespace) -> None:
    """Print each estimator's noise scale after the same steps, and the truth at those weights."""
    for name, local in (("consecutive steps", _FIRST_BATCH), ("4 micro-batches", _FIRST_BATCH // 4)):
        lines = finish(
            *("--max-batch", str(_FIRST_BATCH), "--local", str(local), "--every", "50", "--target", "0"),
            *("--truth-at", str(options.steps), "--bound-s", str(options.bound_s)),
        )
        last = [one for one in lines if one["kind"] == "step"][-1]
        truth = [one["noise_scale"] for one in lines if one["kind"] == "truth"]
        print(
            f"{name}, after {last['step']} steps: noise scale {last['noise_scale']}, "
            f"truth {truth[0] if truth else 'not reached'}",
            flush=True,
        )


def main() -> None:
    """Run one of the three commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["compare", "moves", "noise", "train"])
    parser.add_argument("--target", type=float, default=1.6, help="held-out loss to stop at, nats a byte")
    parser.add_argument("--bound-s", type=float, default=_BOUND_S)
    parser.add_argument("--max-batch", type=int, default=512)
    parser.add_argument("--local", type=int, default=128, help="most examples of a micro-batch")
    parser.add_argument("--moves", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200, help="before noise scales are compared")
    parser.add_argument("--truth-at", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--every", type=int, default=25, help=argparse.SUPPRESS)
    parser.add_argument("--checkpoint-dir", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    {"compare": compare, "moves": moves, "noise": noise, "train": train}[options.what](options)


if __name__ == "__main__":
    main()
