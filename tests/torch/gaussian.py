"""Norms of synthetic gradients in many dimensions, drawn without drawing the gradients.

Legend: D dimensions, T steps, C parts, n examples a part; G the true gradient with |G|² = 1, along the first
axis; every coordinate of one example's gradient has variance σ²/D.

The norms of C parts and of any mix of them are a function of the parts' first coordinates and of the Gram
matrix of the other D − 1, which is Wishart distributed: with Bartlett's factor L (square roots of χ² on its
diagonal, normal numbers below it) the matrix is L·Lᵀ. So each step costs C² numbers instead of C·D, and the
distribution is exactly that of the D-dimensional gradients.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


def coordinates(
    rng: np.random.Generator, sizes: tuple[int, ...], *, sigma2: float, dimensions: int, steps: int
) -> FloatArray:
    """Return `(T, C, 1 + C)`: each part in coordinates of an orthonormal basis of the parts' own space."""
    count = len(sizes)
    scale = np.sqrt(sigma2 / np.array(sizes) / dimensions)
    along = 1.0 + scale * rng.normal(size=(steps, count))
    factor = np.tril(rng.normal(size=(steps, count, count)), k=-1)
    for row in range(count):
        factor[:, row, row] = np.sqrt(rng.chisquare(dimensions - 1 - row, size=steps))
    return np.concatenate([along[..., None], scale[:, None] * factor], axis=2)


def norms_of_parts(parts: FloatArray, sizes: tuple[int, ...]) -> tuple[FloatArray, FloatArray]:
    """Return S = Σ n·|g|² and |ḡ|² of each step."""
    share = np.array(sizes) / sum(sizes)
    mean = np.einsum("c,tcd->td", share, parts)
    return np.einsum("c,tcd->t", np.array(sizes, dtype=float), parts**2), (mean**2).sum(axis=1)
