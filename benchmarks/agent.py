"""What the training library costs: plain DistributedDataParallel and the adaptive one, in turn.

Both train the same network on the same data in one process group, in blocks of some steps A, B, B, A, ..., so
that other load on the machine affects both alike. A step runs from the request for its batch to the end of
the optimizer's step; with --passes it has that many micro-batches (`no_sync` in the plain one). The GPU is
not synchronised after each step, so a step's time there is the mean over its block.

Printed are the ratios adaptive/plain of the medians over all steps, of the means of their middle 80 % (the
library measures gradients in some steps only, which a median may not see), and the median over pairs of
adjacent blocks, with its 95 % interval.

Then the adaptive loader runs at several batch sizes; a throughput model is fitted on every other one, and its
error on those held out is printed.

    python benchmarks/agent.py --replicas 2 --optimizer adam
    python benchmarks/agent.py --device cuda --replicas 1 --passes 2
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import random
import socket
import statistics
import time
from collections.abc import Generator
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import pollux_slurm.torch as pt
from pollux_slurm.goodput import Observation, fit_throughput, iteration_time_s
from pollux_slurm.torch.session.current_session import current_session

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-5),
}
_EXAMPLES = 4096
_SIDE = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to run. `width` sets the size of the network, `local_batch` the examples of a micro-batch."""

    device: str
    replicas: int
    micro_batches: int
    optimizer: str
    blocks: int
    block_steps: int
    warm_up: int
    local_batch: int
    width: int
    port: int


Block = tuple[list[float], float]


class Residual(torch.nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(width, width, 3, padding=1, bias=False),
            torch.nn.GroupNorm(8, width),
            torch.nn.ReLU(),
            torch.nn.Conv2d(width, width, 3, padding=1, bias=False),
            torch.nn.GroupNorm(8, width),
        )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.relu(inputs + self.layers(inputs))


