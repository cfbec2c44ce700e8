"""Fit θ to measured step times (Pollux, OSDI 2021, section 4.1). Odd data never raise an error.

`fit_loss.py` has the loss and the initial guesses, `fit_descent.py` minimises it; nothing here calls scipy.

Parameters that no measurement determines are optimistic, so that the scheduler tries new configurations:

- with a single m, T_grad is split evenly between α_g and β_g·m
- without several replicas on one node, α_l ≈ 0; without several nodes, α_n = 1.1·α_l and β_n = β_l
- without three replicas (on one node, on several), that β is 0; β_n is β_l where that is known
- always α_n ≥ 1.1·α_l: the network is not faster than the node
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pollux_slurm.goodput.checks import MAX_BATCH_SIZE, MAX_GPUS, MAX_TIME_S, MIN_MICRO_BATCH_TIME_S
from pollux_slurm.goodput.fit_descent import LAST_GAIN, descend
from pollux_slurm.goodput.fit_loss import StepTimeLoss
from pollux_slurm.goodput.observation import Observation
from pollux_slurm.goodput.throughput_model import iteration_time_s
from pollux_slurm.model import ThroughputParameters

# How often the fit is repeated with less weight for outliers. Twice as many made no difference to predictions
# (`benchmarks/predictions.py`).
_OUTLIER_FITS = 4
# An observation that takes so many times as long as predicted counts only once it is confirmed.
_CONTRADICTION = 2.0
# An expired one of less than two minutes counts no more where it takes so many times as long.
_UNCONFIRMED_CONTRADICTION = 1.5
_WHOLE, _REAL = (int, np.integer), (int, float, np.floating)


@dataclass(frozen=True, slots=True, kw_only=True)
class FitResult:
    """A fitted θ, and how well it fits.

    `error` is the weighted root mean squared log error over both times (0.05 is about 5 %). `reason` is
    why nothing new was fitted; `parameters` are then the previous ones, or None.
    """

    parameters: ThroughputParameters | None
    error: float | None
    reason: str | None
    num_used: int = 0


def fit_throughput(
    observations: Sequence[Observation],
    *,
    previous: ThroughputParameters | None = None,
    last_gain: float = LAST_GAIN,
) -> FitResult:
    """Return θ fitted to `observations`; `previous` is one more initial guess.

    The descent ends with a step that lowers the loss by less than the part `last_gain` of it. Observations
    with an impossible number (NaN, ≤ 0, more nodes than GPUs, ...) are left out. So are unconfirmed ones of a
    single size that contradict `previous`, and expired ones that contradict the rest, unless there are no
    others.
    """
    usable = _without_expired([seen for seen in observations if _is_usable(seen)])
    if previous is not None:
        usable = _without_unconfirmed_outlier(usable, previous)
    if not usable:
        reason = f"none of {len(observations)} observations is usable" if observations else "no observations"
        return FitResult(parameters=previous, error=None, reason=reason)
    loss = StepTimeLoss(usable)
    # One descent, from the best of a few initial guesses: on every published trace it reached the lowest of
    # all minima that were found.
    guesses = loss.guesses()
    if previous is not None:
        guesses = np.vstack((guesses, loss.guess_from(previous)))
    found = descend(loss, guesses[loss.values(guesses).argmin()].tolist(), last_gain=last_gain)
    if loss.has_outliers(found):
        for _ in range(_OUTLIER_FITS):
            loss.downweight_outliers(found)
            found = descend(loss, found.x, last_gain=last_gain)
    return FitResult(
        parameters=loss.parameters(found.x),
        error=loss.error(found),
        reason=None,
        num_used=len(usable),
    )


def _without_expired(observations: list[Observation]) -> list[Observation]:
    """Return the observations without expired ones that are far slower than a fit to the others predicts.

    A job whose first minutes on some size were slow leaves it, and could never learn that it is fast there.
    Without them its model is optimistic again, and the policy asks the size anew where GPUs are idle. More
    minutes last longer.
    """
    lasting = [seen for seen in observations if not seen.expired]
    if not lasting or len(lasting) == len(observations):
        return observations
    theta = fit_throughput(lasting).parameters
    if theta is None:
        return observations

    def counts(seen: Observation) -> bool:
        times = _CONTRADICTION if seen.confirmed else _UNCONFIRMED_CONTRADICTION
        return not seen.expired or not _takes_longer(seen, theta, times)

    return [seen for seen in observations if counts(seen)]


def _without_unconfirmed_outlier(
    observations: Sequence[Observation], theta: ThroughputParameters
) -> list[Observation]:
    """Return the observations without unconfirmed ones of a single size that are far slower than predicted.

    A job that was on several nodes for a minute knows only that minute of the network. If something else made
    it slow, the job would return to one node and never try again. Two slow sizes in a row do count: a job
    that scales badly must not double its GPUs again until two minutes are over.
    """
    slow = [
        seen for seen in observations if not seen.confirmed and _takes_longer(seen, theta, _CONTRADICTION)
    ]
    if len({(seen.num_nodes, seen.num_gpus) for seen in slow}) != 1:
        return list(observations)
    return [seen for seen in observations if seen not in slow] or list(observations)


def _takes_longer(seen: Observation, theta: ThroughputParameters, times: float) -> bool:
    predicted_s = float(iteration_time_s(theta, seen.num_nodes, seen.num_gpus, seen.atomic_batch_size))
    return seen.last_time_s > times * predicted_s


def _is_usable(seen: Observation) -> bool:
    """Return whether all numbers of an observation are possible."""
    nodes, gpus, atomic = seen.num_nodes, seen.num_gpus, seen.atomic_batch_size
    micro_batch_s, last_s, weight = seen.micro_batch_s, seen.last_time_s, seen.weight
    return (
        isinstance(nodes, _WHOLE)
        and isinstance(gpus, _WHOLE)
        and isinstance(atomic, _WHOLE)
        and isinstance(micro_batch_s, _REAL)
        and isinstance(last_s, _REAL)
        and isinstance(weight, _REAL)
        and 1 <= nodes <= gpus <= MAX_GPUS
        and 1 <= atomic <= MAX_BATCH_SIZE
        and bool(MIN_MICRO_BATCH_TIME_S <= micro_batch_s <= MAX_TIME_S)
        and bool(MIN_MICRO_BATCH_TIME_S <= last_s <= MAX_TIME_S)
        and bool(1e-12 <= weight <= 1e12)
    )
