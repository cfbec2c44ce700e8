"""How many jobs may be on the move at a time, in all and of one user. Pure but for what is taken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable


class Slots:
    """`daemon.max_in_flight` moves at a time, of which one user has at most half where several have jobs.

    A job that is asked for a checkpoint and does not answer keeps its slot for minutes. What a user has
    beyond the half, because nobody else had jobs when it began, is in nobody's way.
    """

    def __init__(self, most: int, *, users: Collection[str], taken_by: Iterable[str]) -> None:
        self._most = most
        self._most_of_one = most if len(set(users)) <= 1 else max(most // 2, 1)
        self._taken = Counter(taken_by)

    def has_room_for(self, user: str) -> bool:
        """Whether another job of `user` may begin to move."""
        taken = sum(min(count, self._most_of_one) for count in self._taken.values())
        return taken < self._most and self._taken[user] < self._most_of_one

    def take(self, user: str) -> None:
        """Count another job of `user`, which moves."""
        self._taken[user] += 1