def network(width: int) -> torch.nn.Module:
    """Return a small residual network for images of 32 × 32; 50 million parameters at a width of 328."""
    torch.manual_seed(0)
    layers: list[torch.nn.Module] = [torch.nn.Conv2d(3, width, 3, stride=2, padding=1)]
    for factor in (1, 2, 4):
        if factor > 1:
            layers.append(torch.nn.Conv2d(width * factor // 2, width * factor, 3, stride=2, padding=1))
        layers.append(Residual(width * factor))
    return torch.nn.Sequential(
        *layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(4 * width, 10)
    )


class Contender:
    """One of the two: a model, its optimizer, and an endless sequence of batches."""

    def __init__(
        self, options: Options, data: TensorDataset, device: torch.device, *, adaptive: bool
    ) -> None:
        model = network(options.width).to(device)
        self._device, self._micro_batches, self._adaptive = device, options.micro_batches, adaptive
        self._optimizer = OPTIMIZERS[options.optimizer](model.parameters())
        self._batches: Generator[list[torch.Tensor], None, None]
        if adaptive:
            self._model: DistributedDataParallel = pt.AdaptiveDataParallel(model, self._optimizer)
            size = options.local_batch * options.replicas * options.micro_batches
            loader = pt.AdaptiveDataLoader(data, batch_size=size, shuffle=True, drop_last=True)
            loader.autoscale_batch_size(size, (1, options.local_batch), gradient_accumulation=True)
            self._batches = self._from_adaptive(loader)
        else:
            self._model = DistributedDataParallel(model, gradient_as_bucket_view=True)
            self._batches = self._from_plain(options, data)

    def _from_adaptive(self, loader: pt.AdaptiveDataLoader) -> Generator[list[torch.Tensor], None, None]:
        for _ in pt.remaining_epochs_until(10**6):
            yield from loader

    def _from_plain(self, options: Options, data: TensorDataset) -> Generator[list[torch.Tensor], None, None]:
        sampler: DistributedSampler[object] = DistributedSampler(data, drop_last=True)
        loader = DataLoader(data, batch_size=options.local_batch, sampler=sampler, drop_last=True)
        epoch = 0
        while True:
            sampler.set_epoch(epoch)
            epoch += 1
            yield from loader

    def close(self) -> None:
        """End the loop over the data."""
        self._batches.close()

    def step(self) -> None:
        """Train on one global batch."""
        for index in range(self._micro_batches):
            is_last = index == self._micro_batches - 1
            inputs, labels = (part.to(self._device, non_blocking=True) for part in next(self._batches))
            if self._adaptive:
                # Only the plain loop needs this: the library knows the last micro-batch of a step.
                self._optimizer.zero_grad()
                torch.nn.functional.cross_entropy(self._model(inputs), labels).backward()
                self._optimizer.step()
                continue
            if index == 0:
                self._optimizer.zero_grad()
            with contextlib.nullcontext() if is_last else self._model.no_sync():
                (
                    torch.nn.functional.cross_entropy(self._model(inputs), labels) / self._micro_batches
                ).backward()
            if is_last:
                self._optimizer.step()

    def block(self, num_steps: int) -> Block:
        """Train some steps; return the seconds of each, and the processor's seconds of all.

        On a GPU all steps are the mean: it is not stopped between them.
        """
        times = []
        on_gpu = self._device.type == "cuda"
        _settle(self._device)
        begin, processor = time.perf_counter(), time.process_time()
        for _ in range(num_steps):
            started = time.perf_counter()
            self.step()
            times.append(time.perf_counter() - started)
        if on_gpu:
            _settle(self._device)
            times = [(time.perf_counter() - begin) / num_steps] * num_steps
        return times, time.process_time() - processor


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
    dist.barrier()


def main() -> None:
    """Start the replicas and wait for them."""
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default=kind)
    parser.add_argument("--replicas", type=int, help="unless given: one for each GPU, 2 on a CPU")
    parser.add_argument(
        "--passes", dest="micro_batches", type=int, default=1, help="micro-batches of a step on each replica"
    )
    parser.add_argument("--optimizer", choices=sorted(OPTIMIZERS), default="sgd")
    parser.add_argument("--blocks", type=int, default=24, help="blocks of each of the two")
    parser.add_argument("--block-steps", type=int, default=16)
    parser.add_argument("--warm-up", type=int, default=48)
    parser.add_argument("--local-batch", type=int, help="unless given: 256 on a GPU, 32 on a CPU")
    parser.add_argument("--width", type=int, help="unless given: 328 on a GPU, 32 on a CPU")
    arguments = parser.parse_args()
    on_gpu = arguments.device == "cuda"
    for name, on_each in (
        ("replicas", (torch.cuda.device_count(), 2)),
        ("local_batch", (256, 32)),
        ("width", (328, 32)),
    ):
        if getattr(arguments, name) is None:
            setattr(arguments, name, on_each[0] if on_gpu else on_each[1])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    options = Options(**vars(arguments), port=port)
    multiprocessing.spawn(run, args=(options,), nprocs=options.replicas)


def run(rank: int, options: Options) -> None:
    """Be one replica."""
    environ = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(options.replicas),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(options.port),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    os.environ.update(environ)
    on_gpu = options.device == "cuda"
    if not on_gpu:
        torch.set_num_threads(1)
    pt.init_process_group(None if on_gpu else "gloo", environ=environ)
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(
        torch.randn(_EXAMPLES, 3, _SIDE, _SIDE, generator=generator),
        torch.randint(10, (_EXAMPLES,), generator=generator),
    )
    plain = Contender(options, data, device, adaptive=False)
    adaptive = Contender(options, data, device, adaptive=True)
    for contender in (plain, adaptive):
        contender.block(options.warm_up)
    pairs = []
    for index in range(options.blocks):
        order = (plain, adaptive) if index % 2 == 0 else (adaptive, plain)
        done = {id(contender): contender.block(options.block_steps) for contender in order}
        pairs.append((done[id(plain)], done[id(adaptive)]))
    if rank == 0:
        _print_ratio(options, device, sum(p.numel() for p in network(options.width).parameters()), pairs)
    plain.close()
    adaptive.close()
    _predict(rank, options, data, device)


def _print_ratio(options: Options, device: torch.device, size: int, pairs: list[tuple[Block, Block]]) -> None:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU, one thread a replica"
    print(
        f"{name}, torch {torch.__version__}: {options.replicas} replicas, {size / 1e6:.1f} M parameters, "
        f"{options.micro_batches} × {options.local_batch} examples each, {options.optimizer}; "
        f"{options.blocks} × {options.block_steps} steps of each"
    )
    plain, adaptive = ([time_s for block, _ in side for time_s in block] for side in zip(*pairs, strict=True))
    print(
        f"median step: plain {1e3 * statistics.median(plain):.2f} ms, "
        f"adaptive {1e3 * statistics.median(adaptive):.2f} ms, "
        f"ratio {statistics.median(adaptive) / statistics.median(plain):.4f}"
    )
    print(f"ratio of the means of the middle 80 %: {_middle(adaptive) / _middle(plain):.4f}")
    processor = [statistics.median(used for _, used in side) for side in zip(*pairs, strict=True)]
    print(f"ratio of processor time, median of blocks: {processor[1] / processor[0]:.4f}")
    ratios = [statistics.fmean(b) / statistics.fmean(a) for (a, _), (b, _) in pairs]
    rng = random.Random(0)
    again = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(2000))
    print(
        f"ratio of neighbouring blocks: median {statistics.median(ratios):.4f}, "
        f"95 % interval {again[50]:.4f} to {again[1949]:.4f}",
        flush=True,
    )


def _middle(times: list[float]) -> float:
    cut = len(times) // 10
    return statistics.fmean(sorted(times)[cut : len(times) - cut])


def _predict(rank: int, options: Options, data: TensorDataset, device: torch.device) -> None:
    """Measure several batch sizes; fit on every other one and print the error on the rest."""
    sizes = [max(options.local_batch * factor // 8, 1) for factor in (2, 3, 4, 6, 8, 12, 16)]
    for size in sizes:
        contender = Contender(dataclasses.replace(options, local_batch=size), data, device, adaptive=True)
        contender.block(options.block_steps)
        contender.close()
    if rank != 0:
        return
    # What the library itself has measured, as its reports are made from.
    seen = sorted(
        (
            times
            for times in current_session().measurements.profile.medians()
            if times.situation.atomic_batch_size in sizes
        ),
        key=lambda times: times.situation.atomic_batch_size,
    )
    observations = [
        Observation(
            num_nodes=1,
            num_gpus=options.replicas,
            atomic_batch_size=times.situation.atomic_batch_size,
            micro_batch_s=times.micro_batch_s,
            last_time_s=times.last_time_s,
            weight=times.weight,
        )
        for times in seen
    ]
    theta = fit_throughput(observations[::2]).parameters
    assert theta is not None
    print("held-out batch sizes (examples a replica: measured, predicted):")
    errors = []
    for one in observations[1::2]:
        predicted = float(iteration_time_s(theta, 1, options.replicas, one.atomic_batch_size))
        errors.append(abs(predicted / one.last_time_s - 1))
        print(f"  {one.atomic_batch_size}: {1e3 * one.last_time_s:.2f} ms, {1e3 * predicted:.2f} ms")
    print(f"mean absolute error {100 * statistics.fmean(errors):.1f} %")


if __name__ == "__main__":
    main()
