"""Generations: the memberships of a training whose processes are in several jobs of Slurm.

    planned ──► committed ──► regrouped
       │            └───────► failed         one of its members ended before the first step
       ├──► refused                          the script cannot regroup
       └──► withdrawn                        by the daemon

The daemon plans, withdraws and fails; the job commits, refuses and reports. A plan's members never change.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Protocol

from pollux_slurm.model import Allocation

MAX_MEMBER_ID = 64
MAX_MEETING = 300


class GenerationState(enum.Enum):
    """Where a generation is on its way; the last four are ends."""

    PLANNED = "planned"
    COMMITTED = "committed"
    REGROUPED = "regrouped"
    REFUSED = "refused"
    WITHDRAWN = "withdrawn"
    FAILED = "failed"

    @property
    def is_open(self) -> bool:
        """Whether it is still to come: a job has at most one such generation."""
        return self in (GenerationState.PLANNED, GenerationState.COMMITTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationMember:
    """A process that is to belong to a generation. `id` is unique over all generations of its job.

    `is_ready` for one that trains already, and for a newcomer once it has reported that it waits to join.
    """

    id: str
    node_name: str
    is_ready: bool = False


_LONGEST_NODE_NAME = 40


def wing_members(restart_count: int, plan: int, allocation: Allocation) -> tuple[GenerationMember, ...]:
    """Return the processes of a wing, one for each of its GPUs, in rank order.

    `plan` is the reallocation that the wing was submitted for, 0 for the wing that a start begins with. An id
    says which process it is: `restart.plan.node.number`, with a hash of the node's name where that is long.
    """

    def short(node: str) -> str:
        return node if len(node) <= _LONGEST_NODE_NAME else sha256(node.encode()).hexdigest()[:32]

    return tuple(
        GenerationMember(id=f"{restart_count}.{plan}.{short(node)}.{number}", node_name=node)
        for node, gpus in allocation.gpus_by_node
        for number in range(gpus)
    )


def plan_of_member(member_id: str) -> int:
    """Return the reallocation that brought a process, 0 for one that its start began with."""
    return int(member_id.split(".")[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRecord:
    """A generation of a job's membership. `members` are in rank order, first those that stay.

    `at` is when it came into its state. `restart_count` is that of the job's start that it was planned for.
    `meeting` is where its members meet, known from the commit on. `reason` says why it was given up.
    """

    slurm_job_id: str
    number: int
    state: GenerationState
    at: datetime
    restart_count: int
    members: tuple[GenerationMember, ...]
    meeting: str | None = None
    standstill_s: float | None = None
    reason: str | None = None

    @property
    def is_ready(self) -> bool:
        """Whether all its newcomers wait to join."""
        return all(member.is_ready for member in self.members)


class MembershipStore(Protocol):
    """The API for jobs whose replicas join and leave: three calls, each with the job's own token.

    All raise `UnknownJobError`, `ReportRefusedError` and `StoreUnavailable`. `restart_count` is Slurm's: what
    was planned for another start of the job is neither seen nor changed.
    """

    def generation(self, token: str, *, after: int, restart_count: int) -> GenerationRecord | None:
        """Return the job's newest generation after number `after`; None where there is none."""

    def report_ready(self, token: str, member: str, *, number: int, restart_count: int) -> None:
        """Report that a newcomer of a planned generation waits to join; without effect for anybody else."""

    def advance_generation(
        self,
        token: str,
        number: int,
        state: GenerationState,
        *,
        restart_count: int,
        at: datetime,
        meeting: str | None = None,
        standstill_s: float | None = None,
        reason: str | None = None,
    ) -> bool:
        """Bring a generation into a state by compare-and-set; return whether it is in it.

        PLANNED becomes COMMITTED, with `meeting`, once all its newcomers are ready; or REFUSED, with
        `reason`. COMMITTED becomes REGROUPED, with `standstill_s`. False, without effect, for a generation in
        another state. True also where the same call has done so already, so that it can be repeated: a
        generation that was committed with another `meeting` is not.
        """

    def close(self) -> None:
        """Close the connections."""
