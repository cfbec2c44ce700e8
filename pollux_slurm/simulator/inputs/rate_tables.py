"""Jobs with a fixed batch whose rates are measured, and the table and trace of Gavel.

Gavel (OSDI 2020) publishes steps a second by GPU type and model, alone under `null`, in a file
`simulation_throughputs.json`, and the rules by which its simulated jobs are drawn. Here each model is an
application. One training of it is an hour on a V100, so a job's `work` is its hours there.
"""

from __future__ import annotations

import ast
import math
import random
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pollux_slurm.errors import TraceError, UsageError
from pollux_slurm.json_texts import parse_json
from pollux_slurm.model import BatchLimits, GradientStatistics
from pollux_slurm.simulator.inputs.step_times import Placement, StepTime
from pollux_slurm.simulator.inputs.workload import WorkloadJob

# The type of the plain nodes, on which jobs have the lengths that were drawn for them.
REFERENCE_TYPE = "v100"
_TRAINING_S = 3600.0
# Nodes without a common server, by which the table has further rates of jobs over several GPUs.
_APART = "_unconsolidated"
# The sizes of jobs where several GPUs are allowed, and the parts of them up to each.
_SIZES = ((0.7, 1), (0.8, 2), (0.95, 4), (1.0, 8))
# Any statistics do: the batch is fixed.
_STATISTICS = GradientStatistics(sqr=1.0, var=1.0)


def batch_size_of(name: str) -> int:
    """Return the batch size in the name of a model, such as `LM (batch size 5)`; 1 without one."""
    found = re.search(r"batch size (\d+)", name)
    return int(found[1]) if found else 1


class RateApplication:
    """An `Application` with one epoch at one batch: rates in steps a second by GPU type and number of GPUs.

    The plain nodes are of the `reference` type. One training is an hour on one such GPU.
    """

    num_epochs, least_gpus, min_atomic = 1, 1, 1

    def __init__(self, name: str, rates: Mapping[str, Mapping[int, float]], *, reference: str) -> None:
        self.name, self._rates, self._reference = name, rates, reference
        size = batch_size_of(name)
        self.batch_sizes: tuple[int, ...] = (size,)
        self.max_atomic = self.initial_batch_size = self.max_batch_size = size
        self.most_gpus = max(max(by_gpus) for by_gpus in rates.values())
        self.fixed_batch: int | None = size
        self.limits = BatchLimits(initial_batch_size=size, max_atomic=size)
        self.gpu_types = frozenset(rates)

    def step_time(self, placement: Placement, atomic_batch_size: int, gpu_type: str = "") -> StepTime:
        """Return the time of a step; between measured numbers of GPUs, that of the lower one.

        Raises `TraceError` for more GPUs than were measured, and where the rate is 0.
        """
        by_gpus = self._rates[gpu_type if gpu_type in self._rates else self._reference]
        num_gpus = sum(placement)
        rate = by_gpus[max(n for n in by_gpus if n <= num_gpus)] if num_gpus <= self.most_gpus else 0.0
        if rate == 0:
            raise TraceError(f"{self.name}: no rate on {num_gpus} GPUs")
        return StepTime(step_s=1.0 / rate, sync_s=0.0)

    def placements(
        self, num_gpus: int, num_nodes: int, gpus_per_node: int, gpu_type: str = ""
    ) -> Collection[Placement]:
        whole, rest = divmod(num_gpus, gpus_per_node)
        packed = (gpus_per_node,) * whole + ((rest,) if rest else ())
        by_gpus = self._rates[gpu_type if gpu_type in self._rates else self._reference]
        return (packed,) if num_gpus in by_gpus and len(packed) == num_nodes else ()

    def statistics(self, batch_size: int, epoch: int) -> GradientStatistics:
        return _STATISTICS

    def step_progress(self, batch_size: int, epoch: int) -> float:
        return 1.0

    def step_progresses(self, batch_sizes: Sequence[int]) -> npt.NDArray[np.float64]:
        return np.ones((1, len(batch_sizes)))

    def useful_part(self, batch_size: int, epoch: int) -> float:
        return 1.0

    def iterations(self, batch_size: int, epoch: int) -> float:
        return self.epoch_end(epoch)

    def epoch_end(self, epoch: int) -> float:
        """Return the steps of an hour on a GPU of the reference type."""
        return self._rates[self._reference][1] * _TRAINING_S


def is_rate_table(file: Path) -> bool:
    """Return whether a file may be a table of rates: JSON with the reference type."""
    try:
        document = parse_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(document, dict) and REFERENCE_TYPE in document


