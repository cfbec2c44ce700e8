"""The places at which a rehearsal changes what a training does, or takes note of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pollux_slurm.model import BatchChoice, BatchLimits
from pollux_slurm.torch.checkpoint.checkpoint_file import WriteResult

T = TypeVar("T")


class Seams:
    """Each method does as a job does, unless a rehearsal overrides it. All ranks call it alike."""

    def exchange_interval(self, number: int) -> int:
        """Return how many boundaries share an exchange, given rank 0's number."""
        return number

    def write(self, write: Callable[[], WriteResult]) -> WriteResult:
        """Write a checkpoint."""
        return write()

    def copy_states(self, copy: Callable[[], T]) -> T:
        """Copy the states between two loops, for requests."""
        return copy()

    def regroup(self, regroup: Callable[[], bool]) -> bool:
        """Go on with other replicas; False where nothing has changed."""
        return regroup()

    def first_batch(
        self, limits: BatchLimits, batch: BatchChoice, propose: Callable[[], BatchChoice]
    ) -> BatchChoice:
        """Return, on rank 0, the batch with which a loop begins; `batch` is the one in use."""
        return propose()

    def next_batch(self, limits: BatchLimits, proposal: BatchChoice | None) -> BatchChoice | None:
        """Return the batch to use after a step, given what was proposed; None: as before. Rank 0's counts."""
        return proposal

    def note_obstacle(self, reason: str) -> None:
        """Take note of what keeps this training from regrouping."""

    def note_refusal(self, reason: str) -> None:
        """Take note of a refused regroup."""

    def note_shape(self, text: str) -> None:
        """Take note of what another shape of the job changes in this training."""
