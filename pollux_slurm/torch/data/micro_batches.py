"""Split a global batch into the micro-batches of every replica. Pure integers, no torch.

Legend: K replicas, P = s + 1 micro-batches of each, M global batch, B its true size (B < M only for an
epoch's last one), m atomic batch, n examples of one micro-batch, C micro-batches of all replicas that are not
empty.

The B examples of a step are consecutive positions of the epoch's order. Replica k gets a consecutive slice of
them, and each of its micro-batches a consecutive slice of that, all as even as possible. But where a model
needs pairs, as BatchNorm does to train, no replica gets a single one if pairs fit into m. A micro-batch
weighs n/B. The sum over all of them of weight · (mean gradient) is exactly the mean over the B examples,
whatever K and P are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pollux_slurm.errors import UsageError
from pollux_slurm.model import BatchChoice, BatchLimits


def checked_size(value: Any, name: str) -> int:
    """Return a size as an int, be it one of numpy's or a float like 32.0. Raises `UsageError` for others."""
    try:
        number = int(value)
        if number == value and number >= 1 and not isinstance(value, bool):
            return number
    except (TypeError, ValueError, OverflowError):
        pass
    raise UsageError(f"{name} must be a whole number from 1, not {value!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchPlan:
    """One micro-batch of this replica: the positions `start` to `start + size` of the epoch's order.

    A replica without an example still takes part in the gradients' reduction: `size` and `weight` are 0, and
    it loads `num_padding` examples from `start` on as padding (`is_padding`). `step_size` is B. `is_probe`
    where the step is split for the sake of its gradient noise only. `shares` are the step's examples by
    replica.
    """

    start: int
    size: int
    weight: float
    index: int
    is_last: bool
    step_size: int
    num_padding: int = 1
    is_probe: bool = False
    shares: tuple[int, ...] = field(default=(), compare=False)

    @property
    def is_padding(self) -> bool:
        return self.size == 0

    def positions(self) -> range:
        """Return the positions to load: at least one."""
        return range(self.start, self.start + (self.size or self.num_padding))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """One optimizer step: positions `start` to `start + size` over all replicas.

    `micro_batches` are this replica's; `num_nonempty` is C, over all replicas. `is_full` is False for an
    epoch's shorter last batch. `num_left` is how many steps the epoch has after this one, at the same batch
    size; None where that is not known. `is_probe` where it is split for the sake of its gradient noise only.
    """

    start: int
    size: int
    num_nonempty: int
    is_full: bool
    micro_batches: tuple[MicroBatchPlan, ...]
    num_left: int | None = None
    is_probe: bool = False
    shares: tuple[int, ...] = field(default=(), compare=False)

    @property
    def end(self) -> int:
        return self.start + self.size

    @property
    def is_typical(self) -> bool:
        """True for a whole batch, split as usual, without padding on this replica."""
        return self.is_full and not self.is_probe and not any(plan.is_padding for plan in self.micro_batches)


def split_evenly(total: int, parts: int) -> tuple[int, ...]:
    """Return `parts` whole numbers that add up to `total` and differ by at most one, larger ones first."""
    each, rest = divmod(total, parts)
    return (each + 1,) * rest + (each,) * (parts - rest)


def _shares(
    size: int, choice: BatchChoice, num_replicas: int, needs_pairs: Callable[[], bool]
) -> tuple[int, ...]:
    """Return how many of a step's examples each replica gets."""
    even = split_evenly(size, num_replicas)
    num_pairs = size // 2
    if 0 < num_pairs < num_replicas and needs_pairs():
        paired = split_evenly(size, num_pairs)
        if paired[0] <= choice.atomic_batch_size:
            return paired + (0,) * (num_replicas - num_pairs)
    return even


def plan_step(
    start: int,
    remaining: int,
    choice: BatchChoice,
    *,
    num_replicas: int,
    rank: int,
    is_probe: bool = False,
    needs_pairs: Callable[[], bool] = bool,
) -> StepPlan:
    """Return the step that begins at position `start` with `remaining` ≥ 1 examples left in the epoch.

    With `is_probe`, a whole batch that would be one micro-batch is two. `needs_pairs` is called where it may
    matter, and returns the same on all replicas: whether one must not get a single example.
    """
    size = min(choice.global_batch_size, remaining)
    is_full = size == choice.global_batch_size
    sizes = _shares(size, choice, num_replicas, needs_pairs)
    # A short last batch takes only as many micro-batches as its atomic batches need.
    most = choice.accumulation_steps + 1
    num_micro_batches = most if is_full else min(most, -(-sizes[0] // choice.atomic_batch_size))
    is_probe = is_probe and is_full and num_micro_batches == 1 and size > num_replicas
    if is_probe:
        num_micro_batches = 2
    micro_batches = []
    position = start + sum(sizes[:rank])
    for index, examples in enumerate(split_evenly(sizes[rank], num_micro_batches)):
        micro_batches.append(
            MicroBatchPlan(
                start=position if examples else start,
                size=examples,
                weight=examples / size,
                index=index,
                is_last=index == num_micro_batches - 1,
                step_size=size,
                num_padding=min(sizes[0], choice.atomic_batch_size, 2),
                is_probe=is_probe,
                shares=sizes,
            )
        )
        position += examples
    return StepPlan(
        start=start,
        size=size,
        num_nonempty=sum(min(share, num_micro_batches) for share in sizes),
        is_full=is_full,
        micro_batches=tuple(micro_batches),
        is_probe=is_probe,
    )


def plan_epoch(
    start: int,
    length: int,
    choice: BatchChoice,
    *,
    num_replicas: int,
    rank: int,
    drop_last: bool,
    probes: Callable[[], bool] = bool,
    needs_pairs: Callable[[], bool] = bool,
) -> Iterator[StepPlan]:
    """Yield the steps from position `start` to the end of an epoch of `length` examples.

    `probes` is called for each of them, and returns whether it is split to measure gradient noise.
    """
    while start < length:
        step = plan_step(
            start,
            length - start,
            choice,
            num_replicas=num_replicas,
            rank=rank,
            is_probe=probes(),
            needs_pairs=needs_pairs,
        )
        if drop_last and not step.is_full:
            return
        full, rest = divmod(length - step.end, choice.global_batch_size)
        yield replace(step, num_left=full + (rest > 0 and not drop_last))
        start = step.end


def plan_batches(
    start: int,
    ends: Sequence[int],
    *,
    typical: int,
    largest: int | None,
    num_replicas: int,
    rank: int,
    needs_pairs: Callable[[], bool] = bool,
) -> Iterator[StepPlan]:
    """Yield a step for each of the user's own batches from position `start` on; `ends` is where each ends.

    Batches may differ in size. Each takes the fewest micro-batches of at most `largest` examples (None: one),
    and is full where it has the `typical` size.
    """
    usual = -(-typical // num_replicas) if largest is None else largest
    for index, end in enumerate(ends):
        if end <= start:
            continue
        size = end - start
        number = 1 if largest is None else -(-size // (num_replicas * largest))
        own = BatchChoice(
            global_batch_size=size,
            atomic_batch_size=max(-(-size // (num_replicas * number)), usual),
            accumulation_steps=number - 1,
        )
        step = plan_step(start, size, own, num_replicas=num_replicas, rank=rank, needs_pairs=needs_pairs)
        yield replace(step, is_full=size == typical, num_left=len(ends) - index - 1)
        start = end


def first_choice(limits: BatchLimits, num_replicas: int, *, wanted: int | None = None) -> BatchChoice:
    """Return the batch to begin with before anything was measured: M0, or `wanted` where M may vary.

    With a maximum given, M may be more than M0 so that each replica gets `min_atomic`. It takes the fewest
    micro-batches that keep m ≤ max_atomic, even where `accumulation` is not allowed: on so few replicas a
    batch of M0 has no other way to fit.
    """
    batch = limits.initial_batch_size
    if limits.max_batch_size is not None:
        batch = max(batch, wanted or batch, num_replicas * limits.min_atomic)
        batch = max(min(batch, limits.max_batch_size), limits.initial_batch_size)
    largest = limits.max_atomic or batch
    number = max(-(-batch // (num_replicas * largest)), 1)
    return BatchChoice(
        global_batch_size=batch,
        atomic_batch_size=-(-batch // (num_replicas * number)),
        accumulation_steps=number - 1,
    )
