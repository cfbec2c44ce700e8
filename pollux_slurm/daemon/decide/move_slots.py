"""How many moves run at a time: slots in total, of one user, and for jobs that may not answer. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import NamedTuple


class Mover(NamedTuple):
    """The user of a moving job, and whether the job may not answer (`unanswered_requests`)."""

    user: str
    may_not_answer: bool = False


class Slots:
    """Counts concurrent moves against `daemon.max_in_flight`.

    One user has at most half of the slots, where several users have jobs. A job that does not answer a
    checkpoint request keeps its slot for minutes, so jobs that may not answer have at most a quarter. Moves
    above these shares, which began before this was known, do not count against other jobs.
    """

    def __init__(self, max_moves: int, *, users: Collection[str], taken_by: Iterable[Mover]) -> None:
        self._max = max_moves
        self._max_of_user = max_moves if len(set(users)) <= 1 else max(max_moves // 2, 1)
        self._max_not_answering = max(max_moves // 4, 1)
        self._taken = Counter(taken_by)

    def has_room_for(self, mover: Mover) -> bool:
        """Whether another such job may start to move."""
        if self.are_used_up or (mover.may_not_answer and self._not_answering >= self._max_not_answering):
            return False
        return self.user_has_room(mover.user)

    @property
    def are_used_up(self) -> bool:
        """Whether no job of anybody may start to move."""
        others = sum(
            min(count, self._max_of_user) for taken, count in self._taken.items() if not taken.may_not_answer
        )
        return others + min(self._not_answering, self._max_not_answering) >= self._max

    @property
    def _not_answering(self) -> int:
        return sum(count for taken, count in self._taken.items() if taken.may_not_answer)

    def user_has_room(self, user: str) -> bool:
        """Whether the user's own share has room for another move."""
        return self._taken[Mover(user, True)] + self._taken[Mover(user, False)] < self._max_of_user

    def take(self, mover: Mover) -> None:
        """Count another moving job."""
        self._taken[mover] += 1
