"""Find the best (M, m, s) within bounds for many jobs and configurations at once, exactly over the integers.

Legend: B pairs of a job and a configuration; S choices, one for each pair and number of micro-batches that
is tried; K replicas, N nodes, m atomic batch, P = s + 1 micro-batches, M global batch, M0 and M_max its
bounds, A the largest atomic batch.

With K and P fixed, the goodput of M = K·P·m is

    M/T(m) · (var + sqr)·M0 / (var·M0 + sqr·M),    T(m) = s·T_grad(m) + (T_grad(m)^γ + T_sync^γ)^(1/γ).

Its logarithm grows with m exactly while

    (var·M0 + sqr·K·P·m) · e(m) < var·M0,    e(m) = m·T'(m)/T(m).

The elasticity e never falls with m: it is the mean of those of T_grad and of the last micro-batch, weighted
by their times; both rise, and the weight moves towards the larger one. So the goodput has a single maximum
over m. The sign above says on which side of m it is: cutting the interval there, first at guesses of the
maximum and then in halves, finds it without trying every m.

More micro-batches than A demands only add α_g, so P runs from the fewest that reach M0 to the fewest that
reach M_max (at least two for one replica, which needs two micro-batches to estimate its noise).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

# How many numbers of micro-batches are tried for one pair. Usual limits need far fewer; it bounds the work
# that a hostile report (M_max of 1e9, m ≤ 1) can cause.
MAX_MICRO_BATCHES = 256
SHORTEST_STEP_S = 1e-12
GEOMETRIC = 50
"""How many batches the artifact tries."""
# How many choices are compared at once: this bounds the memory and fits into a processor's cache.
_CHOICES_PER_PART = 16_384
# So few pairs are searched at once, whatever the number of their choices.
_FEW_PAIRS = 512
# How many guesses of a maximum are tried before its range is halved: mostly four suffice, but in bad cases
# there could be as many as the range has numbers.
_MAX_GUESSES = 8
# How many ranges must be done before dropping them from the arrays pays.
_WORTH_DROPPING = 64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pairs:
    """B pairs as columns: θ, statistics and limits of the job, sync time and size of the configuration.

    `rows` is `(12, B)`: α_g, β_g, γ, T_sync in seconds, sqr, var, K, M0, M_max (0 where the batch is fixed),
    the bounds of m (the upper one infinite without a bound), and the most micro-batches (1, or infinite with
    accumulation). Whole numbers are floats here and below, and exact: mixed arithmetic would convert them
    each time.
    """

    rows: FloatArray

    def take(self, index: npt.NDArray[np.intp]) -> Pairs:
        """Return the pairs at `index`, in that order."""
        return Pairs(rows=self.rows.take(index, axis=1))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Best:
    """The best batches of B pairs, in arrays of one shape. All are 0 where no batch is allowed."""

    goodput: FloatArray
    step_time_s: FloatArray
    efficiency: FloatArray
    global_batch_size: IntArray
    atomic_batch_size: IntArray
    accumulation_steps: IntArray


def search(pairs: Pairs) -> Best:
    """Return the batch with the highest goodput for each pair.

    Ties go to fewer micro-batches, then to smaller batches.
    """
    size = pairs.rows.shape[1]
    if size <= _FEW_PAIRS:
        return _search(pairs)
    _, _, count = _numbers_of_micro_batches(pairs)
    part = (count + 1).cumsum() // _CHOICES_PER_PART
    edges = [*_changes(part).nonzero()[0].tolist(), size]
    parts = [_search(Pairs(rows=pairs.rows[:, low:high])) for low, high in itertools.pairwise(edges)]
    return Best(
        **{
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in Best.__dataclass_fields__
        }
    )


def _search(pairs: Pairs) -> Best:
    gpus, initial = pairs.rows[6:8]
    choices = _choices(pairs)
    # Mostly the goodput still grows at m = A, which is allowed. Only for the others, its maximum is searched.
    (inner,) = (choices.falls | (choices.high < choices.atomic)).nonzero()
    owner, micro_batches, low = choices.owner[inner], choices.micro_batches[inner], choices.low[inner]
    of_pair = pairs.rows[:8]
    top = _top(of_pair.take(owner, axis=1), micro_batches, low, choices.high[inner])
    # The maximum is between two whole numbers, so one less may be better.
    below = np.maximum(top - 1.0, low)
    # Exactly M0, split unevenly: the only choice of a fixed batch, and one more for an adaptive batch.
    whole_micro_batches, whole_m, whole_fits = _exactly_initial(pairs)

    some = of_pair.take(np.concatenate((owner, owner, np.arange(len(gpus)))), axis=1)
    micro_batches = np.concatenate((micro_batches, micro_batches, whole_micro_batches))
    atomic = np.concatenate((top, below, whole_m))
    size = some[6] * micro_batches * atomic
    num_inner, end = len(inner), 2 * len(inner)
    size[end:] = initial
    rates = np.empty((3, len(size)))
    rates[1], rates[2] = _rate(some, micro_batches, atomic, size)
    rates[0] = size / rates[1] * rates[2]

    real = np.where(whole_fits, rates[:, end:], 0.0)
    whole = np.where(whole_fits, np.array((initial, whole_m, whole_micro_batches - 1.0)), 0.0)
    if len(choices.owner):
        down = rates[0, num_inner:end] >= rates[0, :num_inner]
        choices.rates[:, inner] = np.where(down, rates[:, num_inner:end], rates[:, :num_inner])
        choices.atomic[inner] = np.where(down, below, top)
        first = _first_best(choices.owner, choices.rates[0])
        # In a tie, even parts win.
        first = first[choices.rates[0, first] >= real[0, choices.owner[first]]]
        pair, micro_batches, atomic = (
            choices.owner[first],
            choices.micro_batches[first],
            choices.atomic[first],
        )
        real[:, pair] = choices.rates.take(first, axis=1)
        whole[:, pair] = gpus[pair] * micro_batches * atomic, atomic, micro_batches - 1.0
    goodput, step_time_s, efficiency = real
    global_size, atomic_size, steps = whole.astype(np.int64)
    return Best(
        goodput=goodput,
        step_time_s=step_time_s,
        efficiency=efficiency,
        global_batch_size=global_size,
        atomic_batch_size=atomic_size,
        accumulation_steps=steps,
    )


def search_geometric(pairs: Pairs) -> Best:
    """Return the best of `GEOMETRIC` geometrically spaced batches for each pair, as the artifact does.

    M runs from max(M0, m_min·K) to M_max. P is the fewest micro-batches into which M/K examples fit, at least
    two for one replica with M > M0, and m = ⌈M/(K·P)⌉ within its bounds. A fixed batch: as `search`.
    """
    adaptive = pairs.rows[8] > 0
    if not adaptive.all():
        best, rows = search(pairs), np.flatnonzero(adaptive)
        if len(rows):
            found = search_geometric(pairs.take(rows))
            for name in Best.__dataclass_fields__:
                getattr(best, name)[rows] = getattr(found, name)
        return best
    # From here on, arrays have a row for each pair and a column for each batch.
    each = pairs.rows[:, :, None]
    gpus, initial, most, min_atomic, max_atomic, max_micro_batches = each[6:]
    accumulation = max_micro_batches > 1
    largest = np.where(max_atomic < np.inf, max_atomic, most)
    first = np.maximum(initial, min_atomic * gpus)
    local = first * (most / first) ** np.linspace(0.0, 1.0, GEOMETRIC) / gpus
    micro_batches = np.where(accumulation, np.maximum(np.ceil(local / largest - 1e-8), 1.0), 1.0)
    alone = (gpus == 1) & (local > initial + 1e-8)
    if alone.any():
        micro_batches = np.where(alone & accumulation, np.maximum(micro_batches, 2.0), micro_batches)
        local = np.where(alone & ~accumulation, initial, local)
    atomic = np.clip(np.ceil(local / micro_batches - 1e-8), min_atomic, largest)
    size = gpus * micro_batches * atomic
    step, efficiency = _rate(each, micro_batches, atomic, size)
    goodput = size / step * efficiency
    pick = (np.arange(len(goodput)), goodput.argmax(axis=1))
    fits = first[:, 0] <= most[:, 0]
    return Best(
        goodput=np.where(fits, goodput[pick], 0.0),
        step_time_s=np.where(fits, step[pick], 0.0),
        efficiency=np.where(fits, efficiency[pick], 0.0),
        global_batch_size=np.where(fits, size[pick], 0.0).astype(np.int64),
        atomic_batch_size=np.where(fits, atomic[pick], 0.0).astype(np.int64),
        accumulation_steps=np.where(fits, micro_batches[pick] - 1.0, 0.0).astype(np.int64),
    )


@dataclass(slots=True, kw_only=True, eq=False)
class _Choices:
    """S choices, ordered by pair and then by P: the pair `owner`, P, and the allowed range of m.

    `atomic` is A. `rates` `(3, S)` are goodput, step time and efficiency at A; `falls` is whether the goodput
    falls there.
    """

    owner: npt.NDArray[np.intp]
    micro_batches: FloatArray
    low: FloatArray
    high: FloatArray
    atomic: FloatArray
    rates: FloatArray
    falls: BoolArray


def _numbers_of_micro_batches(pairs: Pairs) -> tuple[FloatArray, FloatArray, npt.NDArray[np.intp]]:
    """Return A of each pair, the fewest micro-batches that are tried, and how many numbers of them are."""
    gpus, initial, largest, _, max_atomic, max_micro_batches = pairs.rows[6:]
    bound = np.maximum(np.minimum(max_atomic, largest), 1.0)
    at_once = gpus * bound
    fewest = np.maximum(np.ceil(initial / at_once), 1.0)
    most = np.maximum(np.ceil(largest / at_once), 1.0 + (gpus == 1.0))
    most = np.minimum(np.minimum(most, max_micro_batches), fewest + (MAX_MICRO_BATCHES - 1.0))
    count = np.where(largest > 0.0, np.maximum(most - fewest + 1.0, 0.0), 0.0)
    return bound, fewest, count.astype(np.intp)


def _choices(pairs: Pairs) -> _Choices:
    bound, fewest, count = _numbers_of_micro_batches(pairs)
    alpha, beta, gamma, sync, sqr, var, gpus, initial, largest, min_atomic = pairs.rows[:10]
    owner = np.repeat(np.arange(len(count)), count)
    # P less the choice's position among all.
    offset = fewest - (count.cumsum() - count)

    # The time of a micro-batch at m = A does not depend on P, so powers are computed once for each pair.
    inverse = 1.0 / gamma
    scaled, grad, last, share = _elastic(alpha, beta, gamma, inverse, sync, bound)
    last_s = _last_micro_batch_s(grad, sync, gamma, inverse)
    noise, slope, both = var * initial, sqr * gpus, var + sqr
    limits, times = (offset, gpus, initial, largest, min_atomic, bound), (scaled, grad, last, share, last_s)
    columns = np.array((*limits, *times, sqr, var, both, noise, slope)).repeat(count, axis=1)
    # From here on, arrays have a column for each choice.
    offset, gpus, initial, largest, min_atomic, m = columns[:6]
    micro_batches = offset + np.arange(len(owner))
    parts = gpus * micro_batches
    low = np.maximum(min_atomic, np.ceil(initial / parts))
    high = np.minimum(m, np.floor(largest / parts))
    # One replica and one micro-batch: the noise cannot be estimated, so the batch stays M0.
    high = np.where(parts == 1.0, np.minimum(high, initial), high)
    allowed = low <= high
    if not allowed.all():
        owner, micro_batches, parts, low, high = (
            one[allowed] for one in (owner, micro_batches, parts, low, high)
        )
        columns = columns[:, allowed]

    initial, m = columns[2], columns[5]
    scaled, grad, last, share, last_s, sqr, var, both, noise, slope = columns[6:]
    steps = micro_batches - 1.0
    rates, size = np.empty((3, len(owner))), parts * m
    rates[1] = steps * grad + last_s
    rates[2] = _efficiency(sqr, var, both, size / initial)
    rates[0] = size / rates[1] * rates[2]
    return _Choices(
        owner=owner,
        micro_batches=micro_batches,
        low=low,
        high=high,
        atomic=m,
        rates=rates,
        falls=(noise + slope * micro_batches * m) * scaled * (steps + share) >= noise * grad * (steps + last),
    )


def _exactly_initial(pairs: Pairs) -> tuple[FloatArray, FloatArray, BoolArray]:
    """Return the fewest micro-batches P that split M0, m = ⌈M0/(K·P)⌉, and whether no part is empty."""
    gpus, initial, _, min_atomic, max_atomic, max_micro_batches = pairs.rows[6:]
    micro_batches = np.maximum(np.ceil(initial / (gpus * max_atomic)), 1.0)
    parts = gpus * micro_batches
    atomic = np.ceil(initial / parts)
    fits = (
        (parts <= initial)
        & (micro_batches <= max_micro_batches)
        & (atomic >= min_atomic)
        & (atomic <= max_atomic)
    )
    return micro_batches, atomic, fits


def _top(rows: FloatArray, micro_batches: FloatArray, low: FloatArray, high: FloatArray) -> FloatArray:
    """Return the first m of each range beyond which the goodput does not grow (`high` if it always grows).

    `rows` are the first eight of the pairs that the ranges are of.
    """
    (left,) = (low < high).nonzero()
    if len(left) == 0:
        return low
    floor: FloatArray = low.copy()
    ceiling: FloatArray = high.copy()
    found, at = ceiling, np.arange(len(low))
    alpha, beta, gamma, sync, sqr, var, gpus, initial = rows
    columns = np.array(
        (
            alpha,
            beta,
            gamma,
            1.0 / gamma,
            sync,
            var * initial,
            sqr * gpus * micro_batches,
            micro_batches - 1.0,
        )
    )
    alpha, beta, gamma, inverse, sync, noise, slope, steps = columns
    # Guesses may divide by 0 or overflow; they are clipped to the ranges.
    with np.errstate(all="ignore"):
        # Without T_sync, this is the maximum; with it, the maximum is higher.
        guess = np.ceil(np.sqrt(noise * alpha / (slope * beta)))
        turn = 0
        while True:
            turn += 1
            # Any m of the range but its last cuts it; the last but one is taken without a guess.
            middle = np.maximum(np.fmin(guess, ceiling - 1.0), floor)
            scaled, grad, last, share = _elastic(alpha, beta, gamma, inverse, sync, middle)
            growth = slope * middle
            worth, whole_share, whole_last = noise + growth, steps + share, steps + last
            loss, gain = worth * scaled * whole_share, noise * grad * whole_last
            falls = loss >= gain
            np.putmask(ceiling, falls, middle)
            np.putmask(floor, ~falls, middle + 1.0)
            # A range that is down to one m may have stepped over it.
            np.minimum(floor, ceiling, out=floor)
            (left,) = (floor < ceiling).nonzero()
            wanted = len(left)
            if wanted == 0:
                found[at] = ceiling
                return found
            if turn < _MAX_GUESSES:
                # Newton's step for log(loss/gain) = 0 over log m. The elasticity of e has two parts: of
                # T_grad's own, and that of the last micro-batch and its share as T_sync matters less.
                ratio = scaled / grad
                both = share * (gamma - 1.0) / whole_share + last / whole_last
                power = growth / worth + 1.0 - ratio + (1.0 - share / last) * ratio * both
                guess = np.floor(middle + middle * (gain - loss) / (loss * power))
            else:
                guess = np.floor((floor + ceiling) * 0.5)
            if len(at) - wanted > _WORTH_DROPPING + wanted:
                # Of many ranges, most are soon down to one m: they are dropped.
                found[at] = ceiling
                at, floor, ceiling, guess = at[left], floor[left], ceiling[left], guess[left]
                columns = columns.take(left, axis=1)
                alpha, beta, gamma, inverse, sync, noise, slope, steps = columns


def _elastic(
    alpha: FloatArray,
    beta: FloatArray,
    gamma: FloatArray,
    inverse: FloatArray,
    sync: FloatArray,
    m: FloatArray,
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return β·m and T_grad in seconds, and over T_grad the last micro-batch and its growth with β·m.

    With q = 1 + (T_sync/T_grad)^γ the last micro-batch takes T_grad·q^(1/γ), and its elasticity is that of
    T_grad over q. `inverse` is 1/γ.
    """
    scaled = beta * m
    grad = np.maximum(alpha + scaled, SHORTEST_STEP_S)
    q = 1.0 + (sync / grad) ** gamma
    last = q**inverse
    return scaled, grad, last, last / q


