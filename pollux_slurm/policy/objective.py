"""The objective: a generalized mean of penalised speedups (Pollux, OSDI 2021, eq. 12-14).

For each job x = f·SPEEDUP + floor; FITNESS_p = (mean of x^p)^(1/p), the geometric mean for p = 0. It
grows with Σ value(x), where value is x^p for p > 0, −x^p for p < 0 and log x for p = 0: solvers add values.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pollux_slurm.model import Objective, ProblemJob

FloatArray = npt.NDArray[np.float64]


def values(objective: Objective, speedups: npt.ArrayLike) -> FloatArray:
    """Return what each penalised speedup (f·SPEEDUP) adds to the sum that the fitness grows with."""
    x = np.asarray(speedups, dtype=np.float64) + objective.floor
    if objective.exponent == 0:
        return np.asarray(np.log(x), dtype=np.float64)
    return np.asarray(np.sign(objective.exponent) * x**objective.exponent, dtype=np.float64)


def fitness(objective: Objective, speedups: npt.ArrayLike) -> float:
    """Return the generalized mean of all jobs' penalised speedups; 0 for no job."""
    x = np.asarray(speedups, dtype=np.float64) + objective.floor
    if x.size == 0:
        return 0.0
    if objective.exponent == 0:
        return float(np.exp(np.mean(np.log(x))))
    # Divided by the largest (or smallest) first, so that a large exponent neither over- nor underflows.
    unit = x.max() if objective.exponent > 0 else x.min()
    return float(unit * np.mean((x / unit) ** objective.exponent) ** (1.0 / objective.exponent))


def restart_penalty(job: ProblemJob) -> float:
    """Return f_j = max(T − R·δ, 0)/(T + δ), the factor on a job's speedup if its allocation changes (eq. 13).

    T age, R reallocations so far, δ the delay of one. 1 from an empty allocation, and where nothing is lost.
    """
    if not job.current or job.restart_delay_s == 0:
        return 1.0
    useful_s = max(job.age_s - job.num_restarts * job.restart_delay_s, 0.0)
    return useful_s / (job.age_s + job.restart_delay_s)
