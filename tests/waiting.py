"""Wait for a condition with a deadline, instead of sleeping for a guess."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pollux_slurm.errors import SlurmError

if TYPE_CHECKING:
    from pollux_slurm.slurm.client import SlurmClient

T = TypeVar("T")


def wait_until(condition: Callable[[], T], *, timeout_s: float, what: str, every_s: float = 0.2) -> T:
    """Return the first true value of `condition`; fail with `what` and the last value at the deadline.

    The last look begins after the deadline, so that who stood still meanwhile looks once more.
    """
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while True:
        is_last = time.monotonic() > deadline
        value = condition()
        if value:
            return value
        if is_last:
            raise AssertionError(f"gave up after {timeout_s:g} s waiting for {what}; last seen: {value!r}")
        pause.wait(every_s)


@contextlib.contextmanager
def ends_within(timeout_s: float, *, what: str) -> Iterator[None]:
    """Fail with `what` if the block, in the main thread, takes longer: also where it waits in the kernel."""

    def fail(*_: object) -> None:
        raise AssertionError(f"not over after {timeout_s:g} s: {what}")

    former = signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, timeout_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)


def cancel_all(slurm: SlurmClient, job_ids: Iterable[str]) -> None:
    """Cancel jobs, and wait until none is left in Slurm, tasks of arrays included."""
    for job_id in job_ids:
        with contextlib.suppress(SlurmError):
            slurm.cancel(job_id)
    wait_until(
        lambda: all(job.state.is_over for job in slurm.snapshot().jobs),
        timeout_s=120,
        what="the cancelled jobs to end",
        every_s=0.05,
    )


def is_gone(pid: int) -> bool:
    """Tell whether a process has ended: it does not exist, or is a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True
