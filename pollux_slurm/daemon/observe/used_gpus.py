"""Shares with memory: what users used is read from the store hourly, and counted by rounds in between."""

from __future__ import annotations

from datetime import datetime, timedelta

from pollux_slurm.model import Problem
from pollux_slurm.policy.participation.share_memory import ShareMemory
from pollux_slurm.policy.participation.user_shares import group_named
from pollux_slurm.store.contract.interface import Store

# The store has what rounds miss: other daemons' rounds, skipped ones, and corrections from Slurm's accounts.
READ_EVERY = timedelta(hours=1)
# After so many half-lives, 3 % still count.
_HALF_LIVES = 5


class UsedGpusCounter:
    """Keeps the memory of a daemon's shares."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._memory: ShareMemory | None = None
        # The settings of the memory, and when to read the store again.
        self._settings: tuple[float, str] | None = None
        self._until: datetime | None = None

    def with_shares(self, problem: Problem, half_life_s: float | None, now: datetime) -> Problem:
        """Return the problem with the shares of users, or accounts; as it is where `half_life_s` is None."""
        if half_life_s is None:
            return problem
        settings = (half_life_s, problem.objective.between)
        if self._memory is None or self._settings != settings or self._until is None or now >= self._until:
            self._memory = self._read(*settings, now)
            self._settings, self._until = settings, now + READ_EVERY
        return self._memory.with_shares(problem, now.timestamp())

    def _read(self, half_life_s: float, between: str, now: datetime) -> ShareMemory:
        memory = ShareMemory(half_life_s, at_s=now.timestamp())
        since = now - timedelta(seconds=_HALF_LIVES * half_life_s)
        for used in self._store.jobs.used_gpus(since=since, at=now):
            name = group_named(used.account, used.user_name, between)
            if name is not None:
                begin_s, end_s = used.since.timestamp(), used.until.timestamp()
                memory.add(name, used.gpu_s, since_s=begin_s, until_s=end_s)
        return memory
