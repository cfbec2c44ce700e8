"""A site's own jobs as the applications of a simulation, with the measured delays of their moves.

`pollux simulate export` writes a file of such jobs, which replaces the traces. Each job is an application of
its own: its step times are those of its fitted throughput model, gradient statistics are by epoch, and epochs
end with the data set, like those of a training loop.
"""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pollux_slurm.errors import InvalidModelError, InvalidProblemError, SimulationError, TraceError
from pollux_slurm.goodput import check_model, gain, gradient_time_s, iteration_time_s
from pollux_slurm.model import BatchLimits, GoodputModel, GradientStatistics, ThroughputParameters
from pollux_slurm.policy.problem.json_format import document_from_json, document_to_json
from pollux_slurm.simulator.engine.cluster_rules import Delays
from pollux_slurm.simulator.inputs.applications import Application, Placement, StepTime, read_applications
from pollux_slurm.simulator.inputs.rate_tables import is_rate_table, read_rate_table
from pollux_slurm.simulator.inputs.workload import WorkloadJob

_KIND = "measured-jobs"
_MOST_EPOCHS, _MOST_EXAMPLES = 10**6, 1e15
# The most GPUs of a job without a limit of its own.
_MOST_GPUS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredJob:
    """One job. `statistics` are (first epoch to which they apply, statistics), ascending from epoch 0.

    `submitted_s` counts from the first submission. Slurm starts it on `start_gpus`. It trains `num_epochs`
    of `examples_per_epoch`.
    """

    name: str
    submitted_s: float
    start_gpus: int
    num_epochs: int
    examples_per_epoch: float
    limits: BatchLimits
    throughput: ThroughputParameters
    statistics: tuple[tuple[int, GradientStatistics], ...]
    min_gpus: int = 1
    max_gpus: int | None = None
    account: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredDelays:
    """The site's measured delays in seconds; the fields of `cluster_rules.Delays` have the same names.

    They are means over `num_moves` requeues of running jobs and `num_starts` starts; `warm_up_s` and
    `standstill_s` over `num_regroups` moves in place, None where none was measured.
    """

    notice_s: float
    checkpoint_s: float
    requeue_s: float
    start_s: float
    launch_s: float
    launch_per_gpu_s: float
    num_moves: int
    num_starts: int
    num_regroups: int = 0
    warm_up_s: float | None = None
    standstill_s: float | None = None

    def as_delays(self) -> Delays:
        """Return the delays of a simulation; the measured ones include reading and writing the state."""
        measured = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if not field.name.startswith("num_")
        }
        return Delays(**measured, backfill_s=0.0, state_bytes={}, other_state_bytes=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredQueue:
    """A site's jobs, and its delays if any job was ever moved or started."""

    jobs: tuple[MeasuredJob, ...]
    delays: MeasuredDelays | None = None


class MeasuredApplication:
    """The `Application` of one measured job.

    An epoch ends when all its examples are processed, whatever their statistical efficiency. So a step's
    progress is its examples over the initial batch size.
    """

    fixed_batch: int | None = None
    gpu_types: frozenset[str] = frozenset()

    def __init__(self, job: MeasuredJob) -> None:
        self.name, self.num_epochs, self.limits = job.name, job.num_epochs, job.limits
        largest = job.limits.max_batch_size or job.limits.initial_batch_size
        self.min_atomic, self.max_atomic = (
            job.limits.min_atomic,
            min(job.limits.max_atomic or largest, largest),
        )
        self.least_gpus = job.min_gpus
        bound = _MOST_GPUS if job.max_gpus is None else job.max_gpus
        self.most_gpus = max(min(bound, largest // self.min_atomic), self.least_gpus)
        self.batch_sizes = _doubled(job.limits.initial_batch_size, largest)
        self._theta, self._per_epoch = job.throughput, job.examples_per_epoch / job.limits.initial_batch_size
        self._epochs = [epoch for epoch, _ in job.statistics]
        self._statistics = [statistics for _, statistics in job.statistics]
        self._step_times: dict[tuple[bool, int, int], StepTime] = {}

    @property
    def initial_batch_size(self) -> int:
        return self.limits.initial_batch_size

    @property
    def max_batch_size(self) -> int:
        return self.batch_sizes[-1]

    def step_time(self, placement: Placement, atomic_batch_size: int, gpu_type: str = "") -> StepTime:
        """Return the time of a step by the job's own model."""
        key = (len(placement) > 1, sum(placement), atomic_batch_size)
        found = self._step_times.get(key)
        if found is None:
            step_s = float(iteration_time_s(self._theta, len(placement), key[1], atomic_batch_size))
            micro_batch_s = float(gradient_time_s(self._theta, atomic_batch_size))
            found = self._step_times[key] = StepTime(step_s=step_s, sync_s=step_s - micro_batch_s)
        return found

    def placements(
        self, num_gpus: int, num_nodes: int, gpus_per_node: int, gpu_type: str = ""
    ) -> tuple[Placement, ...]:
        """Return one on a node and one on several, where they fit: the model has no other use for nodes."""
        one = ((num_gpus,),) if num_gpus <= gpus_per_node else ()
        several = ((num_gpus - 1, 1),) if num_gpus > 1 and num_nodes > 1 else ()
        return one + several

    def statistics(self, batch_size: int, epoch: int) -> GradientStatistics:
        """Return the job's gradient statistics of an epoch; they are those at the initial batch size."""
        return self._statistics[max(bisect_right(self._epochs, epoch) - 1, 0)]

    def step_progress(self, batch_size: int, epoch: int) -> float:
        return batch_size / self.initial_batch_size

    def step_progresses(self, batch_sizes: Sequence[int]) -> npt.NDArray[np.float64]:
        """Return the progress of a step in each epoch and at each batch size, (E, B)."""
        of_epoch = np.array(batch_sizes) / self.initial_batch_size
        return np.tile(of_epoch, (self.num_epochs, 1))

    def useful_part(self, batch_size: int, epoch: int) -> float:
        """Return the statistical efficiency of a batch."""
        gained = float(gain(self.statistics(batch_size, epoch), self.initial_batch_size, batch_size))
        return gained / self.step_progress(batch_size, epoch)

    def iterations(self, batch_size: int, epoch: int) -> float:
        return self.epoch_end(epoch) / self.step_progress(batch_size, epoch)

    def epoch_end(self, epoch: int) -> float:
        return self._per_epoch * (epoch + 1)


def _doubled(low: int, high: int) -> tuple[int, ...]:
    """Return `low`, doubled until `high`, which is included."""
    sizes = [low]
    while sizes[-1] < high:
        sizes.append(min(2 * sizes[-1], high))
    return tuple(sizes)


# ------------------------------------------------------------------------------------------------- the file


def queue_text(queue: MeasuredQueue) -> str:
    """Return the JSON text that `read_queue` reads."""
    return document_to_json(_KIND, queue) + "\n"


def read_queue(file: Path) -> MeasuredQueue:
    """Read a file of `pollux simulate export`. Raises `TraceError` for anything else."""
    try:
        queue = document_from_json(_KIND, MeasuredQueue, file.read_bytes())
    except OSError as error:
        raise TraceError(f"{file}: {error.strerror or error}") from None
    except InvalidProblemError as error:
        raise TraceError(f"{file}: not a file of pollux simulate export: {error}") from None
    names: set[str] = set()
    for job in queue.jobs:
        if job.name in names:
            raise TraceError(f"{file}: two jobs are called {job.name!r}")
        names.add(job.name)
        wrong = invalid_reason(job)
        if wrong is not None:
            raise TraceError(f"{file}: job {job.name!r}: {wrong}")
    if queue.delays is not None:
        try:
            queue.delays.as_delays()
        except SimulationError as error:
            raise TraceError(f"{file}: delays: {error}") from None
    return queue


def invalid_reason(job: MeasuredJob) -> str | None:
    """Return why a job cannot be simulated, None where it can."""
    try:
        for _, statistics in job.statistics:
            check_model(GoodputModel(limits=job.limits, statistics=statistics, throughput=job.throughput))
    except InvalidModelError as error:
        return str(error)
    epochs = [epoch for epoch, _ in job.statistics]
    if not epochs or epochs[0] != 0 or epochs != sorted(set(epochs)):
        return "its statistics must be those from epoch 0 on, by ascending epoch"
    if not (1 <= job.num_epochs <= _MOST_EPOCHS and 0 < job.examples_per_epoch <= _MOST_EXAMPLES):
        return f"it trains {job.num_epochs} epochs of {job.examples_per_epoch:g} examples"
    most = math.inf if job.max_gpus is None else job.max_gpus
    if not (1 <= job.min_gpus <= most and 1 <= job.start_gpus <= most and job.submitted_s >= 0):
        return "it needs GPUs within its limits, and a time of submission"
    return None


def applications_of(queue: MeasuredQueue) -> dict[str, Application]:
    """Return each job's application, by its name."""
    return {job.name: MeasuredApplication(job) for job in queue.jobs}


def workload_of(queue: MeasuredQueue) -> tuple[WorkloadJob, ...]:
    """Return the jobs as they were submitted. A rigid job requests the GPUs with which it started."""
    return tuple(
        WorkloadJob(
            name=job.name,
            submitted_s=job.submitted_s,
            application=job.name,
            num_replicas=job.start_gpus,
            batch_size=job.limits.initial_batch_size,
            account=job.account,
            start_gpus=job.start_gpus,
        )
        for job in sorted(queue.jobs, key=lambda job: job.submitted_s)
    )


def load_applications(source: Path) -> Mapping[str, Application]:
    """Return the applications of a folder of traces, of a file of measured jobs, or of a table of rates.

    Raises `TraceError`.
    """
    if not source.is_file():
        return read_applications(source)
    return read_rate_table(source) if is_rate_table(source) else applications_of(read_queue(source))
