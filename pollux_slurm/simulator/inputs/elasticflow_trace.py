"""The generated trace of ElasticFlow (ASPLOS 2023): its tables of rates, and jobs with deadlines.

Its public artifact (pkusys/ElasticFlow, Apache-2.0) has a file for each model: steps a second by global batch
size and number of A100 GPUs. The rules by which jobs are drawn are those of its generator.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from pathlib import Path

from pollux_slurm.errors import TraceError, UsageError
from pollux_slurm.simulator.inputs.csv_tables import number, read_rows, whole
from pollux_slurm.simulator.inputs.rate_tables import RateApplication
from pollux_slurm.simulator.inputs.workload import WorkloadJob

GPU_TYPE = "a100"
# What jobs train, in the order in which they are drawn.
_BATCHES = (
    ("resnet50", (64, 128, 256)),
    ("vgg16", (64, 128, 256)),
    ("inception3", (64, 128)),
    ("gpt2", (128, 256)),
    ("bert", (128, 64)),
    ("deepspeech2", (64, 32)),
)
_KINDS = tuple(f"{model} (batch size {size})" for model, sizes in _BATCHES for size in sizes)
# GPUs that users ask for, by the upper end of their part of all jobs.
_SIZES = ((0.83, 1), (0.86, 2), (0.89, 4), (0.99, 8), (1.0, 16))


def read_elasticflow_tables(folder: Path) -> dict[str, RateApplication]:
    """Return an application for each model and batch size of MODEL.csv files. Raises `TraceError`."""
    found = {}
    for file in sorted(folder.glob("*.csv")):
        for row in read_rows(file, ("global_batch_size", "1")):
            name = f"{file.stem} (batch size {whole(file, row, 'global_batch_size', low=1)})"
            rates = {
                int(gpus): number(file, row, gpus, low=1e-9)
                for gpus in row
                if gpus.isdecimal() and row[gpus] and float(row[gpus]) > 0
            }
            found[name] = RateApplication(name, {GPU_TYPE: rates}, reference=GPU_TYPE)
    missing = [name for name in _KINDS if name not in found]
    if missing:
        raise TraceError(
            f"{folder}: no rates of {missing[0]}; expected MODEL.csv with global_batch_size, 1, 2, …"
        )
    return found


def generate_elasticflow_workload(
    applications: Mapping[str, RateApplication],
    *,
    num_jobs: int,
    mean_interval_s: float,
    seed: int,
    tightness: float = 1.5,
) -> tuple[WorkloadJob, ...]:
    """Return the jobs of the artifact's generator for the same seed, where all deadlines are equally tight.

    Arrivals are a Poisson process. At their users' size, four jobs of five take 10 to 10^2.5 minutes, the
    others 10^2.5 to 10^4, log-uniformly. Deadlines are `tightness` times that after the submission. Raises
    `UsageError` for impossible numbers.
    """
    if not (num_jobs >= 1 and 0 < mean_interval_s < math.inf and 0 < tightness < math.inf):
        raise UsageError("a trace has jobs, and an interval and a tightness above 0")
    kinds, arrivals, lengths, sizes = (random.Random(seed + offset) for offset in range(4))
    jobs, at_s = [], 0.0
    for index in range(num_jobs):
        drawn = sizes.uniform(0, 1)
        num_gpus = next(gpus for end, gpus in _SIZES if drawn <= end)
        name = kinds.choice(_KINDS)
        low, high = (2.5, 4.0) if lengths.random() >= 0.8 else (1.0, 2.5)
        length_s = 60 * 10 ** lengths.uniform(low, high)
        if index:
            at_s -= math.log(1.0 - arrivals.random()) * mean_interval_s
        application = applications[name]
        step_s = application.step_time((num_gpus,), application.initial_batch_size).step_s
        jobs.append(
            WorkloadJob(
                name=f"job-{index}",
                submitted_s=at_s,
                application=name,
                num_replicas=num_gpus,
                batch_size=application.initial_batch_size,
                work=length_s / step_s / application.epoch_end(0),
                finish_by_s=at_s + tightness * length_s,
            )
        )
    return tuple(jobs)
