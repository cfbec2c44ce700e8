"""Fewer points that draw the same picture."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from pollux_slurm.document.charts.thinning import averaged, known, thinned, with_gaps

GAP = math.nan


def test_that_few_points_stay_as_they_are() -> None:
    points = [(0.0, 1.0), (1.0, GAP), (2.0, 3.0)]
    assert thinned(points, 3) == tuple(points)


def test_that_ten_thousand_points_keep_their_one_peak_and_their_ends() -> None:
    points = [(float(x), 5.0) for x in range(10_000)]
    points[4321] = (4321.0, 99.0)
    points[4322] = (4322.0, -99.0)
    found = thinned(points)
    assert len(found) <= 602
    assert {(4321.0, 99.0), (4322.0, -99.0), points[0], points[-1]} <= set(found)


def test_that_a_gap_stays_a_gap() -> None:
    points = [(float(x), 1.0 if x < 5000 else 2.0) for x in range(10_000)]
    points.insert(5000, (4999.0, GAP))
    for fewer in (thinned, averaged):
        found = fewer(points)
        gaps = [index for index, (_, y) in enumerate(found) if math.isnan(y)]
        assert len(gaps) == 1
        assert {y for _, y in found[: gaps[0]]} == {1.0}
        assert {y for _, y in found[gaps[0] + 1 :]} == {2.0}


def test_that_means_are_of_equally_many_neighbours() -> None:
    points = [(float(x), float(x % 2)) for x in range(1000)]
    found = averaged(points, 101)
    assert {y for _, y in found} == {0.5}
    assert (found[0][0], found[1][0], found[-1][0]) == (0.0, 10.0, 999.0)


@given(ys=st.lists(st.one_of(st.just(GAP), st.floats(-1e6, 1e6)), max_size=300), most=st.integers(8, 60))
def test_that_the_extremes_stay_and_x_ascends(ys: list[float], most: int) -> None:
    points = [(float(x), y) for x, y in enumerate(ys)]
    found = thinned(points, most)
    known = [y for y in ys if not math.isnan(y)]
    kept = [y for _, y in found if not math.isnan(y)]
    assert [x for x, _ in found] == sorted(x for x, _ in found)
    assert (min(kept, default=0), max(kept, default=0)) == (min(known, default=0), max(known, default=0))
    assert len(found) <= max(len(ys) if len(ys) <= most else 0, 3 * most)


def test_that_a_line_has_gaps_where_values_are_unknown_late_or_of_another_run() -> None:
    found = with_gaps([0, 1, 2, 9, 10, 11], [5, None, 6, 7, 8, 9], late=4, runs=[1, 1, 1, 1, 1, 2])
    assert [at for at, _ in found] == [0, 1, 2, 2, 9, 10, 10, 11]
    assert [at for at, value in found if math.isnan(value)] == [1, 2, 10]
    assert known(found) == [5, 6, 7, 8, 9]
