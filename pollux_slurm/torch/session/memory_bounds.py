"""Which local batches fit into memory: bounds that a run found out the hard way, agreed by all replicas."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pollux_slurm.agent.checkpoints.memory_bounds import MemoryBound, record_bound
from pollux_slurm.errors import CheckpointError
from pollux_slurm.model import BatchLimits
from pollux_slurm.torch.session.current_session import current_session

_LOG = logging.getLogger(__name__)


def is_out_of_memory(error: BaseException | None) -> bool:
    """Tell whether an error, or one that led to it, is a device's or the host's lack of memory."""
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
    """The largest local batch of each loader, as checkpointed state. The same on every replica.

    `smallest_device` is the memory of the job's smallest device in bytes.
    """

    name = "memory"

    def __init__(self, bounds: Iterable[MemoryBound], *, smallest_device: int) -> None:
        self._device = smallest_device
        self._bounds = {(bound.loader, bound.failed, bound.device_bytes): bound for bound in bounds}
        self._proven: dict[str, int] = {}

    def within(self, loader: str, limits: BatchLimits) -> BatchLimits:
        """Return the user's limits, narrowed to what fits; what does not takes several passes."""
        fitting = [
            bound.largest
            for bound in self._bounds.values()
            if bound.loader == loader and self._device <= bound.device_bytes
        ]
        if not fitting or (limits.max_atomic is not None and min(fitting) >= limits.max_atomic):
            return limits
        largest = min(fitting)
        return replace(
            limits, max_atomic=largest, min_atomic=min(limits.min_atomic, largest), accumulation=True
        )

    def proved(self, loader: str, size: int) -> None:
        """Tell that a step with local batches of `size` examples went through."""
        if size > self._proven.get(loader, 0):
            self._proven[loader] = size

    def is_untried(self, loader: str, size: int) -> bool:
        """Tell whether no step with local batches of `size` examples has gone through yet."""
        return size > self._proven.get(loader, 0)

    def failed(self, loader: str, size: int, device: int) -> MemoryBound | None:
        """Return the bound that follows from a local batch that did not fit; None where none is smaller.

        That is the largest that did fit, if it is at least half of it, else half.
        """
        if size < 2:
            return None
        proven = self._proven.get(loader, 0)
        largest = max(size // 2, proven if proven < size else 0)
        return MemoryBound(loader=loader, failed=size, largest=largest, device_bytes=device)

    def sync(self) -> None:
        """Nothing to do: every replica knows the same."""

    def state_dict(self) -> dict[str, Any]:
        return {
            "bounds": [
                [bound.loader, bound.failed, bound.largest, bound.device_bytes]
                for bound in self._bounds.values()
            ],
            "proven": dict(self._proven),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for loader, failed, largest, device in state["bounds"]:
            bound = MemoryBound(loader=loader, failed=failed, largest=largest, device_bytes=device)
            self._bounds.setdefault((loader, failed, device), bound)
        self._proven = dict(state["proven"])


class OutOfMemoryWatch:
    """Leaves a bound for the job's next start when a local batch runs out of memory.

    It is told (`note`) of errors that nobody catches. Such an error closes the loop on its way up, which
    tells what was under way (`leave`); where the script holds the loop's iterator in a variable, `under_way`
    still does. Both are loader and local batch. `directory` is None where nothing can be left.
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
        self._run_number, self._rank, self._under_way = run_number, rank, under_way
        self._left: tuple[str, int] | None = None

    def leave(self) -> None:
        """Tell that an error leaves the loop under way."""
        self._left = self._under_way()

    def forget(self) -> None:
        """Tell that training goes on: the error was caught."""
        self._left = None

    def note(self, error: BaseException) -> None:
        """Leave a bound if the error is lack of memory in a loop, be it left or not."""
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


@contextmanager
def memory_guard() -> Iterator[None]:
    """Remember a local batch whose step runs out of memory, where the script or its framework catches errors.

    Put it around the body of the training loop. The error goes on its way; the job's next start takes smaller
    local batches. Not needed where an error ends the script.
    """
    try:
        yield
    except Exception as error:
        current_session().note_failure(error)
        raise
