"""The rows of the reporting views: one class per view in `sql/views/`, with the view's columns as fields.

`VIEW` is the view's name, `TIME` the column by which rows are selected and ordered. docs/sql.md documents the
columns. `pollux_slurm.store.reporting.queries` reads them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, ClassVar

from pollux_slurm.model import BatchChoice


@dataclass(frozen=True, slots=True, kw_only=True)
class JobGoodput:
    """One job: its owner, GPU hours, goodput, and the cost of its moves."""

    VIEW: ClassVar[str] = "job_goodput"
    TIME: ClassVar[str] = "submitted_at"

    job_id: int
    slurm_job_id: str
    name: str
    user_name: str
    account: str
    partition: str
    state: str
    submitted_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    waited_s: float
    submit_to_finish_s: float | None
    gpu_hours: float
    trained_gpu_hours: float
    progress_share: float
    num_samples: int
    throughput: float | None
    efficiency: float | None
    goodput: float | None
    examples: float
    useful_examples: float
    progress: float
    speedup_one_gpu: float | None
    speedup_fair_share: float | None
    runs: int
    restarts: int
    lost_s: float
    regroups: int
    standstill_s: float
    requeues: int
    estimated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedJob:
    """One job by what lists are searched and sorted by: the columns of job_goodput that are read quickly."""

    VIEW: ClassVar[str] = "job_goodput"
    TIME: ClassVar[str] = "submitted_at"

    job_id: int
    slurm_job_id: str
    name: str
    user_name: str
    account: str
    state: str
    submitted_at: datetime
    waited_s: float
    gpu_hours: float
    goodput: float | None
    restarts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent:
    """One event of a job; `until` and `span_s` where it lasts."""

    VIEW: ClassVar[str] = "job_timeline"
    TIME: ClassVar[str] = "at"

    job_id: int
    slurm_job_id: str
    user_name: str
    account: str
    at: datetime
    until: datetime | None
    span_s: float | None
    rank: int
    event: str
    num_gpus: int | None
    num_nodes: int | None
    duration_s: float | None
    run_number: int | None
    reallocation_id: int | None
    round_id: int | None
    detail: str | None

    @property
    def run(self) -> int | None:
        """The run as people count, from 1."""
        return None if self.run_number is None else self.run_number + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReallocationEntry:
    """One reallocation: source, target, the time of each step, its cost, and the goodput before and after."""

    VIEW: ClassVar[str] = "reallocation_history"
    TIME: ClassVar[str] = "planned_at"

    reallocation_id: int
    job_id: int
    slurm_job_id: str
    user_name: str
    account: str
    round_id: int | None
    cause: str
    way: str
    step: str
    checkpoint_waived: bool
    retargeted: bool
    continued_training: bool
    job_failed: bool
    taken_over: bool
    reason: str | None
    moves_running: bool
    planned_at: datetime
    requested_at: datetime | None
    checkpointed_at: datetime | None
    requeued_at: datetime | None
    released_at: datetime | None
    running_at: datetime | None
    first_step_at: datetime | None
    regroup_requested_at: datetime | None
    regrouped_at: datetime | None
    confirmed_at: datetime | None
    last_step_at: datetime
    source_gpus: int
    source_nodes: int
    target_gpus: int
    target_nodes: int
    checkpoint_s: float | None
    hold_s: float | None
    slurm_s: float | None
    launch_s: float | None
    total_s: float | None
    standstill_s: float | None
    warm_up_s: float | None
    goodput_before: float | None
    goodput_after: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundEntry:
    """One round: the GPUs it could allocate, what it allocated, and its quality."""

    VIEW: ClassVar[str] = "round_history"
    TIME: ClassVar[str] = "at"

    round_id: int
    at: datetime
    shadow: bool
    objective: str
    solver: str
    num_jobs: int
    num_served: int
    num_gpus: int
    total_gpus: int | None
    fair_share_gpus: int | None
    mean_speedup: float | None
    min_speedup: float | None
    fitness: float
    upper_bound: float | None
    gap: float | None
    timed_out: bool
    solve_s: float | None
    num_moves: int
    num_confirmed: int
    num_failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """GPU hours and goodput of an account, or of one of its users, on one day (UTC)."""

    TIME: ClassVar[str] = "day"

    day: date
    account: str
    num_jobs: int
    gpu_hours: float
    trained_gpu_hours: float
    useful_gpu_hours: float
    progress_share: float
    examples: float
    useful_examples: float
    throughput: float | None
    efficiency: float | None
    goodput: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountUsage(Usage):
    """One account on one day (UTC)."""

    VIEW: ClassVar[str] = "account_usage"


@dataclass(frozen=True, slots=True, kw_only=True)
class UserUsage(Usage):
    """One user in one account on one day (UTC)."""

    VIEW: ClassVar[str] = "user_usage"

    user_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUsage:
    """One node on one day (UTC)."""

    VIEW: ClassVar[str] = "node_usage"
    TIME: ClassVar[str] = "day"

    day: date
    node_name: str
    gpu_type: str
    num_jobs: int
    gpu_hours: float
    num_gpus: float
    available_gpu_hours: float
    utilization: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSum:
    """One node over several days: what adaptive jobs held there, of what they could have had."""

    node_name: str
    gpu_type: str
    gpu_hours: float
    available_gpu_hours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAccuracy:
    """One run on one day (UTC): predicted against measured throughput."""

    VIEW: ClassVar[str] = "model_accuracy"
    TIME: ClassVar[str] = "day"

    job_id: int
    slurm_job_id: str
    user_name: str
    account: str
    run_number: int
    day: date
    gpu_type: str
    num_gpus: int
    num_nodes: int
    num_samples: int
    throughput: float | None
    predicted_throughput: float | None
    mean_error: float
    mean_abs_error: float

    @property
    def run(self) -> int:
        """The run as people count, from 1."""
        return self.run_number + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Fairness:
    """One job: its finish-time fairness."""

    VIEW: ClassVar[str] = "fairness"
    TIME: ClassVar[str] = "submitted_at"

    job_id: int
    slurm_job_id: str
    name: str
    user_name: str
    account: str
    state: str
    submitted_at: datetime
    finished_at: datetime | None
    elapsed_s: float
    waited_s: float
    num_rounds: int
    fair_share_gpus: float | None
    mean_gpus: float | None
    mean_speedup: float | None
    goodput: float | None
    fair_share_goodput: float | None
    fair_share_s: float | None
    rho: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplePoint:
    """The mean of `num_samples` successive samples of one run.

    `at`, `num_gpus`, `progress`, `epoch` and `batch` are those of the last of them. The others are means,
    None where no sample has the value.
    """

    at: datetime
    run_number: int
    num_gpus: int
    num_samples: int
    throughput: float | None
    predicted_throughput: float | None
    efficiency: float | None
    goodput: float | None
    progress: float
    epoch: int
    batch: BatchChoice | None

    @property
    def run(self) -> int:
        """The run as people count, from 1."""
        return self.run_number + 1

    @property
    def global_batch_size(self) -> int | None:
        return None if self.batch is None else self.batch.global_batch_size


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuHolders:
    """Jobs that held GPUs in a range of time, by submission, and their `allocated` events that reach into it.

    `truncated`: there were more jobs than asked for; none is here.
    """

    jobs: tuple[JobGoodput, ...] = ()
    intervals: tuple[JobEvent, ...] = ()
    truncated: bool = False


ROW_TYPES: tuple[type[Any], ...] = (
    JobGoodput,
    JobEvent,
    ReallocationEntry,
    RoundEntry,
    AccountUsage,
    UserUsage,
    NodeUsage,
    ModelAccuracy,
    Fairness,
)
"""Every class with a view of its own."""
