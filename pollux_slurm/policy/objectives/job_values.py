"""What an objective says of a problem, and what several objectives ask of jobs and tables.

Legend: J jobs, C columns of the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pollux_slurm.model import Problem, ProblemJob
from pollux_slurm.policy.objectives.generalized_mean import mean, mean_of_sum
from pollux_slurm.policy.problem.speedup_tables import SpeedupTables

FloatArray = npt.NDArray[np.float64]

# A model that is off by so much is so in each round alike, and sends no job to and fro.
_USUAL_ERROR = 0.05
# However wrong its predictions are, a job gives up GPUs for a gain of 1/(1 − 0.3).
_MOST_DOUBTED = 0.3
BoolArray = npt.NDArray[np.bool_]

# The restart that a horizon is told for.
_HORIZON_DELAY_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scores:
    """What an objective makes of a problem.

    A job whose allocation changes counts x = `scale`·f·SPEEDUP + `floor`, one that stays the same without f,
    one with nothing x = `floor`. `speedup` (J, C) and `current_speedup` (J,) are SPEEDUP as the objective
    sees it, `penalty` (J,) or (J, C) is f, `weight` (J,) enters the mean. With `serves_all`, jobs that wait
    come before all else. `declared_gain()` (J,) is the factor by which what a job declares has changed
    its weight, NaN where it declares nothing that counts. `usable` (J, C) may leave columns out.
    """

    exponent: float
    floor: float
    scale: float
    weight: FloatArray
    speedup: FloatArray
    current_speedup: FloatArray
    penalty: FloatArray
    serves_all: bool
    units: FloatArray | None = None
    declared_gain: Callable[[], FloatArray] | None = None
    usable: BoolArray | None = None

    def unit(self, job: int) -> float:
        """Return SPEEDUP as the objective sees it over SPEEDUP as the tables have it."""
        return 1.0 if self.units is None else float(self.units[job])

    def fitness(self, penalised: Sequence[float]) -> float:
        """Return the mean for what each job gets, as f·SPEEDUP."""
        x = self.scale * np.asarray(penalised, dtype=np.float64) + self.floor
        return mean(self.exponent, x, self.weight)

    def fitness_of_sum(self, total: float) -> float:
        """Return the fitness that belongs to a sum of values."""
        weight = float(self.weight.sum())
        return mean_of_sum(self.exponent, total, weight) if weight > 0 else 0.0


def speedup_of_one_gpu(tables: SpeedupTables) -> FloatArray:
    """Return SPEEDUP of one GPU, (J,): dividing by it makes speedups ones over one GPU.

    Where one GPU allows no batch, it is 1: speedups stay those over the fair share.
    """
    known = (tables.base > 0) & (tables.alone > 0)
    return np.divide(tables.alone, tables.base, out=np.ones(len(tables.alone)), where=known)


def restart_delays_s(jobs: Sequence[ProblemJob], *, resuming: bool = False) -> FloatArray:
    """Return what a change costs each job, in seconds: nothing where it has no GPUs.

    With `resuming`, a job that ran before, and waits, has its restart to pay for as well.
    """
    found = [
        job.restart_delay_s if job.current or (resuming and job.num_restarts > 0) else 0.0 for job in jobs
    ]
    return np.array(found, dtype=np.float64)


def horizon_s(delay: FloatArray, usual_s: float) -> FloatArray:
    """Return the time over which a move must pay: `usual_s`, and in proportion to √δ beyond 30 s."""
    return usual_s * np.sqrt(np.maximum(delay / _HORIZON_DELAY_S, 1.0))


def hysteresis_factors(problem: Problem, jobs: Sequence[ProblemJob]) -> FloatArray:
    return np.array(
        [1.0 - problem.moving.hysteresis if job.current else 1.0 for job in jobs], dtype=np.float64
    )


def prediction_discount(jobs: Sequence[ProblemJob], tables: SpeedupTables) -> FloatArray:
    """Return the part of a predicted SPEEDUP that counts, (J, C): on fewer GPUs than a job holds, less by
    what its predictions were off, beyond what a good model is.

    So a job gives GPUs up for a gain of its own, or for another's, that is more than its error. On more it is
    believed in full: one that was measured at a bad moment there would else never find out.
    """
    held = np.array([job.current.num_gpus for job in jobs], dtype=np.float64)
    error = np.array([job.prediction_error for job in jobs], dtype=np.float64)
    doubt = np.clip(error - _USUAL_ERROR, 0.0, _MOST_DOUBTED)
    return np.where(tables.num_gpus < held[:, None], 1.0 - doubt[:, None], 1.0)


def declared_remaining_s(job: ProblemJob, alone: float) -> float | None:
    """Return a job's remaining time on one GPU by its declaration, None where it declares nothing usable.

    A job that has done all that it declared, and goes on, has declared nothing.
    """
    done, declared, progress = job.epochs_done, job.epochs_declared, job.progress
    if done is None or declared is None or progress is None or not 0 < done < declared or alone <= 0:
        return None
    return progress / alone * (declared - done) / done


def attained_work_s(job: ProblemJob, tables: SpeedupTables, row: int) -> float:
    """Return the work done so far in seconds of one GPU, at most its age on all that it may have held."""
    alone = float(tables.alone[row])
    if alone <= 0 or job.progress is None:
        return job.age_s
    return job.progress / alone


def job_weights(jobs: Sequence[ProblemJob]) -> FloatArray:
    return np.array([job.weight for job in jobs], dtype=np.float64)


def current_speedups(jobs: Sequence[ProblemJob], tables: SpeedupTables) -> FloatArray:
    """Return the speedup of what each job holds; what breaks the job's own limits is worth nothing."""
    within = [
        job.pinned or job.min_gpus <= (gpus := job.current.num_gpus) <= (job.max_gpus or gpus) for job in jobs
    ]
    return np.where(within, tables.current_speedup, 0.0)
