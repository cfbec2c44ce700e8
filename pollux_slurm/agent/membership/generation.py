"""A generation: one membership of a training. The next one replaces it at a step boundary, by a regroup.

Who belongs to the next generation is planned outside of the training: on one machine by the launcher, else by
the daemon. Rank 0 commits it, which nothing can take back. A process that is not named in a committed
generation does not join.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A process of a training. `id` is unique over all generations."""

    id: str
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One membership. `members` are in rank order: those that stay first, in their order, then newcomers.

    They meet at `meeting`, known once it is committed: a file (an absolute path), or host:port.
    """

    number: int
    members: tuple[Member, ...]
    meeting: str | None = None

    def rank_of(self, member: str) -> int | None:
        """Return a member's rank; None for a process that does not belong."""
        ids = [one.id for one in self.members]
        return ids.index(member) if member in ids else None

    @property
    def gpus_per_node(self) -> tuple[int, ...]:
        """The number of members on each node, in the order in which the nodes appear."""
        counts: dict[str, int] = {}
        for one in self.members:
            counts[one.node] = counts.get(one.node, 0) + 1
        return tuple(counts.values())


class Membership(Protocol):
    """One process's view of the membership. Each call returns at once.

    All but `commit` raise nothing: where the membership cannot be read, nothing is planned.
    """

    @property
    def member(self) -> str:
        """The id of this process."""

    @property
    def joins(self) -> int | None:
        """The generation that this process was started for; None for one of the first generation."""

    @property
    def host(self) -> str | None:
        """The address by which the others reach this process; None where all meet in a file."""

    def planned(self, after: int) -> Generation | None:
        """Return the plan of a generation after number `after`, once its newcomers are ready.

        Also where it is committed and the answer was lost.
        """

    def announced(self, after: int) -> Generation | None:
        """Return the plan of a generation after number `after` whose newcomers may not be ready yet.

        None where a plan is shown only once they are.
        """

    def commit(self, number: int, meeting: str | None = None) -> bool:
        """Commit a planned generation; False if the plan was withdrawn before. Only rank 0 calls it.

        Its members meet at the address `meeting`; None where they meet in a file. It can be repeated with the
        same address. Raises `StoreUnavailable` where it is not known whether it is committed.
        """

    def committed(self, number: int) -> Generation | None:
        """Return a generation once it is committed."""

    def is_given_up(self, number: int) -> bool:
        """Return whether a generation was given up: its plan withdrawn, or one of its members has ended."""

    def report_ready(self) -> None:
        """Report that this newcomer has imported, built and loaded what it can, and waits."""

    def report_regrouped(self, number: int, *, standstill_s: float) -> None:
        """Report the first step of a generation, `standstill_s` after the last of the one before."""

    def refuse(self, number: int, reason: str) -> None:
        """Report why this script cannot form a generation, so that its plan is withdrawn.

        Number 0 stands for every generation. A newcomer that fails reports the reason in the same way.
        """

    def close(self, *, timeout_s: float) -> None:
        """Send what is still to be said, waiting `timeout_s` at most: the process ends."""
