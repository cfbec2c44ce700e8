"""What an objective asks of a move: whether a running job may be paused, and how much a change must gain.

Legend: J jobs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pollux_slurm.model import MovingRules, ProblemJob

FloatArray = npt.NDArray[np.float64]

# Objectives that are designed to pause running jobs.
_PAUSING = frozenset({"price-rank", "attained-work"})

# What a move costs a job beyond its delay, by objective; the others weigh moves by horizons of their own.
_HYSTERESIS = {"generalized-mean": 0.1}


def moving_rules(
    objective: str, *, pauses: bool | None = None, hysteresis: float | None = None
) -> MovingRules:
    """Return when running jobs keep their allocation; None stands for the objective's own value."""
    return MovingRules(
        hysteresis=_HYSTERESIS.get(objective, 0.0) if hysteresis is None else hysteresis,
        pauses=objective in _PAUSING if pauses is None else pauses,
    )


def hysteresis_factors(jobs: Sequence[ProblemJob], moving: MovingRules) -> FloatArray:
    """Return the factor on the speedup of each job that changes, (J,); 1 for a job without GPUs."""
    return np.array([1.0 - moving.hysteresis if job.current else 1.0 for job in jobs], dtype=np.float64)
