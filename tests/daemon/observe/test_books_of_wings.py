"""What is booked of a job that moves in place, whatever its wings do and whenever rounds read Slurm."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import pytest

from pollux_slurm.daemon.observe import cluster_picture
from pollux_slurm.model import Allocation, JobState, JobTerms, SlurmJob
from pollux_slurm.slurm.parsing.comment_terms import encode_comment
from pollux_slurm.slurm.parsing.merged_wings import merge_wings
from pollux_slurm.slurm.parsing.wing_comment import WingTerms, encode_wing_comment
from pollux_slurm.store.contract.interface import Store
from tests.daemon.builders import NOON, job, node, snapshot

TERMS = JobTerms(token_sha256="ab" * 32, user_id=1000, in_place=True)
MIN_JOB_AGE_S = 300.0
NUM_STARTS = 3
START_S = 1000.0


@dataclass(frozen=True, slots=True)
class Wing:
    """It runs from `begin` to `end`, in seconds after noon; Slurm shows whole seconds."""

    number: int
    restart: int
    begin: float
    end: float
    gpus: int
    node: str

    @property
    def counted_s(self) -> int:
        return int(self.end) - int(self.begin)

    def shown(self, now: float) -> SlurmJob | None:
        """Return the job that a read shows, None before its start and once it is forgotten."""
        if not self.begin <= now < self.end + MIN_JOB_AGE_S:
            return None
        terms = WingTerms(
            anchor_id="1", restart_count=self.restart, plan=self.number, token_sha256=TERMS.token_sha256
        )
        on = {self.node: self.gpus}
        is_over = self.end <= now
        return job(
            str(self.number),
            JobState.COMPLETED if is_over else JobState.RUNNING,
            on={} if is_over else on,
            last_allocation=Allocation.of(on if is_over else {}),
            comment=encode_wing_comment(terms),
            started_at=second(self.begin),
            ended_at=second(self.end) if is_over else None,
        )


def second(seconds: float) -> datetime:
    return NOON + timedelta(seconds=int(seconds))


def random_wings(source: random.Random, *, is_hasty: bool) -> list[Wing]:
    """Return the wings of some starts. At least one of a start runs until it ends, as one must be kept.

    With `is_hasty`, many begin and end within the same seconds.
    """
    found: list[Wing] = []

    def add(restart: int, begin: float, end: float) -> None:
        place = f"n{source.randrange(3)}"
        found.append(Wing(len(found) + 2, restart, begin, end, source.randrange(1, 4), place))

    for restart in range(NUM_STARTS):
        begun = restart * START_S + source.uniform(0.0, 50.0)
        lasts_s = 6.0 if is_hasty else 700.0
        add(restart, begun, begun + lasts_s)
        for _ in range(source.randrange(8)):
            begin = source.uniform(begun, begun + lasts_s)
            add(restart, begin, source.uniform(begin, begun + lasts_s))
    return found


def look(store: Store, wings: list[Wing], now: float) -> None:
    """Let a round read Slurm."""
    shown = [found for wing in wings if (found := wing.shown(now)) is not None]
    anchor = job("1", comment=encode_comment("", TERMS))
    at = NOON + timedelta(seconds=now)
    read = merge_wings(replace(snapshot([node("n0")], [anchor, *shown]), read_at=at))
    store.jobs.register(cluster_picture.registrations(read), at=at)
    seen, _ = cluster_picture.observations(read, store.jobs.active(), vanished_before=frozenset())
    store.jobs.observe(seen, at=at)


def booked(store: Store) -> dict[int | None, float]:
    """Return the GPU seconds of each start."""
    total: Counter[int | None] = Counter()
    for one in store.history.allocations("1"):
        assert one.ended_at is not None
        total[one.restart_count] += one.allocation.num_gpus * int(
            (one.ended_at - one.started_at).total_seconds()
        )
    return dict(total)


@pytest.mark.parametrize(
    ("seed", "is_hasty"),
    [
        pytest.param(seed, is_hasty, marks=[] if seed < few else [pytest.mark.full])
        for is_hasty, few, many in ((False, 3, 15), (True, 1, 5))
        for seed in range(many)
    ],
)
def test_that_gpu_seconds_are_those_of_the_wings_by_slurm(store: Store, seed: int, is_hasty: bool) -> None:
    source = random.Random(seed)
    wings = random_wings(source, is_hasty=is_hasty)
    now = source.uniform(0.0, 10.0)
    while now < NUM_STARTS * START_S + MIN_JOB_AGE_S:
        look(store, wings, now)
        is_busy = is_hasty and now % START_S < 60.0
        now += source.uniform(0.0, 1.0 if is_busy else MIN_JOB_AGE_S * 0.9)
    counted: Counter[int | None] = Counter()
    for wing in wings:
        counted[wing.restart] += wing.gpus * wing.counted_s
    assert booked(store) == dict(counted)
    assert not any(one.estimated for one in store.history.allocations("1"))