def _rate(
    rows: FloatArray, micro_batches: FloatArray, atomic: FloatArray, size: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the step time and the efficiency of each choice; `rows` are those of its pair."""
    alpha, beta, gamma, sync, sqr, var = rows[:6]
    grad = np.maximum(alpha + beta * atomic, SHORTEST_STEP_S)
    last = _last_micro_batch_s(grad, sync, gamma, 1.0 / gamma)
    return (micro_batches - 1.0) * grad + last, _efficiency(sqr, var, var + sqr, size / rows[7])


def _last_micro_batch_s(
    grad: FloatArray, sync: FloatArray, gamma: FloatArray, inverse: FloatArray
) -> FloatArray:
    """Return the time of the last micro-batch in seconds. `inverse` is 1/γ."""
    longer, shorter = np.maximum(grad, sync), np.minimum(grad, sync)
    last_s: FloatArray = longer * (1.0 + (shorter / longer) ** gamma) ** inverse
    return last_s


def _efficiency(sqr: FloatArray, var: FloatArray, both: FloatArray, scale: FloatArray) -> FloatArray:
    """Return the efficiency at M = scale·M0, with `both` = var + sqr; M0/M where nothing was estimated."""
    denominator = var + sqr * scale
    estimated = denominator > 0
    if estimated.all():
        return np.divide(both, denominator)
    return np.divide(both, denominator, out=1.0 / scale, where=estimated)


def _first_best(owner: npt.NDArray[np.intp], goodput: FloatArray) -> npt.NDArray[np.intp]:
    """Return, for each owner that has choices, the index of its first one with the highest goodput."""
    # Owners ascend.
    new = _changes(owner)
    highest = np.fmax.reduceat(goodput, new.nonzero()[0])
    (best,) = (goodput == highest[new.cumsum() - 1]).nonzero()
    first: npt.NDArray[np.intp] = best[_changes(owner[best])]
    return first


def _changes(values: npt.NDArray[np.intp]) -> BoolArray:
    """Return which values differ from the one before them."""
    new = np.ones(len(values), dtype=bool)
    np.not_equal(values[1:], values[:-1], out=new[1:])
    return new
