"""The points of a line: gaps (y is NaN) where values are missing, fewer where no screen can show all."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

Point = tuple[float, float]

# A plot is some 800 units wide: no screen shows more points side by side.
MOST_POINTS = 600


def with_gaps(
    moments: Sequence[float], values: Sequence[float | None], *, late: float, runs: Sequence[int] = ()
) -> list[Point]:
    """Return values over time, with gaps where one is not known, or where values are missing.

    Values come evenly. Some are missing before one that comes `late` times as late as is usual, and between
    two of different `runs`.
    """
    apart = [after - before for before, after in pairwise(moments)]
    most = late * statistics.median(apart) if apart else 0.0
    points: list[Point] = []
    for index, (at, value) in enumerate(zip(moments, values, strict=True)):
        if index and (apart[index - 1] > most or (runs and runs[index] != runs[index - 1])):
            points.append((moments[index - 1], math.nan))
        points.append((at, math.nan if value is None else float(value)))
    return points


def known(points: Iterable[Point]) -> list[float]:
    """Return the values of points, without gaps."""
    return [value for _, value in points if not math.isnan(value)]


def thinned(points: Sequence[Point], most: int = MOST_POINTS) -> tuple[Point, ...]:
    """Return about `most` of the points, by ascending x, that draw the same picture.

    Of each group of adjacent points the lowest and the highest stay, so that no peak is lost; the first and
    the last point of each segment between gaps stay, too.
    """
    return _by_stretch(points, most, _peaks)


def averaged(points: Sequence[Point], most: int = MOST_POINTS // 2) -> tuple[Point, ...]:
    """Return about `most` means of equally large groups of adjacent points, at the first one's x."""
    return _by_stretch(points, most, _means)


def _by_stretch(
    points: Sequence[Point], most: int, fewer: Callable[[Sequence[Point], int], list[Point]]
) -> tuple[Point, ...]:
    if len(points) <= most:
        return tuple(points)
    segments: list[list[Point]] = [[]]
    for point in points:
        if not math.isnan(point[1]):
            segments[-1].append(point)
        elif segments[-1]:
            segments.append([])
    segments = [segment for segment in segments if segment]
    if len(segments) > most // 4:  # so many gaps cannot be seen
        segments = [[point for segment in segments for point in segment]]
    total = sum(len(segment) for segment in segments)
    kept: list[Point] = []
    for segment in segments:
        if kept:
            kept.append((kept[-1][0], math.nan))
        kept += fewer(segment, max(most * len(segment) // total, 4))
    return tuple(kept)


def _peaks(points: Sequence[Point], most: int) -> list[Point]:
    if len(points) <= most:
        return list(points)
    inner = points[1:-1]
    kept = [points[0]]
    for chunk in _chunks(inner, (most - 2) // 2):
        kept += sorted({min(chunk, key=_y), max(chunk, key=_y)})
    return [*kept, points[-1]]


def _means(points: Sequence[Point], most: int) -> list[Point]:
    if len(points) <= most:
        return list(points)
    kept = [(chunk[0][0], sum(y for _, y in chunk) / len(chunk)) for chunk in _chunks(points, most - 1)]
    return [*kept, (points[-1][0], kept[-1][1])]  # the last mean reaches to the end


def _chunks(points: Sequence[Point], count: int) -> list[Sequence[Point]]:
    return [points[len(points) * i // count : len(points) * (i + 1) // count] for i in range(count)]


def _y(point: Point) -> float:
    return point[1]
