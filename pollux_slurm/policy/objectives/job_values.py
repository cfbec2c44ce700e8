"""How an objective values each job of a problem, and the parts that several objectives share.

Legend: J jobs, C columns of the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pollux_slurm.model import ProblemJob
from pollux_slurm.policy.objectives.generalized_mean import mean, mean_of_sum
from pollux_slurm.policy.problem.speedup_tables import SpeedupTables

FloatArray = npt.NDArray[np.float64]

BoolArray = npt.NDArray[np.bool_]

# An error of a good model: it is about the same in each round, and moves no job to and fro.
_USUAL_ERROR = 0.05
# However wrong its predictions are, a job gives up GPUs for a gain of 1/(1 − 0.3).
_MAX_DISCOUNT = 0.3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scores:
    """Hold the terms of an objective's generalized mean for a problem of J jobs and C configurations.

    A job whose allocation changes has x = `scale`·f·SPEEDUP + `floor`, one whose allocation stays has f = 1,
    and one without GPUs x = `floor`.

    Args:
        exponent: p of the mean (Σ w·x^p / Σ w)^(1/p), within ±20: 1 is the mean of all, −1 the harmonic mean,
            and the lower p, the more the worst-off job counts.
        floor: x of a job without GPUs, above 0.
        scale: The factor of f·SPEEDUP in x.
        weight: (J,), the weights of the mean.
        speedup: (J, C), SPEEDUP in the objective's units.
        current_speedup: (J,), that in the present allocations.
        penalty: (J,) or (J, C), f of a change by requeue.
        serves_all: As many waiting jobs as possible get their minimum before any job gets more.
        units: (J,), the objective's units over those of the tables; None: the same.
        declared_gain: Returns the factor (J,) by which a job's declaration changes its weight, NaN without
            one.
        usable: (J, C), the configurations that the objective allows; None: all.
        in_place_penalty: (J,) or (J, C), f of a change in place, which counts for jobs that can move so;
            None: no job can.

    Examples:
        >>> scores = generalized_mean(problem, jobs, tables)
        >>> scores.weight, scores.unit(0)
        (array([1., 1.]), 1.0)
        >>> scores.fitness([1.0, 1.0])  # the floor counts, too
        1.001
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
    in_place_penalty: FloatArray | None = None

    def unit(self, job: int) -> float:
        """Return SPEEDUP in the objective's units over SPEEDUP of the tables.

        Args:
            job: The job's index.
        """
        return 1.0 if self.units is None else float(self.units[job])

    def fitness(self, penalised: Sequence[float]) -> float:
        """Return the fitness of a decision.

        Args:
            penalised: (J,), f·SPEEDUP of each job, 0 without GPUs.
        """
        x = self.scale * np.asarray(penalised, dtype=np.float64) + self.floor
        return mean(self.exponent, x, self.weight)

    def fitness_of_sum(self, total: float) -> float:
        """Return the fitness for a sum of the jobs' values.

        Args:
            total: Σ w·x^p for p > 0, and −Σ w·x^p for p < 0, as a solver adds them up.

        Examples:
            >>> scores = generalized_mean(problem, jobs, tables)
            >>> scores.fitness_of_sum(-4.0)  # both have x = 0.5
            0.5
        """
        weight = float(self.weight.sum())
        return mean_of_sum(self.exponent, total, weight) if weight > 0 else 0.0


def speedup_of_one_gpu(tables: SpeedupTables) -> FloatArray:
    """Return SPEEDUP of one GPU, (J,). Speedups divided by it are relative to one GPU.

    It is 1 where one GPU allows no batch: speedups then stay relative to the fair share.
    """
    known = (tables.reference_goodput > 0) & (tables.one_gpu_goodput > 0)
    return np.divide(
        tables.one_gpu_goodput,
        tables.reference_goodput,
        out=np.ones(len(tables.one_gpu_goodput)),
        where=known,
    )


