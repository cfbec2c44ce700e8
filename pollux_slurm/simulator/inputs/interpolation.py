"""Linear interpolation between scattered points in three dimensions: scipy's, without its threads.

For its barycentric coordinates, scipy solves a small system in LAPACK for each of thousands of simplices.
OpenBLAS starts a thread per core for that, and on a busy machine 0.05 s become 1 to 10 s (scipy 1.17). Here
all systems are solved at once, by cofactors, and the result is set on scipy's triangulation. scipy still
chooses the simplex where several touch: the published results depend on that. Only its triangulation is used,
because importing its interpolators takes longer than all interpolations of a simulation.

Legend: S simplices of four points each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from scipy.spatial import Delaunay

FloatArray = npt.NDArray[np.float64]

# A simplex whose volume is below this part of the product of its edges is flat, but for rounding.
_FLAT = 1e-12


class LinearInterpolator:
    """Interpolates v values at a point of three numbers; NaN outside of the given points."""

    def __init__(self, triangulation: Delaunay, transforms: FloatArray, values: FloatArray) -> None:
        self._triangulation, self._transforms, self._values = triangulation, transforms, values

    def __call__(self, point: Sequence[float]) -> list[float]:
        at = [float(value) for value in point]
        simplex = int(self._triangulation.find_simplex(np.array(at)))
        if simplex < 0:
            return [math.nan] * self._values.shape[1]
        # In scipy's order of additions, so that rounding is the same.
        *rows, corner = self._transforms[simplex].tolist()
        weights, rest = [], 1.0
        for row in rows:
            weight = 0.0
            for by, value, origin in zip(row, at, corner, strict=True):
                weight += by * (value - origin)
            weights.append(weight)
            rest -= weight
        found = [0.0] * self._values.shape[1]
        for weight, place in zip((*weights, rest), self._triangulation.simplices[simplex], strict=True):
            for column, value in enumerate(self._values[place].tolist()):
                found[column] += weight * value
        return found


def linear_interpolator(points: FloatArray, values: FloatArray) -> LinearInterpolator:
    """Return the interpolator of values of shape `(P, v)` at `points` of shape `(P, 3)`.

    Raises `ValueError` for points that lie in a plane.
    """
    from scipy.spatial import Delaunay, QhullError

    try:
        triangulation = Delaunay(points)
    except QhullError:
        raise ValueError(f"{len(points)} points do not fill a space of three dimensions") from None
    transforms = barycentric_transforms(points[triangulation.simplices])
    # A later scipy without this attribute computes its own transforms and ignores it.
    triangulation._transform = transforms  # type: ignore[attr-defined]
    return LinearInterpolator(triangulation, transforms, values)


def barycentric_transforms(corners: FloatArray) -> FloatArray:
    """Return scipy's `Delaunay.transform` of shape `(S, 4, 3)` for `corners` of shape `(S, 4, 3)`.

    Three rows are the inverse of the matrix whose columns are a, b, c, the edges from the last corner; the
    fourth is that corner. A flat simplex has NaN in all.
    """
    edges = corners[:, :3] - corners[:, 3:]
    a, b, c = edges[:, 0], edges[:, 1], edges[:, 2]
    rows = np.stack([np.cross(b, c), np.cross(c, a), np.cross(a, b)], axis=1)
    volume = np.einsum("si,si->s", a, rows[:, 0])
    spanned = np.prod(np.linalg.norm(edges, axis=2), axis=1)
    found = np.full(corners.shape, np.nan)
    real = np.abs(volume) > _FLAT * spanned
    found[real, :3] = rows[real] / volume[real, None, None]
    found[real, 3] = corners[real, 3]
    return found
