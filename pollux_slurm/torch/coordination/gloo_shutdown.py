"""Wait until gloo's threads sleep, before the interpreter shuts down.

A gloo thread drops its last reference to a tensor some moments after the collective has ended. Where that
tensor has a Python object, this takes the interpreter's lock (GIL). A thread that waits for the GIL while the
interpreter shuts down is unwound from inside a destructor, and the C++ runtime aborts the process: "terminate
called without an active exception", exit code 134, for a job that has succeeded. Seen with torch 2.13 and
CPython 3.11 on a busy machine.
"""

from __future__ import annotations

import time
from pathlib import Path

# The name that torch gives to gloo's threads.
GLOO_THREAD = "pt_gloo_runloop"
_POLL_INTERVAL_S = 0.002


def wait_for_gloo(*, timeout_s: float, tasks: Path = Path("/proc/self/task")) -> bool:
    """Return True once every gloo thread of this process sleeps, False after `timeout_s`.

    /proc is read while this thread has released the GIL, so a thread that sleeps does not wait for it. True
    at once where there is no /proc (`tasks`).
    """
    deadline = time.monotonic() + timeout_s
    while _is_gloo_busy(tasks):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_INTERVAL_S)
    return True


def _is_gloo_busy(tasks: Path) -> bool:
    if not tasks.is_dir():
        return False
    for task in tasks.iterdir():
        try:
            # "tid (name) state …"; neither the name nor anything before it holds another ")".
            identity, _, rest = (task / "stat").read_bytes().decode().partition(") ")
        except OSError:  # the thread has ended meanwhile
            continue
        if identity.endswith(GLOO_THREAD) and not rest.startswith("S"):
            return True
    return False
