"""Time stamps that do not stop the device: `perf_counter` on a CPU, CUDA events read later on a GPU."""

from __future__ import annotations

import time
from typing import Protocol

import torch


class Instant(Protocol):
    """One moment of a replica's work."""

    def is_known(self) -> bool:
        """Tell whether the device has reached it."""

    def seconds_since(self, earlier: Instant) -> float:
        """Return the seconds since an earlier moment of the same kind; both must be known."""


class HostInstant:
    """A moment on the host's clock."""

    __slots__ = ("_at_s",)

    def __init__(self) -> None:
        self._at_s = time.perf_counter()

    def is_known(self) -> bool:
        return True

    def seconds_since(self, earlier: Instant) -> float:
        assert isinstance(earlier, HostInstant)
        return self._at_s - earlier._at_s


class CudaInstant:
    """A moment on the current CUDA stream, known once the device gets there."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = torch.cuda.Event(enable_timing=True)
        self._event.record()

    def is_known(self) -> bool:
        return bool(self._event.query())

    def seconds_since(self, earlier: Instant) -> float:
        assert isinstance(earlier, CudaInstant)
        return float(earlier._event.elapsed_time(self._event)) / 1e3


def host_instant() -> Instant:
    """Return this moment on the host."""
    return HostInstant()


def cuda_instant() -> Instant:
    """Return this moment on the current CUDA stream."""
    return CudaInstant()
