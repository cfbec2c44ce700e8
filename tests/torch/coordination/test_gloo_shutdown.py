"""The process waits for gloo's threads before its interpreter ends."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from pollux_slurm.torch.coordination.gloo_shutdown import GLOO_THREAD, wait_for_gloo
from pollux_slurm.torch.coordination.side_channel import SideChannel


@contextmanager
def busy_thread(name: str) -> Iterator[None]:
    """A thread that the kernel knows as `name` and that computes until the end.

    It spins at a lock from its first instruction on, and never sleeps: not for the interpreter's lock either.
    """
    system = ctypes.CDLL(None)
    lock, thread = ctypes.c_int(), ctypes.c_ulong()
    system.pthread_spin_init(ctypes.byref(lock), 0)
    system.pthread_spin_lock(ctypes.byref(lock))
    spin = ctypes.cast(system.pthread_spin_lock, ctypes.c_void_p)
    assert system.pthread_create(ctypes.byref(thread), None, spin, ctypes.byref(lock)) == 0
    try:
        assert system.pthread_setname_np(thread, name.encode()) == 0
        yield
    finally:
        system.pthread_spin_unlock(ctypes.byref(lock))
        system.pthread_join(thread, None)


def test_that_a_busy_gloo_thread_is_waited_for() -> None:
    with busy_thread("pt_gloo_runloop"):
        assert not wait_for_gloo(timeout_s=0.05)
    assert wait_for_gloo(timeout_s=120)


def test_that_no_other_thread_is_waited_for() -> None:
    with busy_thread("somebody else"):
        assert wait_for_gloo(timeout_s=120)


def test_that_the_name_is_the_one_that_torch_gives() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        dist.all_reduce(torch.ones(1))  # its thread has begun, and has its name
        tasks = Path("/proc/self/task").iterdir()
        assert GLOO_THREAD in {(task / "comm").read_text().strip() for task in tasks}
        assert wait_for_gloo(timeout_s=120)
    finally:
        dist.destroy_process_group()


def test_that_nothing_is_waited_for_without_proc(tmp_path: Path) -> None:
    with busy_thread("pt_gloo_runloop"):
        assert wait_for_gloo(timeout_s=0, tasks=tmp_path / "none")


class _Unanswered:
    """An exchange that the other ranks never join."""

    def __init__(self) -> None:
        self.waited_s: list[float] = []

    def wait(self, timeout: object) -> None:
        self.waited_s.append(timeout.total_seconds())  # type: ignore[attr-defined]
        raise RuntimeError("timed out")


def test_that_closing_waits_for_an_unanswered_exchange_for_a_bounded_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work = _Unanswered()
    monkeypatch.setattr(dist, "all_reduce", lambda *args, **options: work)
    side_channel: SideChannel[None] = SideChannel(
        rank=0, world_size=2, group=dist.ProcessGroup(dist.HashStore(), 0, 2)
    )
    side_channel.exchange([1.0], None)
    side_channel.close(timeout_s=1.0)
    assert work.waited_s == [1.0]
    assert side_channel.drain() is None
