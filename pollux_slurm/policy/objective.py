"""The objective: a generalized mean of penalised speedups (Pollux, OSDI 2021, eq. 12-14).

For each job x = f·SPEEDUP + floor; FITNESS_p = (mean of x^p)^(1/p), the geometric mean for p = 0. It grows
with Σ x^p/p, for p near 0 with Σ (x^p − 1)/p, which tends to Σ log x: solvers add these values.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pollux_slurm.model import Objective, ProblemJob

FloatArray = npt.NDArray[np.float64]


def values(objective: Objective, speedups: npt.ArrayLike) -> FloatArray:
    """Return what each penalised speedup (f·SPEEDUP) adds to the sum that the fitness grows with."""
    x = np.asarray(speedups, dtype=np.float64) + objective.floor
    if abs(objective.exponent) >= 0.5:
        return np.asarray(x**objective.exponent / objective.exponent, dtype=np.float64)
    return _powered(np.log(x), objective.exponent)


def fitness(objective: Objective, speedups: npt.ArrayLike) -> float:
    """Return the generalized mean of all jobs' penalised speedups; 0 for no job."""
    x = np.asarray(speedups, dtype=np.float64) + objective.floor
    if x.size == 0:
        return 0.0
    # Divided by the largest (or smallest) first, so that a large exponent neither over- nor underflows.
    exponent = objective.exponent
    unit = x.max() if exponent > 0 else x.min()
    mean = float(np.mean(_powered(np.log(x / unit), exponent)))
    return float(unit * np.exp(np.log1p(mean * exponent) / exponent if abs(exponent) >= 1e-12 else mean))


def _powered(log_x: FloatArray, exponent: float) -> FloatArray:
    """Return (x^p − 1)/p, which tends to log x for p → 0 and is computed without cancellation there."""
    if abs(exponent) < 1e-12:
        return log_x
    return np.asarray(np.expm1(exponent * log_x) / exponent, dtype=np.float64)


def restart_penalty(job: ProblemJob) -> float:
    """Return f_j = max(T − R·δ, 0)/(T + δ), the factor on a job's speedup if its allocation changes (eq. 13).

    T age, R reallocations so far, δ the delay of one. 1 from an empty allocation, and where nothing is lost.
    """
    if not job.current or job.restart_delay_s == 0:
        return 1.0
    useful_s = max(job.age_s - job.num_restarts * job.restart_delay_s, 0.0)
    return useful_s / (job.age_s + job.restart_delay_s)
