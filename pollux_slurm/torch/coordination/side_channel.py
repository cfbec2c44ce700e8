"""The ranks' side channel: a small gloo group beside the one that reduces gradients.

`exchange` is the only call on a step's path. It adds one short vector over all ranks without waiting, and
returns the sums of the previous call, which had a whole step to finish. The other calls wait, and are for
rare moments (the start, an epoch's end, a checkpoint). One replica needs no group and gets its sums at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Generic, TypeVar

import torch
import torch.distributed as dist

from pollux_slurm.torch.coordination.plain_data import decode, encode

C = TypeVar("C")


class SideChannel(Generic[C]):
    """Exchanges between the ranks of a run. `C` is the caller's context, returned with the sums.

    A regroup begins another run: `begin_run` sets its ranks and their group.
    """

    def __init__(self, *, rank: int, world_size: int, group: dist.ProcessGroup | None) -> None:
        self._pending: tuple[Any, torch.Tensor, C] | None = None
        self.begin_run(rank=rank, world_size=world_size, group=group)

    def begin_run(self, *, rank: int, world_size: int, group: dist.ProcessGroup | None) -> None:
        """Set the ranks of a run. No exchange may be under way."""
        self.rank, self.world_size, self._group = rank, world_size, group

    @property
    def group(self) -> dist.ProcessGroup | None:
        """The gloo group of all ranks; None for a single one."""
        return self._group

    def exchange(self, values: Sequence[float], context: C) -> tuple[list[float], C] | None:
        """Add `values` over the ranks; return sums and context of the previous call, None at the first.

        With one replica it returns this call's own.
        """
        if self._group is None:
            return list(values), context
        finished = self.drain()
        vector = torch.tensor(values, dtype=torch.float64)
        work = dist.all_reduce(vector, group=self._group, async_op=True)
        self._pending = (work, vector, context)
        return finished

    def drain(self) -> tuple[list[float], C] | None:
        """Wait for the exchange under way and return it; None if there is none."""
        if self._pending is None:
            return None
        work, vector, context = self._pending
        self._pending = None
        work.wait()
        return vector.tolist(), context

    def close(self, *, timeout_s: float) -> None:
        """Let an exchange under way end, for a bounded time: another rank may be gone for good."""
        if self._pending is not None:
            work, _, _ = self._pending
            self._pending = None
            with contextlib.suppress(RuntimeError):
                work.wait(timedelta(seconds=timeout_s))

    def broadcast(self, value: Any) -> Any:
        """Return rank 0's plain `value` on every rank."""
        if self._group is None:
            return value
        data = encode(value) if self.rank == 0 else torch.empty(0, dtype=torch.uint8)
        size = torch.tensor([data.numel()], dtype=torch.int64)
        dist.broadcast(size, src=0, group=self._group)
        if self.rank != 0:
            data = torch.empty(int(size.item()), dtype=torch.uint8)
        dist.broadcast(data, src=0, group=self._group)
        return decode(data)

    def broadcast_number(self, value: float) -> float:
        """Return rank 0's number on every rank."""
        if self._group is None:
            return value
        number = torch.tensor([value], dtype=torch.float64)
        dist.broadcast(number, src=0, group=self._group)
        return float(number.item())

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's plain `value`, in rank order, on every rank."""
        if self._group is None:
            return [value]
        data = encode(value)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world_size)]
        dist.all_gather(sizes, torch.tensor([data.numel()], dtype=torch.int64), group=self._group)
        longest = max(int(size.item()) for size in sizes)
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: data.numel()] = data
        parts = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.world_size)]
        dist.all_gather(parts, padded, group=self._group)
        return [decode(part[: int(size.item())]) for part, size in zip(parts, sizes, strict=True)]
