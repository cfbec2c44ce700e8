"""The terms of a problem's objective, checked once before anything uses them.

An objective may be a user's own. A wrong term would end in an error elsewhere, or in a senseless decision.
Legend: J jobs, C columns of the tables.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pollux_slurm.errors import ObjectiveError, PolluxError
from pollux_slurm.model import Problem, ProblemJob
from pollux_slurm.policy.objectives.job_values import Scores
from pollux_slurm.policy.objectives.registry import OBJECTIVES
from pollux_slurm.policy.problem.speedup_tables import SpeedupTables

# That of a problem's own exponent, too.
MAX_EXPONENT = 20.0


def scores_of(problem: Problem, jobs: Sequence[ProblemJob], tables: SpeedupTables) -> Scores:
    """Return the terms of the problem's objective.

    Raises `ObjectiveError` if its function fails or returns impossible terms.
    """
    name = problem.objective.name
    try:
        scores = OBJECTIVES[name](problem, jobs, tables)
    except PolluxError:
        raise
    except Exception as error:
        raise ObjectiveError(f"objective {name}: {_last_line(error)}") from error
    fault = _fault(scores, jobs, len(tables.num_gpus))
    if fault is not None:
        raise ObjectiveError(f"objective {name}: {fault}")
    return scores


def _last_line(error: Exception) -> str:
    """Return the type and message of an error, and the line of code that raised it."""
    text = " ".join("".join(traceback.format_exception_only(error)).split())
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{text} ({Path(frame.filename).name}, line {frame.lineno})"


def _fault(scores: object, jobs: Sequence[ProblemJob], num_columns: int) -> str | None:
    """Return what is wrong with the terms of an objective, None if nothing is."""
    if not isinstance(scores, Scores):
        return f"it must return Scores, found {_shown(scores)}"
    if not (_is_finite(scores.exponent) and abs(scores.exponent) <= MAX_EXPONENT):
        return f"exponent must be a number within ±{MAX_EXPONENT:g}, found {_shown(scores.exponent)}"
    for term, number in (("floor", scores.floor), ("scale", scores.scale)):
        if not (_is_finite(number) and number > 0):
            return f"{term} must be a finite number above 0, found {_shown(number)}"
    each, table = (len(jobs),), (len(jobs), num_columns)
    faults = (
        _array_fault("weight", scores.weight, (each,), jobs, above_zero=True),
        _array_fault("speedup", scores.speedup, (table,), jobs),
        _array_fault("current_speedup", scores.current_speedup, (each,), jobs),
        _array_fault("penalty", scores.penalty, (each, table), jobs),
        None if scores.units is None else _array_fault("units", scores.units, (each,), jobs, above_zero=True),
        None
        if scores.in_place_penalty is None
        else _array_fault("in_place_penalty", scores.in_place_penalty, (each, table), jobs),
    )
    for fault in faults:
        if fault is not None:
            return fault
    usable = scores.usable
    if usable is not None and not (
        isinstance(usable, np.ndarray) and usable.dtype == np.bool_ and usable.shape == table
    ):
        return f"usable must be {_of_shape(table)} truth values, found {_shown(usable)}"
    return None


def _array_fault(
    term: str,
    array: object,
    shapes: Sequence[tuple[int, ...]],
    jobs: Sequence[ProblemJob],
    *,
    above_zero: bool = False,
) -> str | None:
    """Return what is wrong with an array that must have one of `shapes`, None if nothing is."""
    bound = "above 0" if above_zero else "of at least 0"
    must = f"{term} must be {' or '.join(map(_of_shape, shapes))} finite numbers {bound}"
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiu" or array.shape not in shapes:
        return f"{must}, found {_shown(array)}"
    if array.size == 0:
        return None
    # A comparison with NaN is false.
    low = array.min()
    if (low > 0 if above_zero else low >= 0) and array.max() < np.inf:
        return None
    right = np.isfinite(array) & (array > 0 if above_zero else array >= 0)
    place = tuple(np.argwhere(~right)[0].tolist())
    return f"{must}, found {array[place]:g} for job {jobs[place[0]].job_id}"


def _is_finite(value: object) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and math.isfinite(value)


def _of_shape(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape))


def _shown(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} of shape {value.shape}"
    if value is None or isinstance(value, (int, float, np.number)):
        return str(value)
    return f"a value of type {type(value).__name__}"
