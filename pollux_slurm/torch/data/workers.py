"""Data-loading worker processes that outlive a SIGTERM that is not theirs.

Slurm sends SIGTERM to every process of a job. A worker that died of it would raise an error in the training
process in the middle of a step, before the checkpoint that the signal asks for. So workers (and the server
that forks them, where Python uses one) start with SIGTERM blocked and heed it from the training process only,
which ends them with it in a hurry. When that process is gone, they notice and end by themselves.

A forked worker inherits garbage that was not collected yet. To collect it there may wait for ever: the
destructor of a gloo process group waits for threads that no fork takes along (seen with torch 2.13). So the
collector rests until a worker has put what it inherited out of its reach.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ShieldedWorker:
    """A `worker_init_fn` for workers of `owner` that calls the user's own; a class, to be sent to them."""

    owner: int
    init: Callable[[int], object] | None
    collects_garbage: bool = True

    def __call__(self, worker_id: int) -> None:
        gc.freeze()
        if self.collects_garbage:
            gc.enable()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_heed, args=(self.owner,), name="pollux-worker-signals", daemon=True).start()
        if self.init is not None:
            self.init(worker_id)


@contextmanager
def sigterm_held_back() -> Iterator[None]:
    """Block SIGTERM in this thread, and in what it starts; one that comes meanwhile arrives afterwards.

    The garbage collector rests meanwhile, too.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    collects_garbage = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects_garbage:
            gc.enable()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _heed(owner: int) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != owner:
        pass
    os._exit(0)
