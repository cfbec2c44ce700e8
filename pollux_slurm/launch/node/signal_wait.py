"""Wait for blocked signals, also where the process is stopped and continued meanwhile.

`signal.sigtimedwait` returns an uninitialised record when SIGCONT interrupts it and its time is over (CPython
3.10 to 3.13): after `scontrol suspend`, a checkpointed virtual machine, a closed laptop. So this calls the C
library's, without a record.
"""

from __future__ import annotations

import ctypes
import errno
import math
import os
import signal
from collections.abc import Iterable

_WORD_BITS = 8 * ctypes.sizeof(ctypes.c_ulong)
_SET_WORDS = 1024 // _WORD_BITS  # sigset_t of Linux's C libraries


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def wait_for_signal(watched: Iterable[int], timeout_s: float) -> signal.Signals | None:
    """Return a pending signal of `watched`, all of them blocked; None when none came, or too early."""
    words = (ctypes.c_ulong * _SET_WORDS)()
    for number in watched:
        words[(number - 1) // _WORD_BITS] |= 1 << (number - 1) % _WORD_BITS
    fraction, seconds = math.modf(max(timeout_s, 0.0))
    limit = _TimeSpec(int(seconds), int(fraction * 1e9))
    found = ctypes.CDLL(None, use_errno=True).sigtimedwait(words, None, ctypes.byref(limit))
    if found > 0:
        return signal.Signals(found)
    if (error := ctypes.get_errno()) not in (errno.EAGAIN, errno.EINTR):
        raise OSError(error, os.strerror(error))
    return None
