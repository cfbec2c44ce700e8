"""Timestamps that do not block the device: `perf_counter` on a CPU, CUDA events read later on a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch


class Timestamp(Protocol):
    """One moment of a replica's work."""

    def is_known(self) -> bool:
        """Return whether the device has reached it."""

    def seconds_since(self, earlier: Timestamp) -> float:
        """Return the seconds since an earlier moment of the same kind; both must be known."""


class HostTimestamp:
    """A moment on the host's clock."""

    __slots__ = ("_at_s",)

    def __init__(self) -> None:
        self._at_s = time.perf_counter()

    def is_known(self) -> bool:
        return True

    def seconds_since(self, earlier: Timestamp) -> float:
        assert isinstance(earlier, HostTimestamp)
        return self._at_s - earlier._at_s


class CudaTimestamp:
    """A moment on a device's current CUDA stream, known once the device reaches it."""

    __slots__ = ("_event",)

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event(enable_timing=True)
        # The device's stream: the model may be on another device than the process's current one.
        self._event.record(torch.cuda.current_stream(device))

    def is_known(self) -> bool:
        return bool(self._event.query())

    def seconds_since(self, earlier: Timestamp) -> float:
        assert isinstance(earlier, CudaTimestamp)
        return float(earlier._event.elapsed_time(self._event)) / 1e3


class HostCopy:
    """A small tensor that is copied to the host: from a GPU without blocking it, into pinned memory.

    `read` waits until the device has made the copy, but not for work that was queued after it.
    """

    __slots__ = ("_ready", "_values")

    def __init__(self, values: torch.Tensor) -> None:
        self._ready: torch.cuda.Event | None = None
        self._values = values.detach()
        if values.device.type == "cuda":
            self._values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._values.copy_(values, non_blocking=True)
            self._ready = torch.cuda.Event()
            self._ready.record(torch.cuda.current_stream(values.device))

    def read(self) -> list[float]:
        """Return the numbers."""
        if self._ready is not None:
            self._ready.synchronize()
        return [float(value) for value in self._values.tolist()]


def timestamps_on(device: torch.device) -> Callable[[], Timestamp]:
    """Return the function that takes a timestamp of a device."""
    return partial(CudaTimestamp, device) if device.type == "cuda" else HostTimestamp
