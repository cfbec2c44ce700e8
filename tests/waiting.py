"""Wait for a condition with a deadline, instead of sleeping for a guess."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T], *, timeout_s: float, what: str, every_s: float = 0.2) -> T:
    """Return the first true value of `condition`; fail with `what` and the last value at the deadline."""
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"gave up after {timeout_s:g} s waiting for {what}; last seen: {value!r}")
        pause.wait(every_s)
