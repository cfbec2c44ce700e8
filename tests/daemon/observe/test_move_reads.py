from __future__ import annotations

import contextlib
from collections.abc import Collection
from datetime import timedelta

from pollux_slurm.daemon.observe.move_reads import MoveReads
from pollux_slurm.errors import SlurmUnavailable
from pollux_slurm.model import ClusterSnapshot, ReallocationStep
from pollux_slurm.store.contract.interface import Reallocation
from tests.daemon.builders import NOON, reallocation, snapshot


class Reads:
    """A Slurm of which each read takes `takes_s`; `asked` are the jobs asked for."""

    def __init__(self, takes_s: float = 0.0) -> None:
        self.now_s, self.takes_s, self.fails = 0.0, takes_s, False
        self.asked: list[list[str]] = []
        self.reads = MoveReads(
            self,  # type: ignore[arg-type]
            clock=lambda: NOON + timedelta(seconds=self.now_s),
            monotonic=lambda: self.now_s,
        )

    def refresh(self, job_ids: Collection[str] | None = None) -> ClusterSnapshot:
        assert job_ids is not None
        self.asked.append(sorted(job_ids))
        self.now_s += self.takes_s
        if self.fails:
            raise SlurmUnavailable("busy")
        return snapshot([], [])

    def ticks(self, *moves: Reallocation, seconds: float) -> int:
        """Tick each half second; return how often Slurm was read."""
        before, until = len(self.asked), self.now_s + seconds
        while self.now_s < until:
            with contextlib.suppress(SlurmUnavailable):
                self.reads.read(moves)
            self.now_s += 0.5
        return len(self.asked) - before


def at(step: ReallocationStep, job_id: str = "1") -> Reallocation:
    return reallocation(1, job_id, step, source={"n0": 1}, target={"n0": 2})


def test_that_only_the_moving_jobs_are_read() -> None:
    slurm = Reads()
    slurm.reads.read([at(ReallocationStep.REQUEUED), at(ReallocationStep.RUNNING, "2")], ["7"])
    assert slurm.asked == [["1", "2", "7"]]
    assert [slurm.reads.has_read(job_id) for job_id in ("1", "2", "3")] == [True, True, False]


def test_that_a_job_that_trains_is_read_every_three_seconds_and_a_stopped_one_at_each_tick() -> None:
    assert Reads().ticks(at(ReallocationStep.REQUEUED), seconds=12) == 24
    for step in (ReallocationStep.CHECKPOINT_REQUESTED, ReallocationStep.RUNNING):
        assert Reads().ticks(at(step), seconds=12) == 4
    slurm = Reads()
    slurm.ticks(at(ReallocationStep.CHECKPOINT_REQUESTED), seconds=1)
    assert slurm.ticks(at(ReallocationStep.CHECKPOINTED), seconds=1) == 2


def test_that_after_a_round_jobs_that_train_are_read_at_once() -> None:
    slurm = Reads()
    slurm.ticks(at(ReallocationStep.CHECKPOINT_REQUESTED), seconds=1)
    slurm.reads.read([at(ReallocationStep.CHECKPOINT_REQUESTED)], at_once=True)
    assert len(slurm.asked) == 2


def test_that_a_released_job_is_not_looked_for_before_it_may_start() -> None:
    """It was released at second 0, and begins two seconds later at the soonest."""
    slurm = Reads()
    slurm.reads.read([at(ReallocationStep.RESHAPED)])
    assert slurm.ticks(at(ReallocationStep.RELEASED), seconds=2) == 0
    assert slurm.ticks(at(ReallocationStep.RELEASED), seconds=2) == 4


def test_that_the_pause_after_a_read_is_four_times_what_it_took() -> None:
    assert Reads(takes_s=2.0).ticks(at(ReallocationStep.REQUEUED), seconds=100) == 10


def test_that_a_failed_read_is_followed_by_as_long_a_pause_and_shows_nothing() -> None:
    slurm = Reads(takes_s=2.0)
    slurm.reads.read([at(ReallocationStep.REQUEUED)])
    slurm.fails = True
    assert slurm.ticks(at(ReallocationStep.REQUEUED), seconds=100) == 10
    assert not slurm.reads.has_read("1")


def test_that_the_nodes_are_read_while_no_move_is_open() -> None:
    """As a place that is still reserved is to be given back."""
    assert Reads().ticks(seconds=12) == 4
