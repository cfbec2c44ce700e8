"""Find within moments that another replica has died, whatever the main thread waits for.

Each replica has a receive pending from its neighbor, the next rank. It ends with a message when the neighbor
leaves in order, or has lost its own neighbor. It ends with an error when the neighbor's process is gone: the
kernel closes its connections. That costs nothing meanwhile. NCCL by itself would wait for a lost replica.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

_LOG = logging.getLogger(__name__)
_TAG = 7
_FAREWELL, _LOST = 1.0, 2.0
_NEVER = timedelta(days=365)
# For the main thread to end by an error of its own, which says more.
_GRACE_S = 5.0


class NeighborWatch:
    """Calls `on_death` in a thread of its own once a neighbor has died, after a grace. Made on all ranks."""

    def __init__(self, group: dist.ProcessGroup, *, on_death: Callable[[], object]) -> None:
        self._group, self._on_death = group, on_death
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        self._next, self._previous = (rank + 1) % size, (rank - 1) % size
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="pollux-neighbor-watch", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        message = torch.zeros(1)
        try:
            work = dist.irecv(message, self._next, group=self._group, tag=_TAG)
            if work is not None:
                work.wait(_NEVER)
            if message.item() == _FAREWELL:
                return
        except RuntimeError:
            if not self._is_over.is_set():
                _LOG.error("replica %d has ended, and the others cannot train without it", self._next)
        if self._is_over.is_set():
            return
        self._tell(_LOST)
        time.sleep(_GRACE_S)
        if not self._is_over.is_set():
            self._on_death()

    def _tell(self, what: float) -> None:
        # Else the other is gone already.
        with contextlib.suppress(RuntimeError):
            self._told = torch.full((1,), what)
            self._sent = dist.isend(self._told, self._previous, group=self._group, tag=_TAG)

    def end(self, *, waits: bool) -> None:
        """Stop watching. All call it; `waits` until the neighbor has, before the group is destroyed."""
        if self._is_over.is_set():
            return
        self._is_over.set()
        self._tell(_FAREWELL)
        if waits:
            self._thread.join()
