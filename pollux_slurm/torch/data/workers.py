"""Shield data-loading worker processes from signals to stop, which Slurm sends to every process of a job.

A worker that died of it would raise an error in the training process in the middle of a step, before the
checkpoint that the signal requests. So workers (and the server that forks them, where Python uses one) start
with these blocked, and exit on SIGTERM only when the training process sent it. When that process has ended,
they notice and end by themselves.

A forked worker inherits garbage that was not collected yet. Collecting it there may wait for ever: the
destructor of a gloo process group waits for threads that a fork does not copy (seen with torch 2.13). So the
collector is off until a worker has frozen what it inherited.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

# SIGUSR1 and SIGUSR2 by `sbatch --signal`.
_TO_STOP = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShieldedWorker:
    """A `worker_init_fn` for workers of process `owner` that also calls the user's own (`init`).

    A class, because it is pickled to the workers.
    """

    owner: int
    init: Callable[[int], object] | None
    collects_garbage: bool = True

    def __call__(self, worker_id: int) -> None:
        gc.freeze()
        if self.collects_garbage:
            gc.enable()
        signal.pthread_sigmask(signal.SIG_BLOCK, _TO_STOP)
        threading.Thread(
            target=_exit_on_sigterm_of, args=(self.owner,), name="pollux-worker-signals", daemon=True
        ).start()
        if self.init is not None:
            self.init(worker_id)


@contextmanager
def sigterm_blocked() -> Iterator[None]:
    """Block signals to stop in this thread and in processes it starts; turn the garbage collector off.

    One that comes meanwhile is delivered afterwards.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _TO_STOP)
    collects_garbage = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects_garbage:
            gc.enable()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _exit_on_sigterm_of(owner: int) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != owner:
        pass
    os._exit(0)
