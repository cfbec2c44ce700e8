"""The rules of a simulated cluster: the delays of a move, unmanaged jobs, node failures.

Rules `osdi21` are those of the Pollux artifact's simulator: a move costs one fixed delay, and nothing else
happens. Rules `slurm` are a Slurm cluster's: a move has the parts that the daemon's journal records.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType

from pollux_slurm.errors import SimulationError
from pollux_slurm.simulator.engine.measurements import NO_NOISE, MeasurementNoise

RULES = ("osdi21", "slurm")
# Seconds before a requeued job starts unless its begin time is set (measured on 22.05.8).
PLAIN_REQUEUE_S = 121.0

# Checkpoint sizes of the artifact's applications: parameters, and the optimizer's copies of them. Parameter
# counts are those of the models' publications; NeuMF and DeepSpeech2 are counted from their layers.
STATE_BYTES: Mapping[str, int] = MappingProxyType(
    {
        "bert": 110_000_000 * 4 * 3,  # BERT base, Adam
        "cifar10": 11_200_000 * 4 * 2,  # ResNet-18, SGD with momentum
        "deepspeech2": 41_000_000 * 4 * 2,  # five bidirectional GRU layers of 800, SGD with momentum
        "imagenet": 25_600_000 * 4 * 2,  # ResNet-50, SGD with momentum
        "ncf": 1_600_000 * 4 * 3,  # NeuMF on MovieLens-1M, Adam
        "yolov3": 61_900_000 * 4 * 2,  # YOLOv3 on Darknet-53, SGD with momentum
    }
)
OTHER_STATE_BYTES = 300_000_000


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise SimulationError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """The parts of a reallocation in seconds, as `store/journal/move_costs.py` computes them.

    - Planned: the job trains on while others own its GPUs, and then for `notice_s` until its agent polls
      (every 2 s).
    - Checkpoint: `checkpoint_s`, and the time to write the job's state at `write_bytes_per_s`.
    - Slurm: `requeue_s` from the requeue to RUNNING in the new shape (measured: 2.4 to 3.0 s with the begin
      time set, `PLAIN_REQUEUE_S` without); `start_s` for a job that waited in the queue.
    - Launch, from RUNNING to the first step: `launch_s` or the application's `launch_s_by_application`, plus
      `launch_per_gpu_s` for each GPU (replicas that share cores start one after the other), plus the time to
      read the state at `read_bytes_per_s`.
    - `backfill_s` is how long a job that never ran waits for Slurm's scheduler beyond the round: half the
      documented default of `bf_interval`.
    - Moves in place: `warm_up_s` and `standstill_s` where they were measured, else those of `InPlace`.

    Rates, `checkpoint_s`, `start_s` and `launch_s` are assumptions. A site can replace them with its own, as
    `pollux status` shows them.
    """

    notice_s: float = 1.0
    checkpoint_s: float = 0.5
    write_bytes_per_s: float = 500e6
    requeue_s: float = 2.7
    start_s: float = 1.0
    launch_s: float = 20.0
    launch_s_by_application: Mapping[str, float] = field(default_factory=dict)
    launch_per_gpu_s: float = 0.0
    read_bytes_per_s: float = 1000e6
    backfill_s: float = 15.0
    warm_up_s: float | None = None
    standstill_s: float | None = None
    # Bytes of a checkpoint by application; others have `other_state_bytes`.
    state_bytes: Mapping[str, int] = field(default_factory=lambda: STATE_BYTES)
    other_state_bytes: int = OTHER_STATE_BYTES

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            for number in value.values() if isinstance(value, Mapping) else (value,):
                if number is None:
                    continue
                _require(math.isfinite(number) and number >= 0, f"{one.name} must be 0 or more, not {number}")
        _require(
            self.write_bytes_per_s > 0 and self.read_bytes_per_s > 0, "checkpoints must have a rate above 0"
        )

    def state_of(self, application: str) -> int:
        return self.state_bytes.get(application, self.other_state_bytes)

    def write_s(self, application: str) -> float:
        """Return how long a checkpoint blocks training."""
        return self.checkpoint_s + self.state_of(application) / self.write_bytes_per_s

    def time_to_first_step_s(self, application: str, *, restore: bool, num_gpus: int = 0) -> float:
        """Return the time from RUNNING to the first step; with `restore`, a checkpoint is read."""
        launch_s = (
            self.launch_s_by_application.get(application, self.launch_s) + self.launch_per_gpu_s * num_gpus
        )
        return launch_s + (self.state_of(application) / self.read_bytes_per_s if restore else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class InPlace:
    """Moves in place: processes on new GPUs start beside the training, then all regroup at a step boundary.

    `share` of the jobs can be moved so, drawn with the rules' seed. Each start of such a job has one wing,
    and each move adds one on each node where it gains GPUs (`model.wings`). With `several_wings`, all nodes
    may have several wings of a job.

    - Warm-up: new processes start, import and load, and the job trains on meanwhile. It takes as long as a
      start and a launch of `Delays`, unless these have a measured one; under rules without them `warm_up_s`.
    - Standstill: `standstill_s`, and `standstill_s_per_gb` of the job's state where new processes need it.

    Defaults were measured with gloo on one machine; with NCCL a group of many GPUs may take seconds to form.
    """

    share: float = 1.0
    several_wings: bool = False
    warm_up_s: float = 20.0
    standstill_s: float = 0.5
    standstill_s_per_gb: float = 2.3

    def __post_init__(self) -> None:
        _require(
            0 <= self.share <= 1,
            f"the share of jobs moved in place must lie between 0 and 1, not {self.share:g}",
        )
        for name in ("warm_up_s", "standstill_s", "standstill_s_per_gb"):
            value = getattr(self, name)
            _require(math.isfinite(value) and value >= 0, f"{name} must be 0 or more, not {value:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmanagedJob:
    """A job that is not of the workload: it waits for `num_gpus`, and owns them for `duration_s`."""

    submitted_s: float
    duration_s: float
    num_gpus: int

    def __post_init__(self) -> None:
        _require(
            self.num_gpus >= 1 and self.duration_s > 0 and self.submitted_s >= 0,
            f"an unmanaged job needs GPUs, a duration and a time: {self}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Random node failures: each node fails after `mtbf_s` on average, and is up again after `repair_s`."""

    mtbf_s: float
    repair_s: float = 1800.0

    def __post_init__(self) -> None:
        _require(
            math.isfinite(self.mtbf_s) and self.mtbf_s > 0 and self.repair_s >= 0,
            "the time between failures of a node must be above 0, that of its repair 0 s or more, not "
            f"{self.mtbf_s / 3600:g} h and {self.repair_s:g} s",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """All rules of one simulation. Times in seconds, shares between 0 and 1.

    Without `delays`, a requeue costs the cluster's `restart_delay_s`. With `in_place`, moves that can be made
    in place are. `checkpoint_interval_s` is the training time between two periodic checkpoints of a run.

    `adaptive_share` of the jobs, drawn with `seed`, are adaptive. The others are rigid: they have their
    user's size and batch, are never moved, and start first come, first served with conservative backfill. A
    user's estimate is `estimate_factor` times what the job takes. Rigid jobs and `unmanaged_jobs` start at a
    round, before the policy decides, on GPUs that are free, or lent to adaptive jobs beyond their users'
    sizes (`rigid_jobs.py`). With `rigid_first` they come first, and adaptive jobs get the rest.

    `interference` is the part of its speed that a job over several nodes loses on a node with two such jobs.
    What agents measure is off by `noise`, drawn with `seed`. With `slurm_starts`, Slurm starts adaptive jobs
    whose submission names a size.
    """

    name: str = "osdi21"
    delays: Delays | None = None
    in_place: InPlace | None = None
    unmanaged_jobs: tuple[UnmanagedJob, ...] = ()
    failures: Failures | None = None
    checkpoint_interval_s: float | None = None
    adaptive_share: float = 1.0
    rigid_first: bool = False
    estimate_factor: float = 2.0
    interference: float = 0.0
    noise: MeasurementNoise = NO_NOISE
    slurm_starts: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        _require(self.name in RULES, f"unknown rules {self.name!r}; there are {', '.join(RULES)}")
        for name, what in (
            ("adaptive_share", "the share of adaptive jobs"),
            ("interference", "interference"),
        ):
            value = getattr(self, name)
            _require(0 <= value <= 1, f"{what} must lie between 0 and 1, not {value:g}")
        _require(self.interference < 1, "interference must be below 1: a job that stands still never ends")
        _require(
            math.isfinite(self.estimate_factor) and self.estimate_factor >= 1,
            "estimate_factor must be 1 or more: Slurm ends jobs at their limit",
        )
        every = self.checkpoint_interval_s
        _require(every is None or every > 0, "the interval of checkpoints must be above 0 s")


OSDI21 = Rules()


def slurm_rules(
    *,
    delays: Delays | None = None,
    in_place: InPlace | None = None,
    unmanaged_jobs: tuple[UnmanagedJob, ...] = (),
    failures: Failures | None = None,
    checkpoint_interval_s: float | None = 1800.0,
    adaptive_share: float = 1.0,
    rigid_first: bool = False,
    estimate_factor: float = 2.0,
    interference: float = 0.0,
    noise: MeasurementNoise = NO_NOISE,
    slurm_starts: bool = True,
    seed: int = 0,
) -> Rules:
    """Return the rules `slurm`, with measured delays, and without unmanaged jobs and failures by default."""
    return Rules(
        name="slurm",
        delays=Delays() if delays is None else delays,
        in_place=in_place,
        unmanaged_jobs=unmanaged_jobs,
        failures=failures,
        checkpoint_interval_s=checkpoint_interval_s,
        adaptive_share=adaptive_share,
        rigid_first=rigid_first,
        estimate_factor=estimate_factor,
        interference=interference,
        noise=noise,
        slurm_starts=slurm_starts,
        seed=seed,
    )
