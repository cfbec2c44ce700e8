"""Plans that finish jobs in time: the least level, what others leave, delays, and who is late."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollux_slurm.policy.promises.plans import Need, Plan, Pool, earliest_plan, least_plan, plan_all

# GPUs, and work done a second.
RATES = ((1, 1.0), (2, 2.0), (4, 3.0))


def need(work: float, by_s: float, job_id: str = "a", **fields: Any) -> Need:
    return Need(job_id=job_id, work=work, finish_by_s=by_s, rates=RATES, **fields)


def test_that_a_job_gets_the_least_gpus_that_finish_it_in_time() -> None:
    assert least_plan(need(100, 100), [Pool(8)]) == Plan(finish_s=100, spans=((0, 100, 1),))
    assert least_plan(need(100, 99), [Pool(8)]) == Plan(finish_s=50, spans=((0, 50, 2),))
    assert least_plan(need(100, 33), [Pool(8)]) is None
    assert least_plan(need(100, 49), [Pool(3)]) is None


def test_that_a_job_has_gpus_for_no_longer_than_its_time_limit_leaves() -> None:
    pool = Pool(4)
    pool.take([(10, 60, 4)])
    # What it waits does not count: one GPU for 10 s, and from 60 s on.
    assert least_plan(need(40, 90, time_left_s=40), [pool]) == Plan(
        finish_s=90, spans=((0, 10, 1), (60, 90, 1))
    )
    assert least_plan(need(40, 90, time_left_s=39), [pool]) == Plan(
        finish_s=70, spans=((0, 10, 2), (60, 70, 2))
    )
    assert least_plan(need(40, 90, time_left_s=13), [pool]) is None
    assert earliest_plan(need(40, 90, time_left_s=13), [pool]).runs_s == pytest.approx(40 / 3)


def test_that_a_change_of_size_costs_its_delay() -> None:
    assert least_plan(need(100, 60, delay_s=15.0), [Pool(8)]) == Plan(
        finish_s=15 + 100 / 3, spans=((0, 15 + 100 / 3, 4),)
    )
    assert least_plan(need(100, 60, delay_s=15.0, num_gpus=2), [Pool(8)]) == Plan(
        finish_s=50, spans=((0, 50, 2),)
    )


def test_that_a_job_takes_fewer_gpus_while_others_have_them() -> None:
    pool = Pool(4)
    pool.take([(0, 30, 3)])
    found = least_plan(need(100, 70, num_gpus=1, delay_s=5.0), [pool])
    # One GPU for 30 s, a delay of 5 s, two GPUs for 35 s.
    assert found == Plan(finish_s=70, spans=((0, 30, 1), (30, 70, 2)))
    pool.take([(0, 30, 1)])
    assert least_plan(need(60, 60), [pool]) == Plan(finish_s=60, spans=((30, 60, 2),))
    assert earliest_plan(need(60, 50), [pool]).finish_s == 50
    assert Plan(finish_s=60, spans=((30, 60, 2),)).gpus_now == 0


def test_that_a_job_stays_within_each_of_its_pools() -> None:
    share, limit = Pool(4), Pool(2)
    share.take([(50, 100, 3)])
    assert earliest_plan(need(150, 0), [share, limit]).spans == ((0, 50, 2), (50, 100, 1))
    assert earliest_plan(need(1, 0), [share, Pool(0)]).finish_s == math.inf


def test_that_earlier_moments_are_planned_first_and_late_jobs_last() -> None:
    pool = Pool(4)
    jobs = [need(200, 200, "later"), need(100, 40, "soon"), need(1000, 20, "late")]
    found = plan_all(jobs, {job.job_id: [pool] for job in jobs})
    assert found["soon"].spans == ((0, 100 / 3, 4),)
    # It waits, then has two GPUs; one would finish it after 200 s.
    assert found["later"] == Plan(finish_s=100 / 3 + 100, spans=((100 / 3, 100 / 3 + 100, 2),))
    assert found["late"].spans[0] == (100 / 3, 100 / 3 + 100, 2)
    assert found["late"].spans[1][2] == 4


def finish_by_seconds(one: Need, level: int, free: list[int]) -> int | None:
    """Return the second in which a job of one level is finished, second by second."""
    left, has, waits = one.work, one.num_gpus, 0.0
    for second in range(10_000):
        room = min(level, free[min(second, len(free) - 1)])
        size, rate = max([(0, 0.0), *(pair for pair in one.rates if pair[0] <= room)])
        if size not in (0, has):
            waits = one.delay_s
        has = size
        if size and waits > 0:
            waits -= 1
        elif size:
            left -= rate
            if left <= 0:
                return second + 1
    return None


@given(
    free=st.lists(st.integers(0, 6), min_size=1, max_size=8),
    work=st.integers(1, 60),
    by_s=st.integers(1, 60),
    has=st.sampled_from([0, 1, 2, 4]),
)
def test_that_plans_agree_with_a_walk_through_the_seconds(
    free: list[int], work: int, by_s: int, has: int
) -> None:
    one = need(float(work), float(by_s), num_gpus=has)
    pool = Pool(6)
    for second, gpus in enumerate(free):
        end = math.inf if second == len(free) - 1 else second + 1
        pool.take([(second, end, 6 - gpus)])
    walked = [finish_by_seconds(one, level, free) for level, _ in RATES]
    best = min((end for end in walked if end is not None), default=None)
    found = earliest_plan(one, [pool]).finish_s
    assert (math.ceil(found - 1e-9) if math.isfinite(found) else None) == best
    least = least_plan(one, [pool])
    assert (least is not None) == (best is not None and best <= by_s)
