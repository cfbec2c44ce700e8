"""Narrow the bounds of local batches to what fits into memory, by what ran out of it; alike on replicas."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pollux_slurm.agent.checkpoints.out_of_memory import MemoryBound, record_bound
from pollux_slurm.errors import CheckpointError
from pollux_slurm.model import BatchLimits
from pollux_slurm.torch.checkpoint.default_names import OWN
from pollux_slurm.torch.coordination.side_channel import SideChannel

_LOG = logging.getLogger(__name__)


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether an error, or one of its causes, is a device's or the host's lack of memory."""
    while error is not None:
        text = str(error).lower()
        if isinstance(error, torch.cuda.OutOfMemoryError) or (
            isinstance(error, RuntimeError) and ("out of memory" in text or "can't allocate memory" in text)
        ):
            return True
        error = error.__cause__ or error.__context__
    return False


def device_bytes() -> int:
    """Return the memory of this replica's GPU, 0 on a CPU."""
    if not torch.cuda.is_available():
        return 0
    return int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)


class MemoryBounds:
    """The largest local batch of each loader, as checkpointed state. What counts is alike on all replicas.

    `smallest_device` is the memory of the job's smallest device in bytes. Rank 0 hears of bounds by jobs of
    its kind while it trains, and they count, or no longer do, from the next run on.
    """

    name = f"{OWN}memory"

    def __init__(self, bounds: Iterable[MemoryBound], *, smallest_device: int) -> None:
        self.smallest_device = smallest_device
        self._bounds: dict[tuple[str, int, int], MemoryBound] = {}
        for bound in bounds:
            self._add(bound)
        # By loader and device.
        self._fitted: dict[tuple[str, int], int] = {}
        # By loader and device; None: none is known any more.
        self._heard: dict[tuple[str, int], MemoryBound | None] = {}

    def begin_run(self, side_channel: SideChannel[Any]) -> None:
        """Go on with other replicas, whose smallest device may have another size. Called on all of them."""
        told = [dataclasses.asdict(bound) for bound in self._told().values()]
        found: list[tuple[int, list[dict[str, Any]]]] = side_channel.gather([device_bytes(), told])
        self.smallest_device = min(device for device, _ in found)
        self._replace_told(MemoryBound(**bound) for bound in found[0][1])

    def hear(self, loader: str, largest: int | None) -> None:
        """Keep, on rank 0, what fits by jobs of its kind; not where more did in this job. None: unknown."""
        heard, device = None, self.smallest_device
        if largest is not None and largest >= self._largest_fitting(loader):
            heard = MemoryBound(loader=loader, failed=0, largest=largest, device_bytes=device)
        self._heard[loader, device] = heard

    def heard(self, loader: str) -> int | None:
        """Return what fits by jobs of its kind, in examples: what counts in this run, or less on rank 0."""
        device = self.smallest_device
        counts = self._bounds.get((loader, 0, device))
        found = counts, self._heard.get((loader, device), counts)
        return min((bound.largest for bound in found if bound is not None), default=None)

    def _own(self) -> list[MemoryBound]:
        return [bound for bound in self._bounds.values() if bound.is_own]

    def _told(self) -> dict[tuple[str, int], MemoryBound]:
        """Return the bounds by jobs of its kind, by loader and device: on rank 0 with what it has heard."""
        told: dict[tuple[str, int], MemoryBound | None] = {
            (bound.loader, bound.device_bytes): bound for bound in self._bounds.values() if not bound.is_own
        }
        return {key: bound for key, bound in (told | self._heard).items() if bound is not None}

    def _replace_told(self, told: Iterable[MemoryBound]) -> None:
        own, self._bounds = self._own(), {}
        for bound in (*own, *told):
            self._add(bound)
        self._heard = {}

    def _add(self, bound: MemoryBound) -> None:
        self._bounds[bound.loader, bound.failed, bound.device_bytes] = bound

    def narrowed(self, loader: str, limits: BatchLimits, *, by_kind: bool = True) -> BatchLimits:
        """Return the user's limits, narrowed to what fits; larger batches take several micro-batches.

        `by_kind`: also by jobs of its kind, not only in this job. That allows no accumulation which the user
        does not: only where a job's present batch needs it, it is split.
        """
        if not self._bounds:
            return limits
        bounds = [
            bound
            for bound in self._bounds.values()
            if bound.loader == loader
            and self.smallest_device <= bound.device_bytes
            and (bound.is_own or by_kind)
        ]
        if not bounds:
            return limits
        failed = min((bound.failed for bound in bounds if bound.is_own), default=None)
        narrowed = limits.narrowed(
            min(bound.largest for bound in bounds), accumulation=limits.accumulation or failed is not None
        )
        return narrowed if narrowed is limits else replace(narrowed, failed_atomic=failed)

    def record_fitting(self, loader: str, size: int) -> None:
        """Record that a step with local batches of `size` examples succeeded."""
        known = loader, self.smallest_device
        if size > self._fitted.get(known, 0):
            self._fitted[known] = size

    def _largest_fitting(self, loader: str) -> int:
        """Return the largest local batch that fitted on devices no larger than these, 0 for none."""
        fitted = self._fitted.items()
        return max(
            (size for (of, device), size in fitted if of == loader and device <= self.smallest_device),
            default=0,
        )

    def is_untried(self, loader: str, size: int) -> bool:
        """Return whether no step with local batches of `size` examples has succeeded yet."""
        return size > self._largest_fitting(loader)

    def failed(self, loader: str, size: int, device: int) -> MemoryBound | None:
        """Return the bound that follows from a local batch that did not fit; None where none is smaller.

        It is the largest local batch that did fit, and at least half of `size`.
        """
        if size < 2:
            return None
        fitting = self._largest_fitting(loader)
        largest = max(size // 2, fitting if fitting < size else 0)
        return MemoryBound(loader=loader, failed=size, largest=largest, device_bytes=device)

    def sync(self) -> None:
        """Nothing to do: every replica knows the same."""

    def state_dict(self) -> dict[str, Any]:
        return {
            "bounds": [
                [bound.loader, bound.failed, bound.largest, bound.device_bytes]
                for bound in (*self._own(), *self._told().values())
            ],
            # Without devices, for an earlier release that goes on from this checkpoint.
            "proven": {loader: self._largest_fitting(loader) for loader, _ in self._fitted},
            "fitted": [[loader, device, size] for (loader, device), size in self._fitted.items()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        bounds = [
            MemoryBound(loader=loader, failed=failed, largest=largest, device_bytes=device)
            for loader, failed, largest, device in state["bounds"]
        ]
        for bound in bounds:
            if bound.is_own:
                self._bounds.setdefault((bound.loader, bound.failed, bound.device_bytes), bound)
        self._replace_told(bound for bound in bounds if not bound.is_own)
        fitted = state.get("fitted")
        if fitted is None:
            fitted = [[loader, self.smallest_device, size] for loader, size in state["proven"].items()]
        self._fitted = {(loader, device): size for loader, device, size in fitted}


class OutOfMemoryWatch:
    """Writes a bound for the job's next start when a local batch runs out of memory.

    `note` is called with uncaught errors. Such an error closes the loop first, which keeps the loader and
    the local batch under way (`leave`). Where the script keeps the loop's iterator in a variable, the loop is
    still open, and `under_way` returns both. `directory` is None where no bound can be written.
    """

    def __init__(
        self,
        bounds: MemoryBounds,
        *,
        directory: Path | None,
        run_number: int,
        rank: int,
        under_way: Callable[[], tuple[str, int] | None],
    ) -> None:
        self._bounds, self._directory = bounds, directory
        self._under_way = under_way
        self._left: tuple[str, int] | None = None
        self.begin_run(run_number=run_number, rank=rank)

    def begin_run(self, *, run_number: int, rank: int) -> None:
        """Set the run, and this replica's rank in it."""
        self._run_number, self._rank = run_number, rank

    def leave(self) -> None:
        """Keep the local batch under way: an error closes its loop."""
        self._left = self._under_way()

    def forget(self) -> None:
        """Forget it: the error was caught, and training goes on."""
        self._left = None

    def note(self, error: BaseException) -> None:
        """Write a bound if the error is lack of memory in a loop, closed or not."""
        left, self._left = self._under_way() or self._left, None
        if left is None or self._directory is None or not is_out_of_memory(error):
            return
        loader, size = left
        bound = self._bounds.failed(loader, size, device_bytes())
        if bound is None:
            return
        try:
            record_bound(self._directory, bound, run_number=self._run_number, rank=self._rank)
        except CheckpointError as failure:
            _LOG.error("%s", failure)
            return
        _LOG.error(
            "%s: %d examples at once did not fit into memory; the next start takes at most %d",
            *(loader, size, bound.largest),
        )
