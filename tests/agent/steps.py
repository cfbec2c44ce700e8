"""Measured steps for tests."""

from __future__ import annotations

from typing import Any

from pollux_slurm.agent.measure.profile import MeasuredStep


def step(grad_time_s: float, iter_time_s: float, **changes: Any) -> MeasuredStep:
    """Return a step of one micro-batch of 16 examples on each of two replicas."""
    values: dict[str, Any] = {"atomic_batch_size": 16, "num_examples": 32, "total_s": iter_time_s}
    return MeasuredStep(grad_time_s=grad_time_s, iter_time_s=iter_time_s, **{**values, **changes})
