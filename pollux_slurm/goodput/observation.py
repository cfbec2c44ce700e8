"""What a job has measured of its steps: what θ is fitted to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Mean step times of one job in one situation.

    `grad_time_s` is a pass without synchronisation over `atomic_batch_size` examples; `iter_time_s` is the
    last pass of a step, synchronisation included (the whole step where nothing is accumulated). `weight`
    grows with how much the measurement counts (how often it was taken, how recently). `confirmed` says that
    it was taken for long enough that no busy moment made it slow.
    """

    num_nodes: int
    num_gpus: int
    atomic_batch_size: int
    grad_time_s: float
    iter_time_s: float
    weight: float = 1.0
    confirmed: bool = True
