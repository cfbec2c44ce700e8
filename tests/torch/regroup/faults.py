"""A training with a fault at a chosen moment of a regroup."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pollux_slurm.agent.membership.folder import FolderMembership, MembershipFolder
from pollux_slurm.errors import StoreUnavailable
from pollux_slurm.torch.session import regrouping
from tests.torch.regroup import script

# The parts of a regroup, after each of which a member may die.
PARTS = ("states", "commit", "hand over", "meet", "groups", "send states", "begin")


def train(member: str, moment: str, fault: str, *args: Any) -> dict[str, Any]:
    """Train as `script.train`, with a fault of one member after one part of its first regroup.

    A newcomer may also have it "before ready" and "after ready". `fault` is killed, stopped (by SIGTERM) or
    withdrawn (the plan, by this process); "answer lost" (of its first commit) needs no moment.
    """
    if os.environ["POLLUX_MEMBER"] == member:
        if fault == "answer lost":
            _lose_answer()
        else:
            _strike_at(moment, lambda: _strike(fault))
    return script.train(*args)


def _strike(fault: str) -> None:
    if fault == "withdrawn":
        assert MembershipFolder(Path(os.environ["POLLUX_MEMBERSHIP"])).withdraw(1)
    else:
        os.kill(os.getpid(), signal.SIGKILL if fault == "killed" else signal.SIGTERM)


def _strike_at(moment: str, strike: Callable[[], None]) -> None:
    end, report_ready = regrouping.RegroupTimes.end, FolderMembership.report_ready
    awaited = [moment]

    def at(name: str) -> None:
        if name in awaited:
            awaited.remove(name)
            strike()

    def ended(times: regrouping.RegroupTimes, part: str) -> None:
        end(times, part)
        at(part)

    def ready(membership: FolderMembership) -> None:
        at("before ready")
        report_ready(membership)
        at("after ready")

    regrouping.RegroupTimes.end = ended  # type: ignore[method-assign]
    FolderMembership.report_ready = ready  # type: ignore[method-assign]


def _lose_answer() -> None:
    commit = FolderMembership.commit
    lost: list[int] = []

    def commit_without_answer(membership: FolderMembership, number: int, meeting: str | None) -> bool:
        is_committed = commit(membership, number, meeting)
        if not lost:
            lost.append(number)
            raise StoreUnavailable("the answer was lost")
        return is_committed

    FolderMembership.commit = commit_without_answer  # type: ignore[method-assign]
