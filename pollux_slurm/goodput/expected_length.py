"""How long a job will be, by the lengths of those of its kind that completed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

_TOLERANCE = 1.25


def expected_progress(progress: float, lengths: Sequence[float]) -> float | None:
    """Return the progress at which a job is expected to end, None where nothing is known.

    `progress` is the job's own so far, `lengths` that of completed jobs at their end, all in one unit. It is
    the median of the lengths that the job has not passed yet: a single wrong one moves it little. A job that
    has passed all of them is expected to end soon, at 1.25 times the longest; beyond, they are refuted.
    """
    longer = [length for length in lengths if length > progress]
    if longer:
        return statistics.median_low(longer)
    latest = _TOLERANCE * max(lengths, default=0.0)
    return latest if progress < latest else None
