"""Where the members of a generation meet: each announces itself in a new store, then they make their group.

All members have destroyed their former groups before one begins to make a new one: NCCL needs that. Each
generation has a store of its own, because keys of an earlier one would lead to addresses that are gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist

from pollux_slurm.errors import LaunchError

_POLL_INTERVAL_S = 0.002


def meet(
    file: Path,
    *,
    rank: int,
    world_size: int,
    backend: str,
    is_given_up: Callable[[], bool],
    timeout_s: float,
) -> None:
    """Make the default process group of a generation whose members meet in `file`.

    Raises `LaunchError` where `is_given_up` says that a member has ended, or not all come within `timeout_s`.
    """
    if world_size == 1:
        alone = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=alone, rank=0, world_size=1)
        return
    store = dist.FileStore(str(file), world_size)  # type: ignore[attr-defined]
    store.set(f"here/{rank}", "")
    deadline = time.monotonic() + timeout_s
    missing = list(range(world_size))
    while missing := [other for other in missing if not store.check([f"here/{other}"])]:
        if is_given_up():
            raise LaunchError("a process that was to train on has ended")
        if time.monotonic() >= deadline:
            raise LaunchError(f"replicas {missing} have not come within {timeout_s:g} s")
        time.sleep(_POLL_INTERVAL_S)
    groups = dist.PrefixStore("groups", store)  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=groups, rank=rank, world_size=world_size)
