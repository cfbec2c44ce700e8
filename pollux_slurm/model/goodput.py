"""One job's goodput model: fitted throughput, gradient statistics, and the bounds of its batch size.

Symbols are the paper's (Pollux, OSDI 2021, section 3): K replicas on N nodes, atomic batch size m,
accumulation steps s, global batch size M, initial batch size M0, gradient noise scale φ.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputParameters:
    """θ, the seven fitted parameters of the throughput model (Pollux eq. 8-11), in seconds.

    T_grad(m) = alpha_g + beta_g·m;  T_sync = 0 (K = 1), alpha_l + beta_l·max(K−2, 0) (one node),
    alpha_n + beta_n·max(K−2, 0) (several nodes);  T_iter = s·T_grad + (T_grad^γ + T_sync^γ)^(1/γ).
    """

    alpha_g: float
    beta_g: float
    alpha_n: float
    beta_n: float
    alpha_l: float
    beta_l: float
    gamma: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientStatistics:
    """Smoothed gradient statistics at the initial batch size M0.

    `sqr` is |G|², the squared norm of the true gradient; `var` is tr(Σ) of the gradient at batch M0.
    The noise scale is φ = M0·var/sqr. `noise_low` and `noise_high` are the ends of its 99 % confidence
    interval, in examples. Both are None without an estimated interval (exact data); only `noise_high` is None
    for an interval without an upper end.
    """

    sqr: float
    var: float
    noise_low: float | None = None
    noise_high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCourse:
    """A whole training of a job's kind: its `work` in useful examples, and how the gradient noise went.

    `statistics` are those from so many useful examples on, in order, each until the next.
    """

    work: float
    statistics: tuple[tuple[float, GradientStatistics], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """The batch sizes that the user allows, in examples.

    Without `max_batch_size` the global batch size stays exactly `initial_batch_size` at any number of
    replicas. `min_atomic` and `max_atomic` bound m; `accumulation` allows s > 0. `failed_atomic` is the least
    m that ran out of memory, so that `max_atomic` is below it; None where none did.
    """

    initial_batch_size: int
    max_batch_size: int | None = None
    min_atomic: int = 1
    max_atomic: int | None = None
    accumulation: bool = False
    failed_atomic: int | None = None

    def narrowed(self, largest: int, *, accumulation: bool) -> BatchLimits:
        """Return the limits where micro-batches of `largest` examples at most fit into memory.

        `accumulation`: whether larger batches may then take several micro-batches.
        """
        if self.max_atomic is not None and largest >= self.max_atomic:
            return self
        smallest = min(self.min_atomic, largest)
        return replace(self, max_atomic=largest, min_atomic=smallest, accumulation=accumulation)

    @property
    def varies(self) -> bool:
        """Whether the global batch size may vary."""
        return self.max_batch_size is not None and self.max_batch_size > self.initial_batch_size


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchChoice:
    """A global batch of M examples, as s + 1 micro-batches of m = ⌈M / (K·(s+1))⌉ examples on K replicas."""

    global_batch_size: int
    atomic_batch_size: int
    accumulation_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodputModel:
    """One job's goodput model. `throughput` is None until the first step is measured.

    `max_gpus_seen` and `max_nodes_seen` are the most GPUs and nodes that the job was measured on.
    `num_parameters` and `precision`, the name of PyTorch's type of numbers, tell what it trains; None where
    that is not known.
    """

    limits: BatchLimits
    statistics: GradientStatistics | None = None
    throughput: ThroughputParameters | None = None
    max_gpus_seen: int = 0
    max_nodes_seen: int = 0
    num_parameters: int | None = None
    precision: str | None = None
