"""Our triangulation's coordinates against scipy's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.interpolate import LinearNDInterpolator
from scipy.spatial import Delaunay

from pollux_slurm.errors import TraceError
from pollux_slurm.simulator import read_application
from pollux_slurm.simulator.inputs.interpolation import barycentric_transforms, linear_interpolator
from tests.simulator.builders import write_traces


def grid() -> np.ndarray:
    """Return points as traces have them: on planes, of very different extent, many of them on one sphere."""
    rng = np.random.default_rng(7)
    sizes = np.geomspace(4, 4096, 9).round()
    points = [(n, k, m) for n in (1, 2, 3, 4, 8) for k in (1, 2, 4, 6) for m in sizes]
    return np.array(points)[rng.permutation(len(points))] * (1.0, 2.0, 1.0)


def test_that_the_barycentric_coordinates_equal_scipys() -> None:
    """Also for the same simplices, flat by rounding alone, it has none."""
    points = grid()
    triangulation = Delaunay(points)
    expected = triangulation.transform
    found = barycentric_transforms(points[triangulation.simplices])
    assert np.isnan(expected).any()
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_that_the_interpolated_values_equal_scipys() -> None:
    points, rng = grid(), np.random.default_rng(8)
    values = rng.random((len(points), 2))
    ours, theirs = linear_interpolator(points, values), LinearNDInterpolator(points, values)
    asked = rng.uniform(points.min(axis=0) - 0.1, points.max(axis=0) + 0.1, size=(200, 3))
    asked = np.concatenate([asked.round(), asked, points])
    np.testing.assert_allclose(
        [ours(point) for point in asked], [theirs(point)[0] for point in asked], rtol=1e-9
    )


def test_that_points_in_a_plane_are_refused() -> None:
    points = np.array([(1, k, m) for k in range(3) for m in range(3)], dtype=np.float64)
    with pytest.raises(ValueError, match="9 points do not fill a space"):
        linear_interpolator(points, np.ones((9, 2)))


def test_that_traces_of_a_single_batch_size_cannot_be_interpolated(tmp_path: Path) -> None:
    folder = write_traces(tmp_path / "flat")
    for name in ("placements.csv", "scalability.csv"):
        lines = (folder / name).read_text().splitlines()
        (folder / name).write_text("\n".join(line for line in lines if ",16," not in line) + "\n")
    with pytest.raises(TraceError, match="step times cannot be interpolated: 9 points"):
        read_application(folder).step_time((1, 1, 1), 2)
