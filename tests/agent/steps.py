"""Measured steps for tests."""

from __future__ import annotations

from typing import Any

from pollux_slurm.agent.measure.profile import MeasuredStep


def step(micro_batch_s: float, last_time_s: float, **changes: Any) -> MeasuredStep:
    """Return a step of one micro-batch of 16 examples on each of two replicas."""
    values: dict[str, Any] = {"atomic_batch_size": 16, "num_examples": 32, "total_s": last_time_s}
    return MeasuredStep(micro_batch_s=micro_batch_s, last_time_s=last_time_s, **{**values, **changes})
