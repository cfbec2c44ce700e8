"""Fit θ to measured step times (Pollux, OSDI 2021, section 4.1), without ever raising on odd data.

What is minimised stands in `loss.py`, how in `descent.py`; nothing here calls scipy.

Optimism before evidence, so that the scheduler tries what nobody has measured:

- one m seen: T_grad is split evenly between α_g and β_g·m;
- no replicas sharing a node seen: α_l ≈ 0; none on several nodes: α_n = 1.1·α_l, β_n = β_l;
- no three replicas seen (on one node, on several): that β is 0, or β_l for β_n where β_l is known;
- always α_n ≥ 1.1·α_l: the network is not faster than the node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pollux_slurm.goodput.checks import MAX_BATCH_SIZE, MAX_GPUS, MAX_TIME_S, MIN_MICRO_BATCH_TIME_S
from pollux_slurm.goodput.descent import LAST_GAIN, descend
from pollux_slurm.goodput.loss import StepTimeLoss
from pollux_slurm.goodput.observation import Observation
from pollux_slurm.goodput.throughput import iteration_time_s
from pollux_slurm.model import ThroughputParameters

# Twice as many made no difference to predictions (`benchmarks/predictions.py`).
_TIMES_DISCOUNTED = 4
# What takes so many times as long as expected is believed once it is confirmed.
_SURPRISE = 2.0
_WHOLE, _REAL = (int, np.integer), (int, float, np.floating)


@dataclass(frozen=True, slots=True, kw_only=True)
class FitResult:
    """θ and how well it fits.

    `error` is the weighted root mean squared log error over both times (0.05 is about 5 %). `reason` says
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
    """Return θ fitted to `observations`, started from `previous` too where it is given.

    The descent ends with a step that lowers the loss by less than a part of it, `last_gain`.
    Observations with a number that cannot be (NaN, ≤ 0, more nodes than GPUs, ...) are left out. So are those
    of one size that `previous` contradicts, until they are confirmed, unless there are no others.
    """
    usable = [seen for seen in observations if is_usable(seen)]
    if previous is not None:
        usable = _without_an_accident(usable, previous)
    if not usable:
        reason = f"none of {len(observations)} observations is usable" if observations else "no observations"
        return FitResult(parameters=previous, error=None, reason=reason)
    loss = StepTimeLoss(usable)
    # One descent, from the most promising of a few guesses: from there it reached the lowest of all minima
    # found on every published trace.
    guesses = loss.guesses()
    if previous is not None:
        guesses = np.vstack((guesses, loss.guess_of(previous)))
    found = descend(loss, guesses[loss.values(guesses).argmin()].tolist(), last_gain=last_gain)
    if loss.is_far(found):
        for _ in range(_TIMES_DISCOUNTED):
            loss.discount(found)
            found = descend(loss, found.x, last_gain=last_gain)
    return FitResult(
        parameters=loss.parameters(found.x),
        error=loss.error(found),
        reason=None,
        num_used=len(usable),
    )


def _without_an_accident(
    observations: Sequence[Observation], theta: ThroughputParameters
) -> list[Observation]:
    """Leave out steps of one size that took far longer than θ says, until they are confirmed.

    Where a job was on several nodes for one minute only, that minute is all that is known of the network: if
    something else made it slow, the job would go back to one node and never try again. Two sizes in a row
    that are so slow are no accident: a job that scales badly must not double on until two minutes are over.
    """
    far = [seen for seen in observations if not seen.confirmed and _is_surprise(seen, theta)]
    if len({(seen.num_nodes, seen.num_gpus) for seen in far}) != 1:
        return list(observations)
    return [seen for seen in observations if seen not in far] or list(observations)


def _is_surprise(seen: Observation, theta: ThroughputParameters) -> bool:
    expected_s = float(iteration_time_s(theta, seen.num_nodes, seen.num_gpus, seen.atomic_batch_size))
    return seen.iter_time_s > _SURPRISE * expected_s


def is_usable(seen: Observation) -> bool:
    """Tell whether all numbers of an observation are ones that a job can have."""
    nodes, gpus, atomic = seen.num_nodes, seen.num_gpus, seen.atomic_batch_size
    grad_s, iter_s, weight = seen.grad_time_s, seen.iter_time_s, seen.weight
    return (
        isinstance(nodes, _WHOLE)
        and isinstance(gpus, _WHOLE)
        and isinstance(atomic, _WHOLE)
        and isinstance(grad_s, _REAL)
        and isinstance(iter_s, _REAL)
        and isinstance(weight, _REAL)
        and 1 <= nodes <= gpus <= MAX_GPUS
        and 1 <= atomic <= MAX_BATCH_SIZE
        and bool(MIN_MICRO_BATCH_TIME_S <= grad_s <= MAX_TIME_S)
        and bool(MIN_MICRO_BATCH_TIME_S <= iter_s <= MAX_TIME_S)
        and bool(1e-12 <= weight <= 1e12)
    )
