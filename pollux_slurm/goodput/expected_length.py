"""How long a job will be, by the lengths of those of its kind that completed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_TOLERANCE = 1.25


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedProgress:
    """The progress at which a job is expected to end: `median`, and from `low` to `high`."""

    low: float
    median: float
    high: float


def expected_progress(progress: float, lengths: Sequence[float]) -> ExpectedProgress | None:
    """Return the progress at which a job is expected to end, None where nothing is known.

    `progress` is the job's own so far, `lengths` that of completed jobs at their end, all in one unit. Of the
    lengths that the job has not passed yet, these are the least, the median and the greatest. The median
    moves little by a single wrong one. Of n lengths alike, the greatest is above a further one with the
    probability n/(n + 1). A job that has passed all is expected to end soon, at 1.25 times the longest;
    beyond, they are refuted.
    """
    longer = [length for length in lengths if length > progress]
    if not longer:
        latest = _TOLERANCE * max(lengths, default=0.0)
        longer = [latest] if progress < latest else []
    if not longer:
        return None
    return ExpectedProgress(low=min(longer), median=statistics.median_low(longer), high=max(longer))
