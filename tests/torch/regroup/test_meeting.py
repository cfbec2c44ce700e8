"""Members wait for each other at a port, and only for their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch.distributed as dist

from pollux_slurm.errors import LaunchError
from pollux_slurm.torch.regroup.meeting import meet, open_meeting


@pytest.fixture
def opened() -> Iterator[Any]:
    """A store that another process might have opened, at a port of its own."""
    yield open_meeting("127.0.0.1")
    assert not dist.is_initialized(), "nobody has joined a group"


def refuse(_store: Any) -> None:
    raise LaunchError("it does not know the secret")


def join(meeting: str, **changes: Any) -> None:
    """Come to a meeting as its second member."""
    values: dict[str, Any] = {
        "opened": None,
        "verify": refuse,
        "rank": 1,
        "world_size": 2,
        "backend": "gloo",
        "is_given_up": lambda: False,
        "timeout_s": 60.0,
    }
    meet(meeting, **{**values, **changes})


def test_that_a_member_leaves_who_is_not_its_rank_0(opened: Any) -> None:
    opened.set("here/0", "")
    with pytest.raises(LaunchError, match="does not know the secret"):
        join(f"127.0.0.1:{opened.port}")


def test_that_nobody_waits_for_a_generation_that_is_given_up(opened: Any) -> None:
    with pytest.raises(LaunchError, match="has ended"):
        join(f"127.0.0.1:{opened.port}", is_given_up=lambda: True)


def test_that_nobody_waits_beyond_the_time_limit(opened: Any) -> None:
    with pytest.raises(LaunchError, match=r"replicas \[0\] have not come"):
        join(f"127.0.0.1:{opened.port}", timeout_s=1e-6)
    opened.set("here/0", "")
    with pytest.raises(LaunchError, match=r"replicas \[2\] have not come"):
        join(f"127.0.0.1:{opened.port}", world_size=3, timeout_s=1e-6)


@pytest.mark.parametrize("meeting", ["", "n7", "n7:", "n7:x", "n7:-1"])
def test_that_what_is_no_address_is_refused(meeting: str) -> None:
    with pytest.raises(LaunchError, match="not an address"):
        join(meeting)
