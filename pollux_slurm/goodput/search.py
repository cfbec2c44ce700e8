"""The best (M, m, s) for many (job, configuration) pairs at once, exact over the integers.

Legend: B pairs of a job and a configuration; S choices, one for each pair and number of passes worth trying;
K replicas, N nodes, m atomic batch, P = s + 1 passes, M global batch, M0 and M_max its bounds, A the largest
atomic batch.

With K and P fixed, the goodput of M = K·P·m is

    M/T(m) · (var + sqr)·M0 / (var·M0 + sqr·M),    T(m) = s·T_grad(m) + (T_grad(m)^γ + T_sync^γ)^(1/γ).

Its logarithm grows with m exactly while

    (var·M0 + sqr·K·P·m) · e(m) < var·M0,    e(m) = m·T'(m)/T(m).

The elasticity e never falls with m: it is the mean of those of T_grad and of the last pass, weighted by their
times; both rise, and the weight moves towards the larger one. So the goodput has one hill over m, and halving
the interval by the sign above finds its integer top without trying the others.

More passes than A demands only add α_g, so P runs from the fewest passes that reach M0 to the fewest that
reach M_max (two at least for one replica, which needs two passes to estimate its noise).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

# How many numbers of passes are tried for one pair. Sane limits need far fewer; it bounds the work that a
# hostile report (M_max of 1e9, m ≤ 1) can cause.
MAX_PASSES_TRIED = 256
SHORTEST_STEP_S = 1e-12
# How many pairs are searched at once: what bounds the memory, and stays in a processor's cache.
_AT_ONCE = 2048


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pairs:
    """B pairs as columns: θ, statistics and limits of the job, sync time and size of the configuration.

    `largest` is M_max, and 0 where the batch is fixed; `max_atomic` is 0 where unbounded.
    """

    alpha_g: FloatArray
    beta_g: FloatArray
    gamma: FloatArray
    sync_s: FloatArray
    sqr: FloatArray
    var: FloatArray
    num_gpus: IntArray
    initial: IntArray
    largest: IntArray
    min_atomic: IntArray
    max_atomic: IntArray
    accumulation: BoolArray

    def take(self, index: npt.NDArray[np.intp] | slice | tuple[slice, None]) -> Pairs:
        """Return the pairs at `index`, in that order; with `(:, None)`, all of them as rows."""
        return Pairs(**{name: getattr(self, name)[index] for name in self.__dataclass_fields__})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Best:
    """B answers. `goodput` is 0 (and M, m are 0) where no batch is allowed at this configuration."""

    goodput: FloatArray
    step_time_s: FloatArray
    efficiency: FloatArray
    global_batch_size: IntArray
    atomic_batch_size: IntArray
    accumulation_steps: IntArray


def search(pairs: Pairs) -> Best:
    """Return the batch with the highest goodput for each pair; ties go to fewer passes, smaller batches."""
    size = len(pairs.num_gpus)
    if size <= _AT_ONCE:
        return _search(pairs)
    parts = [_search(pairs.take(slice(start, start + _AT_ONCE))) for start in range(0, size, _AT_ONCE)]
    return Best(
        **{
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in Best.__dataclass_fields__
        }
    )


def _search(pairs: Pairs) -> Best:
    size = len(pairs.num_gpus)
    owner, passes, low, high = _choices(pairs)
    # Most pairs have a single choice.
    single = len(owner) == size and bool((owner == np.arange(size)).all())
    chosen = pairs if single else pairs.take(owner)
    atomic = _top(chosen, passes, low, high)
    below = np.maximum(atomic - 1, low)
    # The sign of a slope is rounded: one less may be as good.
    batch, batch_below = chosen.num_gpus * passes * atomic, chosen.num_gpus * passes * below
    step, efficiency = _rate(chosen, passes, atomic, batch)
    step_below, efficiency_below = _rate(chosen, passes, below, batch_below)
    goodput = batch / step * efficiency
    goodput_below = batch_below / step_below * efficiency_below
    down = goodput_below >= goodput
    goodput = np.where(down, goodput_below, goodput)

    # Exactly M0, split unevenly: the only choice of a fixed batch, and one more for the others.
    whole, whole_passes, whole_m, whole_fits = _exactly_initial(pairs)
    step_0, efficiency_0 = _rate(pairs, whole_passes, whole_m, whole)
    best = Best(
        goodput=np.where(whole_fits, whole / step_0 * efficiency_0, 0.0),
        step_time_s=np.where(whole_fits, step_0, 0.0),
        efficiency=np.where(whole_fits, efficiency_0, 0.0),
        global_batch_size=np.where(whole_fits, whole, 0),
        atomic_batch_size=np.where(whole_fits, whole_m, 0),
        accumulation_steps=np.where(whole_fits, whole_passes - 1, 0),
    )
    if len(owner):
        first = owner if single else _first_best(owner, goodput)
        # A multiple wins a tie: even parts are simpler.
        first = first[goodput[first] >= best.goodput[owner[first]]]
        pair, lower = owner[first], down[first]
        best.goodput[pair] = goodput[first]
        best.step_time_s[pair] = np.where(lower, step_below[first], step[first])
        best.efficiency[pair] = np.where(lower, efficiency_below[first], efficiency[first])
        best.global_batch_size[pair] = np.where(lower, batch_below[first], batch[first])
        best.atomic_batch_size[pair] = np.where(lower, below[first], atomic[first])
        best.accumulation_steps[pair] = passes[first] - 1
    return best


def search_geometric(pairs: Pairs, num_batches: int = 50) -> Best:
    """Return the best of `num_batches` geometrically spaced batches for each pair, as the artifact does.

    M runs from max(M0, m_min·K) to M_max; s is the fewest passes for which M/K examples fit (one more pass at
    least for one replica with M > M0), m = ⌈M/(K·(s+1))⌉ within its bounds. A fixed batch: as `search`.
    """
    adaptive = pairs.largest > 0
    if not adaptive.all():
        best, rows = search(pairs), np.flatnonzero(adaptive)
        if len(rows):
            found = search_geometric(pairs.take(rows), num_batches)
            for name in Best.__dataclass_fields__:
                getattr(best, name)[rows] = getattr(found, name)
        return best
    # From here on, a row for each pair and a column for each batch; whole numbers are floats, and exact.
    each = pairs.take((slice(None), None))
    largest = np.where(each.max_atomic > 0, each.max_atomic, each.largest).astype(np.float64)
    first = np.maximum(each.initial, each.min_atomic * each.num_gpus).astype(np.float64)
    local = first * (each.largest / first) ** np.linspace(0.0, 1.0, num_batches) / each.num_gpus
    passes = np.where(each.accumulation, np.maximum(np.ceil(local / largest - 1e-8), 1.0), 1.0)
    alone = (each.num_gpus == 1) & (local > each.initial + 1e-8)
    if alone.any():
        passes = np.where(alone & each.accumulation, np.maximum(passes, 2.0), passes)
        local = np.where(alone & ~each.accumulation, each.initial, local)
    atomic = np.clip(np.ceil(local / passes - 1e-8), each.min_atomic, largest)
    size = each.num_gpus * passes * atomic
    step, efficiency = _rate(each, passes, atomic, size)
    goodput = size / step * efficiency
    pick = (np.arange(len(goodput)), goodput.argmax(axis=1))
    fits = first[:, 0] <= pairs.largest
    return Best(
        goodput=np.where(fits, goodput[pick], 0.0),
        step_time_s=np.where(fits, step[pick], 0.0),
        efficiency=np.where(fits, efficiency[pick], 0.0),
        global_batch_size=np.where(fits, size[pick], 0.0).astype(np.int64),
        atomic_batch_size=np.where(fits, atomic[pick], 0.0).astype(np.int64),
        accumulation_steps=np.where(fits, passes[pick] - 1.0, 0.0).astype(np.int64),
    )


def _exactly_initial(pairs: Pairs) -> tuple[IntArray, IntArray, IntArray, BoolArray]:
    """Return M0, its fewest passes P, m = ⌈M0/(K·P)⌉, and whether all K·P parts get an example."""
    whole = pairs.initial
    bound = np.where(pairs.max_atomic > 0, pairs.max_atomic, whole)
    passes = np.maximum(_ceil_div(whole, pairs.num_gpus * bound), 1)
    atomic = _ceil_div(whole, pairs.num_gpus * passes)
    fits = (
        (pairs.num_gpus * passes <= whole)
        & ((passes == 1) | pairs.accumulation)
        & (atomic >= pairs.min_atomic)
        & (atomic <= bound)
    )
    return whole, passes, atomic, fits


def _choices(pairs: Pairs) -> tuple[npt.NDArray[np.intp], IntArray, IntArray, IntArray]:
    """Return for each of S choices its pair, its passes P, and the range of m that keeps M within bounds."""
    adaptive = pairs.largest > 0
    bound = np.where(pairs.max_atomic > 0, np.minimum(pairs.max_atomic, pairs.largest), pairs.largest)
    bound = np.maximum(bound, 1)
    fewest = np.maximum(_ceil_div(pairs.initial, pairs.num_gpus * bound), 1)
    most = np.maximum(_ceil_div(pairs.largest, pairs.num_gpus * bound), np.where(pairs.num_gpus == 1, 2, 1))
    most = np.minimum(np.where(pairs.accumulation, most, 1), fewest + MAX_PASSES_TRIED - 1)
    count = np.where(adaptive, np.maximum(most - fewest + 1, 0), 0)

    owner = np.repeat(np.arange(len(count)), count)
    position = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)
    passes = fewest[owner] + position
    gpus, initial = pairs.num_gpus[owner], pairs.initial[owner]
    low = np.maximum(pairs.min_atomic[owner], _ceil_div(initial, gpus * passes))
    high = np.minimum(bound[owner], pairs.largest[owner] // (gpus * passes))
    # One replica and one pass: the noise cannot be estimated, so the batch stays M0.
    alone = (gpus == 1) & (passes == 1)
    high = np.where(alone, np.minimum(high, initial), high)
    keep = low <= high
    return owner[keep], passes[keep], low[keep], high[keep]


def _top(pairs: Pairs, passes: IntArray, low: IntArray, high: IntArray) -> IntArray:
    """Return the first m of each range from which the goodput grows no more (`high` if it always grows).

    With q = 1 + (T_sync/T_grad)^γ the last pass takes T_grad·q^(1/γ), and its elasticity is that of T_grad
    over q. Whole numbers are floats here, and exact: mixed arithmetic would convert them each time.
    """
    found = low.astype(np.float64)
    left = np.flatnonzero(low < high)
    if len(left) == 0:
        return low
    floor, ceiling = found, high.astype(np.float64)
    steps = (passes - 1).astype(np.float64)
    noise = pairs.var * pairs.initial
    slope = pairs.sqr * pairs.num_gpus * passes
    columns = [pairs.alpha_g, pairs.beta_g, pairs.gamma, 1.0 / pairs.gamma, pairs.sync_s, noise, slope, steps]
    size, wanted = len(found), len(left)
    rows = np.arange(size)
    while True:
        if 4 * wanted < 3 * size:
            # Of many ranges, most are soon down to one m: the others go on without them.
            found[rows] = floor
            rows, floor, ceiling = rows[left], floor[left], ceiling[left]
            columns = [column[left] for column in columns]
            size = wanted
        alpha, beta, gamma, inverse, sync, noise, slope, steps = columns
        middle = np.floor((floor + ceiling) * 0.5)
        scaled = beta * middle
        grad = np.maximum(alpha + scaled, SHORTEST_STEP_S)
        q = 1.0 + (sync / grad) ** gamma
        last = q**inverse
        enough = (noise + slope * middle) * scaled * (steps + last / q) >= noise * grad * (steps + last)
        ceiling = np.where(enough, middle, ceiling)
        floor = np.where(enough, floor, np.minimum(middle + 1.0, ceiling))
        left = np.flatnonzero(floor < ceiling)
        wanted = len(left)
        if wanted == 0:
            found[rows] = floor
            return found.astype(np.int64)


def _rate(
    pairs: Pairs, passes: IntArray | FloatArray, atomic: IntArray | FloatArray, batch: IntArray | FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the step time and the efficiency of each choice."""
    grad = np.maximum(pairs.alpha_g + pairs.beta_g * atomic, SHORTEST_STEP_S)
    longer, shorter = np.maximum(grad, pairs.sync_s), np.minimum(grad, pairs.sync_s)
    last = longer * (1.0 + (shorter / longer) ** pairs.gamma) ** (1.0 / pairs.gamma)
    scale = batch / pairs.initial
    denominator = pairs.var + pairs.sqr * scale
    efficiency = np.divide(pairs.var + pairs.sqr, denominator, out=1.0 / scale, where=denominator > 0)
    return (passes - 1) * grad + last, efficiency


def _first_best(owner: npt.NDArray[np.intp], goodput: FloatArray) -> npt.NDArray[np.intp]:
    """Return, for each owner that has choices, the index of its first one with the highest goodput."""
    # Owners ascend.
    first = np.flatnonzero(np.diff(owner, prepend=-1))
    highest = np.fmax.reduceat(goodput, first)
    best = np.flatnonzero(goodput == np.repeat(highest, np.diff(first, append=len(owner))))
    return best[np.flatnonzero(np.diff(owner[best], prepend=-1))]


def _ceil_div(numerator: IntArray, denominator: IntArray) -> IntArray:
    return -(-numerator // denominator)