def prediction_discount(jobs: Sequence[ProblemJob], tables: SpeedupTables) -> FloatArray:
    """Return the factor on predicted SPEEDUP, (J, C): below 1 on fewer GPUs than the job has.

    It falls with the job's prediction error beyond that of a good model, so a job gives up GPUs only for a
    gain above its error. Predictions on more GPUs count in full: a job that was measured there at a bad
    moment could otherwise never correct its model.
    """
    current = np.array([job.current.num_gpus for job in jobs], dtype=np.float64)
    error = np.array([job.prediction_error for job in jobs], dtype=np.float64)
    discount = np.clip(error - _USUAL_ERROR, 0.0, _MAX_DISCOUNT)
    return np.where(tables.num_gpus < current[:, None], 1.0 - discount[:, None], 1.0)


def declared_remaining_s(job: ProblemJob, one_gpu_goodput: float) -> float | None:
    """Return a job's remaining time on one GPU by its declaration, None without a usable one.

    A job that goes on after its declared epochs has no usable declaration.
    """
    done, declared, progress = job.epochs_done, job.epochs_declared, job.progress
    if (
        done is None
        or declared is None
        or progress is None
        or not 0 < done < declared
        or one_gpu_goodput <= 0
    ):
        return None
    return progress / one_gpu_goodput * (declared - done) / done


def expected_remaining_s(job: ProblemJob, one_gpu_goodput: float) -> float | None:
    """Return a job's remaining time on one GPU by its declaration, else by its kind; None without either."""
    found = declared_remaining_s(job, one_gpu_goodput)
    if found is not None or job.expected_progress is None or one_gpu_goodput <= 0:
        return found
    left = job.expected_progress - (job.progress or 0.0)
    return left / one_gpu_goodput if left > 0 else None


def remaining_by_kind_s(job: ProblemJob, one_gpu_goodput: float) -> tuple[float, float] | None:
    """Return a job's remaining time on one GPU by the least and the greatest length of its kind.

    None where these are unknown, or its own declaration counts.
    """
    low, high = job.expected_low, job.expected_high
    if low is None or high is None or one_gpu_goodput <= 0 or declared_remaining_s(job, 1.0) is not None:
        return None
    done = job.progress or 0.0
    return max(low - done, 0.0) / one_gpu_goodput, max(high - done, 0.0) / one_gpu_goodput


def seconds_left(jobs: Sequence[ProblemJob], tables: SpeedupTables) -> FloatArray:
    """Return how long each job trains on in each configuration, (J, C); infinite where that is not known."""
    alone = zip(jobs, tables.one_gpu_goodput.tolist(), strict=True)
    known = [expected_remaining_s(job, goodput) for job, goodput in alone]
    left = np.array([np.inf if one is None else one for one in known], dtype=np.float64)
    over_one = tables.speedup / speedup_of_one_gpu(tables)[:, None]
    return np.asarray(left[:, None] / np.maximum(over_one, 1e-12))


def attained_work_s(job: ProblemJob, tables: SpeedupTables, row: int) -> float:
    """Return the work that a job has done, in seconds on one GPU; its age where its progress is unknown."""
    one_gpu_goodput = float(tables.one_gpu_goodput[row])
    if one_gpu_goodput <= 0 or job.progress is None:
        return job.age_s
    return job.progress / one_gpu_goodput


def job_weights(jobs: Sequence[ProblemJob]) -> FloatArray:
    return np.array([job.weight for job in jobs], dtype=np.float64)


def current_speedups(jobs: Sequence[ProblemJob], tables: SpeedupTables) -> FloatArray:
    """Return the speedup in each job's current allocation; 0 where that is outside the job's own bounds."""
    within = [
        job.pinned or job.min_gpus <= (gpus := job.current.num_gpus) <= (job.max_gpus or gpus) for job in jobs
    ]
    return np.where(within, tables.current_speedup, 0.0)
