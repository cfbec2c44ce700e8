"""Axes: what they measure, from where to where. Vega draws their ticks."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable
from dataclasses import dataclass

# Round durations in seconds, from a second to a hundred days.
_DURATIONS_S = (
    *(1, 2, 5, 10, 30),
    *(60 * minutes for minutes in (1, 2, 5, 10, 30)),
    *(3600 * hours for hours in (1, 2, 5, 10)),
    *(86400 * days for days in (1, 2, 5, 10, 20, 50, 100)),
)


class Scale(enum.Enum):
    """How an axis maps values to places. Times are in seconds since 1970, shares are of 1."""

    LINEAR = "linear"
    SHARE = "share"
    TIME = "time"
    LOG = "log"
    DURATION = "duration"

    @property
    def is_log(self) -> bool:
        return self in (Scale.LOG, Scale.DURATION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """From `low` to `high`, with a label that names the unit.

    `ticks`, with their `tick_texts`, only where they are not Vega's own.
    """

    label: str
    low: float
    high: float
    scale: Scale = Scale.LINEAR
    ticks: tuple[float, ...] = ()
    tick_texts: tuple[str, ...] = ()

    def at(self, value: float) -> float:
        """Return where `value` is: 0 at `low`, 1 at `high`, never beyond."""
        if self.scale.is_log:
            low, high = math.log(self.low), math.log(self.high)
            place = (math.log(max(value, self.low)) - low) / (high - low)
        else:
            place = (value - self.low) / (self.high - self.low)
        return min(max(place, 0.0), 1.0)


# Beyond these, steps and ticks of an axis are out of a float's range. No measurement is.
_LEAST, _MOST = 1e-300, 1e300


def linear_axis(label: str, values: Iterable[float], *, percent: bool = False) -> Axis:
    """Return an axis over `values` and 0. With `percent`, values are shares and the ticks are in %."""
    finite = [value for value in values if _LEAST < abs(value) < _MOST]
    low, high = min([*finite, 0.0]), max([*finite, 0.0])
    if high <= low:
        high = 1.0
    return Axis(label=label, low=low, high=high, scale=Scale.SHARE if percent else Scale.LINEAR)


def log_axis(label: str, values: Iterable[float], *, around: float | None = None) -> Axis:
    """Return a logarithmic axis over the `values` above 0, with ticks at 1, 2 and 5 times powers of ten.

    `around` is a value that the axis must show, with room on both sides.
    """
    positive = [value for value in values if _LEAST < value < _MOST]
    positive += [around / 1.2, around * 1.2] if around is not None else []
    low, high = min(positive, default=1.0), max(positive, default=10.0)
    candidates = [
        factor * 10.0**power
        for power in range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
        for factor in (1, 2, 5)
    ]
    return _log_between(label, low, high, candidates, Scale.LOG)


def duration_axis(label: str, values_s: Iterable[float]) -> Axis:
    """Return a logarithmic axis over seconds, with ticks at round seconds, minutes, hours and days."""
    positive = [value for value in values_s if value > 0 and math.isfinite(value)]
    low, high = min(positive, default=60.0), max(positive, default=3600.0)
    low, high = max(low, _DURATIONS_S[0]), min(max(high, _DURATIONS_S[0]), _DURATIONS_S[-1])
    return _log_between(label, low, high, [float(value) for value in _DURATIONS_S], Scale.DURATION)


def value_axis(label: str, values: Iterable[float]) -> Axis:
    """Return an axis with ticks at the values themselves, for few of them."""
    ordered = sorted(set(values))
    low, high = ordered[0], ordered[-1]
    edge = 0.03 * (high - low) or 1.0
    return Axis(label=label, low=low - edge, high=high + edge, ticks=tuple(ordered))


def _log_between(label: str, low: float, high: float, candidates: list[float], scale: Scale) -> Axis:
    """Return the axis between the candidate at or below `low` and the one at or above `high`."""
    first = max((value for value in candidates if value <= low * (1 + 1e-9)), default=low)
    last = min((value for value in candidates if value >= high * (1 - 1e-9)), default=high)
    if last <= first:
        last = min((value for value in candidates if value > first), default=2 * first)
    ticks = tuple(value for value in candidates if first <= value <= last)
    return Axis(label=label, low=first, high=last, ticks=ticks, scale=scale)
