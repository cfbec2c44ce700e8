"""Gavel's linear programs (OSDI 2020): which part of the time each job should have on each GPU type.

J jobs, K types. T[j, k]: rate of a job on a type, 0 where it can't run; s[j]: its GPUs; n[k]: GPUs of a type.
X[j, k]: part of the time, of shape `(J, K)`, with Σ_k X[j, k] ≤ 1 and Σ_j s[j]·X[j, k] ≤ n[k].
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pollux_slurm.errors import SimulationError

FloatArray = npt.NDArray[np.float64]

# The weight of the rates beside the least one: what the objective leaves free is used, too.
_EPSILON = 1e-4
# The search for the least ρ ends when a step lowers it by less than this part.
_LEAST_GAIN = 1e-3
_MOST_STEPS = 20


def normalised(rates: FloatArray, sizes: FloatArray, counts: FloatArray) -> FloatArray:
    """Return R = T·s/prop, where prop is a job's rate with each type in proportion to its GPUs."""
    proportional = rates @ (counts / counts.sum())
    shares: FloatArray = rates / proportional[:, None] * sizes[:, None]
    return shares


def max_min(
    values: FloatArray, rates: FloatArray, sizes: FloatArray, counts: FloatArray
) -> tuple[FloatArray, float]:
    """Maximise z with Σ_k values[j, k]·X[j, k] ≥ z for each job; return X and z."""
    shares = normalised(rates, sizes, counts)
    solution, least = _solve(_EPSILON / len(rates) * shares, sizes, counts, rates > 0, values=values)
    return solution, least


def max_sum(rates: FloatArray, sizes: FloatArray, counts: FloatArray) -> FloatArray:
    """Maximise Σ T·X: the fastest jobs first, whatever the others get."""
    return _solve(rates, sizes, counts, rates > 0)[0]


def equal_shares(sizes: FloatArray, counts: FloatArray) -> FloatArray:
    """Return X with an equal part of each type's GPUs for each job, but no more than all the time."""
    found = counts[None, :] / len(sizes) / sizes[:, None]
    shares: FloatArray = found / np.maximum(found.sum(axis=1, keepdims=True), 1.0)
    return shares


def least_rho(
    rates: FloatArray,
    sizes: FloatArray,
    counts: FloatArray,
    *,
    left: FloatArray,
    age_s: FloatArray,
    ideal_s: FloatArray,
) -> FloatArray:
    """Minimise the largest ρ = (age + left/Σ_k T·X)/ideal, the finish-time fairness.

    A ρ needs rates of left/(ρ·ideal − age). From equal shares on, each program maximises the least part of
    what its predecessor's ρ needs, and so lowers ρ.
    """
    solution = equal_shares(sizes, counts)
    rho = _largest_rho(solution, rates, left, age_s, ideal_s)
    for _ in range(_MOST_STEPS):
        needed = left / (rho * ideal_s - age_s)
        better = max_min(rates / needed[:, None], rates, sizes, counts)[0]
        found = _largest_rho(better, rates, left, age_s, ideal_s)
        if not found < rho:
            break
        gain, rho, solution = 1 - found / rho, found, better
        if gain < _LEAST_GAIN:
            break
    return solution


def _largest_rho(
    solution: FloatArray, rates: FloatArray, left: FloatArray, age_s: FloatArray, ideal_s: FloatArray
) -> float:
    got = np.maximum((rates * solution).sum(axis=1), 1e-300)
    return float(((age_s + left / got) / ideal_s).max())


def _solve(
    objective: FloatArray,
    sizes: FloatArray,
    counts: FloatArray,
    possible: npt.NDArray[np.bool_],
    *,
    values: FloatArray | None = None,
) -> tuple[FloatArray, float]:
    """Maximise Σ objective·X, plus z with `values`; return X and z (0 without). Like jobs get alike."""
    # Imported here because the other policies do not need it, and it takes long.
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    num_types = objective.shape[1]
    tables = [objective, possible, sizes[:, None]] + ([] if values is None else [values])
    _, first, kind, alike = np.unique(
        np.hstack(tables), axis=0, return_index=True, return_inverse=True, return_counts=True
    )
    num_kinds = len(first)
    index = np.arange(num_kinds * num_types)
    row, column = np.divmod(index, num_types)
    parts = [(row, index, np.ones(len(index))), (num_kinds + column, index, (sizes[first] * alike)[row])]
    limits = [np.ones(num_kinds), counts]
    cost = -(objective[first] * alike[:, None]).ravel()
    upper = possible[first].ravel().astype(np.float64)
    if values is not None:
        least = num_kinds + num_types + np.arange(num_kinds)
        scale = values[first].max(axis=1)
        parts += [
            (num_kinds + num_types + row, index, -(values[first] / scale[:, None]).ravel()),
            (least, np.full(num_kinds, len(index)), scale.min() / scale),
        ]
        limits.append(np.zeros(num_kinds))
        cost, upper = np.append(cost, -1.0), np.append(upper, np.inf)
    rows, columns, entries = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    right = np.concatenate(limits)
    matrix = csr_array((entries, (rows, columns)), shape=(len(right), len(cost)))
    found = milp(cost, bounds=Bounds(0.0, upper), constraints=LinearConstraint(matrix, ub=right))
    if found.x is None:
        raise SimulationError(f"gavel's linear program of {len(sizes)} jobs: {found.message}")
    solution = np.clip(found.x[: len(index)], 0.0, 1.0).reshape(num_kinds, num_types)[kind.ravel()]
    solution[solution < 1e-6] = 0.0
    return solution, 0.0 if values is None else float(found.x[-1] * scale.min())
