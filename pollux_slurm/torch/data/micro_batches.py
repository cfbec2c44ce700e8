"""How a global batch is cut into the local batches of every replica and pass. Pure integers, no torch.

Legend: K replicas, P = s + 1 passes, M global batch, B its true size (B < M only for an epoch's last one),
m atomic batch, n examples in one cell (one pass of one replica), C cells that are not empty.

The B examples of a step are consecutive positions of the epoch's order; replica k gets a consecutive slice of
them and each of its passes a consecutive slice of that, all as even as possible. A cell's weight is n/B: the
sum over all cells of weight · (mean gradient of the cell) is exactly the mean over the B examples
(invariant 3), whatever K and P are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pollux_slurm.errors import UsageError
from pollux_slurm.model import BatchChoice, BatchLimits


def whole_number(value: Any, name: str) -> int:
    """Return a size as an int, be it one of numpy's or a float like 32.0. Raises `UsageError` for others."""
    try:
        number = int(value)
        if number == value and number >= 1 and not isinstance(value, bool):
            return number
    except (TypeError, ValueError, OverflowError):
        pass
    raise UsageError(f"{name} must be a whole number from 1, not {value!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PassPlan:
    """One pass of this replica: the positions `start` to `start + size` of the epoch's order.

    A replica with nothing to do in a pass still takes part in the gradients' reduction: `size` is 0, `weight`
    0, and it loads the example at `start` as a stand-in (`is_padding`). `step_size` is B.
    """

    start: int
    size: int
    weight: float
    index: int
    is_last: bool
    step_size: int

    @property
    def is_padding(self) -> bool:
        return self.size == 0

    def positions(self) -> range:
        """Return the positions to load: at least one."""
        return range(self.start, self.start + max(self.size, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """One optimizer step as this replica sees it: positions `start` to `start + size` over all replicas.

    `num_cells` is C over all replicas. `is_full` tells a whole batch from an epoch's shorter last one.
    """

    start: int
    size: int
    num_cells: int
    is_full: bool
    passes: tuple[PassPlan, ...]

    @property
    def end(self) -> int:
        return self.start + self.size


def split_evenly(total: int, parts: int) -> tuple[int, ...]:
    """Return `parts` whole numbers that add up to `total` and differ by at most one, larger ones first."""
    each, rest = divmod(total, parts)
    return (each + 1,) * rest + (each,) * (parts - rest)


def plan_step(start: int, remaining: int, choice: BatchChoice, *, num_replicas: int, rank: int) -> StepPlan:
    """Return the step that begins at position `start` with `remaining` ≥ 1 examples left in the epoch."""
    size = min(choice.global_batch_size, remaining)
    is_full = size == choice.global_batch_size
    sizes = split_evenly(size, num_replicas)
    # A short last batch takes only as many passes as its atomic batches need.
    most = choice.accumulation_steps + 1
    num_passes = most if is_full else min(most, -(-sizes[0] // choice.atomic_batch_size))
    passes = []
    position = start + sum(sizes[:rank])
    for index, cell in enumerate(split_evenly(sizes[rank], num_passes)):
        passes.append(
            PassPlan(
                start=position if cell else start,
                size=cell,
                weight=cell / size,
                index=index,
                is_last=index == num_passes - 1,
                step_size=size,
            )
        )
        position += cell
    return StepPlan(
        start=start,
        size=size,
        num_cells=sum(min(share, num_passes) for share in sizes),
        is_full=is_full,
        passes=tuple(passes),
    )


def plan_epoch(
    start: int, length: int, choice: BatchChoice, *, num_replicas: int, rank: int, drop_last: bool
) -> Iterator[StepPlan]:
    """Yield the steps from position `start` to the end of an epoch of `length` examples."""
    while start < length:
        step = plan_step(start, length - start, choice, num_replicas=num_replicas, rank=rank)
        if drop_last and not step.is_full:
            return
        yield step
        start = step.end


def plan_batches(
    start: int, ends: Sequence[int], *, typical: int, largest: int | None, num_replicas: int, rank: int
) -> Iterator[StepPlan]:
    """Yield a step for each of the user's own batches from position `start` on; `ends` is where each ends.

    Batches may differ in size: each takes the fewest passes that keep its cells within `largest` examples
    (None: one pass), and is full where it has the `typical` size.
    """
    for end in ends:
        if end <= start:
            continue
        size = end - start
        passes = 1 if largest is None else -(-size // (num_replicas * largest))
        own = BatchChoice(
            global_batch_size=size,
            atomic_batch_size=-(-size // (num_replicas * passes)),
            accumulation_steps=passes - 1,
        )
        step = plan_step(start, size, own, num_replicas=num_replicas, rank=rank)
        yield replace(step, is_full=size == typical)
        start = end


def first_choice(limits: BatchLimits, num_replicas: int, *, wanted: int | None = None) -> BatchChoice:
    """Return the batch to begin with before anything was measured: M0, or `wanted` where M may vary.

    With a maximum given, M may be more than M0 so that each replica gets `min_atomic`. It takes the fewest
    passes that keep m ≤ max_atomic, even where `accumulation` is not allowed: on so few replicas a batch of
    M0 has no other way to fit.
    """
    batch = limits.initial_batch_size
    if limits.max_batch_size is not None:
        batch = max(batch, wanted or batch, num_replicas * limits.min_atomic)
        batch = max(min(batch, limits.max_batch_size), limits.initial_batch_size)
    largest = limits.max_atomic or batch
    passes = max(-(-batch // (num_replicas * largest)), 1)
    return BatchChoice(
        global_batch_size=batch,
        atomic_batch_size=-(-batch // (num_replicas * passes)),
        accumulation_steps=passes - 1,
    )
