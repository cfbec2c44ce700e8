"""Fewer points where a line has more than a screen can show."""

from __future__ import annotations

import math
from collections.abc import Sequence

Point = tuple[float, float]

# A plot is some 800 units wide: no screen shows more points side by side.
MOST_POINTS = 600


def thinned(points: Sequence[Point], most: int = MOST_POINTS) -> tuple[Point, ...]:
    """Return at most `most` of the points, by ascending x, that draw the same picture.

    Of each of equally many neighbours the lowest and the highest stay, so that no peak is lost; the first
    and the last point stay, too. A gap (y is NaN) stays where there is no value beside it in its part.
    """
    if len(points) <= most:
        return tuple(points)
    inner = points[1:-1]
    num_parts = max((most - 2) // 2, 1)
    kept = [points[0]]
    for part in range(num_parts):
        chunk = inner[len(inner) * part // num_parts : len(inner) * (part + 1) // num_parts]
        values = [point for point in chunk if not math.isnan(point[1])]
        if values:
            ends = {min(values, key=_y), max(values, key=_y)}
            kept += sorted(ends)
        elif chunk:
            kept.append(chunk[0])
    return (*kept, points[-1])


def _y(point: Point) -> float:
    return point[1]
