"""Where the members of a generation meet: each announces itself in a new store, then they make their group.

All members have destroyed their former groups before one begins to make a new one: NCCL needs that. Each
generation has a store of its own, because keys of an earlier one would lead to addresses that are gone.

On one machine the store is a file. Else the first member that stays, the new rank 0, opens a port before the
commit, so that the committed generation has its address. Whoever reaches a port can connect to it: the others
verify that they have met their own rank 0.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from pollux_slurm.errors import LaunchError

_POLL_INTERVAL_S = 0.002
# The port is open already: longer than any busy machine takes.
_STORE_TIMEOUT = timedelta(minutes=1)


def open_meeting(host: str) -> Any:
    """Return a store of torch.distributed at a free port of this machine, which others reach as `host`."""
    return dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]


def meet(
    meeting: str,
    *,
    opened: Any,
    verify: Callable[[Any], None],
    rank: int,
    world_size: int,
    backend: str,
    is_given_up: Callable[[], bool],
    timeout_s: float,
) -> None:
    """Make the default process group of a generation whose members meet at `meeting`.

    `opened` is the store that rank 0 has opened there, None on others and for a file. `verify` is called with
    the store, on others than rank 0 once all are there.

    Raises `LaunchError` where `is_given_up` says that a member has ended, or not all come within `timeout_s`.
    """
    if world_size == 1:
        alone = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=alone, rank=0, world_size=1)
        return
    store = _store(meeting, world_size) if opened is None else opened
    if rank == 0:
        verify(store)
    store.set(f"here/{rank}", "")
    deadline = time.monotonic() + timeout_s
    missing = list(range(world_size))
    while missing := [other for other in missing if not store.check([f"here/{other}"])]:
        if is_given_up():
            raise LaunchError("a process that was to train on has ended")
        if time.monotonic() >= deadline:
            raise LaunchError(f"replicas {missing} have not come within {timeout_s:g} s")
        time.sleep(_POLL_INTERVAL_S)
    if rank != 0:
        verify(store)
    groups = dist.PrefixStore("groups", store)  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=groups, rank=rank, world_size=world_size)


def _store(meeting: str, world_size: int) -> Any:
    if meeting.startswith("/"):
        return dist.FileStore(meeting, world_size)  # type: ignore[attr-defined]
    host, _, port = meeting.rpartition(":")
    if not (port.isascii() and port.isdigit()):
        raise LaunchError(f"{meeting!r} is not an address to meet at")
    return dist.TCPStore(  # type: ignore[attr-defined]
        host, int(port), is_master=False, wait_for_workers=False, timeout=_STORE_TIMEOUT
    )