def read_rate_table(file: Path, *, most_gpus: int = 1) -> dict[str, RateApplication]:
    """Return the models of a table in Gavel's form by name, as far as they run on one GPU of each type.

    They have their rates on up to `most_gpus`. Those without a batch size in their names are the last, as in
    Gavel's list of jobs. Raises `TraceError`.
    """
    if not is_rate_table(file):
        raise TraceError(f"{file}: expected rates by GPU type in JSON, among them {REFERENCE_TYPE}")
    document = parse_json(file.read_text(encoding="utf-8"))
    tables = {
        kind: _alone(file, table, most_gpus) for kind, table in document.items() if not kind.endswith(_APART)
    }
    names = [
        name
        for name in tables[REFERENCE_TYPE]
        if all(table.get(name, {}).get(1) for table in tables.values())
    ]
    if not names:
        raise TraceError(f"{file}: no model has a rate on one GPU of each type")
    names.sort(key=lambda name: "batch size" not in name)
    return {
        name: RateApplication(
            name, {kind: table[name] for kind, table in tables.items()}, reference=REFERENCE_TYPE
        )
        for name in names
    }


def _alone(file: Path, table: Any, most_gpus: int) -> dict[str, dict[int, float]]:
    """Return the rates of models alone by number of GPUs; 0 where the memory is too small."""
    found: dict[str, dict[int, float]] = {}
    try:
        for key, rates in table.items():
            name, num_gpus = ast.literal_eval(key)
            rate = float(rates["null"])
            if num_gpus <= most_gpus and math.isfinite(rate) and rate >= 0:
                found.setdefault(str(name), {})[int(num_gpus)] = rate
    except (AttributeError, KeyError, SyntaxError, TypeError, ValueError):
        raise TraceError(f'{file}: expected {{TYPE: {{"(MODEL, GPUS)": {{"null": RATE}}}}}}') from None
    return found


def read_pair_rates(file: Path) -> dict[tuple[str, str, str, int], tuple[float, float]]:
    """Return the rates of each pair of a table in Gavel's form, relative to each model alone.

    Keys are GPU type, both models, and the GPUs of each. Pairs whose rates are 0 had too little memory, and
    are absent. Raises `TraceError`.
    """
    if not is_rate_table(file):
        raise TraceError(f"{file}: expected rates by GPU type in JSON, among them {REFERENCE_TYPE}")
    found: dict[tuple[str, str, str, int], tuple[float, float]] = {}
    for kind, table in parse_json(file.read_text(encoding="utf-8")).items():
        if kind.endswith(_APART):
            continue
        try:
            alone = {ast.literal_eval(key): float(rates["null"]) for key, rates in table.items()}
            for key, rates in table.items():
                first = ast.literal_eval(key)
                for other, pair in rates.items():
                    if other != "null" and min(pair) > 0:
                        second = ast.literal_eval(other)
                        relative = (float(pair[0]) / alone[first], float(pair[1]) / alone[second])
                        found[kind, str(first[0]), str(second[0]), int(first[1])] = relative
        except (AttributeError, KeyError, SyntaxError, TypeError, ValueError, ZeroDivisionError):
            raise TraceError(f'{file}: expected rates of pairs, {{"(MODEL, GPUS)": [RATE, RATE]}}') from None
    return found


def generate_gavel_workload(
    applications: Mapping[str, RateApplication], *, jobs_per_hour: float, num_jobs: int, seed: int
) -> tuple[WorkloadJob, ...]:
    """Return the jobs of Gavel's traces, those of its artifact for the same seed. Raises `UsageError`.

    Arrivals are a Poisson process, the first at 0; with infinitely many `jobs_per_hour`, all come at 0. On
    V100, four jobs of five take 10^1.5 to 10^3 minutes, the others 10^3 to 10^4, log-uniformly. Models are
    drawn uniformly. If they have rates on several GPUs, three of ten jobs have 2, 4 or 8, else all have one.
    """
    if not (jobs_per_hour > 0 and num_jobs >= 1):
        raise UsageError(f"a trace has jobs, and a rate above 0, not {num_jobs} and {jobs_per_hour:g}")
    kinds, arrivals = random.Random(seed + 2), random.Random(seed + 3)
    several = max(application.most_gpus for application in applications.values())
    names, jobs, at_s = list(applications), [], 0.0
    for index in range(num_jobs):
        drawn = kinds.random()
        num_gpus = min(next(size for most, size in _SIZES if drawn < most), several)
        low, high = (3.0, 4.0) if kinds.random() >= 0.8 else (1.5, 3.0)
        minutes = 10 ** kinds.uniform(low, high)
        name = kinds.choice(names)
        while applications[name].most_gpus < num_gpus:
            name = kinds.choice(names)
        application = applications[name]
        alone, own = (application.step_time((gpus,), 1).step_s for gpus in (1, num_gpus))
        jobs.append(
            WorkloadJob(
                name=f"job-{index}",
                submitted_s=at_s,
                application=name,
                num_replicas=num_gpus,
                batch_size=application.initial_batch_size,
                work=minutes / 60 * alone / own,
            )
        )
        at_s -= math.log(1.0 - arrivals.random()) * 3600 / jobs_per_hour
    return tuple(jobs)
