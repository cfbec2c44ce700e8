"""Linear interpolation between scattered points in three dimensions: scipy's, without its threads.

For its barycentric coordinates, scipy solves a small system in LAPACK for each of thousands of simplices.
OpenBLAS wakes a thread per core for that, and beside other work 0.05 s become 1 to 10 s (scipy 1.17). Here
all are solved at once, by cofactors, and handed to the triangulation, which then has nothing left to solve.
Which simplex counts where several touch is still scipy's to say: the published results depend on it.

Legend: S simplices of four points each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from scipy.interpolate import LinearNDInterpolator

FloatArray = npt.NDArray[np.float64]

# Below this part of what its edges could span, a simplex has no volume but by rounding.
_FLAT = 1e-12


def linear_interpolator(points: FloatArray, values: FloatArray) -> LinearNDInterpolator:
    """Return the interpolator of values of shape `(P, v)` at `points` of shape `(P, 3)`.

    Raises `ValueError` for points that lie in a plane.
    """
    from scipy.interpolate import LinearNDInterpolator
    from scipy.spatial import Delaunay, QhullError

    try:
        triangulation = Delaunay(points)
    except QhullError:
        raise ValueError(f"{len(points)} points do not fill a space of three dimensions") from None
    # Where a later scipy has no such attribute it computes its own, and this is never read.
    triangulation._transform = barycentric_transforms(  # type: ignore[attr-defined]
        points[triangulation.simplices]
    )
    return LinearNDInterpolator(triangulation, values)


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
