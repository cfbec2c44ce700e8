"""How many jobs may be on the move at a time, in all, of one user, and of those that may not answer. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import NamedTuple


class Mover(NamedTuple):
    """Whose job moves, or is to move, and whether it may not answer (`unanswered_requests`)."""

    user: str
    is_doubtful: bool = False


class Slots:
    """`daemon.max_in_flight` moves at a time, of which one user has at most half where several have jobs.

    A job that is asked for a checkpoint and does not answer keeps its slot for minutes. So those that may
    not answer have at most a quarter of the slots, whosever they are. What a user, or they, have beyond
    that, because it was not known when they began, is in nobody's way.
    """

    def __init__(self, most: int, *, users: Collection[str], taken_by: Iterable[Mover]) -> None:
        self._most = most
        self._most_of_one = most if len(set(users)) <= 1 else max(most // 2, 1)
        self._most_doubtful = max(most // 4, 1)
        self._taken = Counter(taken_by)

    def has_room_for(self, mover: Mover) -> bool:
        """Whether another such job may begin to move."""
        doubtful = sum(count for taken, count in self._taken.items() if taken.is_doubtful)
        others = sum(
            min(count, self._most_of_one) for taken, count in self._taken.items() if not taken.is_doubtful
        )
        if mover.is_doubtful and doubtful >= self._most_doubtful:
            return False
        return others + min(doubtful, self._most_doubtful) < self._most and self.has_own_room_for(mover.user)

    def has_own_room_for(self, user: str) -> bool:
        """Whether another job of the user may begin, as far as only the user's others are looked at."""
        return self._taken[Mover(user, True)] + self._taken[Mover(user, False)] < self._most_of_one

    def take(self, mover: Mover) -> None:
        """Count another job, which moves."""
        self._taken[mover] += 1
