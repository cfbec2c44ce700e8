"""The order in which one loop visits a map-style dataset: sequential, shuffled, or the user's own sampler's.

Positions count examples of this order. It is the same on every replica and after a restart: a shuffled order
is a function of seed, epoch and loop. A sampler's order is drawn on rank 0, sent to the others, and kept in
the checkpoints of its loop.
"""

from __future__ import annotations

import hashlib
import logging
import operator
import random
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DistributedSampler

from pollux_slurm.errors import UsageError

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SamplingOrder:
    """Indices of shape `(n,)`; with the user's own batches also their ends, of shape `(num_batches,)`."""

    indices: torch.Tensor
    ends: torch.Tensor | None = None

    def __len__(self) -> int:
        return self.indices.numel()

    def to_plain(self) -> dict[str, Any]:
        """Return what a checkpoint or a message may hold."""
        return {"indices": self.indices, "ends": self.ends}

    @classmethod
    def from_plain(cls, value: Mapping[str, Any]) -> SamplingOrder:
        """Return what `to_plain` was called on."""
        return cls(indices=value["indices"], ends=value["ends"])


def shuffled(length: int, seed: int) -> SamplingOrder:
    """Return a permutation that depends on `seed` alone."""
    generator = torch.Generator()
    generator.manual_seed(seed)
    return SamplingOrder(indices=torch.randperm(length, generator=generator))


def derived_seed(seed: int, epoch: int, loop: int) -> int:
    """Return the seed of one loop of one epoch."""
    text = f"{seed}:{epoch}:{loop}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:7], "big")


class SamplerOrder:
    """Draws orders from the user's own sampler, of indices or (`is_batches`) of lists of them.

    Every random generator that the sampler may use (torch's, Python's and numpy's global ones, or a
    `generator` of its own) is seeded for each loop. So an epoch has one order, however often the job was
    restarted before it. `set_epoch` is called on a sampler that has it.
    """

    def __init__(self, sampler: Any, *, is_batches: bool) -> None:
        parts = [sampler, getattr(sampler, "sampler", None)]
        for part in parts:
            if isinstance(part, DistributedSampler) or _replicas_of(part) > 1:
                raise UsageError(
                    "AdaptiveDataLoader shares the examples out over the replicas itself: leave "
                    f"{type(part).__name__}, which divides them by rank, out, and pass shuffle=True"
                )
        self.sampler, self._is_batches = sampler, is_batches
        self._parts = [part for part in parts if part is not None]
        # A seed that the user gave to their own generator still counts.
        self._generators = [
            (part.generator, part.generator.initial_seed())
            for part in self._parts
            if isinstance(getattr(part, "generator", None), torch.Generator)
        ]

    def warn_on_one_replica(self) -> None:
        """Say, on a job's only replica, which sampler may divide by rank when it has others."""
        for part in self._parts:
            if _replicas_of(part) == 1:
                _LOG.warning(
                    "the sampler %s has num_replicas and rank. Where these follow the number of processes, "
                    "the job ends with an error when it grows: AdaptiveDataLoader shares the examples out "
                    "itself. Leave that sampler out, or give it num_replicas=1, rank=0 at any number",
                    type(part).__name__,
                )

    def draw(self, *, seed: int, epoch: int, loop: int) -> SamplingOrder:
        """Return the order of one loop. Raises `UsageError` for what is not whole numbers."""
        for part in self._parts:
            # Without `remaining_epochs_until` the script counts epochs itself, and calls `set_epoch`.
            if epoch >= 0 and callable(getattr(part, "set_epoch", None)):
                part.set_epoch(epoch)
        with _seeded(derived_seed(seed, epoch, loop)):
            for generator, own in self._generators:
                generator.manual_seed(derived_seed(own ^ seed, epoch, loop))
            if not self._is_batches:
                return SamplingOrder(indices=_as_indices(self.sampler))
            batches = [_as_indices(batch) for batch in self.sampler]
        sizes = torch.tensor([len(batch) for batch in batches if len(batch) > 0], dtype=torch.int64)
        empty = torch.empty(0, dtype=torch.int64)
        return SamplingOrder(indices=torch.cat([empty, *batches]), ends=sizes.cumsum(0))


def _replicas_of(sampler: Any) -> int:
    """Return of how many replicas a sampler yields one's part, by names as in `DistributedSampler`; or 0."""
    number, rank = getattr(sampler, "num_replicas", None), getattr(sampler, "rank", None)
    return number if isinstance(number, int) and isinstance(rank, int) else 0


def _as_indices(drawn: Iterable[Any]) -> torch.Tensor:
    try:
        return torch.tensor([operator.index(index) for index in drawn], dtype=torch.int64)
    except TypeError as error:
        raise UsageError(
            f"a sampler must yield whole numbers, a batch sampler lists of them: {error}"
        ) from None


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the CPU's global generators within the block, and restore their states after it."""
    numpy = sys.modules.get("numpy")
    torch_state, python_state = torch.get_rng_state(), random.getstate()
    numpy_state = None if numpy is None else numpy.random.get_state()
    try:
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        if numpy is not None:
            numpy.random.seed(seed % 2**32)
        yield
    finally:
        torch.set_rng_state(torch_state)
        random.setstate(python_state)
        if numpy is not None:
            numpy.random.set_state(numpy_state)
