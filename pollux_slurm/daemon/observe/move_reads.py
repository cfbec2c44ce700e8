"""When a tick reads Slurm, and what: the moving jobs and the nodes alone, and no more often than they need.

Where thousands of jobs wait, even these cost slurmctld a while. So the pause after a read is a multiple of
what it took. A job that trains is waited for in the store: its ticks go on with the last read for some
seconds. One that was released does not start before its begin time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime, timedelta

from pollux_slurm.daemon.observe.events import PAUSE_PER_READ
from pollux_slurm.model import ClusterSnapshot, ReallocationStep
from pollux_slurm.slurm.client import SlurmClient
from pollux_slurm.slurm.commands.command_client import START_DELAY_S
from pollux_slurm.store.contract.interface import Reallocation

# Steps of a job that trains; the store shows when it goes on. Its end, or a requeue by others, is noticed
# after this long.
_TRAINING = (ReallocationStep.CHECKPOINT_REQUESTED, ReallocationStep.RUNNING)
_TRAINING_READ_S = 3.0


class MoveReads:
    """The reads of one daemon's ticks."""

    def __init__(
        self, slurm: SlurmClient, *, clock: Callable[[], datetime], monotonic: Callable[[], float]
    ) -> None:
        self._slurm, self._clock, self._monotonic = slurm, clock, monotonic
        self._last: ClusterSnapshot | None = None
        self._read_ids: frozenset[str] = frozenset()
        self._others: frozenset[str] = frozenset()
        self._read_at = self._not_before = float("-inf")

    def read(
        self, moves: Collection[Reallocation], others: Collection[str] = (), *, at_once: bool = False
    ) -> ClusterSnapshot | None:
        """Return the cluster with these moves' jobs, and `others`, as they are; None where it is too soon.

        `at_once` reads them also where all train: a round has recorded what it saw of them.
        """
        now = self._monotonic()
        job_ids = frozenset(move.slurm_job_id for move in moves)
        may_wait = not (others or at_once) and job_ids <= self._read_ids and self._last is not None
        if (
            may_wait
            and all(move.step in _TRAINING for move in moves)
            and now < self._read_at + _TRAINING_READ_S
        ):
            return self._last
        if now < self._not_before or (may_wait and self._none_starts(moves)):
            return None
        # What a failed read asked for is not as it is.
        self._read_ids = self._others = frozenset()
        try:
            self._last = self._slurm.refresh(job_ids.union(others))
            self._read_ids, self._others = job_ids, frozenset(others)
        finally:
            self._read_at = self._monotonic()
            self._not_before = self._read_at + PAUSE_PER_READ * (self._read_at - now)
        return self._last

    def read_again(self) -> ClusterSnapshot:
        """Read at once what was read last."""
        self._last = self._slurm.refresh(self._read_ids | self._others)
        return self._last

    def has_read(self, job_id: str) -> bool:
        """Whether the last read asked for this job."""
        return job_id in self._read_ids

    def _none_starts(self, moves: Collection[Reallocation]) -> bool:
        """Whether all moves are releases whose job may not start yet."""
        since = self._clock() - timedelta(seconds=START_DELAY_S)
        return bool(moves) and all(
            move.step is ReallocationStep.RELEASED
            and move.moves_running
            and (move.entered_at(ReallocationStep.RELEASED) or since) > since
            for move in moves
        )
