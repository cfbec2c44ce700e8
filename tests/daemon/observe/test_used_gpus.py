"""The memory of a daemon's shares: from the store at first, then by rounds."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta

import pytest

from pollux_slurm.config import PolicyConfig
from pollux_slurm.daemon.observe.used_gpus import UsedGpusCounter
from pollux_slurm.model import Problem
from pollux_slurm.store.contract.interface import Store
from tests.daemon.harness import Harness
from tests.policy.builders import job, nodes, problem
from tests.store.builders import at
from tests.store.contract.test_used_gpus import HOUR_S, run

WEEK_S = 7 * 86400.0
BOB = {"user_name": "bob", "user_id": 1002, "account": "speech"}


def shared(between: str = "users", gpus: int = 0) -> Problem:
    jobs = (job("1", {"n0": gpus}, user="ada", account="vision"), job("2", user="bob", account="vision"))
    return problem(nodes(1), *jobs, between=between)


def shares(counter: UsedGpusCounter, one: Problem, now: datetime) -> list[float]:
    return [job.share for job in counter.with_shares(one, WEEK_S, now).jobs]


def fill(store: Store) -> None:
    """Let ada use three times the GPUs of bob."""
    run(store, 1, 6, 0.0, HOUR_S)
    run(store, 2, 2, 0.0, HOUR_S, **BOB)


def test_that_shares_begin_with_what_the_store_has(clean_store: Store) -> None:
    fill(clean_store)
    counter = UsedGpusCounter(clean_store)
    assert shares(counter, shared(), at(2 * HOUR_S)) == pytest.approx([0.25, 1.75])
    one = dataclasses.replace(shared("accounts"), jobs=shared().jobs)
    assert shares(counter, one, at(2 * HOUR_S)) == pytest.approx([1.0, 1.0])


def test_that_a_restart_of_the_daemon_changes_no_share(clean_store: Store) -> None:
    run(clean_store, 1, 2, 0.0, HOUR_S)
    run(clean_store, 2, 4, 0.0, HOUR_S, **BOB)
    run(clean_store, 3, 2, HOUR_S, None)
    before = UsedGpusCounter(clean_store)
    found = [shares(before, shared(gpus=2), at(HOUR_S + 60.0 * minute)) for minute in range(60)]
    assert found[0] == pytest.approx([1.75, 0.25])
    assert found[-1] == pytest.approx([1.0, 1.0], abs=0.03)
    after = UsedGpusCounter(clean_store)
    assert shares(after, shared(gpus=2), at(HOUR_S + 59 * 60.0)) == pytest.approx(found[-1], abs=0.01)


def test_that_the_store_is_read_once_an_hour(clean_store: Store) -> None:
    counter = UsedGpusCounter(clean_store)
    assert shares(counter, shared(), at(HOUR_S)) == [1.0, 1.0]
    fill(clean_store)
    assert shares(counter, shared(), at(HOUR_S) + timedelta(minutes=59)) == [1.0, 1.0]
    assert shares(counter, shared(), at(HOUR_S) + timedelta(minutes=60)) == pytest.approx([0.25, 1.75])


def test_that_without_a_half_life_the_problem_is_the_same_object(clean_store: Store) -> None:
    fill(clean_store)
    one = shared()
    assert UsedGpusCounter(clean_store).with_shares(one, None, at(HOUR_S)) is one


@pytest.mark.parametrize(("half_life", "expected"), [(None, [1.0, 1.0]), ("7d", [0.25, 1.75])])
def test_that_a_daemon_decides_by_used_gpus_where_a_half_life_is_set(
    harness: Harness, half_life: str | None, expected: list[float]
) -> None:
    for user, user_id in (("ada", 1001), ("bob", 1002)):
        harness.slurm.set_job(harness.submit(user_id=user_id), user_name=user)
    ago_s = (harness.clock.now - at(0)).total_seconds() - 2 * HOUR_S
    run(harness.store, 901, 6, ago_s, ago_s + HOUR_S)
    run(harness.store, 902, 2, ago_s, ago_s + HOUR_S, **BOB)
    daemon = harness.daemon(policy=PolicyConfig(share_half_life=half_life))
    assert daemon.round().skipped is None
    jobs = harness.store.rounds.problem()[0].jobs
    assert [job.share for job in jobs] == pytest.approx(expected, rel=1e-3)
