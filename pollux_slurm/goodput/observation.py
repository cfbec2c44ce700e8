"""Measured step times: the data that θ is fitted to."""

from __future__ import annotations

from dataclasses import dataclass

# For each minute that it spans, a measurement lasts so many times what a start costs, at least ten minutes.
_LASTS_STARTS = 10
_LASTS_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Mean step times of one job with one number of nodes, GPUs and examples.

    - `micro_batch_s`: a micro-batch of `atomic_batch_size` examples without synchronisation
    - `last_time_s`: the last micro-batch of a step, with synchronisation
    - `weight`: how much the measurement counts: more for frequent and for recent ones
    - `confirmed`: it was measured for long enough that a busy moment cannot be why it is slow
    - `expired`: it spans few minutes, and is so old that its size may be asked again
    """

    num_nodes: int
    num_gpus: int
    atomic_batch_size: int
    micro_batch_s: float
    last_time_s: float
    weight: float = 1.0
    confirmed: bool = True
    expired: bool = False


def lasts_s(spans_s: float, *, start_s: float) -> float:
    """Return the seconds after which a measurement expires that spans `spans_s` seconds.

    `start_s` is what a start of the job costs. Less than a minute counts as one. What spans all that is kept
    of a size does not expire.
    """
    return max(_LASTS_S, _LASTS_STARTS * start_s) * max(spans_s / 60.0, 1.0)
