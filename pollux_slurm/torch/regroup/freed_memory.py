"""Give memory that was freed back to the system."""

from __future__ import annotations

import ctypes


def give_back_freed_memory() -> None:
    """Return the pages of freed memory to the system.

    By itself, glibc keeps most of what the former buckets and copies of the states had, and takes more for
    the next ones: 2.5 MB more with each regroup of a model of 2.4 MB.
    """
    # Other C libraries have no such function.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
