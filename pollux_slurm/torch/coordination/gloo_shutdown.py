"""Wait for gloo's threads to come to rest, so that the interpreter's end does not meet one of them.

A gloo thread drops its last reference to a tensor some moments after the collective has ended for everybody
else. Where that tensor has a Python object, dropping it takes the interpreter's lock; a thread that waits for
the lock when the interpreter begins to end is unwound from inside a destructor, and the C++ runtime aborts
the process: "terminate called without an active exception", exit code 134, for a job that has succeeded. Seen
with torch 2.13 and CPython 3.11 on a busy machine.
"""

from __future__ import annotations

import time
from pathlib import Path

_TASKS = Path("/proc/self/task")
_GLOO_THREAD = "pt_gloo_runloop"
_LOOK_AGAIN_S = 0.002


def wait_for_gloo(*, timeout_s: float) -> bool:
    """Return True once every gloo thread of this process sleeps, False after `timeout_s`.

    The kernel is asked while this thread has let go of the interpreter's lock, so one that sleeps is not
    waiting for it. True at once where there is no /proc.
    """
    deadline = time.monotonic() + timeout_s
    while _is_gloo_busy():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_LOOK_AGAIN_S)
    return True


def _is_gloo_busy() -> bool:
    if not _TASKS.is_dir():
        return False
    for task in _TASKS.iterdir():
        try:
            # "tid (name) state …"; neither the name nor anything before it holds another ")".
            identity, _, rest = (task / "stat").read_bytes().decode().partition(") ")
        except OSError:  # the thread has ended meanwhile
            continue
        if identity.endswith(_GLOO_THREAD) and not rest.startswith("S"):
            return True
    return False
