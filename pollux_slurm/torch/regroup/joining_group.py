"""The process group of a process that is not a member: of a newcomer that waits, or of one that has left.

It has the rank and the world size that the newcomer will have, so what a script keeps of its rank is right.
It reaches nobody: a barrier has nobody to wait for, and every other collective is refused. The others train
meanwhile, and would not take part.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from pollux_slurm.errors import UsageError

_BACKEND = "pollux-joining"
_COLLECTIVES = (
    *("allgather", "_allgather_base", "allgather_coalesced", "allgather_into_tensor_coalesced"),
    *("allreduce", "allreduce_coalesced", "alltoall", "alltoall_base", "broadcast", "gather", "reduce"),
    *("recv", "recv_anysource", "reduce_scatter", "_reduce_scatter_base", "scatter", "send"),
)
_REFUSED = (
    "a collective of torch.distributed ({name}) in a process that is not a member of the training, since it "
    "has not joined yet or has left: the other replicas do not take part. Leave it out where "
    "pollux_slurm.torch.is_joining(), and after the training, or run this job without in_place=True "
    "(docs/moves.md)"
)


class _JoiningGroup(dist.ProcessGroup):
    """A group of rank and size that communicates with nobody."""

    def getBackendName(self) -> str:  # noqa: N802 - torch calls it by this name
        return _BACKEND

    def _get_sequence_number_for_group(self) -> int:
        """Return the number of its collectives."""
        return 0

    def barrier(self, *args: Any, **kwargs: Any) -> Any:
        """Return a barrier that has been passed."""
        from torch._C import _distributed_c10d as c10d

        done: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        done.set_result([])
        return c10d._create_work_from_future(done)  # type: ignore[attr-defined]


def _refusal(name: str) -> Any:
    def refuse(self: object, *args: Any, **kwargs: Any) -> NoReturn:
        raise UsageError(_REFUSED.format(name=name))

    return refuse


for _name in _COLLECTIVES:
    setattr(_JoiningGroup, _name, _refusal(_name))


def _make(store: Any, rank: int, world_size: int, timeout: timedelta) -> dist.ProcessGroup:
    return _JoiningGroup(rank, world_size)  # type: ignore[call-arg]


def init_joining_group(*, rank: int, world_size: int) -> None:
    """Make the default process group of a process that is not a member."""
    if not hasattr(dist.Backend, _BACKEND.upper()):
        dist.Backend.register_backend(_BACKEND, _make, devices=["cpu", "cuda"])
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group(_BACKEND, store=store, rank=rank, world_size=world_size)
